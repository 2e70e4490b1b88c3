//! Cron expressions in a time zone.
//!
//! Daylight saving time: a time that is skipped in spring fires at the end of the gap. A time that occurs twice in
//! autumn fires once, at its first occurrence.

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use steprail_core::run::Millis;

/// A cron expression and its time zone.
pub(crate) struct CronSchedule {
    cron: Cron,
    zone: TimeZone,
}

impl CronSchedule {
    /// Parses `MIN HOUR DAY MONTH WEEKDAY`, with an optional field for seconds before it, or a macro such as `@daily`.
    pub(crate) fn parse(cron: &str, zone: &str) -> Result<Self, String> {
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(cron).map_err(|error| {
            format!(
                "invalid cron expression `{cron}`: {error}; `0 9 * * 1-5` is nine o'clock from Monday to Friday"
            )
        })?;
        let zone = TimeZone::get(zone)
            .map_err(|_| format!("unknown time zone `{zone}`; use a name such as `Europe/Oslo` or `UTC`"))?;
        Ok(Self { cron, zone })
    }

    /// Returns the first time of the cron expression after `now`.
    pub(crate) fn next_after(&self, now: Millis) -> Result<Millis, String> {
        let now = Timestamp::from_millisecond(now).map_err(|error| error.to_string())?;
        let next: Zoned = self
            .cron
            .find_next_occurrence(&now.to_zoned(self.zone.clone()), false)
            .map_err(|_| format!("the cron expression `{}` has no further times", self.cron))?;
        Ok(next.timestamp().as_millisecond())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::CronSchedule;

    fn next_after(cron: &str, zone: &str, moment: &str) -> String {
        let moment: Timestamp = moment.parse().expect("a moment");
        let schedule = CronSchedule::parse(cron, zone).expect("a pattern");
        let next = schedule.next_after(moment.as_millisecond()).expect("a time");
        Timestamp::from_millisecond(next).expect("a time").to_string()
    }

    #[test]
    fn times_follow_the_time_zone() {
        assert_eq!(next_after("0 9 * * 1-5", "Europe/Oslo", "2026-11-13T08:00:00Z"), "2026-11-16T08:00:00Z");
        assert_eq!(next_after("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z"), "2026-03-29T01:00:00Z");
        assert_eq!(next_after("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(next_after("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
        assert_eq!(next_after("*/15 * * * * *", "UTC", "2026-01-01T00:00:01Z"), "2026-01-01T00:00:15Z");
    }

    #[test]
    fn rejects_invalid_patterns_and_zones() {
        assert!(CronSchedule::parse("never", "UTC").is_err());
        assert!(CronSchedule::parse("0 9 * * *", "Mars/Olympus").is_err());
        assert!(
            CronSchedule::parse("0 0 30 2 *", "UTC").is_ok_and(|schedule| schedule.next_after(0).is_err())
        );
    }
}
