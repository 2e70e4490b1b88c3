//! What is wrong with the settings, and where. Also where a setting comes from: it is the same place.

use std::fmt;
use std::sync::Arc;

use steprail_core::diagnostic::{Code, Diagnostic, render};
use steprail_core::source::{Source, Span};

use super::setting::Wrong;

/// Where a setting stands.
#[derive(Debug, Clone, Default)]
pub(crate) enum Place {
    /// Nowhere: it is the default.
    #[default]
    Default,
    /// In the file.
    File {
        /// The file, without the secrets that should not be in it.
        source: Arc<Source>,
        /// The value, or the key.
        span: Span,
    },
    /// In an environment variable.
    Variable(String),
    /// On the command line; the setting's name.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => out.write_str("default"),
            Self::File { source, span } => {
                write!(out, "{}:{}", source.name(), source.position(span.start).line)
            }
            Self::Variable(name) => write!(out, "${name}"),
            Self::Flag(_) => out.write_str("command line"),
        }
    }
}

/// One problem.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    place: Place,
    code: Code,
    message: String,
    hint: Option<String>,
}

impl Problem {
    pub(super) fn new(place: Place, wrong: Wrong) -> Self {
        Self { place, code: wrong.code, message: wrong.message, hint: wrong.hint }
    }

    /// What is wrong, and where, in a line.
    pub(crate) fn in_short(&self) -> String {
        format!("{}: {}", self.place, self.message)
    }

    /// As a person reads it, in the file with the line; `styled` adds terminal colours.
    pub(crate) fn render(&self, styled: bool) -> String {
        let text = match &self.place {
            Place::File { source, span } => {
                let diagnostic = Diagnostic::new(self.code, *span, &*self.message);
                let diagnostic = match &self.hint {
                    Some(hint) => diagnostic.hint(hint),
                    None => diagnostic,
                };
                return render(&diagnostic, source, styled);
            }
            Place::Default => format!("error: {}", self.message),
            Place::Variable(name) => format!("error: ${name}: {}", self.message),
            Place::Flag(key) => format!("error: {key} on the command line: {}", self.message),
        };
        self.hint.iter().fold(text, |text, hint| format!("{text}\nhint: {hint}"))
    }
}
