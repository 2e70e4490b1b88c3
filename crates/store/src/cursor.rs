//! Cursors: positions in the log and in lists, as opaque text with check characters.
//!
//! Only this crate can interpret the text. It has a letter for the kind of cursor, a version, the position in base32
//! and two check characters.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Version of the text. A cursor of another version is invalid.
const VERSION: char = '1';
/// Crockford's base32: without letters that look like digits.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// The greatest prime that two characters can hold. A weighted sum modulo a prime detects every replaced character and
/// every transposition of adjacent characters.
const CHECK_MODULUS: u32 = 1021;
/// The text of [`Cursor::START`].
const START: &str = "start";

/// The text is not a cursor, or was modified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid cursor")]
pub struct InvalidCursor;

/// A position in the log of all runs: directly after one event. Cursors of one store have the order of its events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// The row of the log, from 1.
    row: i64,
    /// The event in its row, from 0.
    index: u32,
}

impl Cursor {
    /// Before the first event.
    pub const START: Self = Self { row: 0, index: 0 };

    /// Directly after an event of a row.
    pub(crate) fn new(row: i64, index: u32) -> Self {
        Self { row, index }
    }

    pub(crate) fn row(self) -> i64 {
        self.row
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::START {
            return out.write_str(START);
        }
        write(out, 'e', &numbers(&[self.row.unsigned_abs(), self.index.into()]))
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        if text == START {
            return Ok(Self::START);
        }
        let position = read('e', text)?;
        let (row, rest) = number(&position)?;
        let (index, _) = number(rest)?;
        let row = i64::try_from(row).map_err(|_| InvalidCursor)?;
        let cursor = Self { row, index: u32::try_from(index).map_err(|_| InvalidCursor)? };
        canonical(cursor, text)
    }
}

impl Serialize for Cursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cursor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A position in the list of runs, which is sorted by the time of their start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunCursor(i64);

impl RunCursor {
    pub(crate) fn new(row: i64) -> Self {
        Self(row)
    }

    pub(crate) fn row(self) -> i64 {
        self.0
    }
}

impl fmt::Display for RunCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(out, 'r', &numbers(&[self.0.unsigned_abs()]))
    }
}

impl fmt::Debug for RunCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for RunCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let position = read('r', text)?;
        let (row, _) = number(&position)?;
        canonical(Self(i64::try_from(row).map_err(|_| InvalidCursor)?), text)
    }
}

/// A position in the list of steps of one run: directly after an attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepCursor {
    /// The number of the execution.
    n: u32,
    attempt: u32,
}

impl StepCursor {
    /// Directly after an attempt of an execution.
    pub fn new(n: u32, attempt: u32) -> Self {
        Self { n, attempt }
    }

    pub(crate) fn position(self) -> (u32, u32) {
        (self.n, self.attempt)
    }
}

impl fmt::Display for StepCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(out, 's', &numbers(&[self.n.into(), self.attempt.into()]))
    }
}

impl fmt::Debug for StepCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for StepCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let position = read('s', text)?;
        let (n, rest) = number(&position)?;
        let (attempt, _) = number(rest)?;
        let number = |number: u64| u32::try_from(number).map_err(|_| InvalidCursor);
        canonical(Self::new(number(n)?, number(attempt)?), text)
    }
}

impl Serialize for StepCursor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A position in a list that is sorted by name, such as that of definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCursor(String);

impl NameCursor {
    /// Directly after a name.
    pub fn after(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Whether a name comes after the position.
    pub fn is_before(&self, name: &str) -> bool {
        *self.0 < *name
    }
}

impl fmt::Display for NameCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(out, 'n', self.0.as_bytes())
    }
}

impl FromStr for NameCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let name = String::from_utf8(read('n', text)?).map_err(|_| InvalidCursor)?;
        canonical(Self(name), text)
    }
}

/// Returns the cursor if the text is its canonical text.
fn canonical<C: fmt::Display>(cursor: C, text: &str) -> Result<C, InvalidCursor> {
    if cursor.to_string() == text { Ok(cursor) } else { Err(InvalidCursor) }
}

fn write(out: &mut fmt::Formatter<'_>, kind: char, position: &[u8]) -> fmt::Result {
    let symbols: Vec<u8> = regroup(position, 8, 5, true).collect();
    let check = check(kind, &symbols);
    let mut text: String = [kind, VERSION].into_iter().collect();
    let symbols = symbols.into_iter().chain([low_bits(check >> 5), low_bits(check)]);
    text.extend(symbols.map(|symbol| char::from(ALPHABET[usize::from(symbol & 31)])));
    out.write_str(&text)
}

/// The position in a text. The caller compares the text with the canonical one, which verifies padding and check
/// characters.
fn read(kind: char, text: &str) -> Result<Vec<u8>, InvalidCursor> {
    let body = text.strip_prefix(kind).and_then(|rest| rest.strip_prefix(VERSION)).ok_or(InvalidCursor)?;
    let symbol =
        |byte: u8| ALPHABET.iter().position(|known| *known == byte).and_then(|at| u8::try_from(at).ok());
    let symbols: Option<Vec<u8>> = body.bytes().map(symbol).collect();
    let symbols = symbols.ok_or(InvalidCursor)?;
    let (symbols, _check) = symbols.split_last_chunk::<2>().ok_or(InvalidCursor)?;
    Ok(regroup(symbols, 5, 8, false).collect())
}

fn check(kind: char, symbols: &[u8]) -> u32 {
    let weighted = (1..).zip(symbols).fold(u64::from(u32::from(kind)), |sum, (weight, symbol)| {
        (sum + weight * u64::from(*symbol)) % u64::from(CHECK_MODULUS)
    });
    u32::try_from(weighted).unwrap_or_default()
}

fn low_bits(number: u32) -> u8 {
    u8::try_from(number & 31).unwrap_or_default()
}

/// Converts groups of `from` bits to groups of `to` bits. `pad` keeps an incomplete last group, padded with zeros.
fn regroup(groups: &[u8], from: usize, to: usize, pad: bool) -> impl Iterator<Item = u8> {
    let bits = groups.len() * from;
    let bit = move |at: usize| groups.get(at / from).map_or(0, |group| group >> (from - 1 - at % from) & 1);
    let count = if pad { bits.div_ceil(to) } else { bits / to };
    (0..count).map(move |group| (0..to).fold(0, |value, at| value << 1 | bit(group * to + at)))
}

/// Encodes numbers as LEB128: seven bits per byte, the lowest first, and the highest bit set if more follow.
fn numbers(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in numbers {
        let mut rest = *number;
        while rest >= 0x80 {
            bytes.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        bytes.push(rest.to_le_bytes()[0]);
    }
    bytes
}

/// Decodes the first number. Returns it with the remaining bytes.
fn number(bytes: &[u8]) -> Result<(u64, &[u8]), InvalidCursor> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((number, &bytes[at + 1..]));
        }
    }
    Err(InvalidCursor)
}

#[cfg(test)]
mod tests {
    use super::{Cursor, InvalidCursor, NameCursor, RunCursor, StepCursor};

    fn parsed(text: &str) -> Result<Cursor, InvalidCursor> {
        text.parse()
    }

    #[test]
    fn text_is_short_and_read_back() {
        for (row, index) in [(1, 0), (1, 1), (127, 31), (1_000_000, 0), (i64::MAX, u32::MAX)] {
            let cursor = Cursor::new(row, index);
            assert_eq!(parsed(&cursor.to_string()), Ok(cursor));
            assert_eq!(serde_json::to_string(&cursor).expect("JSON"), format!("\"{cursor}\""));
            assert_eq!(serde_json::from_str::<Cursor>(&format!("\"{cursor}\"")).expect("a cursor"), cursor);
        }
        assert_eq!(Cursor::new(1_000_000, 0).to_string(), "e1r223t008n");
        assert_eq!((Cursor::START.to_string().as_str(), parsed("start")), ("start", Ok(Cursor::START)));
        assert!(Cursor::START < Cursor::new(1, 0) && Cursor::new(1, 7) < Cursor::new(2, 0));
    }

    #[test]
    fn garbled_text_is_rejected() {
        let text = Cursor::new(123_456, 7).to_string();
        let mut garbled =
            vec![String::new(), "0".to_owned(), "12".to_owned(), text.to_uppercase(), format!("{text}0")];
        for at in 0..text.len() {
            for other in "0123456789abcdefghijklmnopqrstuvwxyz-é"
                .chars()
                .filter(|other| !text[at..].starts_with(*other))
            {
                garbled.push(format!("{}{other}{}", &text[..at], &text[at + 1..]));
            }
            garbled.push(format!("{}{}", &text[..at], &text[at + 1..]));
            let mut swapped = text.clone().into_bytes();
            swapped.swap(at, (at + 1) % text.len());
            garbled.push(String::from_utf8(swapped).expect("text"));
        }
        for garbled in garbled.iter().filter(|garbled| **garbled != text) {
            assert_eq!(parsed(garbled), Err(InvalidCursor), "{garbled}");
        }
        assert_eq!(InvalidCursor.to_string(), "invalid cursor");
        assert!(serde_json::from_str::<Cursor>("7").is_err(), "a number is not a cursor");
    }

    #[test]
    fn kinds_are_not_interchangeable() {
        let (run, name, step) =
            (RunCursor::new(7), NameCursor::after("daily report"), StepCursor::new(300, 2));
        assert_eq!((step.to_string().parse(), parsed(&step.to_string())), (Ok(step), Err(InvalidCursor)));
        assert_eq!(run.to_string().parse(), Ok(run));
        assert_eq!(name.to_string().parse(), Ok(name.clone()));
        assert!(name.is_before("daily sums") && !name.is_before("daily report"));
        assert_eq!(parsed(&run.to_string()), Err(InvalidCursor));
        assert_eq!(name.to_string().parse::<RunCursor>(), Err(InvalidCursor));
        let relabelled = run.to_string().replacen('r', "e", 1);
        assert_eq!(parsed(&relabelled), Err(InvalidCursor));
    }
}
