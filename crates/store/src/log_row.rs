//! One row of the log: the events of one decision as compact text, linked to the row before.
//!
//! JSON text contains no raw control characters, so they can be used as codes. Most stand for text that events repeat.
//! Four stand for the first hashes of the row and two for its first idempotency keys, which are stored as bytes.
//! `replace()` in SQL restores the text: see [`sql_text`].

use sha2::{Digest, Sha256};
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Millis, Record};

use crate::{RunId, StoreError};

/// Text fragments by control character. Stored rows contain the codes: an entry never changes, and new ones are only
/// added.
const FRAGMENTS: &[(u8, &str)] = &[
    (1, r#"{"type":"step_completed","step":{"n":"#),
    (2, r#"{"type":"step_started","step":{"n":"#),
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
        self.json.clear();
        for record in records {
            if !self.json.is_empty() {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, &record.event)?;
        }
        self.compact();
        Ok(())
    }

    /// The same with administrative actions.
    pub(crate) fn encode_actions(&mut self, events: &[crate::AdminEvent]) -> Result<(), StoreError> {
        self.json.clear();
        for event in events {
            if !self.json.is_empty() {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, event)?;
        }
        self.compact();
        Ok(())
    }

    fn compact(&mut self) {
        self.body.clear();
        self.hashes.clear();
        let json = std::mem::take(&mut self.json);
        let mut at = 0;
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
        self.keys.drain(..).rev().for_each(|key| self.hashes.extend_from_slice(&key));
        self.json = json;
    }

    /// Moves a string of hexadecimal digits to the hashes or the keys. Returns the length of its text.
    fn take_bytes(&mut self, rest: &[u8], is_string: bool) -> usize {
        if !is_string {
            return 0;
        }
        if let Some(code) = HASHES.get(self.hashes.len() / HASH_BYTES)
            && let Some(hash) = bytes_of::<HASH_BYTES>(rest)
        {
            self.hashes.extend_from_slice(&hash);
            self.body.push(*code);
            return 2 * HASH_BYTES;
        }
        if let Some(code) = KEYS.get(self.keys.len())
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

/// The bytes of a string of lower-case hexadecimal digits. Only such strings can be restored exactly.
fn bytes_of<const BYTES: usize>(rest: &[u8]) -> Option<[u8; BYTES]> {
    if rest.get(2 * BYTES) != Some(&b'"') {
        return None;
    }
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

/// Appends bytes as lower-case hexadecimal digits.
fn push_digits(json: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        json.push(char::from(DIGITS[usize::from(byte >> 4)]));
        json.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
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
    let restored = fragments
        .chain(bytes)
        .fold(body.to_owned(), |text, (code, meaning)| format!("replace({text}, char({code}), {meaning})"));
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

    use super::{FRAGMENTS, LogRow, decode, sql_text};

    fn encoded(json: &str) -> LogRow {
        let mut row = LogRow { json: json.as_bytes().to_vec(), ..LogRow::default() };
        row.compact();
        row
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
