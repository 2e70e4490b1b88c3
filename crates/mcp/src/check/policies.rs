//! Policies of calls, compared with the annotations of their tools: gates, effects, retries.

use std::collections::BTreeSet;

use steprail_core::diagnostic::Code;
use steprail_core::plan::{BlockIx, Call, Kind, Next, Plan, Step, StepIx, Target};
use steprail_engine::FailureKind;

use super::Check;
use crate::gateway::ToolInfo;

impl Check<'_> {
    pub(super) fn policies(&mut self, index: StepIx, step: &Step, call: &Call, tool: &ToolInfo) {
        let span = self.field(step, &["tool", "action"]);
        if tool.annotations.is_destructive()
            && step.needs_human.is_none()
            && !self.is_gated(index, step.block)
        {
            let message = format!("`{}` may be destructive and is called without an approval", tool.name);
            let hint = "put an `approve` step before it, or `needs_human: true` on it";
            self.report(Code::UngatedDestruction, step, span, message, Some(hint.to_owned()));
        }
        if let Some(effects) = call.effects.filter(|effects| tool.annotations.contradicts(*effects)) {
            let span = self.field(step, &["effects"]);
            let message =
                format!("the annotations of `{}` contradict `effects: {}`", tool.name, effects.name());
            let hint = "remove `effects`: the annotations of the tool take precedence";
            self.report(Code::ContradictedEffects, step, span, message, Some(hint.to_owned()));
        }
        self.retry(step, call, tool);
    }

    /// Reports a retry policy that does not cover lost connections, which its author may not expect.
    fn retry(&mut self, step: &Step, call: &Call, tool: &ToolInfo) {
        let Some(retry) = step.retry.as_ref().filter(|retry| retry.max_attempts > 1) else { return };
        let retries_lost = retry.retry_on.as_deref().unwrap_or_default().contains(&FailureKind::Lost);
        let has_key = call.idempotency_arg.is_some() || tool.annotations.honours_key;
        let has_policy = call.on_uncertain.is_some() || call.verify.is_some();
        if retries_lost || has_key || has_policy || tool.annotations.is_repeatable(call.effects) {
            return;
        }
        let span = self.field(step, &["retry", "tool", "action"]);
        let message = format!(
            "`{}` is not annotated as repeatable: `retry` does not cover a lost connection or a timeout",
            tool.name
        );
        let hint = "a human decides in these cases; to repeat the call, pass the key with `idempotency_arg` or add \
                    `lost` to `retry_on`";
        self.report(Code::RetryNotIdempotent, step, span, message, Some(hint.to_owned()));
    }

    /// Whether a gate comes before a step, in its block or in a surrounding one.
    fn is_gated(&self, index: StepIx, block: BlockIx) -> bool {
        let is_gate = |index: &StepIx| {
            let step = self.plan.step(*index);
            matches!(step.kind, Kind::Approve(_)) || step.needs_human.is_some()
        };
        predecessors(self.plan, index, block).iter().any(is_gate)
            || self.plan.block(block).owner.is_some_and(|owner| {
                let step = self.plan.step(owner);
                step.needs_human.is_some() || self.is_gated(owner, step.block)
            })
    }
}

/// The steps of a block that lead to a step.
fn predecessors(plan: &Plan, index: StepIx, block: BlockIx) -> BTreeSet<StepIx> {
    let leads_to = |from: &StepIx, to: StepIx| match &plan.step(*from).next {
        Next::End => false,
        Next::Step(next) => *next == to,
        Next::Dependents(next) => next.contains(&to),
        Next::Choose { choices, otherwise } => {
            let targets = choices.iter().map(|choice| &choice.to).chain(otherwise);
            targets.into_iter().any(|target| *target == Target::Step(to))
        }
    };
    let mut visited = BTreeSet::new();
    let mut queue = vec![index];
    while let Some(step) = queue.pop() {
        let direct = plan.block(block).steps.iter().filter(|from| leads_to(from, step)).copied();
        queue.extend(direct.filter(|from| visited.insert(*from)));
    }
    visited
}
