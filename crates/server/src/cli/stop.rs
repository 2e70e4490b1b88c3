//! Why a command ends before it did what it was asked: what to say, and the exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use steprail_core::diagnostic::{Diagnostic, Severity, render};
use steprail_core::source::Source;
use steprail_engine::Error;
use steprail_store::StoreError;

use super::exit;
use super::input::Unreadable;
use crate::config::Problem;

/// Why a command ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The output cannot be written.
    Output(io::Error),
    /// It was refused, or failed.
    Told { message: String, hint: Option<String>, code: u8 },
    /// The settings are wrong.
    Settings(Vec<Problem>),
    /// Everything was said already.
    Silent(u8),
}

impl Stop {
    /// The user asked for something that cannot be done.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Told { message: message.into(), hint: None, code: exit::CANNOT_READ }
    }

    /// With what to do about it.
    pub(super) fn hint(self, text: impl Into<String>) -> Self {
        match self {
            Self::Told { message, code, .. } => Self::Told { message, hint: Some(text.into()), code },
            other => other,
        }
    }

    /// Tells the user, and gives the exit code.
    pub(super) fn tell(self) -> ExitCode {
        let mut err = anstream::stderr();
        match self {
            // A reader that has seen enough (`| head`) closes the pipe; that is no failure to report.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                ExitCode::from(exit::BROKEN_PIPE)
            }
            Self::Output(error) => {
                let _ = writeln!(err, "error: cannot write the output: {error}");
                ExitCode::from(exit::CANNOT_READ)
            }
            Self::Told { message, hint, code } => {
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
                ExitCode::from(exit::CANNOT_READ)
            }
            Self::Silent(code) => ExitCode::from(code),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<Vec<Problem>> for Stop {
    fn from(problems: Vec<Problem>) -> Self {
        Self::Settings(problems)
    }
}

impl From<Unreadable> for Stop {
    fn from(unreadable: Unreadable) -> Self {
        Self::usage(unreadable.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Told { message: error.to_string(), hint: None, code: exit::of_error(&error) }
    }
}

impl From<StoreError> for Stop {
    fn from(fault: StoreError) -> Self {
        Error::Storage(fault).into()
    }
}

/// Shows problems of a file on standard error; says whether there are errors.
pub(super) fn show_problems(problems: &[Diagnostic], source: &Source) -> io::Result<bool> {
    let mut err = anstream::stderr().lock();
    for problem in problems {
        writeln!(err, "{}\n", render(problem, source, true))?;
    }
    Ok(problems.iter().any(|problem| problem.code.severity() == Severity::Error))
}
