//! Local times of day in a time zone, across changes of its offset.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};
use steprail_core::run::Millis;

use crate::config::ConfigError;

/// Parses a time zone of the IANA database; `UTC` if there is none.
pub(crate) fn time_zone(name: Option<&str>) -> Result<TimeZone, ConfigError> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    TimeZone::get(name)
        .map_err(|_| ConfigError::new(format!("unknown time zone `{name}`")).hint("write `Europe/Berlin`"))
}

/// Parses `22:00`.
pub(crate) fn time_of_day(text: &str) -> Result<Time, ConfigError> {
    let error = || ConfigError::new(format!("`{text}` is not a time of day")).hint("write `22:00`");
    let (hour, minute) = text.split_once(':').ok_or_else(error)?;
    let is_short = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_short(hour) || !is_short(minute) {
        return Err(error());
    }
    let (hour, minute) = (hour.parse().map_err(|_| error())?, minute.parse().map_err(|_| error())?);
    Time::new(hour, minute, 0, 0).map_err(|_| error())
}

/// Parses `mon`.
pub(crate) fn weekday(text: &str) -> Result<Weekday, ConfigError> {
    Ok(match text {
        "mon" => Weekday::Monday,
        "tue" => Weekday::Tuesday,
        "wed" => Weekday::Wednesday,
        "thu" => Weekday::Thursday,
        "fri" => Weekday::Friday,
        "sat" => Weekday::Saturday,
        "sun" => Weekday::Sunday,
        _ => return Err(ConfigError::new(format!("`{text}` is not a day")).hint("write `mon` … `sun`")),
    })
}

/// The first instant of a day at which the clock shows this time or a later one. A time that is skipped in spring is the
/// moment of the change; a time that occurs twice in autumn is its first occurrence.
pub(crate) fn instant(zone: &TimeZone, date: Date, time: Time) -> Option<Millis> {
    let ambiguous = zone.to_ambiguous_zoned(date.to_datetime(time));
    let is_gap = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
    let at = ambiguous.compatible().ok()?.timestamp();
    let at = if is_gap { zone.preceding(at).next()?.timestamp() } else { at };
    Some(at.as_millisecond())
}

/// The local date and time of an instant.
pub(crate) fn local(zone: &TimeZone, now: Millis) -> Option<Zoned> {
    Some(Timestamp::from_millisecond(now).ok()?.to_zoned(zone.clone()))
}

/// The first of these times of day after an instant.
pub(crate) fn next_time(zone: &TimeZone, times: &[Time], now: Millis) -> Option<Millis> {
    let today = local(zone, now)?.date();
    let days = [Some(today), today.tomorrow().ok(), today.tomorrow().and_then(Date::tomorrow).ok()];
    let instants = days
        .into_iter()
        .flatten()
        .flat_map(|day| times.iter().filter_map(move |time| instant(zone, day, *time)));
    instants.filter(|at| *at > now).min()
}

/// A window of quiet hours.
#[derive(Debug, Clone)]
pub(crate) struct QuietHours {
    pub(crate) from: Time,
    pub(crate) to: Time,
    /// The days on which it starts; empty for every day.
    pub(crate) days: Vec<Weekday>,
}

impl QuietHours {
    /// The end of the window that contains an instant.
    pub(crate) fn end(&self, zone: &TimeZone, now: Millis) -> Option<Millis> {
        let today = local(zone, now)?.date();
        // A day can be skipped by a change of the date line, so two days back.
        let before = today.yesterday().ok();
        let days = [before.and_then(|day| day.yesterday().ok()), before, Some(today)];
        let starts = days.into_iter().flatten();
        let starts = starts.filter(|day| self.days.is_empty() || self.days.contains(&day.weekday()));
        starts
            .filter_map(|day| self.window(zone, day))
            .find(|(start, end)| (*start..*end).contains(&now))
            .map(|w| w.1)
    }

    fn window(&self, zone: &TimeZone, day: Date) -> Option<(Millis, Millis)> {
        let last = if self.to > self.from { day } else { day.tomorrow().ok()? };
        Some((instant(zone, day, self.from)?, instant(zone, last, self.to)?))
    }
}

/// The end of quiet hours that contain an instant. Windows that follow each other count as one.
pub(crate) fn quiet_until(windows: &[QuietHours], zone: &TimeZone, now: Millis) -> Option<Millis> {
    let mut until = None;
    // A week has at most this many windows; endless quiet hours end here.
    for _ in 0..=7 * windows.len() {
        let at = until.unwrap_or(now);
        let ends = windows.iter().filter_map(|window| window.end(zone, at));
        match ends.max() {
            Some(end) => until = Some(end),
            None => break,
        }
    }
    until
}
