//! A line that is typed at a terminal and not shown.

use std::io::Write;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::exit;
use super::stop::Stop;

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Asks for a line. Ctrl-C ends the command, with the terminal as it was.
pub(super) async fn read(prompt: &str) -> Result<String, Stop> {
    let told = |error: std::io::Error| Stop::usage(format!("cannot read from the terminal: {error}"));
    let mut err = anstream::stderr();
    write!(err, "{prompt}")?;
    err.flush()?;
    let _hidden = Hidden::begin().map_err(told)?;
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    tokio::select! {
        line = line => {
            let line = line.map_err(|error| told(error.into()))?.map_err(told)?;
            Ok(line.trim_end_matches(['\r', '\n']).to_owned())
        }
        _ = tokio::signal::ctrl_c() => Err(Stop::Silent(exit::INTERRUPTED)),
    }
}
