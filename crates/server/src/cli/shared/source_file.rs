//! Reads definitions and other source files, and prints their diagnostics.

use std::fmt;
use std::io::{self, Read, Write};

use serde_json::Value;
use steprail_core::diagnostic::{Diagnostic, Severity, render};
use steprail_core::limits;
use steprail_core::source::Source;

use super::error::CliError;

/// Why a file could not be read.
#[derive(Debug)]
pub(crate) struct ReadError {
    path: String,
    reason: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read {}: {}", self.path, self.reason)
    }
}

impl From<ReadError> for CliError {
    fn from(error: ReadError) -> Self {
        Self::new(error.to_string())
    }
}

/// Reads a file, or standard input for `-`, up to one byte above the size limit of definitions.
pub(crate) fn read(path: &str) -> Result<Source, ReadError> {
    let fail = |reason: String| ReadError { path: path.to_owned(), reason };
    let mut bytes = Vec::new();
    let limit = limits::DEFINITION_BYTES as u64 + 1;
    let result = if path == "-" {
        io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    result.map_err(|error| fail(error.to_string()))?;
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        // The limit may cut a character in half. The size is reported later as a diagnostic.
        Err(error) if error.as_bytes().len() > limits::DEFINITION_BYTES => {
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }
        Err(error) => {
            let offset = error.utf8_error().valid_up_to();
            return Err(fail(format!("it is not UTF-8 text (byte {offset})")));
        }
    };
    let name = if path == "-" { "<stdin>" } else { path };
    Ok(Source::new(name, text))
}

/// Prints diagnostics on standard error. Returns whether any of them is an error.
pub(crate) fn print_diagnostics(diagnostics: &[Diagnostic], source: &Source) -> io::Result<bool> {
    let mut err = anstream::stderr().lock();
    for diagnostic in diagnostics {
        writeln!(err, "{}\n", render(diagnostic, source, true))?;
    }
    Ok(diagnostics.iter().any(|diagnostic| diagnostic.code.severity() == Severity::Error))
}

/// Formats a finding of a server on one line.
pub(crate) fn format_finding(finding: &Value) -> String {
    let text = |key: &str| finding[key].as_str().unwrap_or_default();
    let position = format!("{}:{}:{}", text("file"), finding["line"], finding["column"]);
    let hint = finding["hint"].as_str().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}[{}] {position}: {}{hint}", text("severity"), text("code"), text("message"))
}
