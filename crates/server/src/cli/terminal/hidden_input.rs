//! Reads a secret from the terminal without echo.

use std::io::Write;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::prompt::read_line;
use crate::cli::shared::error::CliError;
use crate::cli::shared::exit;

/// Disables the echo of the terminal until it is dropped. Holds the previous mode.
struct EchoOff(Termios);

impl EchoOff {
    fn enable() -> std::io::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Prompts for a line. Ctrl-C restores the terminal and ends the command.
pub(crate) async fn read(prompt: &str) -> Result<String, CliError> {
    let fail = |error: std::io::Error| CliError::new(format!("cannot read from the terminal: {error}"));
    let mut err = anstream::stderr();
    write!(err, "{prompt}")?;
    err.flush()?;
    let _echo_off = EchoOff::enable().map_err(fail)?;
    let line = tokio::task::spawn_blocking(read_line);
    tokio::select! {
        line = line => {
            let line = line.map_err(|error| fail(error.into()))?.map_err(fail)?;
            Ok(line.trim_end_matches(['\r', '\n']).to_owned())
        }
        _ = tokio::signal::ctrl_c() => Err(CliError::Reported(exit::INTERRUPTED)),
    }
}
