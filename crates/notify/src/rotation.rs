//! On-call rotations: which user has the current shift.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Zoned};
use steprail_core::run::Millis;

use crate::config::{ConfigError, RotationConfig};
use crate::limits;
use crate::local_time::{local, time_zone};

/// A compiled rotation.
#[derive(Debug, Clone)]
pub struct Rotation {
    users: Vec<String>,
    shift: Shift,
    start: Zoned,
    zone: TimeZone,
}

/// The length of a shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shift {
    Hours(i64),
    /// Days of the calendar: a shift that contains a change of the offset has 23 or 25 hours.
    Days(i64),
}

const HOUR_MS: i64 = 3_600_000;

impl Rotation {
    /// Compiles a rotation.
    pub fn compile(config: &RotationConfig) -> Result<Self, ConfigError> {
        if config.users.is_empty() || config.users.len() > limits::MEMBERS {
            return Err(ConfigError::new(format!("a rotation has 1 to {} users", limits::MEMBERS)));
        }
        let zone = time_zone(config.time_zone.as_deref())?;
        let start: DateTime = config.start.parse().map_err(|_| {
            let message = format!("`{}` is not a local date and time", config.start);
            ConfigError::new(message).hint("write `2026-01-05T09:00`")
        })?;
        let start = zone.to_ambiguous_zoned(start).compatible();
        let start = start.map_err(|_| ConfigError::new("`start` is out of range"))?;
        Ok(Self { users: config.users.clone(), shift: Shift::parse(&config.shift)?, start, zone })
    }

    /// The users, in their order.
    pub fn users(&self) -> &[String] {
        &self.users
    }

    /// The user who is on call. Before the start it is the first user.
    pub fn on_call(&self, now: Millis) -> &str {
        let number = self.shift_number(now).unwrap_or(0).max(0);
        let count = i64::try_from(self.users.len()).unwrap_or(1).max(1);
        let index = usize::try_from(number % count).unwrap_or(0);
        self.users.get(index).map_or("", String::as_str)
    }

    /// Shifts that ended since the start.
    fn shift_number(&self, now: Millis) -> Option<i64> {
        let start = self.start.timestamp().as_millisecond();
        match self.shift {
            Shift::Hours(hours) => Some(now.saturating_sub(start).div_euclid(hours * HOUR_MS)),
            Shift::Days(days) => {
                let between = local(&self.zone, now)?.date() - self.start.date();
                let number = i64::from(between.get_days()).div_euclid(days);
                // The date is that of the shift or of the next one, depending on the time of day.
                if self.shift_start(number, days)? > now { Some(number - 1) } else { Some(number) }
            }
        }
    }

    fn shift_start(&self, number: i64, days: i64) -> Option<Millis> {
        let span = Span::new().try_days(number.checked_mul(days)?).ok()?;
        Some(self.start.checked_add(span).ok()?.timestamp().as_millisecond())
    }
}

impl Shift {
    fn parse(text: &str) -> Result<Self, ConfigError> {
        let error = || {
            ConfigError::new(format!("`{text}` is not the length of a shift"))
                .hint("write `12h`, `1d` or `1w`")
        };
        let unit = text.chars().last().ok_or_else(error)?;
        let number = text.strip_suffix(unit).and_then(|number| number.parse::<i64>().ok());
        let number = number.filter(|number| (1..=10_000).contains(number)).ok_or_else(error)?;
        match unit {
            'h' => Ok(Self::Hours(number)),
            'd' => Ok(Self::Days(number)),
            'w' => Ok(Self::Days(7 * number)),
            _ => Err(error()),
        }
    }
}
