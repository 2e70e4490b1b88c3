//! When a schedule is due: cron patterns in a time zone.
//!
//! Where clocks are set forward, a time that does not exist is the first that does; where they are set back, a time
//! that comes twice is the first of the two.

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use steprail_core::run::Millis;

/// A pattern in a time zone.
pub(crate) struct Times {
    cron: Cron,
    zone: TimeZone,
}

impl Times {
    /// Reads `MIN HOUR DAY MONTH WEEKDAY`, with seconds before it if wanted, or a word such as `@daily`.
    pub(crate) fn read(cron: &str, zone: &str) -> Result<Self, String> {
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(cron).map_err(|error| {
            format!(
                "`{cron}` is no cron pattern: {error}; `0 9 * * 1-5` is nine o'clock from Monday to Friday"
            )
        })?;
        let zone = TimeZone::get(zone).map_err(|_| {
            format!("there is no time zone `{zone}`; write one such as `Europe/Oslo` or `UTC`")
        })?;
        Ok(Self { cron, zone })
    }

    /// The first time after a moment.
    pub(crate) fn after(&self, now: Millis) -> Result<Millis, String> {
        let moment = Timestamp::from_millisecond(now).map_err(|error| error.to_string())?;
        let next: Zoned = self
            .cron
            .find_next_occurrence(&moment.to_zoned(self.zone.clone()), false)
            .map_err(|_| format!("the pattern `{}` never comes again", self.cron))?;
        Ok(next.timestamp().as_millisecond())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::Times;

    fn after(cron: &str, zone: &str, moment: &str) -> String {
        let moment: Timestamp = moment.parse().expect("a moment");
        let times = Times::read(cron, zone).expect("a pattern");
        let next = times.after(moment.as_millisecond()).expect("a time");
        Timestamp::from_millisecond(next).expect("a time").to_string()
    }

    #[test]
    fn times_follow_the_zone() {
        assert_eq!(after("0 9 * * 1-5", "Europe/Oslo", "2026-11-13T08:00:00Z"), "2026-11-16T08:00:00Z");
        assert_eq!(after("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z"), "2026-03-29T01:00:00Z");
        assert_eq!(after("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(after("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
        assert_eq!(after("*/15 * * * * *", "UTC", "2026-01-01T00:00:01Z"), "2026-01-01T00:00:15Z");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(Times::read("never", "UTC").is_err());
        assert!(Times::read("0 9 * * *", "Mars/Olympus").is_err());
        assert!(Times::read("0 0 30 2 *", "UTC").is_ok_and(|times| times.after(0).is_err()));
    }
}
