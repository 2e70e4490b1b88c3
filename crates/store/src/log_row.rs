//! One row of the log: the events of one decision as compact text, linked to the row before.
//!
//! JSON text contains no raw control characters, so they can be used as codes. Most stand for text that events repeat.
//! Four stand for the first hashes of the row and two for its first idempotency keys, which are stored as bytes.
//! `replace()` in SQL restores the text: see [`sql_text`].

use sha2::{Digest, Sha256};
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Record, ScopeKey, Started, StepInfo, StepRef};

use crate::{RunId, StoreError};

const STEP_STARTED_JSON: &str = r#"{"type":"step_started","step":{"n":"#;

/// Text fragments by control character. Stored rows contain the codes: an entry never changes, and new ones are only
/// added.
const FRAGMENTS: &[(u8, &str)] = &[
    (1, r#"{"type":"step_completed","step":{"n":"#),
    (2, STEP_STARTED_JSON),
    (3, r#","path":""#),
    (4, r#"","attempt":1},"output":""#),
    (5, r#"","attempt":1},"place":{"id":""#),
    (6, r#"","kind":"tool"},"what":{"kind":"call","tool":""#),
    (7, r#"","kind":"tool","in":{"n":"#),
    (8, r#","index":"#),
    (11, r#"}},"what":{"kind":"call","tool":""#),
    (12, r#"","args":""#),
    (13, r#""},{"type":"step_started","step":{"n":"#),
    (14, r#"","key":""#),
    (15, r#"","attempt":1}"#),
    (16, r#"{"type":"block_completed","step":{"n":"#),
    (17, r#"{"type":"run_started","definition":""#),
    (18, r#"{"type":"run_completed","output":""#),
    (19, r#"{"type":"step_ready","step":{"n":"#),
    (20, r#"},"place":{"id":""#),
    (21, r#","until":"#),
    (22, r#"{"type":"retry_scheduled","step":{"n":"#),
    (23, r#"{"type":"step_failed","step":{"n":"#),
    (24, r#","error":{"kind":""#),
    (25, r#","result":"#),
    (26, r#"","attempt":"#),
    (27, r#""}},"#),
];

// The codes of the fragments that the frequent events consist of.
const STEP_COMPLETED: u8 = 1;
const STEP_STARTED: u8 = 2;
const PATH: u8 = 3;
const OUTPUT: u8 = 4;
const PLACE_OF_STEP: u8 = 5;
const KIND_AND_CALL: u8 = 6;
const KIND_AND_SCOPE: u8 = 7;
const INDEX: u8 = 8;
const END_OF_SCOPE_AND_CALL: u8 = 11;
const ARGS: u8 = 12;
const END_AND_STEP_STARTED: u8 = 13;
const KEY: u8 = 14;
const UNTIL: u8 = 21;
const END_OF_START: u8 = 27;

/// The control characters that stand for the first hashes of a row. The bytes of the hashes precede those of the keys.
const HASHES: [u8; 4] = [28, 29, 30, 31];
const HASH_BYTES: usize = 32;
/// The control characters that stand for the first idempotency keys of a row. The bytes of the keys are in reverse
/// order.
const KEYS: [u8; 2] = [9, 10];
const KEY_BYTES: usize = 16;

/// The events of one decision in their stored form.
#[derive(Debug, Default)]
pub(crate) struct LogRow {
    /// The events, separated by commas.
    pub body: Vec<u8>,
    /// The hashes and keys that the body refers to.
    pub hashes: Vec<u8>,
    /// The keys, until the row is complete.
    keys: Vec<[u8; KEY_BYTES]>,
    json: Vec<u8>,
}

impl LogRow {
    /// Replaces the contents with other events. The buffers are reused.
    pub(crate) fn encode(&mut self, records: &[Record]) -> Result<(), StoreError> {
        self.encode_events(records.iter().map(|record| &record.event))
    }

    fn encode_events<'e>(&mut self, events: impl Iterator<Item = &'e Event>) -> Result<(), StoreError> {
        self.body.clear();
        self.hashes.clear();
        for event in events {
            if !self.push_frequent(event) {
                self.json.clear();
                serde_json::to_writer(&mut self.json, event)?;
                let start = self.separate_from(event);
                self.compact(start);
            }
        }
        self.push_keys();
        Ok(())
    }

    /// The same with administrative actions.
    pub(crate) fn encode_actions(&mut self, events: &[crate::AdminEvent]) -> Result<(), StoreError> {
        self.body.clear();
        self.hashes.clear();
        for event in events {
            if !self.body.is_empty() {
                self.body.push(b',');
            }
            self.json.clear();
            serde_json::to_writer(&mut self.json, event)?;
            self.compact(0);
        }
        self.push_keys();
        Ok(())
    }

    /// Appends the keys to the hashes: the row is complete.
    fn push_keys(&mut self) {
        self.keys.drain(..).rev().for_each(|key| self.hashes.extend_from_slice(&key));
    }

    /// Appends an event that every step has, without making its JSON first. False if it is another event, or one with
    /// rare fields. The patterns name all fields, so that a new field cannot be left out of the log.
    fn push_frequent(&mut self, event: &Event) -> bool {
        match event {
            Event::StepCompleted { step, output, from: None } if is_first_attempt(step) => {
                self.separate_from(event);
                self.body.push(STEP_COMPLETED);
                self.push_step(step);
                self.body.push(OUTPUT);
                self.push_hash(output);
                self.body.extend_from_slice(b"\"}");
                true
            }
            Event::StepStarted {
                step,
                place,
                what: Started::Call { tool, args, key, claimed: false, policy: None },
                until,
            } if is_first_attempt(step) && is_frequent_call(place, tool, key) => {
                self.separate_from(event);
                self.push_step(step);
                self.body.push(PLACE_OF_STEP);
                self.body.extend_from_slice(place.id.as_bytes());
                self.push_scope(place.scope);
                self.body.extend_from_slice(tool.as_bytes());
                self.body.push(ARGS);
                self.push_hash(args);
                self.body.push(KEY);
                self.push_key(key);
                self.body.extend_from_slice(br#""}"#);
                if let Some(until) = until {
                    self.body.push(UNTIL);
                    self.push_number(*until);
                }
                self.body.push(b'}');
                true
            }
            _ => false,
        }
    }

    /// Appends the separator between the events so far and the next one. For `step_started`, it includes the first
    /// fragment of the event. Returns the length of that fragment.
    fn separate_from(&mut self, next: &Event) -> usize {
        let starts_step = matches!(next, Event::StepStarted { .. });
        if starts_step && self.body.ends_with(br#""}"#) {
            self.body.truncate(self.body.len() - 2);
            self.body.push(END_AND_STEP_STARTED);
            return STEP_STARTED_JSON.len();
        }
        if self.body.ends_with(br#""}}"#) {
            self.body.truncate(self.body.len() - 3);
            self.body.push(END_OF_START);
        } else if !self.body.is_empty() {
            self.body.push(b',');
        }
        if starts_step {
            self.body.push(STEP_STARTED);
            return STEP_STARTED_JSON.len();
        }
        0
    }

    fn push_step(&mut self, step: &StepRef) {
        self.push_number(step.n);
        self.body.push(PATH);
        self.body.extend_from_slice(step.path.as_bytes());
    }

    fn push_scope(&mut self, scope: ScopeKey) {
        if scope == ScopeKey::ROOT {
            return self.body.push(KIND_AND_CALL);
        }
        self.body.push(KIND_AND_SCOPE);
        self.push_number(scope.n);
        self.body.push(INDEX);
        self.push_number(scope.index);
        self.body.push(END_OF_SCOPE_AND_CALL);
    }

    fn push_number(&mut self, number: impl Into<i64>) {
        let number = number.into();
        let mut digits = [0; 20];
        let (mut at, mut rest) = (digits.len(), number.unsigned_abs());
        loop {
            at -= 1;
            digits[at] = DIGITS[(rest % 10) as usize];
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            self.body.push(b'-');
        }
        self.body.extend_from_slice(&digits[at..]);
    }

    fn push_hash(&mut self, hash: &Hash) {
        if let Some(code) = HASHES.get(self.hashes.len() / HASH_BYTES) {
            self.hashes.extend_from_slice(&hash.0);
            self.body.push(*code);
        } else {
            hash.0.iter().for_each(|byte| self.body.extend_from_slice(&digits_of(*byte)));
        }
    }

    fn push_key(&mut self, key: &str) {
        match (KEYS.get(self.keys.len()), bytes_of::<KEY_BYTES>(key.as_bytes())) {
            (Some(code), Some(bytes)) if key.len() == 2 * KEY_BYTES => {
                self.keys.push(bytes);
                self.body.push(*code);
            }
            _ => self.body.extend_from_slice(key.as_bytes()),
        }
    }

    /// Appends the text in `json`, from a position.
    fn compact(&mut self, start: usize) {
        let json = std::mem::take(&mut self.json);
        let mut at = start;
        while at < json.len() {
            if let Some((code, fragment)) = fragment_at(&json[at..]) {
                self.body.push(code);
                at += fragment.len();
                at += self.take_bytes(&json[at..], fragment.ends_with('"'));
            } else {
                self.body.push(json[at]);
                at += 1;
                at += self.take_bytes(&json[at..], json[at - 1] == b'"');
            }
        }
        self.json = json;
    }

    /// Moves a string of hexadecimal digits to the hashes or the keys. Returns the length of its text.
    fn take_bytes(&mut self, rest: &[u8], is_string: bool) -> usize {
        if !is_string {
            return 0;
        }
        if let Some(code) = HASHES.get(self.hashes.len() / HASH_BYTES)
            && rest.get(2 * HASH_BYTES) == Some(&b'"')
            && let Some(hash) = bytes_of::<HASH_BYTES>(rest)
        {
            self.hashes.extend_from_slice(&hash);
            self.body.push(*code);
            return 2 * HASH_BYTES;
        }
        if let Some(code) = KEYS.get(self.keys.len())
            && rest.get(2 * KEY_BYTES) == Some(&b'"')
            && let Some(key) = bytes_of::<KEY_BYTES>(rest)
        {
            self.keys.push(key);
            self.body.push(*code);
            return 2 * KEY_BYTES;
        }
        0
    }

    /// The body as text.
    pub(crate) fn text(&self) -> Result<&str, StoreError> {
        str::from_utf8(&self.body).map_err(|error| StoreError::Other(error.to_string()))
    }
}

/// Whether the fields of a step are the frequent ones: the first attempt, and a path without characters to escape.
fn is_first_attempt(step: &StepRef) -> bool {
    let StepRef { n: _, path, attempt } = step;
    *attempt == 1 && is_plain(path)
}

fn is_frequent_call(place: &StepInfo, tool: &str, key: &str) -> bool {
    let StepInfo { id, kind, scope: _ } = place;
    **kind == *"tool" && is_plain(id) && is_plain(tool) && is_plain(key)
}

/// Whether JSON contains a text as it is.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

/// The bytes of a text that starts with lower-case hexadecimal digits. Only such texts can be restored exactly.
fn bytes_of<const BYTES: usize>(rest: &[u8]) -> Option<[u8; BYTES]> {
    let rest = rest.get(..2 * BYTES)?;
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(rest.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A byte as two lower-case hexadecimal digits.
fn digits_of(byte: u8) -> [u8; 2] {
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

/// Appends bytes as lower-case hexadecimal digits.
fn push_digits(json: &mut String, bytes: &[u8]) {
    bytes.iter().flat_map(|byte| digits_of(*byte)).for_each(|digit| json.push(char::from(digit)));
}

/// The longest fragment at the start of a text. A check of the first bytes excludes most texts early.
fn fragment_at(json: &[u8]) -> Option<(u8, &'static str)> {
    if !matches!(json, [b'{' | b',', b'"', ..] | [b'"' | b'}', b',' | b'}', ..]) {
        return None;
    }
    let is_prefix = |fragment: &str| {
        let fragment = fragment.as_bytes();
        // The sixth byte from the end differs in most fragments with the same start.
        let probe = fragment.len().saturating_sub(6);
        json.len() >= fragment.len() && json[probe] == fragment[probe] && json.starts_with(fragment)
    };
    let matching = FRAGMENTS.iter().filter(|(_, fragment)| is_prefix(fragment));
    matching.max_by_key(|(_, fragment)| fragment.len()).copied()
}

/// Restores the events of a row as a JSON array.
pub(crate) fn decode(body: &str, hashes: &[u8]) -> Result<String, StoreError> {
    let mut json = String::with_capacity(3 * body.len() + 2);
    json.push('[');
    let mut start = 0;
    for (at, code) in body.bytes().enumerate().filter(|(_, byte)| *byte < b' ') {
        json.push_str(&body[start..at]);
        start = at + 1;
        if let Some(number) = HASHES.iter().position(|known| *known == code) {
            let hash = hashes.get(number * HASH_BYTES..(number + 1) * HASH_BYTES);
            push_digits(&mut json, hash.ok_or_else(|| damaged(code))?);
        } else if let Some(number) = KEYS.iter().position(|known| *known == code) {
            let start = hashes.len().checked_sub((number + 1) * KEY_BYTES);
            let key = start.and_then(|start| hashes.get(start..start + KEY_BYTES));
            push_digits(&mut json, key.ok_or_else(|| damaged(code))?);
        } else {
            let known = FRAGMENTS.iter().find(|(known, _)| *known == code);
            json.push_str(known.ok_or_else(|| damaged(code))?.1);
        }
    }
    json.push_str(&body[start..]);
    json.push(']');
    Ok(json)
}

/// Restores the events of a row.
pub(crate) fn events(body: &str, hashes: &[u8]) -> Result<Vec<Event>, StoreError> {
    Ok(serde_json::from_str(&decode(body, hashes)?)?)
}

fn damaged(code: u8) -> StoreError {
    StoreError::Corrupt(format!("a row of the log contains the unknown code {code}"))
}

/// Calls of `replace()` in one expression. SQLite before version 3.46 cannot parse a view with many nested ones, and then
/// cannot read any table of the database.
const NESTED_CALLS: usize = 8;

/// The SQL expression that restores the events of a row as a JSON array, for views.
pub(crate) fn sql_text(body: &str, hashes: &str) -> String {
    let fragments = FRAGMENTS.iter().map(|(code, fragment)| (*code, format!("'{fragment}'")));
    let hash = |(number, code): (usize, &u8)| {
        (*code, format!("lower(hex(substr({hashes}, {}, {HASH_BYTES})))", number * HASH_BYTES + 1))
    };
    let key = |(number, code): (usize, &u8)| {
        (*code, format!("lower(hex(substr({hashes}, -{}, {KEY_BYTES})))", (number + 1) * KEY_BYTES))
    };
    let bytes = HASHES.iter().enumerate().map(hash).chain(KEYS.iter().enumerate().map(key));
    let codes: Vec<(u8, String)> = fragments.chain(bytes).collect();
    let restored = codes.chunks(NESTED_CALLS).fold(body.to_owned(), |text, codes| {
        let replaced = codes.iter().fold("t".to_owned(), |text, (code, meaning)| {
            format!("replace({text}, char({code}), {meaning})")
        });
        format!("(SELECT {replaced} FROM (SELECT {text} AS t))")
    });
    format!("'[' || {restored} || ']'")
}

/// The contents of a log row that its hash covers.
#[derive(Debug, Clone, Copy)]
pub struct RowContent<'r> {
    /// The run.
    pub run: RunId,
    /// The sequence number of the first event.
    pub seq: u64,
    /// When the events happened.
    pub at: Millis,
    /// The events as they are stored.
    pub body: &'r str,
    /// The hashes that the body refers to.
    pub hashes: &'r [u8],
}

impl RowContent<'_> {
    /// The digest that remains of the row when its contents are purged.
    pub fn digest(&self) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(self.run.0.as_bytes());
        hasher.update(self.seq.to_be_bytes());
        hasher.update(self.at.to_be_bytes());
        hasher.update((self.body.len() as u64).to_be_bytes());
        hasher.update(self.body.as_bytes());
        hasher.update(self.hashes);
        Hash(hasher.finalize().into())
    }
}

/// The hash of a row, given the hash of the row before (zeros for the first) and its own digest.
pub fn link(before: &Hash, digest: &Hash) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(before.0);
    hasher.update(digest.0);
    Hash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use steprail_core::plan::Hash;
    use steprail_core::run::{Event, PolicyRule, PolicyUse, ScopeKey, Started, StepInfo, StepRef};

    use super::{FRAGMENTS, LogRow, decode, sql_text};

    fn encoded(json: &str) -> LogRow {
        let mut row = LogRow { json: json.as_bytes().to_vec(), ..LogRow::default() };
        row.compact(0);
        row.keys.drain(..).rev().for_each(|key| row.hashes.extend_from_slice(&key));
        row
    }

    fn started(n: u32, path: &str, scope: ScopeKey, key: &str, until: Option<i64>) -> Event {
        let step = StepRef { n, path: path.into(), attempt: 1 };
        let place = StepInfo { id: "s".into(), kind: "tool".into(), scope };
        Event::StepStarted { step, place, what: call(key, false, None), until }
    }

    fn call(key: &str, claimed: bool, policy: Option<PolicyUse>) -> Started {
        let (tool, args) = ("a__b".into(), Hash::of(b"a"));
        Started::Call { tool, args, key: key.into(), claimed, policy: policy.map(Box::new) }
    }

    /// A call with rare fields.
    fn started_as(n: u32, what: Started) -> Event {
        let step = StepRef { n, path: "s".into(), attempt: 1 };
        let place = StepInfo { id: "s".into(), kind: "tool".into(), scope: ScopeKey::ROOT };
        Event::StepStarted { step, place, what, until: None }
    }

    fn completed(n: u32, path: &str, attempt: u32) -> Event {
        let step = StepRef { n, path: path.into(), attempt };
        Event::StepCompleted { step, output: Hash::of(&n.to_be_bytes()), from: None }
    }

    fn completed_by(n: u32, from: &str) -> Event {
        let step = StepRef { n, path: "s".into(), attempt: 1 };
        Event::StepCompleted { step, output: Hash::of(&n.to_be_bytes()), from: Some(from.into()) }
    }

    /// Every sequence of up to four of these events is restored, and is as compact as its JSON can be made.
    #[test]
    fn frequent_events_are_written_as_their_json() {
        let hash = Hash::of(b"k").to_string();
        let item = ScopeKey { n: 4_000_000_000, index: 12 };
        let policy = PolicyUse {
            rule: PolicyRule { rule: "mails".into(), version: "1".into() },
            budget: None,
            approved: None,
        };
        let events = [
            completed(1, "s1", 1),
            completed(10, "s\"[1].\u{1}ü", 1),
            completed(3, "s3", 2),
            started(2, "s2", ScopeKey::ROOT, &hash[..32], None),
            started(102, "each[12].s", item, &hash[..32], Some(-120)),
            started(5, "s5", ScopeKey::ROOT, "a \"key\"", None),
            started(6, "s6", ScopeKey::ROOT, &hash[..30], Some(1_800_000_000_000)),
            started_as(7, call(&hash[..32], true, None)),
            started_as(9, call(&hash[..32], false, Some(policy))),
            completed_by(8, "verify"),
            Event::RunCompleted { output: Hash::of(b"o") },
        ];
        let mut row = LogRow::default();
        for number in 0..events.len().pow(4) {
            let at = |digit: u32| &events[number / events.len().pow(digit) % events.len()];
            let chosen = [at(0), at(1), at(2), at(3)];
            let length = 1 + number % chosen.len();
            row.encode_events(chosen[..length].iter().copied()).expect("a row");
            let json = serde_json::to_string(&chosen[..length]).expect("JSON");
            assert_eq!(decode(row.text().expect("text"), &row.hashes).expect("JSON"), json);
            let by_json = encoded(&json[1..json.len() - 1]);
            assert_eq!((&row.body, &row.hashes), (&by_json.body, &by_json.hashes), "{json}");
        }
    }

    #[test]
    fn any_json_is_restored() {
        let hash = Hash::of(b"x").to_string();
        let upper = hash.to_uppercase();
        let many = format!(r#"["{hash}","{hash}","{hash}","{hash}","{hash}","{upper}","{hash}x"]"#);
        let started = format!(
            r#"{{"type":"step_started","step":{{"n":2,"path":"s2","attempt":1}},"place":{{"id":"s2","kind":"tool"}},"what":{{"kind":"call","tool":"a__b","args":"{hash}","key":"k"}}}}"#
        );
        for json in ["", "{}", r#"{"a":"ä\u0001\n\"}"}"#, &many, &started, "1.5e3,-0,[null]"] {
            let row = encoded(json);
            let text = row.text().expect("text");
            assert_eq!(decode(text, &row.hashes).expect("JSON"), format!("[{json}]"));
        }
        assert!(encoded(&started).body.len() < started.len() / 4, "the text is compact");
    }

    #[test]
    fn sql_restores_what_the_code_restores() {
        let hash = Hash::of(b"x").to_string();
        let json: String = FRAGMENTS.iter().map(|(_, fragment)| *fragment).collect();
        let (first, second) = (&hash[..32], &hash[32..]);
        let json = format!(r#"{json}"{hash}","{first}","{second}","{first}""#);
        let row = encoded(&json);
        let sql = format!("SELECT {}", sql_text("?1", "?2"));
        let database = rusqlite::Connection::open_in_memory().expect("a database");
        let params = rusqlite::params![row.text().expect("text"), row.hashes];
        let found: String = database.query_row(&sql, params, |found| found.get(0)).expect("a row");
        assert_eq!(found, format!("[{json}]"));
    }

    #[test]
    fn unknown_codes_and_missing_hashes_are_damage() {
        for body in ["\u{9}", "\u{1c}", "\u{b}\u{0}"] {
            assert!(decode(body, &[]).is_err(), "{body:?}");
        }
    }
}
