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
    /// A problem without hint or step. A message that quotes very long text is cut.
    pub fn new(code: Code, span: Span, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > limits::MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(limits::MESSAGE_BYTES));
            message.push('…');
        }
        Self { code, message, hint: None, span, step: None }
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

/// The problems found so far: the first [`limits::DIAGNOSTICS`] errors and as many warnings; the rest is
/// counted.
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

    /// How many of the problems are errors.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Whether further errors are only counted, so that finding hints for them is wasted.
    pub fn is_full(&self) -> bool {
        self.errors >= limits::DIAGNOSTICS
    }

    /// The problems in the order of the text, each once. Warnings are left out first.
    pub fn finish(mut self) -> Vec<Diagnostic> {
        let position = |d: &Diagnostic| (d.span, d.code);
        self.shown.sort_by(|a, b| position(a).cmp(&position(b)).then_with(|| a.message.cmp(&b.message)));
        let found = self.shown.len();
        self.shown.dedup_by(|a, b| position(a) == position(b) && a.message == b.message);
        let repeated = found - self.shown.len();
        let spare = limits::DIAGNOSTICS - self.errors.min(limits::DIAGNOSTICS);
        let mut warnings = 0;
        self.shown.retain(|diagnostic| {
            warnings += usize::from(diagnostic.code.severity() == Severity::Warning);
            diagnostic.code.severity() == Severity::Error || warnings <= spare
        });
        let left_out = (self.errors + self.warnings).saturating_sub(self.shown.len() + repeated);
        if left_out > 0 {
            let code =
                if self.errors > limits::DIAGNOSTICS { Code::TooManyProblems } else { Code::TooManyWarnings };
            let end = self.shown.last().map(|diagnostic| diagnostic.span).unwrap_or_default();
            let message = format!("{left_out} more problems are not shown");
            self.shown.push(Diagnostic::new(code, end, message).hint("mend those above first"));
        }
        self.shown
    }
}

/// The candidate nearest to `word`, if it is near enough to be a slip of the finger.
/// Only so many candidates are looked at, and no word that is too long for one.
pub fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    const CANDIDATES: usize = 1_000;
    let limit = (word.chars().count() / 3).max(1);
    if word.len() > limits::NAME_CHARS {
        return None;
    }
    candidates
        .into_iter()
        .take(CANDIDATES)
        .filter(|candidate| candidate.len().abs_diff(word.len()) <= 4 * limit)
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit && *distance < word.chars().count())
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
