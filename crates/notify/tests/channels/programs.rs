//! The channels that start programs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use steprail_notify::{Message, Receipt, Retry, Withdrawn};

use crate::support::{approval, channel, send, withdraw};

/// Writes a program.
fn program(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A program that writes its arguments, its environment and its input to a file.
fn recorder(folder: &Path) -> String {
    let record = folder.join("record").display().to_string();
    program(
        folder,
        "recorder",
        &format!(
            "#!/bin/sh\n{{ for a in \"$@\"; do printf '<%s>\\n' \"$a\"; done; env | grep -c CARGO_; cat; }} >{record}\necho 42\n"
        ),
    )
}

fn record(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("record")).unwrap()
}

#[test]
fn command_gets_arguments_without_a_shell_and_json_on_its_input() {
    let folder = tempfile::tempdir().unwrap();
    let argv = format!("{:?}, \"$(id); `id` && x\", \"\"", recorder(folder.path()));
    let channel = channel(&format!("type = \"command\"\nargv = [{argv}]\nwithdraw = true"));
    let receipt = send(&*channel, &approval(), "lea; id").unwrap();
    assert_eq!(receipt, Receipt::new("42"));
    insta::assert_snapshot!("command_send", record(folder.path()));
    assert_eq!(withdraw(&*channel, &approval(), "lea", &receipt), Ok(Withdrawn::Done));
    insta::assert_snapshot!("command_withdraw", record(folder.path()));
}

#[test]
fn desktop_shows_and_replaces_a_notification() {
    let folder = tempfile::tempdir().unwrap();
    let channel = channel(&format!("type = \"desktop\"\nprogram = {:?}", recorder(folder.path())));
    let receipt = send(&*channel, &approval(), "").unwrap();
    insta::assert_snapshot!("desktop_send", record(folder.path()));
    assert_eq!(withdraw(&*channel, &approval(), "", &receipt), Ok(Withdrawn::Done));
    insta::assert_snapshot!("desktop_withdraw", record(folder.path()));
    assert_eq!(withdraw(&*channel, &approval(), "", &Receipt::default()), Ok(Withdrawn::Unsupported));
}

#[test]
fn failures_of_commands() {
    let folder = tempfile::tempdir().unwrap();
    let mut shown = String::new();
    for (name, text) in [
        ("later", "#!/bin/sh\necho no network >&2\nexit 1\n"),
        ("never", "#!/bin/sh\necho no such user >&2\nexit 65\n"),
        ("endless", "#!/bin/sh\nexec yes\n"),
        ("slow", "#!/bin/sh\nsleep 1000 &\nsleep 1000\n"),
        ("orphan", "#!/bin/sh\nsleep 1000 &\n"),
        ("signal", "#!/bin/sh\nkill -9 $$\n"),
    ] {
        let path = program(folder.path(), name, text);
        let secs = if text.contains("sleep") { 0.5 } else { 60.0 };
        let channel = channel(&format!("type = \"command\"\nargv = [{path:?}]\ntimeout = {secs:?}"));
        let error = send(&*channel, &approval(), "").unwrap_err();
        let retry = if error.retry == Retry::Never { "never" } else { "later" };
        shown += &format!("{error} → retry {retry}\n");
    }
    let channel = channel("type = \"command\"\nargv = [\"/nonexistent/program\"]");
    shown += &send(&*channel, &approval(), "").unwrap_err().to_string();
    insta::assert_snapshot!(shown.replace(&folder.path().display().to_string(), "DIR"));
}

#[test]
fn a_program_that_does_not_read_its_input_is_fine() {
    let channel = channel("type = \"command\"\nargv = [\"true\"]");
    let large = Message { prompt: Some("x".repeat(200_000)), ..approval() };
    assert_eq!(send(&*channel, &large, ""), Ok(Receipt::default()));
}
