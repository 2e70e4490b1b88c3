//! A question at the terminal.

use std::io::{BufRead, IsTerminal, Write};

use super::stop::Stop;

/// Asks the user; `None` if there is no terminal, so nobody to ask.
pub(super) fn yes_or_no(question: &str) -> Result<Option<bool>, Stop> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    write!(anstream::stderr(), "{question} [y/N] ")?;
    let mut said = String::new();
    stdin.lock().read_line(&mut said)?;
    Ok(Some(matches!(said.trim(), "y" | "Y" | "yes")))
}
