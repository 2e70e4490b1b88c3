//! `let` steps: values that are computed and recorded in one decision.

use std::cell::Cell;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::decide::{Attempt, DecideResult, Decision};
use super::parts::Started;
use super::values::{Bindings, Evaluated};
use super::{Millis, Payload};
use crate::expr::{Ambient, EvalError, Root};
use crate::plan::Let;

impl Decision<'_> {
    pub(super) fn begin_let(&mut self, attempt: &Attempt, step: &Let) -> DecideResult {
        match self.compute(attempt, step)? {
            Ok(output) => {
                self.emit_started(attempt, Started::Pass {}, None);
                self.complete(attempt.n(), Payload::new(output), None)
            }
            Err(error) => self.fail_before_start(attempt, error),
        }
    }

    /// Computes the values one after the other, within the budget of one evaluation.
    fn compute(&mut self, attempt: &Attempt, step: &Let) -> Evaluated<Value> {
        let run = self.world.ambient(Ambient::RunId);
        let uuids = Uuids::new(run.as_str().unwrap_or_default(), attempt);
        let roots =
            |visit: &mut dyn FnMut(&Root)| step.values.iter().for_each(|value| value.value.roots(visit));
        let mut bindings = match self.bind(attempt.scope, Bindings::with_uuids(uuids), roots)? {
            Ok(bindings) => bindings,
            Err(error) => return Ok(Err(error)),
        };
        let computed = self.within_budget(|budget| {
            for named in &step.values {
                let value = named.value.eval(&bindings, budget);
                let value = value.map_err(|error| of_name(error, &named.name))?;
                bindings.insert(Root::Let(named.number), value);
            }
            Ok(())
        });
        let mut output = Map::new();
        for named in &step.values {
            let value = bindings.take(&Root::Let(named.number)).unwrap_or_default();
            output.insert(named.name.to_string(), value);
        }
        Ok(computed.map(|()| Value::Object(output)))
    }
}

/// Adds the name of the value to an error.
fn of_name(mut error: EvalError, name: &str) -> EvalError {
    error.message.insert_str(0, &format!("`{name}`: "));
    error
}

/// UUIDs that are derived from the attempt of a step. The same attempt always has the same ones, so a decision that is
/// repeated after a crash makes the same values, and nothing has to be random.
pub(super) struct Uuids {
    seed: Sha256,
    count: Cell<u32>,
}

impl Uuids {
    fn new(run: &str, attempt: &Attempt) -> Self {
        let seed = Sha256::new_with_prefix(format!(
            "steprail uuid\n{run}\n{}\n{}\n",
            attempt.n(),
            attempt.step_ref.attempt
        ));
        Self { seed, count: Cell::new(0) }
    }

    /// Returns the next UUID, in version 8 of RFC 9562.
    pub(super) fn next(&self) -> String {
        let count = self.count.get();
        self.count.set(count.saturating_add(1));
        let digest = self.seed.clone().chain_update(count.to_be_bytes()).finalize();
        let mut number = digest.iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        number = number & !(0xf << 76) | 8 << 76;
        number = number & !(0b11 << 62) | 0b10 << 62;
        let digits = format!("{number:032x}");
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        parts.join("-")
    }
}

/// The time of a decision as text. Times outside the range of dates, which no clock returns, are null.
pub(super) fn time_text(now: Millis) -> Value {
    jiff::Timestamp::from_millisecond(now).map_or(Value::Null, |time| time.to_string().into())
}
