//! Prompts on standard error, answered on standard input.

use std::io::{self, BufRead, IsTerminal, Write};

use serde_json::{Map, Value};
use steprail_http::views::Approval;

use super::text::sanitize;
use crate::cli::shared::error::CliError;

/// The answer to the prompt at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateAnswer {
    Approve,
    Deny,
    Later,
}

impl GateAnswer {
    /// Parses a line. An empty line is [`Self::Later`].
    pub(crate) fn parse(line: &str) -> Option<Self> {
        match &*line.trim().to_lowercase() {
            "y" | "yes" => Some(Self::Approve),
            "n" | "no" => Some(Self::Deny),
            "l" | "later" | "" => Some(Self::Later),
            _ => None,
        }
    }
}

/// Asks a yes/no question. Returns `None` if standard input is not a terminal.
pub(crate) fn confirm(question: &str) -> Result<Option<bool>, CliError> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    write!(anstream::stderr(), "{question} [y/N] ")?;
    Ok(Some(matches!(read_line()?.trim(), "y" | "Y" | "yes")))
}

/// Whether prompts can be shown and answered.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Reads a line of standard input. Returns an empty string at the end of the input.
pub(crate) fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line)
}

/// Prints what an approval is about: the facts, the prompt as a quotation, and the form of an input request.
pub(crate) fn print_approval(approval: &Approval) -> Result<(), CliError> {
    let mut err = anstream::stderr();
    writeln!(err, "{}", approval.shown())?;
    if let Some(form) = &approval.form {
        writeln!(err, "form {}", sanitize(form.get()))?;
    }
    Ok(())
}

/// Prints the arguments with which a call is approved instead of those of the request.
pub(crate) fn print_edited(args: &Map<String, Value>) -> Result<(), CliError> {
    let args = serde_json::to_string_pretty(args).unwrap_or_default();
    writeln!(anstream::stderr(), "with the arguments\n{}", steprail_core::display::text(&args))?;
    Ok(())
}

/// Prints the prompt of a gate on the last line of the terminal.
pub(crate) fn print_gate_prompt(approval: &Approval) -> Result<(), CliError> {
    let mut err = anstream::stderr();
    write!(err, "\r\x1b[K  approve {}? [y]es, [n]o, [l]ater: ", sanitize(&approval.step))?;
    err.flush()?;
    Ok(())
}

/// Erases the prompt line, so that other output can take its place. Input typed so far is discarded.
pub(crate) fn erase_gate_prompt() -> Result<(), CliError> {
    write!(anstream::stderr(), "\r\x1b[K")?;
    discard_typed_input();
    Ok(())
}

/// Discards input that was typed before a prompt was shown.
pub(crate) fn discard_typed_input() {
    // Fails if standard input is not a terminal; then nothing was typed.
    let _ = rustix::termios::tcflush(io::stdin(), rustix::termios::QueueSelector::IFlush);
}
