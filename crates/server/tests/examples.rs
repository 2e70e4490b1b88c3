//! Runs the examples, the README and the tutorial with the real binary.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use common::Folder;
use steprail_core::diagnostic::Diagnostics;
use steprail_core::document::{self, Data};
use steprail_core::plan::Kind;
use steprail_core::source::Source;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The names of the tools that a definition commands.
fn tools_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let plan = steprail_core::load(&Source::new(path.display().to_string(), text)).plan.unwrap();
    let calls = plan
        .steps
        .iter()
        .filter_map(|step| if let Kind::Call(call) = &step.kind { Some(call) } else { None });
    let names = calls.flat_map(|call| [Some(call.full_name()), call.verify.as_ref().map(|v| v.tool.clone())]);
    names.flatten().map(String::from).collect()
}

/// The scripted tools of the examples, without delays.
fn example_script() -> String {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/tools.yaml")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("  sleep:"));
    let without_sleep = |line: &str| match line.split_once(", sleep: ") {
        Some((before, after)) => format!("{before}{}\n", &after[after.find("ms").unwrap() + 2..]),
        None => format!("{line}\n"),
    };
    lines.map(without_sleep).collect()
}

/// The examples with their arguments and exit codes: 0, or 3 for a run that waits for a human.
const RUNS: &[(&str, &str, i32)] = &[
    (
        "invoice.yaml",
        "--input customer=kim@example.com --input lines=[{\"item\":\"desk\",\"price\":99.5,\"count\":3}]",
        0,
    ),
    ("incident_triage.yaml", "--input service=shop --input alert_id=A1", 0),
    (
        "nightly_sync.yaml",
        "--input source=crm --input since=2026-01-01T00:00:00Z --signal warehouse.loaded={\"source\":\"crm\"}",
        0,
    ),
    ("refund_with_approval.json", "--input order_id=o-1", 3),
    ("research_digest.yaml", "--input topic=rails", 3),
    ("vendor_intake.yaml", "--input vendor=acme --input date=2026-01-02", 3),
    ("forms/admin_branch.json", "", 0),
    ("forms/approval_gate.yaml", "", 3),
    ("forms/gated_write.json", "--input title=t --input body=b", 3),
    ("forms/research.json", "--input topic=rails --input doc_id=doc-1", 0),
    ("forms/search_and_mail.json", "", 0),
    ("forms/step_policies.yaml", "--input scene_id=s --input frame_range=1-9", 0),
    ("forms/vendor_intake.yaml", "--input date=2026-01-02", 0),
];

#[test]
fn every_example_runs() {
    let folder = Folder::with(&[("tools.yaml", &example_script())]);
    let commands = RUNS.iter().map(|(file, inputs, code)| {
        let child = folder
            .command(&format!("run {EXAMPLES}/workflows/{file} {inputs} --tools tools.yaml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (file, code, child)
    });
    for (file, code, child) in commands.collect::<Vec<_>>() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(*code), "{file}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(RUNS.len(), examples().len(), "an example is missing here");
}

/// The files of the example definitions.
fn examples() -> Vec<std::path::PathBuf> {
    let folders = [format!("{EXAMPLES}/workflows"), format!("{EXAMPLES}/workflows/forms")];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
    files.map(|file| file.path()).filter(|path| path.is_file()).collect()
}

#[test]
fn script_defines_every_tool_of_the_examples() {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/tools.yaml")).unwrap();
    let script = document::read(&Source::new("tools.yaml", text), &mut Diagnostics::default()).unwrap();
    let Data::Map(tools) = &script.data else { panic!("the script is not a map") };
    for file in examples() {
        for tool in tools_of(&file) {
            assert!(tools.iter().any(|entry| *entry.key == *tool), "{tool} of {}", file.display());
        }
    }
}

/// The block of the README that contains a text.
fn readme_block(text: &str) -> String {
    let readme = std::fs::read_to_string(format!("{EXAMPLES}/../README.md")).unwrap();
    let mut blocks = readme.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains(text)).unwrap().to_owned()
}

/// The words of a text, without durations and run ids.
fn words(text: &str) -> Vec<&str> {
    let is_variable =
        |word: &&str| word.ends_with("ms") || word.ends_with('s') && word.starts_with(char::is_numeric);
    text.split_whitespace().filter(|word| !is_variable(word) && word.len() != 36).collect()
}

#[test]
fn readme_output_matches_the_binary() {
    let folder = Folder::with(&[("tools.yaml", &example_script())]);
    let triage = "--input service=checkout --input alert_id=A1";
    let commands = [
        ("incident_triage completed", format!("run {EXAMPLES}/workflows/incident_triage.yaml {triage}")),
        (
            "refund_with_approval paused",
            format!("run {EXAMPLES}/workflows/refund_with_approval.json --input order_id=o-1 --db refund.db"),
        ),
        ("refund_with_approval completed", "resume --db refund.db --approve ask --as lea".to_owned()),
    ];
    for (title, arguments) in commands {
        let documented = readme_block(title);
        let printed = folder.run(&format!("{arguments} --tools tools.yaml"));
        let (progress, summary) = printed.split_once("--- stdout\n").unwrap();
        for step in documented.lines().filter_map(|line| line.strip_prefix("✓ ")) {
            let name = step.split(' ').next().unwrap();
            assert!(progress.contains(&format!("done {name} ")), "{name} in {progress}");
        }
        let summary = summary.split("--- exit").next().unwrap();
        let (_, documented) = documented.split_once(title).unwrap();
        let documented = documented.split("`ask` waits").next().unwrap();
        assert_eq!(words(&format!("{title}{documented}")), words(summary));
    }
}

/// Runs the commands of the tutorial: the daemon in one process, the other blocks in a shell.
#[test]
fn commands_of_the_tutorial_succeed() {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/../docs/tutorial.md")).unwrap();
    let blocks: Vec<&str> =
        text.split("```sh").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    // The first block builds the binary.
    let (serve, others): (Vec<&str>, Vec<&str>) =
        blocks[1..].iter().partition(|block| block.starts_with(" serve"));
    let serve = serve[0].trim_start_matches(" serve").trim();
    let folder = Folder::with(&[]);
    let bin = Path::new(env!("CARGO_BIN_EXE_steprail")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let shell = |script: &str| {
        let mut command = std::process::Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(folder.0.path()).env("PATH", &path);
        command.env("HOME", folder.0.path()).env_remove("STEPRAIL_DATA").stdin(Stdio::null());
        command
    };
    // The default port may be in use by another test.
    let mut daemon =
        shell(&format!("exec {serve} --listen 127.0.0.1:0")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"), "the server of the tutorial did not start");
    let output = shell(&others.concat()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("digest completed"), "{}", text(&output.stdout));
}
