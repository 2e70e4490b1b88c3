//! The header `Retry-After` (RFC 9110, section 10.2.3): seconds or an HTTP date.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use steprail_core::run::Millis;

/// The time that the service asks to wait.
pub(super) fn read(headers: &HeaderMap, now: Millis) -> Option<Duration> {
    parse(headers.get(RETRY_AFTER)?.to_str().ok()?.trim(), now)
}

fn parse(text: &str, now: Millis) -> Option<Duration> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is longer than every limit.
        return (!text.is_empty()).then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp().as_millisecond();
    Some(Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_seconds_and_dates() {
        let now = 1_763_460_000_000; // 2025-11-18T10:00:00Z
        let read = |text: &str| parse(text, now).map(|wait| wait.as_secs());
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(read("Tue, 18 Nov 2025 10:05:00 GMT"), Some(300));
        assert_eq!(read("Tue, 18 Nov 2025 09:00:00 GMT"), Some(0));
        for text in ["", "soon", "-5", "1.5"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
