//! Functions of time. Times are texts as in RFC 3339; the database of time zones is part of the program.

use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, Zoned};
use serde_json::Value;

use super::arguments::Arguments;
use super::{EvalResult, Form, FunctionSpec, declare, owned, plain};
use crate::budget::Budget;
use crate::expr::eval::{EvalError, bounded};
use crate::limits;

/// The cost of a function of time.
const TIME_COST: usize = 100;
/// Bytes of a format that are written for one unit.
const FORMAT_COST: usize = 10;
/// A time with its offset.
const LOCAL_FORMAT: &str = "%Y-%m-%dT%H:%M:%S%.f%:z";

pub(super) const FUNCTIONS: &[FunctionSpec] = &[
    declare(
        ("now", "now()"),
        (0, 0),
        "the time at which the step runs, in UTC, in `let` only. It is recorded: all uses in a step, and all later readers of its output, see the same time.",
        r#"now() => "2026-11-18T13:00:00Z""#,
        Form::Now,
    ),
    plain(
        ("parseTime", "parseTime(x, [format], [zone])"),
        (1, 3),
        "the time of text x, in UTC: a date or time as in RFC 3339, or text in a format such as `%d.%m.%Y %H:%M`. Without an offset, it is a time of the zone (default: UTC). A number is seconds since 1970.",
        r#"parseTime("18.11.2026 14:00", "%d.%m.%Y %H:%M", "Europe/Berlin") => "2026-11-18T13:00:00Z""#,
        parse_time,
    ),
    plain(
        ("formatTime", "formatTime(t, format, [zone])"),
        (2, 3),
        "time t as text in a format with the conversions of `strftime`, in a time zone (default: UTC).",
        r#"formatTime("2026-11-18T13:00:00Z", "%A %H:%M", "Asia/Tokyo") => "Wednesday 22:00""#,
        format_time,
    ),
    plain(
        ("addTime", "addTime(t, duration, [zone])"),
        (2, 3),
        "time t plus a duration: seconds, or text such as `2h30m`, `-1 day`, `1 month`. With a time zone, days and months are those of its calendar.",
        r#"addTime("2026-11-18T13:00:00Z", "2h30m") => "2026-11-18T15:30:00Z""#,
        add_time,
    ),
    plain(
        ("timeDiff", "timeDiff(t, u)"),
        (2, 2),
        "the seconds from time u to time t; negative if t is earlier.",
        r#"timeDiff("2026-11-18T13:00:00Z", "2026-11-18T12:00:00Z") => 3600"#,
        time_diff,
    ),
    plain(
        ("inZone", "inZone(t, zone)"),
        (2, 2),
        "time t with the offset of a time zone.",
        r#"inZone("2026-07-01T12:00:00Z", "Europe/Berlin") => "2026-07-01T14:00:00+02:00""#,
        in_zone,
    ),
];

/// The time of a text as in RFC 3339.
fn time(arguments: &Arguments<'_>, index: usize) -> Result<Timestamp, EvalError> {
    let text = short(arguments, index)?;
    text.parse().map_err(|_| {
        arguments.invalid(&format!(
            "`{text}` is not a time such as 2026-12-01T08:00:00Z; use `parseTime` for others"
        ))
    })
}

/// A text within the limit of times and formats.
fn short<'a>(arguments: &'a Arguments<'_>, index: usize) -> Result<&'a str, EvalError> {
    let text = arguments.text(index)?;
    if text.len() > limits::TIME_BYTES {
        return Err(arguments.invalid(&format!("a time or format has at most {} bytes", limits::TIME_BYTES)));
    }
    Ok(text)
}

/// The time zone at an index; UTC if it is not written.
fn zone(arguments: &Arguments<'_>, index: usize) -> Result<TimeZone, EvalError> {
    if !arguments.has(index) {
        return Ok(TimeZone::UTC);
    }
    let name = short(arguments, index)?;
    TimeZone::get(name).map_err(|_| {
        arguments.invalid(&format!("unknown time zone `{name}`; write a name such as `Europe/Berlin`"))
    })
}

fn parse_time<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    budget.charge(TIME_COST)?;
    if let (Value::Number(_), false) = (arguments.get(0), arguments.has(1)) {
        let zero = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        return written(&added(arguments, &zero, 0)?);
    }
    let text = short(arguments, 0)?;
    let parsed = if arguments.has(1) {
        parse_formatted(text, short(arguments, 1)?, zone(arguments, 2)?)
    } else {
        let in_utc = |text: &str| text.parse::<jiff::civil::DateTime>()?.to_zoned(TimeZone::UTC);
        text.parse::<Timestamp>().or_else(|_| in_utc(text).map(|zoned| zoned.timestamp()))
    };
    match parsed {
        Ok(time) => Ok(owned(time.to_string())),
        Err(error) => Err(arguments
            .invalid(&limits::cut(format!("`{text}` is not a time: {error}"), limits::MESSAGE_BYTES))),
    }
}

fn parse_formatted(text: &str, format: &str, zone: TimeZone) -> Result<Timestamp, jiff::Error> {
    let parts = strtime::parse(format, text)?;
    if let Ok(time) = parts.to_timestamp() {
        return Ok(time);
    }
    let local = parts.to_datetime().or_else(|_| parts.to_date().map(|date| date.at(0, 0, 0, 0)))?;
    local.to_zoned(zone).map(|zoned| zoned.timestamp())
}

fn format_time<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    let format = short(arguments, 1)?;
    budget.charge(TIME_COST + FORMAT_COST * format.len())?;
    let zoned = time(arguments, 0)?.to_zoned(zone(arguments, 2)?);
    match strtime::format(format, &zoned) {
        Ok(text) => bounded(text),
        Err(error) => Err(arguments.invalid(&limits::cut(error.to_string(), limits::MESSAGE_BYTES))),
    }
}

fn add_time<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    budget.charge(TIME_COST)?;
    let zoned = time(arguments, 0)?.to_zoned(zone(arguments, 2)?);
    written(&added(arguments, &zoned, 1)?)
}

/// A time plus the duration at an index.
fn added(arguments: &Arguments<'_>, start: &Zoned, index: usize) -> Result<Zoned, EvalError> {
    let out_of_range = |_| arguments.invalid("the time is out of range");
    if let Some(seconds) = arguments.get(index).as_f64() {
        let duration = SignedDuration::try_from_secs_f64(seconds).map_err(out_of_range)?;
        return start.checked_add(duration).map_err(out_of_range);
    }
    let text = short(arguments, index)?;
    let span: Span = text.parse().map_err(|_| {
        arguments.invalid(&format!("`{text}` is not a duration such as `90s`, `2h30m` or `1 day`"))
    })?;
    start.checked_add(span).map_err(out_of_range)
}

fn written<'v>(time: &Zoned) -> EvalResult<'v> {
    bounded(time.timestamp().to_string())
}

fn time_diff<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    budget.charge(TIME_COST)?;
    let difference = time(arguments, 0)?.duration_since(time(arguments, 1)?);
    Ok(if difference.subsec_nanos() == 0 {
        owned(difference.as_secs())
    } else {
        owned(difference.as_secs_f64())
    })
}

fn in_zone<'v>(arguments: &mut Arguments<'v>, budget: &mut Budget) -> EvalResult<'v> {
    budget.charge(TIME_COST)?;
    let zoned = time(arguments, 0)?.to_zoned(zone(arguments, 1)?);
    match strtime::format(LOCAL_FORMAT, &zoned) {
        Ok(text) => bounded(text),
        Err(_) => Err(arguments.invalid("the time is out of range")),
    }
}
