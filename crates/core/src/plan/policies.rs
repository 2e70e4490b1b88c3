//! Compiles policies: resolves aliases, defaults and inheritance, and checks ranges.

use super::compile::Compiler;
use super::{Idempotency, OnDeny, OnError, RetryPolicy, StepIx, Verify};
use crate::diagnostic::{Code, Diagnostic};
use crate::limits::KEY_TTL_SECS;
use crate::plan::retry::BackoffKind;
use crate::source::Span;
use crate::spec::policy::{self, KeyScope, Policy};
use crate::spec::retry::Retry;
use crate::spec::step::Step;
use crate::spec::value::DurationSpec;
use crate::steps;

impl<'s> Compiler<'s, '_> {
    /// The timeout in milliseconds, from any of its aliases.
    pub(super) fn timeout(&mut self, policy: &Policy) -> Option<u64> {
        let written: Vec<(&str, Span)> = [
            policy.timeout.as_ref().map(|timeout| ("timeout", timeout.span)),
            policy.timeout_secs.as_ref().map(|secs| ("timeout_secs", secs.span)),
            policy.timeout_s.as_ref().map(|secs| ("timeout_s", secs.span)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if let [(one, _), (other, span), ..] = written.as_slice() {
            let message = format!("`{one}` and `{other}` cannot be used together");
            self.report(Diagnostic::new(Code::ConflictingFields, *span, message).hint("keep one of them"));
        }
        let ((name, span), millis) = written.first().copied().zip(policy.deadline())?;
        if millis == 0 || millis > DurationSpec::MAX.millis {
            let message = format!("`{name}` must be greater than 0 and less than a thousand years");
            let diagnostic = Diagnostic::new(Code::InvalidPolicy, span, message);
            self.report(diagnostic.hint("omit it for no timeout"));
        }
        Some(millis)
    }

    /// The retry policy of the step, of an enclosing block, or the default of the form.
    pub(super) fn retry(&self, step: &Step, at: StepIx) -> Option<RetryPolicy> {
        let inherited = self.enclosing_policies(at).find_map(|policy| policy.retry.as_ref());
        match step.policy.retry.as_ref().or(inherited) {
            Some(retry) => RetryPolicy::from_spec(retry),
            None => self.in_graph.then(RetryPolicy::graph_default),
        }
    }

    /// The policies of the enclosing blocks, innermost first.
    pub(super) fn enclosing_policies(&self, at: StepIx) -> impl Iterator<Item = &'s Policy> + use<'s, '_> {
        let outline = self.outline;
        let owner = move |step: StepIx| outline.block(outline.step(step).block).owner;
        std::iter::successors(owner(at), move |step| owner(*step))
            .filter_map(move |step| outline.step(step).spec.map(|spec| &spec.policy))
    }

    /// Reports problems of a retry policy, on the step that declares it.
    pub(super) fn check_retry(&mut self, retry: &Retry) {
        let (Retry::Policy(fields), Some(policy)) = (retry, RetryPolicy::from_spec(retry)) else { return };
        let Some(attempts) = &fields.max_attempts else { return };
        if attempts.value == 0 {
            let message = "`max_attempts` includes the first attempt, so it must be at least 1";
            self.report(
                Diagnostic::new(Code::InvalidPolicy, attempts.span, message).hint("1 means no retry"),
            );
        }
        if let BackoffKind::Delays(listed) = &policy.backoff {
            if listed.is_empty() || fields.initial_delay_ms.is_some() {
                let message = "a list of delays must not be empty or used together with `initial_delay_ms`";
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
            let message = format!("the jitter {} is clamped to {}", jitter.value, policy.jitter);
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
            // In the graph form, a denial cancels the run; in a list, the step fails.
            None if self.in_graph => OnDeny::Cancel,
            None | Some(steps::OnDeny::Fail) => OnDeny::Fail,
            Some(steps::OnDeny::Cancel) => OnDeny::Cancel,
            Some(steps::OnDeny::Continue) => OnDeny::Continue,
            Some(steps::OnDeny::Goto(name)) => self.goto(name).map_or(OnDeny::Fail, OnDeny::Goto),
        }
    }

    pub(super) fn idempotency(&mut self, policy: &Policy) -> Option<Idempotency> {
        let Some(key) = &policy.idempotency_key else {
            let ttl_span = policy.idempotency_ttl_secs.as_ref().map(|ttl| ttl.span);
            if ttl_span.is_some() || policy.idempotency_scope.is_some() {
                let span = ttl_span
                    .or_else(|| self.at.and_then(|at| self.outline.step(at).spec).map(|spec| spec.span));
                let message = "`idempotency_scope` and `idempotency_ttl_secs` need `idempotency_key`";
                self.report(Diagnostic::new(Code::InvalidPolicy, span.unwrap_or_default(), message));
            }
            return None;
        };
        if key.is_empty() {
            self.report(Diagnostic::new(Code::InvalidPolicy, key.span, "the idempotency key is empty"));
        }
        if let Some(ttl) = policy.idempotency_ttl_secs.as_ref().filter(|ttl| ttl.value > KEY_TTL_SECS) {
            let message = format!("`idempotency_ttl_secs` exceeds the limit of {KEY_TTL_SECS} (ten years)");
            let diagnostic = Diagnostic::new(Code::InvalidPolicy, ttl.span, message);
            self.report(diagnostic.hint("omit it for no expiry"));
        }
        Some(Idempotency {
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
        Some(Verify { tool: tool.0.as_str().into(), secrets: args.secrets().into(), args, when })
    }
}
