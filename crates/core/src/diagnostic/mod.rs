//! Diagnostics: problems of a definition, each with a stable code, a position, a message and a hint.

mod code;
mod render;

pub use code::Code;
pub use render::render;

use serde::Serialize;

use crate::limits;
use crate::source::{Source, Span};

/// The severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The definition cannot run.
    Error,
    /// The definition can run, but possibly not as intended.
    Warning,
}

/// One problem in a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The rule that the definition breaks.
    pub code: Code,
    /// What is wrong. Quotes the name or value in question.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
    /// The position in the source.
    pub span: Span,
    /// The id of the step that contains the problem, if any.
    pub step: Option<String>,
}

impl Diagnostic {
    /// Creates a diagnostic without hint or step. Truncates the message to [`limits::MESSAGE_BYTES`].
    pub fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > limits::MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(limits::MESSAGE_BYTES));
            message.push('…');
        }
        Self { code, message, hint: None, span, step: None }
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Converts the diagnostic to its JSON form, with lines and columns.
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

/// A [`Diagnostic`] as JSON. All surfaces use this form.
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

/// Collects the first [`limits::DIAGNOSTICS`] errors and as many warnings, and counts the rest.
#[derive(Debug, Default)]
pub struct Diagnostics {
    shown: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
}

impl Diagnostics {
    /// Adds a problem.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        let count = match diagnostic.code.severity() {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *count += 1;
        if *count <= limits::DIAGNOSTICS {
            self.shown.push(diagnostic);
        }
    }

    /// Whether any problem is an error.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The number of errors, including those that are only counted.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Whether further errors are only counted. Searching hints for them is then wasted work.
    pub fn is_full(&self) -> bool {
        self.errors >= limits::DIAGNOSTICS
    }

    /// Returns the problems in source order, without duplicates. If there are too many, omits warnings first.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        let position = |d: &Diagnostic| (d.span, d.code);
        self.shown.sort_by(|a, b| position(a).cmp(&position(b)).then_with(|| a.message.cmp(&b.message)));
        let total = self.shown.len();
        self.shown.dedup_by(|a, b| position(a) == position(b) && a.message == b.message);
        let repeated = total - self.shown.len();
        let spare = limits::DIAGNOSTICS - self.errors.min(limits::DIAGNOSTICS);
        let mut warnings = 0;
        self.shown.retain(|diagnostic| {
            warnings += usize::from(diagnostic.code.severity() == Severity::Warning);
            diagnostic.code.severity() == Severity::Error || warnings <= spare
        });
        let omitted = (self.errors + self.warnings).saturating_sub(self.shown.len() + repeated);
        if omitted > 0 {
            let code =
                if self.errors > limits::DIAGNOSTICS { Code::TooManyProblems } else { Code::TooManyWarnings };
            let end = self.shown.last().map(|diagnostic| diagnostic.span).unwrap_or_default();
            let message = format!("{omitted} more problems are not shown");
            self.shown.push(Diagnostic::new(code, end, message).hint("fix the problems above first"));
        }
        self.shown
    }
}

/// Returns the candidate with the smallest edit distance to `name`, if it is small enough to be a typo.
/// Bounds its work: compares at most `CANDIDATES` candidates and no overlong name.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    const CANDIDATES: usize = 1_000;
    let limit = (name.chars().count() / 3).max(1);
    if name.len() > limits::NAME_CHARS {
        return None;
    }
    candidates
        .into_iter()
        .take(CANDIDATES)
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= 4 * limit)
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit && *distance < name.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the hint "did you mean `x`?", or a list of the candidates if none is similar.
pub fn suggest(name: &str, candidates: &[&str]) -> Option<String> {
    match nearest(name, candidates.iter().copied()) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if candidates.is_empty() || candidates.len() > 24 => None,
        None => Some(format!("expected one of {}", quoted(candidates))),
    }
}

/// Formats names for a message: `a`, `b`, `c`.
pub fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
