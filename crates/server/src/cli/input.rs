//! Reading definitions from files and standard input.

use std::fmt;
use std::io::Read;

use steprail_core::limits;
use steprail_core::source::Source;

/// Why a definition could not be read.
#[derive(Debug)]
pub(super) struct Unreadable {
    path: String,
    reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot read {}: {}", self.path, self.reason)
    }
}

/// Reads a file, or standard input for `-`. A file beyond the limit is not read to its end.
pub(super) fn read(path: &str) -> Result<Source, Unreadable> {
    let fail = |reason: String| Unreadable { path: path.to_owned(), reason };
    let mut bytes = Vec::new();
    let limit = limits::DEFINITION_BYTES as u64 + 1;
    let result = if path == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    result.map_err(|error| fail(error.to_string()))?;
    // The last character of a file that is cut at the limit may be cut, too.
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.as_bytes().len() > limits::DEFINITION_BYTES => {
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            return Err(fail(format!("it is not UTF-8 text (byte {at})")));
        }
    };
    let name = if path == "-" { "<stdin>" } else { path };
    Ok(Source::new(name, text))
}
