//! The examples and the README: what they promise is what the real binary does.

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

/// The names of the tools that a definition calls.
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

/// The example script without its waiting times.
fn example_script() -> String {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/tools.yaml")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("  sleep:"));
    let at_once = |line: &str| match line.split_once(", sleep: ") {
        Some((before, after)) => format!("{before}{}\n", &after[after.find("ms").unwrap() + 2..]),
        None => format!("{line}\n"),
    };
    lines.map(at_once).collect()
}

/// The examples with what they are run with, and the exit code: 0, or 3 where they ask a human.
const RUNS: &[(&str, &str, i32)] = &[
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
    let calls = RUNS.iter().map(|(file, inputs, code)| {
        let call = folder
            .command(&format!("run {EXAMPLES}/workflows/{file} {inputs} --tools tools.yaml"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (file, code, call)
    });
    for (file, code, call) in calls.collect::<Vec<_>>() {
        let output = call.wait_with_output().unwrap();
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
fn the_example_script_has_every_tool_of_the_examples() {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/tools.yaml")).unwrap();
    let script = document::read(&Source::new("tools.yaml", text), &mut Diagnostics::default()).unwrap();
    let Data::Map(tools) = &script.data else { panic!("a script is a map") };
    for file in examples() {
        for tool in tools_of(&file) {
            assert!(tools.iter().any(|entry| *entry.key == *tool), "{tool} of {}", file.display());
        }
    }
}

/// The block of the README that holds some text.
fn readme_block(holds: &str) -> String {
    let readme = std::fs::read_to_string(format!("{EXAMPLES}/../README.md")).unwrap();
    let mut blocks = readme.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.find(|block| block.contains(holds)).unwrap().to_owned()
}

/// The words of a text, without those that differ each time.
fn words(text: &str) -> Vec<&str> {
    let varies =
        |word: &&str| word.ends_with("ms") || word.ends_with('s') && word.starts_with(char::is_numeric);
    text.split_whitespace().filter(|word| !varies(word) && word.len() != 36).collect()
}

#[test]
fn the_readme_shows_what_is_printed() {
    let folder = Folder::with(&[("tools.yaml", &example_script())]);
    let triage = "--input service=checkout --input alert_id=A1";
    let calls = [
        ("incident_triage completed", format!("run {EXAMPLES}/workflows/incident_triage.yaml {triage}")),
        (
            "refund_with_approval paused",
            format!("run {EXAMPLES}/workflows/refund_with_approval.json --input order_id=o-1 --db refund.db"),
        ),
        ("refund_with_approval completed", "resume --db refund.db --approve ask --as lea".to_owned()),
    ];
    for (title, arguments) in calls {
        let promised = readme_block(title);
        let printed = folder.run(&format!("{arguments} --tools tools.yaml"));
        let (told, concluded) = printed.split_once("--- stdout\n").unwrap();
        for step in promised.lines().filter_map(|line| line.strip_prefix("✓ ")) {
            let name = step.split(' ').next().unwrap();
            assert!(told.contains(&format!("done {name} ")), "{name} in {told}");
        }
        let concluded = concluded.split("--- exit").next().unwrap();
        let (_, promised) = promised.split_once(title).unwrap();
        let promised = promised.split("`ask` waits").next().unwrap();
        assert_eq!(words(&format!("{title}{promised}")), words(concluded));
    }
}

/// The tutorial, as somebody follows it: one terminal serves, the other does what every block says.
#[test]
fn the_tutorial_works() {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/../docs/tutorial.md")).unwrap();
    let blocks: Vec<&str> =
        text.split("```sh").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    // What builds it was done already.
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
    // The port may be taken by another test.
    let mut serving =
        shell(&format!("exec {serve} --listen 127.0.0.1:0")).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"), "the server of the tutorial did not start");
    let output = shell(&others.concat()).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    serving.kill().unwrap();
    serving.wait().unwrap();
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
    assert!(said(&output.stdout).contains("digest completed"), "{}", said(&output.stdout));
}
