//! Policies as written to policies as kept: aliases, defaults, inheritance and bounds.

use super::compile::Compiler;
use super::{Idempotency, OnDeny, OnError, RetryPolicy, StepIx, Verify};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits::KEY_TTL_SECS;
use crate::plan::retry::BackoffKind;
use crate::source::Span;
use crate::spec::policy::{self, KeyScope, Policy};
use crate::spec::retry::Retry;
use crate::spec::step::Step;
use crate::spec::value::Period;
use crate::steps;

impl<'s> Compiler<'s, '_> {
    /// The deadline, in milliseconds, under whichever of its names it is written.
    pub(super) fn timeout(&mut self, policy: &Policy) -> Option<u64> {
        let written: Vec<(&str, Span)> = [
            policy.timeout.as_ref().map(|period| ("timeout", period.span)),
            policy.timeout_secs.as_ref().map(|secs| ("timeout_secs", secs.span)),
            policy.timeout_s.as_ref().map(|secs| ("timeout_s", secs.span)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if let [(one, _), (other, span), ..] = written.as_slice() {
            let message = format!("`{one}` and `{other}` say the same thing");
            self.report(Diagnostic::new(Code::ConflictingFields, *span, message).hint("keep one of them"));
        }
        let ((name, span), millis) = written.first().copied().zip(policy.deadline())?;
        if millis == 0 || millis > Period::LONGEST.millis {
            let message = format!("`{name}` must be greater than 0 and less than a thousand years");
            let diagnostic = Diagnostic::new(Code::InvalidPolicy, span, message);
            self.report(diagnostic.hint("leave it out for no deadline"));
        }
        Some(millis)
    }

    /// The step's own retry policy, that of a block around it, or that of its form.
    pub(super) fn retry(&self, step: &Step, at: StepIx) -> Option<RetryPolicy> {
        let inherited = self.around(at).find_map(|policy| policy.retry.as_ref());
        match step.policy.retry.as_ref().or(inherited) {
            Some(retry) => RetryPolicy::from_spec(retry),
            None => self.in_graph.then(RetryPolicy::graph_default),
        }
    }

    /// The policies of the blocks around a step, innermost first.
    pub(super) fn around(&self, at: StepIx) -> impl Iterator<Item = &'s Policy> + use<'s, '_> {
        let outline = self.outline;
        let owner = move |step: StepIx| outline.block(outline.place(step).block).owner;
        std::iter::successors(owner(at), move |step| owner(*step))
            .filter_map(move |step| outline.place(step).spec.map(|spec| &spec.policy))
    }

    /// Reports what is wrong with a retry policy, on the step that it is written on.
    pub(super) fn check_retry(&mut self, retry: &Retry) {
        let (Retry::Policy(fields), Some(policy)) = (retry, RetryPolicy::from_spec(retry)) else { return };
        let Some(attempts) = &fields.max_attempts else { return };
        if attempts.value == 0 {
            let message = "`max_attempts` counts the first attempt, so it is at least 1";
            self.report(
                Diagnostic::new(Code::InvalidPolicy, attempts.span, message).hint("1 means no retry"),
            );
        }
        if let BackoffKind::Delays(listed) = &policy.backoff {
            if listed.is_empty() || fields.initial_delay_ms.is_some() {
                let message = "listed delays need at least one entry and no `initial_delay_ms`";
                self.report(Diagnostic::new(Code::InvalidPolicy, attempts.span, message));
            }
        } else if policy.initial_delay_ms > policy.max_delay_ms {
            let (initial, max) = (policy.initial_delay_ms, policy.max_delay_ms);
            let written = [&fields.initial_delay_ms, &fields.max_delay_ms].into_iter().flatten().next();
            let message = format!("`initial_delay_ms` ({initial}) is greater than `max_delay_ms` ({max})");
            let span = written.map_or(attempts.span, |delay| delay.span);
            let diagnostic = Diagnostic::new(Code::InvalidPolicy, span, message);
            self.report(
                diagnostic.hint("raise `max_delay_ms` (10000 by default) or lower `initial_delay_ms`"),
            );
        }
        if let Some(jitter) = fields.jitter.as_ref().filter(|jitter| !(0.0..=1.0).contains(&jitter.value)) {
            let message = format!("a jitter of {} is taken as {}", jitter.value, policy.jitter);
            self.report(
                Diagnostic::new(Code::JitterClamped, jitter.span, message).hint("use a number from 0 to 1"),
            );
        }
    }

    pub(super) fn on_error(&mut self, written: Option<&policy::OnError>) -> OnError {
        match written {
            None | Some(policy::OnError::Fail) => OnError::Fail,
            Some(policy::OnError::Continue) => OnError::Continue,
            Some(policy::OnError::Goto(name)) => self.goto(name).map_or(OnError::Fail, OnError::Goto),
        }
    }

    pub(super) fn on_deny(&mut self, written: Option<&steps::OnDeny>) -> OnDeny {
        match written {
            // A denied gate of the graph form cancels the run; in the tree form it fails the step.
            None if self.in_graph => OnDeny::Cancel,
            None | Some(steps::OnDeny::Fail) => OnDeny::Fail,
            Some(steps::OnDeny::Cancel) => OnDeny::Cancel,
            Some(steps::OnDeny::Continue) => OnDeny::Continue,
            Some(steps::OnDeny::Goto(name)) => self.goto(name).map_or(OnDeny::Fail, OnDeny::Goto),
        }
    }

    pub(super) fn idempotency(&mut self, policy: &Policy) -> Option<Idempotency> {
        let Some(key) = &policy.idempotency_key else {
            let orphan = policy.idempotency_ttl_secs.as_ref().map(|ttl| ttl.span);
            if orphan.is_some() || policy.idempotency_scope.is_some() {
                let span = orphan
                    .or_else(|| self.at.and_then(|at| self.outline.place(at).spec).map(|spec| spec.place));
                let message = "a scope or time to live of an idempotency key needs `idempotency_key`";
                self.report(Diagnostic::new(Code::InvalidPolicy, span.unwrap_or_default(), message));
            }
            return None;
        };
        if key.is_empty() {
            self.report(Diagnostic::new(Code::InvalidPolicy, key.span, "an idempotency key cannot be empty"));
        }
        if let Some(ttl) = policy.idempotency_ttl_secs.as_ref().filter(|ttl| ttl.value > KEY_TTL_SECS) {
            let message = format!("a result is kept for {KEY_TTL_SECS} seconds (ten years) at most");
            let diagnostic = Diagnostic::new(Code::InvalidPolicy, ttl.span, message);
            self.report(diagnostic.hint("0, or no time to live, keeps it for good"));
        }
        Some(Idempotency {
            // A malformed key is an invalid policy.
            key: self.template_as(key, key.span, Code::InvalidPolicy),
            scope: policy.idempotency_scope.unwrap_or(KeyScope::Workflow),
            ttl_secs: policy.idempotency_ttl_secs.as_ref().map(|ttl| ttl.value).filter(|ttl| *ttl > 0),
        })
    }

    pub(super) fn verify(&mut self, written: &policy::Verify) -> Option<Verify> {
        let tool = written.tool.as_ref()?;
        self.check_allowed(&tool.0, tool.span);
        let args = self.map_of_arguments(written.args.as_ref());
        let when = written.when.as_ref().and_then(|when| self.probe_condition(when))?;
        Some(Verify { tool: tool.0.as_str().into(), args, when })
    }
}
