//! The real binary with third-party MCP servers: a run that is killed has each effect once.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::Folder;
use serde_json::{Value, json};

const NOTE: &str = "\
name: note
inputs: { root: { type: string } }
steps:
  - { id: now, tool: time__get_current_time, args: { timezone: UTC } }
  - { id: log, tool: git__git_log, args: { repo_path: '{{inputs.root}}/repo' } }
  - { id: ask, kind: approve, prompt: 'Write a note at {{steps.now.output.timezone}}?' }
  - id: write
    tool: files__write_file
    args: { path: '{{inputs.root}}/repo/note.txt', content: '{{steps.log.output}}' }
  - id: slow
    tool: every__trigger-long-running-operation
    on_uncertain: ask
    timeout: 2h
    args: { duration: 3600, steps: 3600 }
  - { id: add, tool: git__git_add, args: { repo_path: '{{inputs.root}}/repo', files: [note.txt] } }
  - { id: commit, tool: git__git_commit, args: { repo_path: '{{inputs.root}}/repo', message: a note } }
";

/// Installs the servers if necessary. Returns the directory of their programs.
fn install_servers() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/servers");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "cannot install the servers");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn git(folder: &Folder, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=ann", "-c", "user.email=ann@localhost", "-C", "repo"]).args(arguments);
    let output = command.current_dir(folder.0.path()).output().expect("git");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A directory with a repository, a definition and the config of the servers.
fn prepare() -> Folder {
    let folder = Folder::with(&[("note.yaml", NOTE)]);
    let bin = install_servers();
    let program = |name: &str| json!({ "command": format!("{bin}/mcp-server-{name}") });
    let mut servers =
        json!({ "time": program("time"), "git": program("git"), "every": program("everything") });
    servers["git"]["env"] = json!({
        "GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@localhost",
        "GIT_COMMITTER_NAME": "ann", "GIT_COMMITTER_EMAIL": "ann@localhost",
    });
    servers["files"] = program("filesystem");
    servers["files"]["args"] = json!([folder.0.path()]);
    let config = json!({ "mcpServers": servers }).to_string();
    std::fs::write(folder.0.path().join("mcp.json"), config).expect("a config");
    std::fs::create_dir(folder.0.path().join("repo")).expect("a folder");
    git(&folder, &["init", "--quiet"]);
    git(&folder, &["commit", "--quiet", "--allow-empty", "-m", "first"]);
    folder
}

#[test]
fn killed_run_has_each_effect_once() {
    let folder = prepare();
    let root = folder.0.path().display().to_string();
    let paused = folder.run(&format!("run note.yaml --input root={root} --servers mcp.json --db x.db"));
    assert!(paused.ends_with("--- exit 3\n") && paused.contains("Write a note at UTC?"), "{paused}");

    let mut killed = folder.command("resume --db x.db --servers mcp.json --approve ask --as lea");
    let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a process");
    let mut lines = BufReader::new(killed.stderr.take().expect("lines")).lines();
    assert!(lines.any(|line| line.expect("a line").starts_with("started slow")), "the command ended early");
    killed.kill().expect("a kill");
    killed.wait().expect("an end");

    let uncertain = folder.run("resume --db x.db --servers mcp.json");
    assert!(
        uncertain.ends_with("--- exit 3\n") && uncertain.contains("the outcome of its call is unknown"),
        "{uncertain}"
    );
    let output =
        folder.command("resume --db x.db --servers mcp.json --skip slow --json").output().expect("a process");
    let record: Value = serde_json::from_slice(&output.stdout).expect("a record");
    assert_eq!((&record["status"], output.status.code()), (&json!("completed"), Some(0)));
    let steps = record["steps"].as_array().expect("steps").iter();
    let steps: Vec<String> =
        steps.map(|step| format!("{} {} {}", step["path"], step["status"], step["attempt"])).collect();
    let done = |path: &str| format!("\"{path}\" \"done\" 1");
    let mut expected: Vec<String> = ["now", "log", "ask", "write", "add", "commit"].map(done).into();
    expected.insert(4, "\"slow\" \"skipped\" 1".to_owned());
    assert_eq!(steps, expected);
    assert_eq!(git(&folder, &["log", "--format=%s"]), "a note\nfirst\n");
    assert_eq!(git(&folder, &["status", "--short"]), "");
}

#[test]
fn definition_that_does_not_match_its_tools_is_not_started() {
    let folder = prepare();
    let repo = folder.0.path().join("repo").display().to_string();
    let wrong = format!(
        "name: wrong\nsteps:\n  - {{ id: add, tool: files__write_file, args: {{ path: '{repo}/x.txt', content: x }} }}\n  \
         - {{ id: log, tool: git__git_log, args: {{ repository: '{repo}' }} }}\n"
    );
    std::fs::write(folder.0.path().join("wrong.yaml"), wrong).expect("a file");
    let in_process = folder.run("run wrong.yaml --servers mcp.json --db x.db");
    assert!(in_process.contains("SR502") && in_process.ends_with("--- exit 2\n"), "{in_process}");
    let data = folder.0.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    std::fs::copy(folder.0.path().join("mcp.json"), data.join("servers.json")).expect("a config");
    let in_daemon = folder.run("run wrong.yaml --data data");
    assert!(in_daemon.contains("SR502") && in_daemon.ends_with("--- exit 2\n"), "{in_daemon}");
    folder.run("stop --data data");
    assert!(!folder.0.path().join("repo/x.txt").exists(), "nothing was called");
}
