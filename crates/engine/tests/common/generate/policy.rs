//! Policies of generated steps.

use serde_json::{Map, Value, json};

use super::{Readable, Writer};

impl Writer<'_> {
    /// Adds policies of a call. The arguments may change to match.
    pub(super) fn call_policies(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) {
        if self.chance(30) {
            step.insert("retry".into(), self.retry());
        }
        if self.options.timeouts && self.chance(15) {
            self.timeout(step, 3_000..25_000);
        }
        if self.options.unknown && self.chance(15) {
            step.insert("effects".into(), self.pick(&["read", "idempotent", "once"]).into());
        }
        if self.options.unknown && self.chance(12) {
            step.insert("on_uncertain".into(), self.pick(&["ask", "retry", "fail", "skip"]).into());
        }
        if self.options.unknown && self.chance(8) {
            let when = self.pick(&["result.ok", "result.n > 4", "result.word == \"a\"", "result.no_such"]);
            step.insert("verify".into(), json!({ "tool": "demo__check", "args": { "v": 1 }, "when": when }));
        }
        if self.options.idempotency && self.chance(12) {
            self.idempotency(step, seen);
        }
        if self.options.values && self.chance(12) {
            self.result_checks(step);
        }
    }

    /// Adds conditions on the result of a call.
    fn result_checks(&mut self, step: &mut Map<String, Value>) {
        let conditions = ["result != false", "result.ok", "result.n > 2", "result == nil", "result != 3"];
        if self.chance(60) {
            step.insert("expect".into(), self.pick(&conditions).into());
        } else {
            let named = json!({ "if": self.pick(&conditions), "kind": self.pick(&["odd", "transient"]) });
            let fail_if = [json!("result == false"), json!([named, { "if": "result == [1]" }])];
            step.insert("fail_if".into(), self.pick(&fail_if));
        }
    }

    /// Adds an idempotency key. Keys are few, so that steps share them, sometimes with the same arguments.
    fn idempotency(&mut self, step: &mut Map<String, Value>, seen: &[Readable]) {
        let scalar = self.scalar(seen);
        let key = self.pick(&["k".to_owned(), "k-{{inputs.word}}".to_owned(), format!("k-{{{{{scalar}}}}}")]);
        step.insert("idempotency_key".into(), key.into());
        if self.chance(50) {
            step.insert("args".into(), json!({ "v": 1 }));
        }
        if self.chance(20) {
            step.insert("idempotency_arg".into(), "key".into());
        }
        if self.chance(20) {
            step.insert("idempotency_ttl_secs".into(), self.rng.u32(0..60).into());
        }
        if self.chance(15) {
            step.insert("idempotency_scope".into(), "global".into());
        }
    }

    pub(super) fn retry(&mut self) -> Value {
        if self.chance(25) {
            return self.rng.u32(0..3).into();
        }
        let mut retry = json!({ "max_attempts": self.rng.u32(1..4) });
        match self.rng.u32(0..4) {
            0 => retry["backoff"] = json!(["1733ms", 5, 0]),
            1 => {}
            _ => {
                retry["backoff"] = self.pick(&["fixed", "linear", "exponential"]).into();
                retry["initial_delay_ms"] = self.rng.u32(0..3_000).into();
            }
        }
        if self.chance(40) {
            let kinds = ["transient", "timeout", "transport", "lost", "tool_error", "permission"];
            retry["retry_on"] = kinds.iter().filter(|_| self.rng.bool()).copied().collect();
        }
        retry
    }

    pub(super) fn timeout(&mut self, step: &mut Map<String, Value>, millis: std::ops::Range<u32>) {
        let millis = self.rng.u32(millis);
        let (name, value) = match self.rng.u32(0..4) {
            0 => ("timeout_secs", json!(millis / 1000)),
            1 => ("timeout_s", json!(millis / 1000)),
            _ => ("timeout", json!(format!("{millis}ms"))),
        };
        step.insert(name.into(), value);
    }

    /// Adds `on_error`; `later` are the possible targets. Returns whether the run may continue without an output.
    pub(super) fn on_error(&mut self, step: &mut Map<String, Value>, later: &[String]) -> bool {
        let on_error = match self.rng.u32(0..100) {
            0..15 => json!("continue"),
            15..22 if !later.is_empty() => json!({ "goto": self.pick(later) }),
            22..26 => json!("fail"),
            _ => return false,
        };
        let may_continue = on_error != "fail";
        step.insert("on_error".into(), on_error);
        may_continue
    }

    /// Adds policies of a block, which are defaults for the steps inside.
    pub(super) fn block_policies(&mut self, step: &mut Map<String, Value>) {
        if self.options.timeouts && self.chance(10) {
            self.timeout(step, 15_000..90_000);
        }
        if self.chance(10) {
            step.insert("retry".into(), self.retry());
        }
        if self.options.unknown && self.chance(6) {
            step.insert("on_uncertain".into(), self.pick(&["ask", "retry", "fail", "skip"]).into());
        }
    }
}
