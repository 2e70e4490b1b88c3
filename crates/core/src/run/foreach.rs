//! `foreach` steps: a block is executed for each item.

use serde_json::Value;

use super::decide::{Attempt, DecideResult, Decision};
use super::parts::Started;
use super::{Failure, FailureKind, Payload};
use crate::plan::Foreach;

impl Decision<'_> {
    pub(super) fn begin_foreach(&mut self, attempt: &Attempt, foreach: &Foreach) -> DecideResult {
        let items = match self.eval(attempt.scope, &foreach.items)? {
            Ok(Value::Array(items)) => items,
            Ok(other) => {
                let message = format!("`items` is {}, not a list", type_name(&other));
                return self.fail_before_start(attempt, Failure::new(FailureKind::Validation, message));
            }
            Err(error) => return self.fail_before_start(attempt, error),
        };
        let limit = self.plan.settings.limits.foreach_items;
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if count > limit {
            let message = format!("{count} items exceed the limit of {limit}");
            return self.fail_before_start(attempt, Failure::limit(message));
        }
        let items = Payload::new(Value::Array(items));
        if let Err(error) = items.fits() {
            return self.fail_before_start(attempt, error);
        }
        self.emit_started(attempt, Started::Foreach { items: count, input: items.hash() }, Some(items));
        Ok(())
    }
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
