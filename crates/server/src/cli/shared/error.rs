//! The error of a command: its message, its hint and its exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use steprail_engine::Error;
use steprail_store::StoreError;

use super::exit;
use crate::client::ClientError;
use crate::config::Problem;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The output cannot be written.
    Output(io::Error),
    Failed {
        message: String,
        hint: Option<String>,
        code: u8,
    },
    /// The settings are invalid.
    Settings(Vec<Problem>),
    /// The command already printed the reason. Holds the exit code.
    Reported(u8),
}

impl CliError {
    /// An invalid request, with exit code 2.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), hint: None, code: exit::INVALID }
    }

    /// Adds what the user can do about it.
    pub(crate) fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Failed { message, code, .. } => Self::Failed { message, hint: Some(text.into()), code },
            other => other,
        }
    }

    /// Prints the error. Returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let mut err = anstream::stderr();
        match self {
            // A reader such as `head` closes the pipe when it has read enough; that is not an error.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                ExitCode::from(exit::BROKEN_PIPE)
            }
            Self::Output(error) => {
                let _ = writeln!(err, "error: cannot write the output: {error}");
                ExitCode::from(exit::INVALID)
            }
            Self::Failed { message, hint, code } => {
                let _ = writeln!(err, "error: {message}");
                if let Some(hint) = hint {
                    let _ = writeln!(err, "hint: {hint}");
                }
                ExitCode::from(code)
            }
            Self::Settings(problems) => {
                for problem in problems {
                    let _ = writeln!(err, "{}\n", problem.render(true));
                }
                ExitCode::from(exit::INVALID)
            }
            Self::Reported(code) => ExitCode::from(code),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<Vec<Problem>> for CliError {
    fn from(problems: Vec<Problem>) -> Self {
        Self::Settings(problems)
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        Self::Failed { message: error.to_string(), hint: None, code: exit::of_error(&error) }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Error::Storage(error).into()
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Unreachable(message) => {
                let hint = "start the daemon with `steprail serve`, or find the cause with `steprail doctor`";
                Self::Failed { message, hint: Some(hint.to_owned()), code: exit::UNREACHABLE }
            }
            ClientError::Problem(problem) => {
                let code = if problem.status >= 500 { exit::INTERNAL } else { exit::INVALID };
                let mut message = String::from(problem.detail);
                for finding in &problem.problems {
                    message.push_str(&format!("\n{}", super::source_file::format_finding(finding)));
                }
                Self::Failed { message, hint: problem.hint.map(Into::into), code }
            }
            ClientError::Engine(error) => error.into(),
        }
    }
}
