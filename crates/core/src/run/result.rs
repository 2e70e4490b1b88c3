//! `expect` and `fail_if` of `tool` steps: results that are failures.

use super::decide::{DecideResult, Decision};
use super::parts::ScopeKey;
use super::values::{Bindings, Evaluated};
use super::{Failure, FailureKind, Payload, WorldError};
use crate::limits;
use crate::plan::{Call, FailureName, Kind, ResultCheck};

impl Decision<'_> {
    /// Completes a step with the result of its call. A result that its checks reject is a failure of the attempt.
    pub(super) fn call_returned(&mut self, n: u32, output: Payload, from: Option<&str>) -> DecideResult {
        let Some((live, step)) = self.live(n) else { return Ok(()) };
        let scope = live.scope;
        let rejected = match &step.kind {
            Kind::Call(call) => self.rejection(scope, call, &output)?,
            _ => None,
        };
        match rejected {
            Some(error) => self.fail_attempt(n, error),
            None => self.complete(n, output, from),
        }
    }

    /// Returns the failure that a result is, if a check rejects it or cannot be evaluated.
    pub(super) fn rejection(
        &mut self,
        scope: ScopeKey,
        call: &Call,
        output: &Payload,
    ) -> Result<Option<Failure>, WorldError> {
        // A result above the limits fails the step anyway.
        if call.checks.is_empty() || output.fits().is_err() {
            return Ok(None);
        }
        for check in &call.checks {
            match self.holds_with(scope, &check.when, Bindings::probe(output.clone()))? {
                Ok(holds) if holds == check.expected => {}
                Ok(_) => {
                    return Ok(Some(self.unexpected(scope, check, output)?.unwrap_or_else(|error| error)));
                }
                Err(error) => return Ok(Some(error)),
            }
        }
        Ok(None)
    }

    /// The failure of a check. Its message states the condition, so that the log does.
    fn unexpected(&mut self, scope: ScopeKey, check: &ResultCheck, output: &Payload) -> Evaluated<Failure> {
        let condition = if check.expected {
            format!("`expect` does not hold: {}", check.written)
        } else {
            format!("`fail_if` holds: {}", check.written)
        };
        let message = if let Some(template) = &check.message {
            match self.eval_text_with(scope, template, Bindings::probe(output.clone()))? {
                Ok(serde_json::Value::String(text)) => format!("{text} ({condition})"),
                Ok(other) => format!("{other} ({condition})"),
                Err(error) => return Ok(Err(error)),
            }
        } else {
            let result = limits::cut(output.json().to_owned(), limits::SHOWN_RESULT_BYTES);
            format!("{condition}; the result is {result}")
        };
        let failure = Failure::new(FailureKind::UnexpectedResult, message);
        Ok(Ok(match &check.name {
            Some(FailureName::Named(name)) => failure.code(name),
            Some(FailureName::Transient) => failure.transient(),
            None => failure,
        }))
    }
}
