//! `steprail service`: the units that it writes, checked by systemd.

use std::path::Path;
use std::process::{Command, Stdio};

const SYSTEM_UNIT: &str = "etc/systemd/system/steprail.service";
const USER_UNIT: &str = "home/ann/.config/systemd/user/steprail.service";

/// Runs `steprail service`. Returns what it prints.
fn service(root: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steprail"));
    command.arg("service").args(arguments).arg("--root").arg(root).stdin(Stdio::null());
    command.env("HOME", "/home/ann").env_remove("XDG_CONFIG_HOME");
    let output = command.output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn shown(text: &str, root: &Path) -> String {
    text.replace(env!("CARGO_BIN_EXE_steprail"), "PROGRAM").replace(&root.display().to_string(), "ROOT")
}

/// Lets systemd check a unit. Without systemd, the check is skipped with a message.
fn verify(root: &Path, unit: &str, manager: &str) {
    let mut command = Command::new("systemd-analyze");
    command.args([manager, "--man=no", "verify"]).arg(root.join(unit)).env("XDG_RUNTIME_DIR", root);
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.is_empty(), "{unit}: {text}");
        }
        Err(error) => {
            eprintln!("SKIPPED: systemd-analyze is not installed, {unit} was not verified: {error}");
        }
    }
}

#[test]
fn system_unit_is_written_verified_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let printed = service(root, &["install", "--dry-run"]);
    assert!(!root.join("etc").exists(), "a dry run writes nothing");
    insta::assert_snapshot!("system", shown(&printed, root));
    let wrote = service(root, &["install"]);
    insta::assert_snapshot!("system_installed", shown(&wrote, root));
    let unit = std::fs::read_to_string(root.join(SYSTEM_UNIT)).expect("the unit");
    assert!(printed.contains(&unit), "{unit}");
    verify(root, SYSTEM_UNIT, "--system");
    service(root, &["uninstall"]);
    assert!(!root.join(SYSTEM_UNIT).exists() && !root.join("etc/sysusers.d/steprail.conf").exists());
}

#[test]
fn user_unit_is_written_verified_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let wrote = service(root, &["install", "--user"]);
    let unit = std::fs::read_to_string(root.join(USER_UNIT)).expect("the unit");
    insta::assert_snapshot!("user", shown(&format!("{unit}\n{wrote}"), root));
    verify(root, USER_UNIT, "--user");
    service(root, &["uninstall", "--user"]);
    assert!(!root.join(USER_UNIT).exists());
}
