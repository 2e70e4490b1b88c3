//! `sleep`: a pause for a time or until a moment.

use serde_json::Value;

use super::decide::{Decided, Decision, Entry};
use super::parts::Started;
use super::values::Evaluated;
use super::{Failure, FailureKind, Millis, Payload};
use crate::plan::Sleep;
use crate::spec::value::Period;

impl Decision<'_> {
    pub(super) fn begin_sleep(&mut self, at: &Entry, sleep: &Sleep) -> Decided {
        let due = match self.wakes_at(at, sleep)? {
            Ok(due) => due,
            Err(error) => return self.fail_entry(at, error),
        };
        self.started(at, Started::Sleep { due }, None);
        if due <= self.now() { self.complete(at.n(), Payload::default(), None) } else { Ok(()) }
    }

    fn wakes_at(&mut self, at: &Entry, sleep: &Sleep) -> Evaluated<Millis> {
        let after = |now: Millis, millis: u64| now.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX));
        Ok(match sleep {
            Sleep::For(millis) => Ok(after(self.now(), *millis)),
            Sleep::Until(moment) => Ok(*moment),
            Sleep::ForComputed(template) => self.eval_text(at.scope, template)?.and_then(|value| {
                let period = Period::from_value(&value).map_err(invalid)?;
                Ok(after(self.now(), period.millis))
            }),
            Sleep::UntilComputed(template) => self.eval_text(at.scope, template)?.and_then(|value| {
                let moment = value.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
                let moment = moment.map(jiff::Timestamp::as_millisecond);
                moment.ok_or_else(|| invalid(format!("{value} is not a moment such as 2026-12-01T08:00:00Z")))
            }),
        })
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureKind::Validation, message)
}

impl Period {
    /// Reads a number of seconds or a text, as it comes out of a template.
    fn from_value(value: &Value) -> Result<Self, String> {
        use crate::document::Data;
        match value {
            Value::Number(number) => Self::from_data(&Data::Number(number.clone())),
            Value::String(text) => Self::parse(text),
            other => Err(format!("{other} is not a length of time")),
        }
    }
}
