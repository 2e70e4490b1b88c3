//! Applies events to the state of a run. Decisions, recovery and tests use this one fold.

use super::approval::{Approver, Cover};
use super::changes::{
    ApprovalOutcome, BlockEnd, Changes, GateChange, LateResult, Replaced, RunChange, StepChange,
};
use super::event::Event;
use super::owed::tolerates_failures;
use super::parts::{Ending, InputResponse, ScopeKey, Started, StepInfo, StepRef};
use super::phase::Phase;
use super::policy::ApprovedBy;
use super::state::{Cancelling, Done, Live, ReadyKey, Run, RunStatus, StepStatus};
use crate::expr::StepIx;
use crate::plan::{Gate, Hash, Kind, Next as PlanNext, Plan};

impl Run {
    /// Applies one event. An event that does not fit the state only advances the sequence number, because the
    /// log is authoritative.
    pub fn apply(&mut self, plan: &Plan, event: &Event) {
        self.seq += 1;
        let Changes { run, step, .. } = event.changes();
        self.apply_to_run(plan, &run);
        if let Some(change) = step {
            self.apply_to_step(plan, change);
        }
        if let Event::StepStarted {
            step, place, what: Started::Call { args, policy: Some(policy), .. }, ..
        } = event
            && let Some(ApprovedBy::Gate(gate)) = policy.approved
        {
            self.use_cover(step.n, gate, plan.find(&place.id), *args);
        }
    }

    /// A call was made that the approval of an earlier gate covers. It covers this execution only.
    fn use_cover(&mut self, n: u32, gate: u32, step: Option<StepIx>, args: Hash) {
        let is_used = |cover: &Cover| cover.gate == gate && Some(cover.step) == step && cover.args == args;
        let Some(at) = self.covered.iter().position(is_used) else { return };
        let cover = self.covered.swap_remove(at);
        if let Some(live) = self.live.get_mut(&n) {
            (live.approved, live.approvers, live.escalated) = (true, cover.approvers, None);
        }
    }

    fn apply_to_run(&mut self, plan: &Plan, change: &RunChange<'_>) {
        if let Some(error) = change.failing {
            self.failing = Some(error.clone());
            self.block_changed(ScopeKey::ROOT);
        }
        if let Some(scope) = change.opens {
            self.open_block(plan, scope, None);
        }
        if let Some((reason, by)) = change.cancelling {
            self.cancelling = Some(Cancelling { reason: reason.into(), by: by.map(Into::into) });
        }
        self.restored = change.restored.or(self.restored);
        if let Some(event) = change.signal {
            self.signals.push_back((event.into(), self.seq));
        }
        if let Some(path) = change.edited {
            self.edits.insert(path.into(), self.seq);
            // The approval was for other arguments.
            if let Some(live) = self.paths.get(path).and_then(|n| self.live.get_mut(n)) {
                live.approved = false;
            }
        }
        match change.replaced {
            Some(Replaced::Inputs) => drop(self.overrides.insert(None, self.seq)),
            Some(Replaced::Output(id)) => drop(self.overrides.insert(plan.find(id), self.seq)),
            None => {}
        }
        match change.status {
            Some(status) if status.is_terminal() => self.end(status),
            Some(status) => {
                self.status = status;
                // An interruption does not end a pause.
                if status != RunStatus::Interrupted {
                    self.paused = change.paused;
                }
            }
            None => {}
        }
    }

    fn apply_to_step(&mut self, plan: &Plan, mut change: StepChange<'_>) {
        let step = change.step;
        self.track_late_result(step, change.late_result);
        if let Some(status) = change.status.filter(|_| change.ends()) {
            return self.leave(plan, &change, status);
        }
        if change.starts_attempt {
            self.edits.remove(&*step.path);
        }
        if let Some(info) = change.info {
            self.enter(plan, step, info);
        }
        if let Some(gate) = &change.gate {
            self.gate_changed(step.n, gate);
        }
        if let Some(mut phase) = change.phase.take() {
            complete_gate(plan, &change, self.live.get(&step.n).map(|live| &**live), &mut phase);
            self.set_phase(step.n, phase);
            self.blocks_changed(plan, step.n);
        }
        if let Some(live) = self.live.get_mut(&step.n) {
            live.apply(plan, &change);
        }
        if let Some(used) = change.internal.signal {
            self.signals.retain(|(_, seq)| *seq != used);
        }
        if let Some(block) = change.internal.block {
            self.block_ended(plan, step.n, &block);
        }
        if let Some(to) = change.internal.taken {
            self.choice_taken(plan, step.n, to);
        }
        if change.internal.ending.is_some() {
            self.blocks_changed(plan, step.n);
        }
    }

    /// Keeps what an approval covers beyond its own step.
    fn gate_changed(&mut self, n: u32, change: &GateChange<'_>) {
        let GateChange::Decided(decided) = change else { return };
        let Some(live) = self.live.get_mut(&n) else { return };
        let Phase::Gate { open, level, .. } = &live.phase else { return };
        live.escalated = (*level > 0).then(|| Box::new((open.rules.clone(), *level)));
        live.goes_elsewhere =
            decided.outcome == ApprovalOutcome::Expired && open.rules.on_timeout_goto.is_some();
        if decided.outcome != ApprovalOutcome::Approved {
            return;
        }
        live.approved_tool = open.tool_hash();
        let mut approvers = live.approvers.clone();
        approvers.extend(decided.by.map(|by| Approver::new(by, decided.provenance)));
        let covers = open.covers.iter().filter(|(step, _)| *step != live.step);
        let cover = |(step, args): &(StepIx, Hash)| Cover {
            gate: n,
            step: *step,
            args: *args,
            approvers: approvers.clone(),
        };
        self.covered.extend(covers.map(cover));
        let workflows = open.subject.iter().flat_map(|subject| &subject.workflows);
        self.approved_workflows.extend(workflows.map(|workflow| (workflow.step.clone(), workflow.hash)));
    }

    fn track_late_result(&mut self, step: &StepRef, late: LateResult) {
        let in_flight = || self.live.get(&step.n).is_some_and(|live| live.phase.is_call());
        let call = (step.n, step.attempt);
        match late {
            LateResult::Expected => drop(self.abandoned.insert(call, step.path.clone())),
            LateResult::ExpectedIfInFlight if in_flight() => {
                drop(self.abandoned.insert(call, step.path.clone()));
            }
            LateResult::Arrived => drop(self.abandoned.remove(&call)),
            LateResult::ExpectedIfInFlight | LateResult::NotExpected => {}
        }
    }

    fn end(&mut self, status: RunStatus) {
        let abandoned = std::mem::take(&mut self.abandoned);
        let seq = self.seq;
        *self = Self { status, abandoned, seq, last_n: self.last_n, ..Self::default() };
    }

    /// Adds an execution, unless it exists.
    fn enter(&mut self, plan: &Plan, step: &StepRef, place: &StepInfo) {
        if step.n <= self.last_n {
            return;
        }
        let Some(at) = plan.find(&place.id) else { return };
        self.last_n = step.n;
        if self.open_scope(place.scope) {
            self.open_block(plan, place.scope, Some(at));
        }
        if let Some(scope) = self.scopes.get_mut(&place.scope) {
            *scope.visits.entry(at).or_default() += 1;
        }
        self.members.insert((place.scope, step.n));
        self.paths.insert(step.path.clone(), step.n);
        self.live.insert(step.n, Box::new(Live::new(at, place.scope, step)));
        self.moving += 1;
        self.entered(place.scope, at);
        self.blocks_changed(plan, place.scope.n);
    }

    /// Notes that a block is running. Returns whether it was not before.
    fn open_scope(&mut self, key: ScopeKey) -> bool {
        if let Some(Phase::Blocks(progress)) = self.live.get_mut(&key.n).map(|live| &mut live.phase)
            && progress.open.insert(key.index)
        {
            progress.next = progress.next.max(key.index + 1);
        }
        !self.scopes.contains_key(&key)
    }

    /// Changes the phase of an execution and updates the counters of the run.
    fn set_phase(&mut self, n: u32, phase: Phase) {
        let Some(live) = self.live.get_mut(&n) else { return };
        let (before, live_step) = (std::mem::replace(&mut live.phase, phase), live.step);
        let after = &self.live[&n].phase;
        let (blocks, attention) = (after.is_blocks(), after.needs_attention());
        let (call, ready) = (after.is_call(), ready_key(n, live_step, after));
        self.uncount(n, live_step, &before);
        self.attention += u32::from(attention);
        self.moving += u32::from(!attention && !blocks);
        self.calls += u32::from(call);
        self.ready.extend(ready);
    }

    fn uncount(&mut self, n: u32, step: StepIx, phase: &Phase) {
        let attention = phase.needs_attention();
        self.attention -= u32::from(attention);
        self.moving -= u32::from(!attention && !phase.is_blocks());
        self.calls -= u32::from(phase.is_call());
        if let Some(key) = ready_key(n, step, phase) {
            self.ready.remove(&key);
        }
    }

    fn leave(&mut self, plan: &Plan, change: &StepChange<'_>, status: StepStatus) {
        let step = change.step;
        let Some(live) = self.live.remove(&step.n) else { return };
        self.members.remove(&(live.scope, step.n));
        self.paths.remove(&live.path);
        self.uncount(step.n, live.step, &live.phase);
        if let Phase::Blocks(progress) = &live.phase {
            for index in &progress.open {
                self.close(plan, ScopeKey { n: step.n, index: *index }, live.step, live.scope);
            }
        }
        self.drop_step(step.n);
        let Some(scope) = self.scopes.get_mut(&live.scope) else { return };
        scope.done.insert(live.step, Done { n: step.n, status });
        if status != StepStatus::Cancelled && comes_last(plan, live.step, scope.last_step) {
            scope.last = (status == StepStatus::Done).then_some(step.n);
            scope.last_step = Some(live.step);
        }
        self.step_ended(plan, (&live, step), status, change.error);
    }

    fn block_ended(&mut self, plan: &Plan, n: u32, block: &BlockEnd<'_>) {
        let Some(live) = self.live.get_mut(&n) else { return };
        let (step, scope) = (live.step, live.scope);
        if let Phase::Blocks(progress) = &mut live.phase {
            progress.open.remove(&block.index);
            progress.next = progress.next.max(block.index + 1);
            progress.ended += 1;
            let failed = block.error.cloned().map(Box::new);
            progress.results.insert(block.index, failed.map_or(Ok(block.result), Err));
        }
        if let Some(error) = block.error.filter(|_| !tolerates_failures(plan, step)) {
            let failed = || Box::new(Ending::Failed { error: error.clone() });
            live.ending.get_or_insert_with(failed);
        }
        self.close(plan, ScopeKey { n, index: block.index }, step, scope);
        self.blocks_changed(plan, n);
    }

    /// Removes a block. Its results become visible in the enclosing block, unless it is an item of a `foreach`.
    fn close(&mut self, plan: &Plan, key: ScopeKey, owner: StepIx, enclosing: ScopeKey) {
        let Some(ended) = self.scopes.remove(&key) else { return };
        self.drop_transitions(key, &ended);
        if matches!(plan.step(owner).kind, Kind::Foreach(_)) {
            return;
        }
        if let Some(enclosing) = self.scopes.get_mut(&enclosing) {
            enclosing.done.extend(ended.done);
        }
    }
}

/// Adds to an open gate what the event does not state: the steps that it covers, and the rules of requests without a
/// subject, which are those of the plan.
fn complete_gate(plan: &Plan, change: &StepChange<'_>, live: Option<&Live>, phase: &mut Phase) {
    let (Phase::Gate { open, .. }, Some(GateChange::Requested(request))) = (phase, &change.gate) else {
        return;
    };
    let Some(subject) = request.subject else {
        let is_gate = request.state.is_none();
        open.rules =
            live.filter(|_| is_gate).map(|live| Gate::rules_of(plan.step(live.step))).unwrap_or_default();
        return;
    };
    let exact = subject.calls.iter().filter(|call| call.unknown.is_empty());
    open.covers = exact.filter_map(|call| Some((plan.find(&call.step)?, call.args_hash?))).collect();
}

/// The place of an execution among the ready ones, if it is one.
fn ready_key(n: u32, step: StepIx, phase: &Phase) -> Option<ReadyKey> {
    phase.is_ready().then_some(ReadyKey { for_slot: *phase == Phase::Ready, step, n })
}

/// Whether the output of a step that ended becomes the output of its block: the last step to end, or in a DAG
/// the last one in the definition.
fn comes_last(plan: &Plan, step: StepIx, last: Option<StepIx>) -> bool {
    let in_dag = matches!(plan.step(step).next, PlanNext::Dependents(_));
    !in_dag || last.is_none_or(|last| step >= last)
}

impl Live {
    fn apply(&mut self, plan: &Plan, change: &StepChange<'_>) {
        let internal = &change.internal;
        self.timer = change.timers().next().is_some() || (self.timer && !change.clears_waits);
        self.deadline = change.deadline.or(self.deadline.filter(|_| !change.clears_waits));
        if change.info.is_some() {
            self.attempt = change.step.attempt;
        }
        if change.retry_at.is_some() {
            self.next_attempt(change.step.attempt + 1, internal.restarted);
        } else {
            self.restarted |= internal.restarted;
        }
        self.created |= internal.created;
        if internal.repeated {
            self.approved = false;
            self.approvers.clear();
            self.escalated = None;
        }
        self.probes += u32::from(internal.probe);
        if let Some(wait) = &internal.server {
            self.refusals += u32::from(wait.rejected);
            self.wait_until = wait.until;
        }
        if change.starts_attempt || internal.task.is_some() {
            self.task = internal.task.map(Into::into);
        }
        if let (Some((key, claimed)), Kind::Call(call)) = (internal.key, &plan.step(self.step).kind) {
            self.claim |= claimed;
            self.key = call.idempotency.as_ref().map(|_| key.into());
        }
        if let Some(gate) = &change.gate {
            self.apply_gate(gate);
        }
        if let Some(ending) = internal.ending {
            self.ending = Some(Box::new(ending.clone()));
        }
    }

    fn next_attempt(&mut self, attempt: u32, restarted: bool) {
        self.attempt = attempt;
        (self.task, self.input_response) = (None, None);
        (self.refusals, self.wait_until) = (0, None);
        self.restarts += u32::from(restarted);
        (self.restarted, self.probes) = (false, 0);
    }

    fn apply_gate(&mut self, change: &GateChange<'_>) {
        match change {
            GateChange::Requested(request) => {
                let open = |state: &serde_json::Value| InputResponse { state: state.clone(), answer: None };
                self.input_response = request.state.map(|state| Box::new(open(state)));
                self.approvers.clear();
                self.escalated = None;
                self.approved &= request.state.is_some();
                self.denied = false;
            }
            GateChange::Signed { by, provenance } => self.approvers.push(Approver::new(by, *provenance)),
            GateChange::Decided(decided) if decided.outcome == ApprovalOutcome::Approved => {
                if let Some(response) = &mut self.input_response {
                    // An approval without an answer accepts the request with an empty form. It approves no call.
                    response.answer = Some(decided.answer.cloned().unwrap_or_else(|| serde_json::json!({})));
                } else {
                    self.approved = true;
                    self.approvers.extend(decided.by.map(|by| Approver::new(by, decided.provenance)));
                }
            }
            GateChange::Decided(_) => self.denied = true,
            GateChange::Escalated { level: before, next } => {
                if let Phase::Gate { level, open, .. } = &mut self.phase {
                    *level = before + 1;
                    open.escalate = *next;
                }
            }
            GateChange::Reminded { count, next } => {
                if let Phase::Gate { open, .. } = &mut self.phase {
                    (open.reminders, open.remind) = (*count, *next);
                }
            }
        }
    }
}
