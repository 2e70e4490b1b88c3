//! Text for terminals: untrusted text, durations, counts and shell arguments.

use std::time::{SystemTime, UNIX_EPOCH};

use steprail_core::display;
use steprail_core::run::Millis;
use steprail_engine::RunReason;
use steprail_http::timestamp;

/// Makes untrusted text (a tool's error, a prompt) visible on one line, so that it cannot control the terminal or hide
/// anything.
pub(crate) fn sanitize(text: &str) -> String {
    // Line breaks and tabs are usual and harmless here.
    display::line(&text.trim_end().replace(['\n', '\r', '\t'], " "))
}

/// Formats a duration in milliseconds: `12ms`, `1.2s`, `3m 4s`, `2h 5m`.
pub(crate) fn format_duration(millis: u64) -> String {
    let (seconds, minutes) = (millis / 1_000, millis / 60_000);
    match millis {
        0..1_000 => format!("{millis}ms"),
        1_000..60_000 if millis % 1_000 < 100 => format!("{seconds}s"),
        1_000..60_000 => format!("{seconds}.{}s", millis % 1_000 / 100),
        60_000..3_600_000 => format!("{minutes}m {}s", seconds % 60),
        _ => format!("{}h {}m", minutes / 60, minutes % 60),
    }
}

/// Formats the time since a timestamp.
pub(crate) fn format_age(time: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let age = i64::try_from(now).unwrap_or(i64::MAX) - timestamp::parse(time);
    format!("{} ago", format_duration(u64::try_from(age).unwrap_or_default()))
}

/// The sentence of a reason, with times in the local time zone.
pub(crate) fn local_sentence(reason: &RunReason) -> String {
    let now = jiff::Zoned::now();
    reason.sentence(now.timestamp().as_millisecond(), |at| local_time(at, &now))
}

/// A time in the time zone of `now`: `14:00`, or with the date if it is another day.
fn local_time(at: Millis, now: &jiff::Zoned) -> String {
    let Ok(at) = jiff::Timestamp::from_millisecond(at) else { return String::new() };
    let at = at.to_zoned(now.time_zone().clone());
    let format = if at.date() == now.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    at.strftime(format).to_string()
}

/// Milliseconds between two timestamps.
pub(crate) fn elapsed(start: &str, end: &str) -> Option<u64> {
    u64::try_from(timestamp::parse(end) - timestamp::parse(start)).ok()
}

/// A number with its noun: `1 retry`, `2 retries`.
pub(crate) fn count(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Cuts a text after a number of characters.
pub(crate) fn truncate(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

/// Quotes an argument for a shell where necessary.
pub(crate) fn shell_quote(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{format_duration, local_time, shell_quote};

    #[test]
    fn times_of_other_days_have_a_date() {
        let now: jiff::Zoned = "2026-03-01T23:00[Europe/Berlin]".parse().expect("a time");
        let at = |text: &str| {
            let at: jiff::Timestamp = text.parse().expect("a time");
            local_time(at.as_millisecond(), &now)
        };
        assert_eq!(at("2026-03-01T13:00:00Z"), "14:00");
        assert_eq!(at("2026-03-01T23:30:00Z"), "2026-03-02 00:30");
    }

    #[test]
    fn durations_have_one_or_two_units() {
        let durations =
            [0, 12, 999, 1_000, 1_234, 59_999, 60_000, 184_000, 3_600_000, 90_000_000].map(format_duration);
        assert_eq!(durations.join(", "), "0ms, 12ms, 999ms, 1s, 1.2s, 59.9s, 1m 0s, 3m 4s, 1h 0m, 25h 0m");
    }

    #[test]
    fn shell_arguments_are_quoted_where_necessary() {
        assert_eq!(shell_quote("/tmp/a-b.db"), "/tmp/a-b.db");
        assert_eq!(shell_quote("each[3].it's"), r"'each[3].it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }
}
