//! Messages about values that do not match, and where they are.

use serde_json::{Map, Value};

use super::Violation;
use super::read::count;
use crate::limits::cut;

/// Bytes of a value in a message.
const VALUE_BYTES: usize = 120;
/// Names or alternatives that a message lists.
const LISTED: usize = 20;

/// A position in the checked value.
pub(super) struct At<'a> {
    above: Option<&'a At<'a>>,
    step: Step<'a>,
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub(super) const ROOT: At<'static> = At { above: None, step: Step::Index(0) };

    pub(super) fn key(&'a self, key: &'a str) -> At<'a> {
        At { above: Some(self), step: Step::Key(key) }
    }

    pub(super) fn index(&'a self, index: usize) -> At<'a> {
        At { above: Some(self), step: Step::Index(index) }
    }

    fn pointer(&self) -> String {
        let Some(above) = self.above else { return String::new() };
        let step = match self.step {
            Step::Key(key) => key.replace('~', "~0").replace('/', "~1"),
            Step::Index(index) => index.to_string(),
        };
        format!("{}/{step}", above.pointer())
    }
}

/// The violations that were found.
pub(super) struct Errors {
    pub found: Vec<Violation>,
    pub failed: bool,
    limit: usize,
}

impl Errors {
    /// Collects messages, up to a number.
    pub(super) fn reported(limit: usize) -> Self {
        Self { found: Vec::new(), failed: false, limit: limit.max(1) }
    }

    /// Only tells whether there is a violation.
    pub(super) fn quiet() -> Self {
        Self { found: Vec::new(), failed: false, limit: 0 }
    }

    /// Whether further violations do not matter.
    pub(super) fn is_done(&self) -> bool {
        self.failed && self.found.len() >= self.limit
    }

    pub(super) fn report(&mut self, at: &At<'_>, message: impl FnOnce() -> String) {
        self.failed = true;
        if self.found.len() < self.limit {
            self.found.push(Violation { pointer: at.pointer(), message: message() });
        }
    }
}

/// A value as it is quoted in a message. Only its beginning is converted to JSON.
pub(super) fn short(value: &Value) -> String {
    let mut text = Prefix(Vec::new());
    // An error means that the prefix is full.
    let _ = serde_json::to_writer(&mut text, value);
    cut(String::from_utf8_lossy(&text.0).into_owned(), VALUE_BYTES)
}

/// Collects the first bytes that are written to it, and then fails.
struct Prefix(Vec<u8>);

impl std::io::Write for Prefix {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() > VALUE_BYTES {
            return Err(std::io::Error::other("the prefix is full"));
        }
        // One character more than a message shows, so that the rest is known to be missing.
        let taken = bytes.len().min(VALUE_BYTES + 8);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) fn wrong_type(value: &Value, allowed: &[&str]) -> String {
    let types: Vec<String> = allowed.iter().map(|word| format!("\"{word}\"")).collect();
    let noun = if types.len() == 1 { "type" } else { "types" };
    format!("{} is not of {noun} {}", short(value), types.join(", "))
}

pub(super) fn not_one_of(value: &Value, allowed: &[Value]) -> String {
    let mut words: Vec<String> = allowed.iter().take(LISTED).map(short).collect();
    let value = short(value);
    match (words.pop(), allowed.len() > LISTED) {
        (None, _) => format!("{value} is not allowed: `enum` is empty"),
        (Some(only), _) if words.is_empty() => format!("{value} is not {only}"),
        (Some(last), true) => format!("{value} is not one of {}, {last}, …", words.join(", ")),
        (Some(last), false) => format!("{value} is not one of {} or {last}", words.join(", ")),
    }
}

pub(super) fn unexpected_properties(names: &[&str], at: &At<'_>, errors: &mut Errors) {
    if names.is_empty() {
        return;
    }
    errors.report(at, || {
        let listed: Vec<String> = names.iter().take(LISTED).map(|name| format!("'{name}'")).collect();
        let verb = if names.len() == 1 { "was" } else { "were" };
        format!("Additional properties are not allowed ({} {verb} unexpected)", listed.join(", "))
    });
}

pub(super) fn object_size(
    map: &Map<String, Value>,
    object: &Map<String, Value>,
    at: &At<'_>,
    errors: &mut Errors,
) {
    size(map, ("minProperties", "maxProperties"), object.len(), "properties", at, errors);
}

pub(super) fn array_size(map: &Map<String, Value>, items: &[Value], at: &At<'_>, errors: &mut Errors) {
    size(map, ("minItems", "maxItems"), items.len(), "items", at, errors);
}

fn size(
    map: &Map<String, Value>,
    (min, max): (&str, &str),
    length: usize,
    noun: &str,
    at: &At<'_>,
    errors: &mut Errors,
) {
    let min = map.get(min).and_then(count).unwrap_or(0);
    let max = map.get(max).and_then(count).unwrap_or(u64::MAX);
    let length = length as u64;
    if length < min || length > max {
        errors.report(at, || format!("there are {length} {noun}, {}", range(min, max)));
    }
}

/// How many are expected.
pub(super) fn range(min: u64, max: u64) -> String {
    match (min, max) {
        (0, max) => format!("at most {max} are allowed"),
        (min, u64::MAX) => format!("at least {min} are required"),
        (min, max) => format!("{min} to {max} are required"),
    }
}
