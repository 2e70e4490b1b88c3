//! Kills the program midway and starts it again: each side effect happens once.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steprail-embed"));
    command.arg(folder);
    command
}

/// Starts the program and kills it with SIGKILL as soon as it has printed a line with this prefix. Returns the
/// printed lines.
fn kill_at(folder: &Path, prefix: &str) -> Vec<String> {
    let mut child = program(folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = Vec::new();
    for next in BufReader::new(child.stdout.take().unwrap()).lines() {
        printed.push(next.unwrap());
        let has = |prefix: &str| printed.iter().any(|line| line.starts_with(prefix));
        if has(prefix) && has("run ") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    printed
}

fn run_id(printed: &[String]) -> &str {
    printed.iter().find_map(|line| line.strip_prefix("run ")).unwrap()
}

#[test]
fn each_side_effect_happens_once() {
    let folder = tempfile::tempdir().unwrap();
    let first = kill_at(folder.path(), "send cup");
    let second = kill_at(folder.path(), "pack chair");
    let output = program(folder.path()).output().unwrap();
    let third: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();

    assert!(output.status.success());
    assert_eq!(third.last().unwrap(), r#"completed: "3 parcels are on their way""#);
    assert_eq!(run_id(&first), run_id(&second), "the same request key returns the same run");
    assert_eq!(run_id(&first), run_id(&third));
    assert!(!second.iter().any(|line| line.starts_with("pack cup")), "completed steps are not repeated");

    let ledger = std::fs::read_to_string(folder.path().join("ledger")).unwrap();
    let mut effects: Vec<&str> = ledger.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    effects.sort_unstable();
    assert_eq!(effects, ["pack chair", "pack cup", "pack lamp", "send chair", "send cup", "send lamp"]);
}
