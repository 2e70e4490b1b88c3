//! Times on the wire: RFC 3339 in UTC with milliseconds.

use steprail_core::run::Millis;

/// Formats a time.
pub fn format(millis: Millis) -> String {
    jiff::Timestamp::from_millisecond(millis).map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// Parses a time; 0 if the text is not one.
pub fn parse(text: &str) -> Millis {
    text.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond).unwrap_or_default()
}
