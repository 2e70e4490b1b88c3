//! Programs that channels start: without a shell, with few environment variables, bounded in time and output.

use std::process::Stdio;
use std::time::Duration;

use steprail_core::display;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::channel::SendError;
use crate::limits;
use crate::message::cut;

/// The environment variables that a program gets. The others may contain secrets of the daemon.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// The exit status of a program that must not be run again for this message (`EX_DATAERR` of `sysexits.h`).
const NEVER_AGAIN: i32 = 65;

/// Runs a program with its arguments, and returns its standard output. The program and its descendants in the same process
/// group are killed if it takes too long or writes too much.
pub(crate) async fn run(argv: &[String], input: &[u8], timeout: Duration) -> Result<String, SendError> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err(SendError::permanent("the command is empty"));
    };
    let name = display::line(program);
    let mut command = Command::new(program);
    command.args(arguments).env_clear().process_group(0).kill_on_drop(true);
    command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child =
        command.spawn().map_err(|error| SendError::transient(format!("cannot start {name}: {error}")))?;
    let mut group = Group(child);
    match tokio::time::timeout(timeout, talk(&mut group.0, input)).await {
        Ok(result) => finish(&name, result),
        Err(_) => Err(SendError::transient(format!("{name} did not end within {} s", timeout.as_secs_f64()))),
    }
}

struct Output {
    status: std::process::ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

fn finish(name: &str, result: std::io::Result<Option<Output>>) -> Result<String, SendError> {
    let output = match result {
        Ok(Some(output)) => output,
        Ok(None) => {
            let limit = limits::COMMAND_OUTPUT_BYTES;
            return Err(SendError::transient(format!("{name} wrote more than {limit} bytes and was killed")));
        }
        Err(error) => return Err(SendError::transient(format!("{name} failed: {error}"))),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut quoted = display::line(String::from_utf8_lossy(&output.stderr).trim());
    cut(&mut quoted, limits::QUOTED_CHARS);
    let reason = format!("{name} failed with {}: {quoted}", output.status);
    match output.status.code() {
        Some(NEVER_AGAIN) => Err(SendError::permanent(reason)),
        _ => Err(SendError::transient(reason)),
    }
}

/// Writes the input and reads both outputs at the same time, so that no side waits for a full pipe. `None` if an output is
/// too large.
async fn talk(child: &mut Child, input: &[u8]) -> std::io::Result<Option<Output>> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input is not an error.
            let _ = stdin.write_all(input).await;
        }
    };
    let ((), stdout, stderr) = tokio::join!(write, read(stdout), read(stderr));
    match (stdout?, stderr?) {
        (Some(stdout), Some(stderr)) => Ok(Some(Output { status: child.wait().await?, stdout, stderr })),
        _ => Ok(None),
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<Option<Vec<u8>>> {
    let Some(pipe) = pipe else { return Ok(Some(Vec::new())) };
    let mut bytes = Vec::new();
    let mut pipe = pipe.take(limits::COMMAND_OUTPUT_BYTES as u64 + 1);
    pipe.read_to_end(&mut bytes).await?;
    Ok((bytes.len() <= limits::COMMAND_OUTPUT_BYTES).then_some(bytes))
}

/// A process group that ends when it is dropped, also if the future is cancelled.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Without an id, the leader was waited for. Its id may belong to another process by now.
        let id = self.0.id().and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
    }
}
