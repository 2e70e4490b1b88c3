//! What is wrong with a definition: a stable code, a place, a message and a hint.

mod code;
mod render;

pub use code::Code;
pub use render::render;

use serde::Serialize;

use crate::limits;
use crate::source::{Source, Span};

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The definition cannot run.
    Error,
    /// The definition runs, perhaps not as meant.
    Warning,
}

/// One problem in a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Which rule was broken.
    pub code: Code,
    /// What is wrong, naming the thing.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where.
    pub span: Span,
    /// The id of the step that it is in, if any.
    pub step: Option<String>,
}

impl Diagnostic {
    /// A problem without hint or step.
    pub fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, span, step: None }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The problem with its place in lines and columns, as machines read it.
    pub fn finding(&self, source: &Source) -> Finding<'_> {
        let (start, end) = (source.position(self.span.start), source.position(self.span.end));
        Finding {
            code: self.code.id(),
            name: self.code.name(),
            severity: self.code.severity(),
            message: &self.message,
            hint: self.hint.as_deref(),
            file: source.name().to_owned(),
            line: start.line,
            column: start.column,
            end_line: end.line,
            end_column: end.column,
            step: self.step.as_deref(),
        }
    }
}

/// A [`Diagnostic`] as it is printed in JSON on every surface.
#[derive(Debug, Clone, Serialize)]
pub struct Finding<'d> {
    code: &'static str,
    name: &'static str,
    severity: Severity,
    message: &'d str,
    hint: Option<&'d str>,
    file: String,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    step: Option<&'d str>,
}

/// The problems found so far, at most [`limits::DIAGNOSTICS`] of them.
#[derive(Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    errors: usize,
    left_out: usize,
}

impl Diagnostics {
    /// Adds a problem.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if diagnostic.code.severity() == Severity::Error {
            self.errors += 1;
        }
        if self.list.len() < limits::DIAGNOSTICS {
            self.list.push(diagnostic);
        } else {
            self.left_out += 1;
        }
    }

    /// Whether any problem is an error.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// How many of the problems are errors.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The problems in the order of the text; one place breaks one rule once.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        if self.left_out > 0 {
            let message = format!("{} more problems are not shown", self.left_out);
            let code = if self.errors > 0 { Code::TooManyProblems } else { Code::TooManyWarnings };
            let end = self.list.iter().map(|d| d.span).max().unwrap_or_default();
            self.list.push(Diagnostic::new(code, end, message).hint("mend those above first"));
        }
        self.list.sort_by(|a, b| {
            let summary = |d: &Diagnostic| matches!(d.code, Code::TooManyProblems | Code::TooManyWarnings);
            summary(a).cmp(&summary(b)).then(a.span.cmp(&b.span)).then(a.code.cmp(&b.code))
        });
        self.list.dedup_by_key(|diagnostic| (diagnostic.code, diagnostic.span));
        self.list
    }
}

/// The candidate nearest to `word`, if it is near enough to be a slip of the finger.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// "did you mean `x`?", or else the list of what is allowed.
pub fn suggest(word: &str, candidates: &[&str]) -> Option<String> {
    match nearest(word, candidates.iter().copied()) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if candidates.is_empty() || candidates.len() > 24 => None,
        None => Some(format!("possible here: {}", quoted(candidates))),
    }
}

/// `a`, `b`, `c` for messages.
pub fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
