//! The forms in which programs write a value: plain, escaped in JSON, percent-encoded, base64.

use std::collections::BTreeSet;
use std::fmt::Write;

use base64::Engine;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use crate::limits::SECRET_MIN_BYTES;

/// The minimum size of a line of a secret with several lines, such as a PEM key, that counts as a secret itself.
const LINE_BYTES: usize = 16;

/// All forms of a value, without duplicates.
pub(super) fn of(value: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    let lines = value.lines().filter(|line| line.len() >= LINE_BYTES && line.len() < value.len());
    for part in std::iter::once(value).chain(lines) {
        forms.insert(part.to_owned());
        forms.extend(json(part));
        forms.extend(percent(part));
        forms.extend([STANDARD_NO_PAD, URL_SAFE_NO_PAD].iter().flat_map(|engine| base64(part, engine)));
    }
    forms
}

/// The text of a JSON string: as `serde_json` writes it, and with the optional escapes of PHP, Python and Go.
fn json(value: &str) -> Vec<String> {
    let plain = serde_json::to_string(value).unwrap_or_default();
    let plain = plain.get(1..plain.len().saturating_sub(1)).unwrap_or_default().to_owned();
    let html = ["<", ">", "&"].iter().fold(plain.clone(), |text, c| text.replace(c, &unicode(c, false)));
    let mut forms = vec![plain.replace('/', "\\/"), html, plain.clone()];
    for upper in [false, true] {
        let ascii = escape_non_ascii(&plain, upper);
        forms.extend([ascii.replace('/', "\\/"), ascii]);
    }
    forms
}

fn escape_non_ascii(text: &str, upper: bool) -> String {
    text.chars()
        .map(|c| if c.is_ascii() { c.to_string() } else { unicode(c.encode_utf8(&mut [0; 4]), upper) })
        .collect()
}

/// `\uXXXX`, two of them for characters outside the basic plane.
fn unicode(text: &str, upper: bool) -> String {
    text.encode_utf16().fold(String::new(), |mut out, unit| {
        let _ = if upper { write!(out, "\\u{unit:04X}") } else { write!(out, "\\u{unit:04x}") };
        out
    })
}

/// Percent-encoding: of all but the unreserved characters, as browsers do (`encodeURIComponent`), and as forms do (`+` for
/// spaces), with digits in both cases.
fn percent(value: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for kept in ["-_.~", "-_.~!'()*", "-_.*", "-_.~/", "-_.~/:?#[]@!$&'()*+,;="] {
        for upper in [false, true] {
            let encoded = percent_encode(value, kept, upper);
            forms.extend([encoded.replace("%20", "+"), encoded]);
        }
    }
    forms
}

fn percent_encode(value: &str, kept: &str, upper: bool) -> String {
    value.bytes().fold(String::new(), |mut out, byte| {
        let _ = match byte {
            _ if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => {
                out.push(char::from(byte));
                Ok(())
            }
            _ if upper => write!(out, "%{byte:02X}"),
            _ => write!(out, "%{byte:02x}"),
        };
        out
    })
}

/// The characters of base64 that depend on the value alone, for each position of the value in its group of three bytes.
fn base64(value: &str, engine: &GeneralPurpose) -> Vec<String> {
    let forms = (0..3_usize).map(|offset| {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(value.as_bytes());
        let (first, last) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
        engine.encode(&bytes).get(first..last).unwrap_or_default().to_owned()
    });
    forms.filter(|form| form.len() >= SECRET_MIN_BYTES).collect()
}
