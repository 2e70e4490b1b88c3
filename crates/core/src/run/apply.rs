//! Events to state: the one fold that deciding, recovery and tests share.

use super::event::Event;
use super::parts::{Answered, Place, ScopeKey, Started, StepRef};
use super::state::{Done, Live, Phase, Progress, Run, RunStatus, StepStatus};
use super::{Failure, Millis};
use crate::expr::StepIx;
use crate::plan::{Kind, Next as Leads, Plan};

impl Run {
    /// Folds one event. An event that does not fit is ignored but counted: the log is what happened.
    pub fn apply(&mut self, plan: &Plan, event: &Event) {
        self.seq += 1;
        match event {
            Event::RunStarted { .. } => {
                self.status = RunStatus::Running;
                self.scopes.entry(ScopeKey::ROOT).or_default();
            }
            Event::RunPaused { reason, .. } => {
                self.status = RunStatus::Paused;
                self.paused = Some(*reason);
            }
            Event::RunResumed { .. } => {
                self.status = RunStatus::Running;
                self.paused = None;
            }
            Event::RunInterrupted {} => self.status = RunStatus::Interrupted,
            Event::RunFailing { error } => {
                self.failing = Some(error.clone());
                self.scopes.entry(ScopeKey::FAILURE).or_default();
            }
            Event::RunCompleted { .. } => self.end(RunStatus::Completed),
            Event::RunFailed { .. } => self.end(RunStatus::Failed),
            Event::RunCancelled { .. } => self.end(RunStatus::Cancelled),
            Event::SignalReceived { event, .. } => self.signals.push_back((event.clone(), self.seq)),
            Event::ArgumentsEdited { path, .. } => {
                self.edits.insert(path.clone(), self.seq);
                // What a human agreed to has changed: the yes is void.
                let changed = self.live.values_mut().find(|live| *live.path == **path);
                if let Some(live) = changed {
                    live.approved = false;
                }
            }
            Event::ValueSet { id, .. } => {
                self.sets.insert(id.as_deref().and_then(|id| plan.find(id)), self.seq);
            }
            Event::BlockCompleted { step, index, result, error } => {
                self.block_ended(plan, ScopeKey { n: step.n, index: *index }, *result, error.clone());
            }
            Event::LateResult { step } => {
                self.cut.remove(&(step.n, step.attempt));
            }
            Event::BranchTaken { .. } | Event::UncertaintyResolved { .. } => {}
            event => self.apply_step(plan, event),
        }
    }

    fn apply_step(&mut self, plan: &Plan, event: &Event) {
        match event {
            Event::StepReady { step, place } => self.enter(plan, step, place, Phase::Ready, None),
            Event::KeyAwaited { step, place, .. } => self.enter(plan, step, place, Phase::KeyWait, None),
            Event::ServerAwaited { step, place, due, until, .. } => {
                self.enter(plan, step, place, Phase::ServerWait { due: *due }, due.or(*until));
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.refusals += u32::from(due.is_some());
                    live.wait_until = *until;
                }
            }
            Event::StepStarted { step, place, what, until } => {
                self.edits.remove(&*step.path);
                self.enter(plan, step, place, phase_of(what), *until);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.task = None;
                    if let (Started::Call { key, claimed, .. }, Kind::Call(call)) =
                        (what, &plan.step(live.step).kind)
                    {
                        live.claim |= claimed;
                        live.key = call.idempotency.as_ref().map(|_| key.clone());
                    }
                    live.timer |= matches!(what, Started::Sleep { .. });
                }
                if let Started::Wait { signal: Some(used), .. } = what {
                    self.signals.retain(|(_, seq)| seq != used);
                }
            }
            Event::StepCompleted { step, from, .. } => {
                if from.is_some() {
                    self.cut_off(step);
                }
                self.leave(plan, step, StepStatus::Done);
            }
            Event::StepFailed { step, .. } => self.leave(plan, step, StepStatus::Failed),
            Event::StepSkipped { step, .. } => {
                self.cut_off(step);
                self.leave(plan, step, StepStatus::Skipped);
            }
            Event::StepCancelled { step, in_flight } => {
                if *in_flight {
                    self.cut.insert((step.n, step.attempt), step.path.clone());
                }
                self.leave(plan, step, StepStatus::Cancelled);
            }
            Event::RetryScheduled { step, due, error } => {
                self.phase(step.n, Phase::Backoff { due: *due });
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.attempt = step.attempt + 1;
                    live.timer = true;
                    (live.task, live.asked) = (None, None);
                    (live.refusals, live.wait_until) = (0, None);
                    live.restarts += u32::from(error.is_restart());
                    (live.restarted, live.probes) = (false, 0);
                }
            }
            Event::StepUncertain { step, error } => {
                self.cut.insert((step.n, step.attempt), step.path.clone());
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.restarted |= error.is_restart();
                }
                self.phase(step.n, Phase::Uncertain);
                self.no_timer(step.n);
            }
            Event::CallTimedOut { step, .. } => {
                self.phase(step.n, Phase::Stopping);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.timer = true;
                }
            }
            Event::CallAbandoned { step } => {
                self.cut.insert((step.n, step.attempt), step.path.clone());
            }
            Event::VerifyStarted { step, until, restarted, .. } => {
                self.phase(step.n, Phase::Verifying);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.timer = until.is_some();
                    live.restarted |= *restarted;
                    live.probes += 1;
                }
            }
            Event::ToolRequested { step, until, .. } => {
                self.phase(step.n, Phase::Creating);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.timer = until.is_some();
                }
            }
            Event::ToolCreated { step, .. } => {
                self.no_timer(step.n);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.created = true;
                }
            }
            Event::CallAccepted { step, task } => {
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.task = Some(task.clone());
                }
            }
            Event::ApprovalRequested { step, digest, until, escalate, state, .. } => {
                self.phase(step.n, Phase::Gate { until: *until, level: 0, digest: *digest });
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.asked = state.clone().map(|state| Box::new(Answered { state, answer: None }));
                    live.timer = until.is_some() || escalate.is_some();
                }
            }
            Event::ApprovalEscalated { step, level, .. } => {
                if let Some(Live { phase: Phase::Gate { level: so_far, .. }, .. }) =
                    self.live.get_mut(&step.n)
                {
                    *so_far = level + 1;
                }
            }
            Event::ApprovalGranted { step, answer, .. } => {
                self.phase(step.n, Phase::Ready);
                self.no_timer(step.n);
                if let Some(live) = self.live.get_mut(&step.n) {
                    live.approved = true;
                    if let Some(asked) = &mut live.asked {
                        // A yes that says nothing else is an answer, too.
                        asked.answer = Some(answer.clone().unwrap_or_else(|| serde_json::json!({})));
                    }
                }
            }
            Event::ApprovalDenied { step, .. } => {
                self.phase(step.n, Phase::Passing);
                self.no_timer(step.n);
            }
            _ => {}
        }
    }

    /// A step ends otherwise than by its call, which may still answer.
    fn cut_off(&mut self, step: &StepRef) {
        if self.live.get(&step.n).is_some_and(|live| live.phase.is_call()) {
            self.cut.insert((step.n, step.attempt), step.path.clone());
        }
    }

    fn end(&mut self, status: RunStatus) {
        let cut = std::mem::take(&mut self.cut);
        let seq = self.seq;
        *self = Self { status, cut, seq, last_n: self.last_n, ..Self::default() };
    }

    fn no_timer(&mut self, n: u32) {
        if let Some(live) = self.live.get_mut(&n) {
            live.timer = false;
        }
    }

    /// An execution that is new, or goes on.
    fn enter(&mut self, plan: &Plan, step: &StepRef, place: &Place, phase: Phase, until: Option<Millis>) {
        if step.n > self.last_n {
            let Some(at) = plan.find(&place.id) else { return };
            self.last_n = step.n;
            let scope = self.scope_entered(place.scope);
            scope.live.insert(step.n);
            *scope.visits.entry(at).or_default() += 1;
            let live = Live {
                step: at,
                scope: place.scope,
                path: step.path.clone(),
                attempt: step.attempt,
                phase: Phase::Passing,
                timer: false,
                claim: false,
                approved: false,
                key: None,
                created: false,
                task: None,
                asked: None,
                restarts: 0,
                restarted: false,
                probes: 0,
                refusals: 0,
                wait_until: None,
            };
            self.live.insert(step.n, live);
            self.moving += 1;
        }
        self.phase(step.n, phase);
        if let Some(live) = self.live.get_mut(&step.n) {
            live.attempt = step.attempt;
            live.timer = until.is_some();
        }
    }

    fn scope_entered(&mut self, key: ScopeKey) -> &mut super::state::Scope {
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

    fn block_ended(&mut self, plan: &Plan, key: ScopeKey, result: Option<u32>, error: Option<Failure>) {
        let Some(live) = self.live.get_mut(&key.n) else { return };
        let (step, scope) = (live.step, live.scope);
        if let Phase::Blocks(progress) = &mut live.phase {
            progress.open.remove(&key.index);
            progress.next = progress.next.max(key.index + 1);
            progress.ended += 1;
            progress.results.insert(key.index, error.map_or(Ok(result), Err));
        }
        self.close(plan, key, step, scope);
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

fn phase_of(what: &Started) -> Phase {
    let blocks = |total| Phase::Blocks(Progress { total, ..Progress::default() });
    match what {
        Started::Call { .. } => Phase::Calling,
        Started::Foreach { items, .. } => blocks(*items),
        Started::Parallel { branches } => blocks(*branches),
        Started::Branch {} => blocks(1),
        Started::Sleep { due } => Phase::Sleeping { due: *due },
        Started::Wait { event, correlate, .. } => {
            Phase::Waiting { event: event.clone(), correlate: correlate.clone() }
        }
        Started::Workflow { run, .. } => Phase::Child { run: run.clone() },
        Started::Approve {} | Started::Pass {} => Phase::Passing,
    }
}
