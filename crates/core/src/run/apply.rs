//! Events to state: the one fold that deciding, recovery and tests share.

use super::changes::{ApprovalOutcome, BlockEnd, Changes, GateChange, Late, Replaced, RunChange, StepChange};
use super::event::Event;
use super::parts::{InputResponse, ScopeKey, StepInfo, StepRef};
use super::state::{BlockState, Done, Live, Phase, Run, RunStatus, StepStatus};
use crate::expr::StepIx;
use crate::plan::{Kind, Next as Leads, Plan};

impl Run {
    /// Folds one event. An event that does not fit is ignored but counted: the log is what happened.
    pub fn apply(&mut self, plan: &Plan, event: &Event) {
        self.seq += 1;
        let Changes { run, step, .. } = event.changes();
        self.apply_to_run(plan, &run);
        if let Some(change) = step {
            self.apply_to_step(plan, change);
        }
    }

    fn apply_to_run(&mut self, plan: &Plan, change: &RunChange<'_>) {
        if let Some(scope) = change.opens {
            self.scopes.entry(scope).or_default();
        }
        if let Some(error) = change.failing {
            self.failing = Some(error.clone());
        }
        if let Some(event) = change.signal {
            self.signals.push_back((event.into(), self.seq));
        }
        if let Some(path) = change.edited {
            self.edits.insert(path.into(), self.seq);
            // What a human agreed to has changed: the approval is void.
            if let Some(live) = self.live.values_mut().find(|live| *live.path == *path) {
                live.approved = false;
            }
        }
        match change.set {
            Some(Replaced::Inputs) => drop(self.sets.insert(None, self.seq)),
            Some(Replaced::Output(id)) => drop(self.sets.insert(plan.find(id), self.seq)),
            None => {}
        }
        match change.status {
            Some(status) if status.is_terminal() => self.end(status),
            Some(status) => {
                self.status = status;
                // A restart does not end a pause.
                if status != RunStatus::Interrupted {
                    self.paused = change.paused;
                }
            }
            None => {}
        }
    }

    fn apply_to_step(&mut self, plan: &Plan, mut change: StepChange<'_>) {
        let step = change.step;
        self.note_late_answers(step, change.late);
        if let Some(status) = change.status.filter(|_| change.ends()) {
            return self.leave(plan, step, status);
        }
        if change.begins {
            self.edits.remove(&*step.path);
        }
        if let Some(place) = change.place {
            self.enter(plan, step, place);
        }
        if let Some(phase) = change.phase.take() {
            self.phase(step.n, phase);
        }
        if let Some(live) = self.live.get_mut(&step.n) {
            live.apply(plan, &change);
        }
        if let Some(used) = change.memo.signal {
            self.signals.retain(|(_, seq)| *seq != used);
        }
        if let Some(block) = change.memo.block {
            self.block_ended(plan, step.n, &block);
        }
    }

    fn note_late_answers(&mut self, step: &StepRef, late: Late) {
        let in_flight = || self.live.get(&step.n).is_some_and(|live| live.phase.is_call());
        let call = (step.n, step.attempt);
        match late {
            Late::Yes => drop(self.cut.insert(call, step.path.clone())),
            Late::IfInFlight if in_flight() => drop(self.cut.insert(call, step.path.clone())),
            Late::Answered => drop(self.cut.remove(&call)),
            Late::IfInFlight | Late::No => {}
        }
    }

    fn end(&mut self, status: RunStatus) {
        let cut = std::mem::take(&mut self.cut);
        let seq = self.seq;
        *self = Self { status, cut, seq, last_n: self.last_n, ..Self::default() };
    }

    /// Adds an execution, unless it is known.
    fn enter(&mut self, plan: &Plan, step: &StepRef, place: &StepInfo) {
        if step.n <= self.last_n {
            return;
        }
        let Some(at) = plan.find(&place.id) else { return };
        self.last_n = step.n;
        let scope = self.scope_entered(place.scope);
        scope.live.insert(step.n);
        *scope.visits.entry(at).or_default() += 1;
        self.live.insert(step.n, Live::new(at, place.scope, step));
        self.moving += 1;
    }

    fn scope_entered(&mut self, key: ScopeKey) -> &mut BlockState {
        if let Some(Live { phase: Phase::Blocks(progress), .. }) = self.live.get_mut(&key.n)
            && progress.open.insert(key.index)
        {
            progress.next = progress.next.max(key.index + 1);
        }
        self.scopes.entry(key).or_default()
    }

    /// Changes what an execution does, and keeps count of who can move the run on.
    fn phase(&mut self, n: u32, phase: Phase) {
        let Some(live) = self.live.get_mut(&n) else { return };
        let before = std::mem::replace(&mut live.phase, phase);
        let after = &self.live[&n].phase;
        let blocks = matches!(after, Phase::Blocks(_));
        let (attention, call, ready) = (after.needs_attention(), after.is_call(), after.is_ready());
        self.uncount(n, &before);
        self.attention += u32::from(attention);
        self.moving += u32::from(!attention && !blocks);
        self.calls += u32::from(call);
        if ready {
            self.ready.insert(n);
        }
    }

    fn uncount(&mut self, n: u32, phase: &Phase) {
        let attention = phase.needs_attention();
        self.attention -= u32::from(attention);
        self.moving -= u32::from(!attention && !matches!(phase, Phase::Blocks(_)));
        self.calls -= u32::from(phase.is_call());
        self.ready.remove(&n);
    }

    fn leave(&mut self, plan: &Plan, step: &StepRef, status: StepStatus) {
        let Some(live) = self.live.remove(&step.n) else { return };
        self.uncount(step.n, &live.phase);
        if let Phase::Blocks(progress) = &live.phase {
            for index in &progress.open {
                self.close(plan, ScopeKey { n: step.n, index: *index }, live.step, live.scope);
            }
        }
        let Some(scope) = self.scopes.get_mut(&live.scope) else { return };
        scope.live.remove(&step.n);
        scope.done.insert(live.step, Done { n: step.n, status });
        if status != StepStatus::Cancelled && comes_last(plan, live.step, scope.last_step) {
            scope.last = (status == StepStatus::Done).then_some(step.n);
            scope.last_step = Some(live.step);
        }
    }

    fn block_ended(&mut self, plan: &Plan, n: u32, block: &BlockEnd<'_>) {
        let Some(live) = self.live.get_mut(&n) else { return };
        let (step, scope) = (live.step, live.scope);
        if let Phase::Blocks(progress) = &mut live.phase {
            progress.open.remove(&block.index);
            progress.next = progress.next.max(block.index + 1);
            progress.ended += 1;
            progress.results.insert(block.index, block.error.cloned().map_or(Ok(block.result), Err));
        }
        self.close(plan, ScopeKey { n, index: block.index }, step, scope);
    }

    /// Ends a block. What its steps gave can be read around it, unless it was one item of many.
    fn close(&mut self, plan: &Plan, key: ScopeKey, owner: StepIx, around: ScopeKey) {
        let Some(ended) = self.scopes.remove(&key) else { return };
        if matches!(plan.step(owner).kind, Kind::Foreach(_)) {
            return;
        }
        if let Some(around) = self.scopes.get_mut(&around) {
            around.done.extend(ended.done);
        }
    }
}

/// Whether a step that ended gives the block's output: the last one to end, or the last one that is written
/// where several run at once.
fn comes_last(plan: &Plan, step: StepIx, last: Option<StepIx>) -> bool {
    let in_dag = matches!(plan.step(step).next, Leads::Dependents(_));
    !in_dag || last.is_none_or(|last| step >= last)
}

impl Live {
    fn apply(&mut self, plan: &Plan, change: &StepChange<'_>) {
        let memo = &change.memo;
        self.timer = change.timers().next().is_some() || (self.timer && !change.resets);
        if change.place.is_some() {
            self.attempt = change.step.attempt;
        }
        if change.retry_at.is_some() {
            self.begin_attempt(change.step.attempt + 1, memo.restarted);
        } else {
            self.restarted |= memo.restarted;
        }
        self.created |= memo.created;
        self.probes += u32::from(memo.probe);
        if let Some(wait) = &memo.server {
            self.refusals += u32::from(wait.refused);
            self.wait_until = wait.until;
        }
        if change.begins || memo.task.is_some() {
            self.task = memo.task.map(Into::into);
        }
        if let (Some((key, claimed)), Kind::Call(call)) = (memo.key, &plan.step(self.step).kind) {
            self.claim |= claimed;
            self.key = call.idempotency.as_ref().map(|_| key.into());
        }
        if let Some(gate) = &change.gate {
            self.apply_gate(gate);
        }
    }

    fn begin_attempt(&mut self, attempt: u32, restarted: bool) {
        self.attempt = attempt;
        (self.task, self.asked) = (None, None);
        (self.refusals, self.wait_until) = (0, None);
        self.restarts += u32::from(restarted);
        (self.restarted, self.probes) = (false, 0);
    }

    fn apply_gate(&mut self, change: &GateChange<'_>) {
        match change {
            GateChange::Requested(request) => {
                let asked = |state: &serde_json::Value| InputResponse { state: state.clone(), answer: None };
                self.asked = request.state.map(|state| Box::new(asked(state)));
            }
            GateChange::Decided(decided) if decided.outcome == ApprovalOutcome::Approved => {
                self.approved = true;
                if let Some(asked) = &mut self.asked {
                    // An approval without fields answers an input request, too.
                    asked.answer = Some(decided.answer.cloned().unwrap_or_else(|| serde_json::json!({})));
                }
            }
            GateChange::Decided(_) => {}
            GateChange::Escalated { level: before } => {
                if let Phase::Gate { level, .. } = &mut self.phase {
                    *level = before + 1;
                }
            }
        }
    }
}
