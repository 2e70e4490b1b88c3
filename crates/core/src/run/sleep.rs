//! `sleep` steps: durable timers for a duration or until a time.

use serde_json::Value;

use super::decide::{Attempt, DecideResult, Decision};
use super::parts::Started;
use super::values::Evaluated;
use super::{Failure, FailureKind, Millis, Payload};
use crate::plan::Sleep;
use crate::spec::value::DurationSpec;

impl Decision<'_> {
    pub(super) fn begin_sleep(&mut self, attempt: &Attempt, sleep: &Sleep) -> DecideResult {
        let due = match self.due_time(attempt, sleep)? {
            Ok(due) => due,
            Err(error) => return self.fail_before_start(attempt, error),
        };
        self.emit_started(attempt, Started::Sleep { due }, None);
        if due <= self.now() { self.complete(attempt.n(), Payload::default(), None) } else { Ok(()) }
    }

    fn due_time(&mut self, attempt: &Attempt, sleep: &Sleep) -> Evaluated<Millis> {
        let after = |now: Millis, millis: u64| now.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX));
        Ok(match sleep {
            Sleep::For(millis) => Ok(after(self.now(), *millis)),
            Sleep::Until(time) => Ok(*time),
            Sleep::ForComputed(template) => self.eval_text(attempt.scope, template)?.and_then(|value| {
                let duration = DurationSpec::from_value(&value).map_err(invalid)?;
                Ok(after(self.now(), duration.millis))
            }),
            Sleep::UntilComputed(template) => self.eval_text(attempt.scope, template)?.and_then(|value| {
                let time = value.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
                let time = time.map(jiff::Timestamp::as_millisecond);
                time.ok_or_else(|| {
                    invalid(format!("{value} is not a timestamp such as 2026-12-01T08:00:00Z"))
                })
            }),
        })
    }
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureKind::Validation, message)
}

impl DurationSpec {
    /// Parses the value of a template: a number of seconds, or text such as `5m`.
    fn from_value(value: &Value) -> Result<Self, String> {
        use crate::document::Data;
        match value {
            Value::Number(number) => Self::from_data(&Data::Number(number.clone())),
            Value::String(text) => Self::parse(text),
            other => Err(format!("{other} is not a duration")),
        }
    }
}
