//! Redaction by value: replaces the secrets that this process has used in text from servers and in logs.
//!
//! The secrets are known to the whole process, because a value that one server received can come back through another one,
//! or appear in a log line. Each value is matched as it is and in the forms that programs commonly write: escaped in JSON,
//! percent-encoded, and base64 at any alignment. One automaton matches all forms in time linear in the text.

mod forms;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use steprail_engine::{Failure, FailureKind, Outcome, Report};

use crate::limits::{KNOWN_SECRETS, SECRET_MIN_BYTES};

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);

/// The secrets of the process, the oldest first, and the automaton that finds them.
#[derive(Default)]
struct Known {
    secrets: VecDeque<(String, String)>,
    matcher: Option<Arc<Matcher>>,
}

/// Finds secrets in text.
struct Matcher {
    automaton: AhoCorasick,
    /// What replaces the match of each pattern.
    marks: Vec<Arc<str>>,
    /// The length of the longest pattern, in bytes.
    longest: usize,
}

/// Remembers a secret, so that it is redacted from now on. Values below [`SECRET_MIN_BYTES`] are ignored.
pub fn learn(name: &str, value: &str) {
    let is_known = |known: &Known| known.secrets.iter().any(|(_, other)| other == value);
    if value.len() < SECRET_MIN_BYTES || is_known(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return;
    }
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if is_known(&known) {
        return;
    }
    if known.secrets.len() == KNOWN_SECRETS {
        known.secrets.pop_front();
    }
    known.secrets.push_back((name.to_owned(), value.to_owned()));
    known.matcher = Matcher::new(&known.secrets).map(Arc::new);
}

fn matcher() -> Option<Arc<Matcher>> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).matcher.clone()
}

impl Matcher {
    /// `None` if there are no secrets, or more text than an automaton can have.
    fn new(secrets: &VecDeque<(String, String)>) -> Option<Self> {
        let (mut patterns, mut marks) = (Vec::new(), Vec::new());
        for (name, value) in secrets {
            let mark: Arc<str> = format!("‹secret:{name}›").into();
            for form in forms::of(value) {
                patterns.push(form);
                marks.push(mark.clone());
            }
        }
        let longest = patterns.iter().map(String::len).max()?;
        // The default for few patterns is a DFA, whose size is a kilobyte per byte of a secret.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&patterns);
        match automaton {
            Ok(automaton) => Some(Self { automaton, marks, longest }),
            Err(error) => {
                tracing::error!(%error, "secrets cannot be redacted");
                None
            }
        }
    }

    fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut found = self.automaton.find_iter(text).peekable();
        if found.peek().is_none() {
            return Cow::Borrowed(text);
        }
        let (mut out, mut from) = (String::with_capacity(text.len()), 0);
        for one in found {
            // Patterns are whole characters, so a match begins and ends between characters.
            out.push_str(text.get(from..one.start()).unwrap_or_default());
            out.push_str(&self.marks[one.pattern().as_usize()]);
            from = one.end();
        }
        out.push_str(text.get(from..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// The first `limit` bytes of a text without secrets. A secret that starts there is replaced as a whole.
    fn start(&self, text: &str, limit: usize) -> String {
        let (mut out, mut from) = (String::new(), 0);
        for one in self.automaton.find_iter(text).take_while(|one| one.start() < limit) {
            out.push_str(text.get(from..one.start()).unwrap_or_default());
            out.push_str(&self.marks[one.pattern().as_usize()]);
            from = one.end();
        }
        let end = text.floor_char_boundary(limit).max(from);
        out.push_str(text.get(from..end).unwrap_or_default());
        out
    }

    fn replace(&self, text: &mut String) {
        if let Cow::Owned(redacted) = self.text(text) {
            *text = redacted;
        }
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.replace(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(map) => {
                if map.keys().any(|key| self.automaton.is_match(key)) {
                    let entries = std::mem::take(map).into_iter();
                    *map = entries
                        .map(|(key, value)| (self.text(&key).into_owned(), value))
                        .collect::<Map<_, _>>();
                }
                map.values_mut().for_each(|value| self.value(value));
            }
            Value::Number(number) => {
                let digits = number.to_string();
                if let Cow::Owned(redacted) = self.text(&digits) {
                    *value = Value::String(redacted);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }
}

/// The text without secrets.
pub fn text(text: &str) -> Cow<'_, str> {
    match matcher() {
        Some(matcher) => Cow::Owned(matcher.text(text).into_owned()),
        None => Cow::Borrowed(text),
    }
}

/// The first `limit` bytes of a text without secrets. The text must go on for [`longest`] bytes if it was cut off.
pub(crate) fn start(text: &str, limit: usize) -> String {
    match matcher() {
        Some(matcher) => matcher.start(text, limit),
        None => text[..text.floor_char_boundary(limit)].to_owned(),
    }
}

/// Replaces the secrets in all texts, numbers and keys of a value.
pub fn value(value: &mut Value) {
    if let Some(matcher) = matcher() {
        matcher.value(value);
    }
}

/// The length of the longest form of a secret, in bytes. Text that was cut off within this distance of a secret's start may
/// end with a part of it.
pub(crate) fn longest() -> usize {
    matcher().map_or(0, |matcher| matcher.longest)
}

/// A message without secrets. `None` if the rest is no longer a valid message.
pub(crate) fn message<T: Serialize + DeserializeOwned>(message: T) -> Option<T> {
    let Some(matcher) = matcher() else { return Some(message) };
    let mut value = serde_json::to_value(&message).ok()?;
    matcher.value(&mut value);
    serde_json::from_value(value).ok()
}

/// The outcome of a call without secrets.
pub(crate) fn outcome(outcome: Outcome) -> Outcome {
    let Some(matcher) = matcher() else { return outcome };
    match outcome {
        Ok(mut output) => {
            matcher.value(&mut output);
            Ok(output)
        }
        Err(failure) => Err(matcher.failure(failure)),
    }
}

impl Matcher {
    fn failure(&self, mut failure: Failure) -> Failure {
        failure.message = self.text(&failure.message).into();
        if let Some(details) = failure.details.as_deref_mut() {
            self.value(details);
        }
        if let Some(request) = failure.request.as_deref_mut() {
            // The state is sent back to the server, so it cannot be changed. It is stored, so it must not have a secret.
            if self.automaton.is_match(&request.state.to_string()) {
                let message = "the state of the tool's input request contains a secret and cannot be stored";
                return Failure::new(FailureKind::Lost, message).code("secret_in_state");
            }
            request.message = self.text(&request.message).into();
            self.value(&mut request.form);
        }
        failure
    }
}

/// A report without secrets. `None` for a task whose id contains one: the id is stored, and cannot be changed.
pub(crate) fn report(report: Report) -> Option<Report> {
    let Some(matcher) = matcher() else { return Some(report) };
    let redact = |text: Box<str>| -> Box<str> { matcher.text(&text).into() };
    Some(match report {
        Report::Progress { progress, total, message } => {
            Report::Progress { progress, total, message: message.map(redact) }
        }
        Report::Task { id } if matcher.automaton.is_match(&*id) => return None,
        Report::Task { id } => Report::Task { id },
        Report::ToolChanged { what } => Report::ToolChanged { what: redact(what) },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{KNOWN, learn, text, value};

    #[test]
    fn secrets_are_replaced_by_their_names_in_all_forms() {
        learn("db", "p\"ä/ss wörd+1");
        learn("num", "4711471147");
        learn("short", "12345");
        let plain = "p\"ä/ss wörd+1";
        assert_eq!(text(&format!("a {plain} b")), "a ‹secret:db› b");
        assert_eq!(text(&json!({ "x": plain }).to_string()), r#"{"x":"‹secret:db›"}"#);
        assert_eq!(text(r#"p\"\u00e4\/ss w\u00f6rd+1"#), "‹secret:db›");
        assert_eq!(text("q=p%22%C3%A4%2Fss%20w%C3%B6rd%2B1&r"), "q=‹secret:db›&r");
        assert_eq!(text("q=p%22%c3%a4%2fss+w%c3%b6rd%2b1"), "q=‹secret:db›");
        assert_eq!(text("12345"), "12345", "a value below the minimum is not a secret");
        let mut output = json!({ "n": 4_711_471_147_u64, "4711471147": ["x4711471147"], "ok": 1 });
        value(&mut output);
        assert_eq!(output, json!({ "n": "‹secret:num›", "‹secret:num›": ["x‹secret:num›"], "ok": 1 }));
    }

    #[test]
    fn base64_is_found_at_every_alignment() {
        use base64::Engine as _;
        learn("b64", "canary-??>>secret");
        for prefix in ["", "u", "us", "use", "user:"] {
            for suffix in ["", "!", "!!"] {
                let plain = format!("{prefix}canary-??>>secret{suffix}");
                for engine in
                    [base64::engine::general_purpose::STANDARD, base64::engine::general_purpose::URL_SAFE]
                {
                    let encoded = engine.encode(&plain);
                    assert!(text(&encoded).contains("‹secret:b64›"), "{plain}: {encoded}");
                }
            }
        }
    }

    #[test]
    fn the_oldest_secrets_are_forgotten_at_the_limit() {
        for n in 0..=crate::limits::KNOWN_SECRETS.min(50) {
            learn("many", &format!("value-{n:08}"));
        }
        let known = KNOWN.read().expect("secrets");
        assert!(known.secrets.len() <= crate::limits::KNOWN_SECRETS);
    }
}
