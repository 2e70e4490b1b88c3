//! Problems of settings, and the sources of settings.

use std::fmt;
use std::sync::Arc;

use steprail_core::diagnostic::{Code, Diagnostic, render};
use steprail_core::source::{Source, Span};

use super::setting::SettingError;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, Default)]
pub(crate) enum SettingSource {
    #[default]
    Default,
    File {
        /// The file, with secrets masked.
        source: Arc<Source>,
        /// Position of the value, or of the key.
        span: Span,
    },
    /// The name of an environment variable.
    Variable(String),
    /// The path of the setting, set on the command line.
    Flag(String),
}

impl fmt::Display for SettingSource {
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

/// A problem of a setting.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    at: SettingSource,
    code: Code,
    message: String,
    hint: Option<String>,
}

impl Problem {
    pub(super) fn new(at: SettingSource, error: SettingError) -> Self {
        Self { at, code: error.code, message: error.message, hint: error.hint }
    }

    /// The source and the message, on one line.
    pub(crate) fn in_short(&self) -> String {
        format!("{}: {}", self.at, self.message)
    }

    /// The message with the line of the file and the hint; `styled` adds terminal colours.
    pub(crate) fn render(&self, styled: bool) -> String {
        let text = match &self.at {
            SettingSource::File { source, span } => {
                let diagnostic = Diagnostic::new(self.code, *span, &*self.message);
                let diagnostic = match &self.hint {
                    Some(hint) => diagnostic.hint(hint),
                    None => diagnostic,
                };
                return render(&diagnostic, source, styled);
            }
            SettingSource::Default => format!("error: {}", self.message),
            SettingSource::Variable(name) => format!("error: ${name}: {}", self.message),
            SettingSource::Flag(key) => format!("error: {key} on the command line: {}", self.message),
        };
        self.hint.iter().fold(text, |text, hint| format!("{text}\nhint: {hint}"))
    }
}
