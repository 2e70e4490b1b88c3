//! Reads secrets from the environment, files, commands and the keyring of the desktop.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use steprail_mcp::limits::{SECRET_BYTES, SECRET_MIN_BYTES};
use steprail_mcp::{Secret, SecretError};

use crate::config::secret_source::Origin;

/// How long a command may run.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// Interval between checks whether a command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Reads the value of a secret. `None` if it is in the encrypted store. Errors contain no output of commands.
pub(super) fn read(name: &str, origin: &Origin) -> Result<Option<Secret>, SecretError> {
    let value = match origin {
        Origin::Store => return Ok(None),
        Origin::Env(variable) => {
            std::env::var(variable).map_err(|_| format!("the environment variable {variable} is not set"))
        }
        Origin::File(path) => read_file(path),
        Origin::Command(command) => output_of(command, COMMAND_TIME),
        Origin::Keyring(attributes) => {
            let lookup = ["secret-tool", "lookup"].map(str::to_owned).into_iter();
            let attributes = attributes.iter().flat_map(|(key, value)| [key.clone(), value.clone()]);
            output_of(&lookup.chain(attributes).collect::<Vec<_>>(), COMMAND_TIME)
        }
    };
    let failed = |reason: String| SecretError(format!("cannot read the secret `{name}`: {reason}"));
    let value = value.map_err(failed)?;
    let value = value.strip_suffix('\n').map_or(&*value, |value| value.strip_suffix('\r').unwrap_or(value));
    match value.len() {
        0 => Err(failed("it is empty".to_owned())),
        length if length < SECRET_MIN_BYTES => {
            Err(failed(format!("it has fewer than {SECRET_MIN_BYTES} bytes and cannot be redacted")))
        }
        _ => Ok(Some(Secret::new(value))),
    }
}

/// Whether the value can be read, as far as that is known without running a command.
pub(super) fn exists(origin: &Origin) -> bool {
    match origin {
        Origin::Env(variable) => std::env::var_os(variable).is_some(),
        Origin::File(path) => path.exists(),
        Origin::Store | Origin::Command(_) | Origin::Keyring(_) => true,
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let path = path.display();
        return Err(format!("other users can access {path}; run `chmod 600 {path}`"));
    }
    bounded(file).map_err(|reason| format!("{}: {reason}", path.display()))
}

/// The text of a file or pipe, up to the maximum size of a secret.
fn bounded(from: impl Read) -> Result<String, String> {
    let mut text = Vec::new();
    from.take(SECRET_BYTES as u64 + 2).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() > SECRET_BYTES + 1 {
        return Err(format!("it has more than {SECRET_BYTES} bytes"));
    }
    String::from_utf8(text).map_err(|_| "it is not text".to_owned())
}

/// Runs a program without a shell, and returns its standard output. It is killed with its descendants after `time`.
fn output_of(command: &[String], time: Duration) -> Result<String, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("no command".to_owned()) };
    let deadline = Instant::now() + time;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err(format!("`{program}` has no output")) };
    let (sender, output) = mpsc::channel();
    std::thread::spawn(move || sender.send(bounded(stdout)));
    let ended = output.recv_timeout(time).ok().and_then(|output| Some((output, wait(&mut child, deadline)?)));
    if let Some((output, status)) = ended
        && let Ok(output) = output
    {
        return match status.code() {
            Some(0) => Ok(output),
            Some(code) => Err(format!("`{program}` failed with exit code {code}")),
            None => Err(format!("`{program}` was killed by a signal")),
        };
    }
    let group = Pid::from_raw(child.id().try_into().unwrap_or_default());
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    Err(format!(
        "`{program}` did not write a text of at most {SECRET_BYTES} bytes within {} s",
        time.as_secs()
    ))
}

/// Waits for the end of a process. `None` at the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Origin {
        Origin::Command(words.iter().map(ToString::to_string).collect())
    }

    fn problem(origin: &Origin) -> String {
        read("x", origin).expect_err("a problem").to_string()
    }

    #[test]
    fn reads_variables_files_and_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        std::fs::write(&path, "hunter-2\r\n").expect("written");
        let allow = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
        allow(0o640);
        assert!(problem(&Origin::File(path.clone())).contains("chmod 600"));
        allow(0o600);
        let value = |origin| read("x", &origin).expect("read").expect("a secret").expose().to_owned();
        assert_eq!(value(Origin::File(path)), "hunter-2");
        assert_eq!(value(command(&["printf", "%s\n", "$HOME; a b"])), "$HOME; a b", "without a shell");
        assert!(problem(&Origin::Env("STEPRAIL_NO_SUCH_VARIABLE".to_owned())).contains("is not set"));
        assert!(problem(&Origin::File("/no/such/file".into())).contains("/no/such/file"));
    }

    #[test]
    fn failures_of_commands_are_reported_without_their_output() {
        for (words, expected) in [
            (&["sh", "-c", "echo hunter-2; exit 3"][..], "exit code 3"),
            (&["/no/such/program"], "cannot be started"),
            (&["printf", "abc"], "fewer than 6 bytes"),
            (&["true"], "it is empty"),
            (&["head", "-c", "100000", "/dev/zero"], "did not write a text of at most"),
        ] {
            let problem = problem(&command(words));
            assert!(problem.contains(expected) && !problem.contains("hunter"), "{problem}");
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let words = ["sh", "-c", "sleep 600 & sleep 600"].map(str::to_owned);
        let problem = output_of(&words, Duration::from_millis(50)).expect_err("a timeout");
        assert!(problem.contains("within 0 s"), "{problem}");
    }
}
