//! Regular expressions of bounded size, whose matching is charged to a budget.
//!
//! A match takes time proportional to the text times the positions of the pattern in the worst case, and compilation takes
//! time proportional to its ranges of characters. Both are computed from the parsed pattern before it is compiled.

use std::collections::BTreeMap;
use std::fmt;

use regex::RegexBuilder;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Repetition};

use crate::budget::{Budget, Exhausted};
use crate::limits;

/// Positions that are tried for each byte of a text for one unit. A match tries all of them only for hostile patterns.
const POSITIONS_PER_UNIT: usize = 4;

/// How much longer a search for the groups of a match takes than a match.
const GROUPS_FACTOR: usize = 2;

/// Positions of a pattern whose automaton is small, so that a search reads a byte with one lookup.
const SMALL_POSITIONS: usize = 8;
/// Bytes that such a search reads for one unit.
const SMALL_BYTES_PER_UNIT: usize = 8;

/// Ranges of bytes that a class needs for characters beyond ASCII, besides its own: `.` is compiled to about ten.
const UTF8_RANGES: usize = 8;

/// A compiled regular expression. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct BoundedRegex {
    regex: regex::Regex,
    size: Size,
    /// The maximum length of a match, in bytes, if it is bounded.
    longest: Option<usize>,
}

/// Why a regular expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexError {
    /// It is invalid, or uses look-around or back-references.
    Invalid(String),
    /// It exceeds a limit.
    TooLarge(String),
}

impl fmt::Display for RegexError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(reason) => write!(out, "invalid regular expression: {reason}"),
            Self::TooLarge(reason) => write!(out, "the regular expression is too large: {reason}"),
        }
    }
}

impl std::error::Error for RegexError {}

impl BoundedRegex {
    /// Compiles a pattern.
    pub(crate) fn new(pattern: &str) -> Result<Self, RegexError> {
        if pattern.len() > limits::REGEX_BYTES {
            return Err(too_large(limits::REGEX_BYTES, "bytes"));
        }
        let parsed = ParserBuilder::new().nest_limit(limits::REGEX_DEPTH).build().parse(pattern);
        let parsed = parsed.map_err(|error| RegexError::Invalid(last_line(&error.to_string())))?;
        let size = Size::of(&parsed);
        if size.positions > limits::REGEX_POSITIONS {
            return Err(too_large(limits::REGEX_POSITIONS, "positions, with repetitions written out"));
        }
        if size.ranges > limits::REGEX_RANGES {
            return Err(too_large(
                limits::REGEX_RANGES,
                "ranges of characters, with repetitions written out",
            ));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.nest_limit(limits::REGEX_DEPTH);
        builder.size_limit(limits::COMPILED_REGEX_BYTES).dfa_size_limit(limits::REGEX_CACHE_BYTES);
        let regex = builder.build().map_err(|error| RegexError::TooLarge(last_line(&error.to_string())))?;
        Ok(Self { regex, size, longest: parsed.properties().maximum_len() })
    }

    /// Whether the pattern matches a part of a text.
    pub(crate) fn is_match(&self, text: &str, budget: &mut Budget) -> Result<bool, Exhausted> {
        let per_byte = 1 + self.size.positions / POSITIONS_PER_UNIT;
        budget.charge(text.len().saturating_add(1).saturating_mul(per_byte))?;
        Ok(self.regex.is_match(text))
    }

    /// Calls `found` with each match and its groups, up to `most` matches. The search for a match can read the rest of the
    /// text, so it is charged for each match, unless the pattern bounds the length of matches.
    pub(crate) fn for_each_match<E: From<Exhausted>>(
        &self,
        text: &str,
        most: usize,
        budget: &mut Budget,
        mut found: impl FnMut(&regex::Captures<'_>, &mut Budget) -> Result<(), E>,
    ) -> Result<(), E> {
        let per_byte = GROUPS_FACTOR * (1 + self.size.positions / POSITIONS_PER_UNIT);
        budget.charge(text.len().saturating_add(1).saturating_mul(per_byte))?;
        for captures in self.regex.captures_iter(text).take(most) {
            found(&captures, budget)?;
            let rest = text.len() - captures.get(0).map_or(0, |whole| whole.end());
            budget.charge(1 + self.cost_of_search(rest, per_byte))?;
        }
        Ok(())
    }
}

impl BoundedRegex {
    /// The cost of the search for a further match in the rest of a text. It can read all of it, unless the length of matches is
    /// bounded.
    fn cost_of_search(&self, rest: usize, per_byte: usize) -> usize {
        let read = self.longest.unwrap_or(usize::MAX).min(rest);
        let is_small = self.size.positions <= SMALL_POSITIONS;
        if is_small { read / SMALL_BYTES_PER_UNIT } else { read.saturating_mul(per_byte) }
    }
}

/// The regular expressions of a definition or schema, each compiled once.
#[derive(Debug, Default)]
pub(crate) struct RegexSet {
    known: BTreeMap<String, BoundedRegex>,
    ranges: usize,
}

impl RegexSet {
    /// Returns a compiled pattern, unless the set exceeds its limits.
    pub(crate) fn compile(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
        if let Some(known) = self.known.get(pattern) {
            return Ok(known.clone());
        }
        if self.known.len() >= limits::REGEXES {
            let message = format!("there are more than {} different regular expressions", limits::REGEXES);
            return Err(RegexError::TooLarge(message));
        }
        let regex = BoundedRegex::new(pattern)?;
        self.ranges += regex.size.ranges;
        if self.ranges > limits::REGEXES_RANGES {
            let limit = limits::REGEXES_RANGES;
            let message =
                format!("the regular expressions together have more than {limit} ranges of characters");
            return Err(RegexError::TooLarge(message));
        }
        self.known.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }
}

/// The size of a pattern with its repetitions written out.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// Characters and classes: the number of states that a match can be in at the same time.
    positions: usize,
    /// Ranges of characters, which determine the time and memory of compilation.
    ranges: usize,
}

impl Size {
    fn of(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Empty => Self::default(),
            HirKind::Look(_) => Self { positions: 1, ranges: 1 },
            HirKind::Literal(literal) => Self { positions: literal.0.len(), ranges: literal.0.len() },
            HirKind::Class(Class::Unicode(class)) => {
                let encoded = if class.is_ascii() { 0 } else { UTF8_RANGES };
                Self { positions: 1, ranges: class.ranges().len() + encoded }
            }
            HirKind::Class(Class::Bytes(class)) => Self { positions: 1, ranges: class.ranges().len() },
            HirKind::Repetition(repetition) => Self::of_repetition(repetition),
            HirKind::Capture(capture) => Self::of(&capture.sub),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                parts.iter().map(Self::of).fold(Self::default(), Self::plus)
            }
        }
    }

    fn of_repetition(repetition: &Repetition) -> Self {
        let copies = repetition.max.unwrap_or(repetition.min).max(repetition.min).max(1) as usize;
        let one = Self::of(&repetition.sub);
        // Even an empty part is repeated by the compiler.
        Self {
            positions: one.positions.max(1).saturating_mul(copies),
            ranges: one.ranges.max(1).saturating_mul(copies),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            positions: self.positions.saturating_add(other.positions),
            ranges: self.ranges.saturating_add(other.ranges),
        }
    }
}

fn too_large(limit: usize, what: &str) -> RegexError {
    RegexError::TooLarge(format!("it has more than {limit} {what}"))
}

/// The last line of an error is the reason; the lines above show the position.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
