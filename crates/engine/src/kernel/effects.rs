//! Effects of committed events: calls, replies, notices, and messages to other runs.

use std::sync::Arc;

use steprail_core::expr::SecretText;
use steprail_core::plan::{Call, Hash, Kind};
use steprail_core::run::{
    Event, Failure, FailureKind, Input, InputResponse, Millis, OpenGate, Payload, Phase, Record, Report, Run,
    RunStatus, Started,
};
use steprail_store::{Principal, RunId, StoreError, Wanted};

use super::flights::Flight;
use super::{Done, Kernel, Response, end_of};
use crate::ports::{CallSite, Notice, OnToolChange};

/// Identifies a call during the lifetime of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// An action after a commit.
#[derive(Debug)]
pub enum Effect {
    /// Makes a call.
    Call(Box<CallOrder>),
    /// Cancels a call.
    Cancel(CallId),
    /// Sends the reply to a request.
    Reply(Response),
    /// Sends a notice to humans.
    Notify(Notice),
    /// Discards the state of an input request that will not be answered.
    Forget(serde_json::Value),
}

/// A call to make.
#[derive(Debug, Clone)]
pub struct CallOrder {
    /// Its number.
    pub id: CallId,
    /// The tool.
    pub tool: Box<str>,
    /// The arguments.
    pub args: Payload,
    /// The texts of the arguments in which the definition refers to secrets.
    pub secrets: Arc<[SecretText]>,
    /// The principal for whom it is made.
    pub principal: Arc<Principal>,
    /// The run.
    pub run: RunId,
    /// The number of the step execution.
    pub n: u32,
    /// The step's path.
    pub path: Arc<str>,
    /// The attempt.
    pub attempt: u32,
    /// The idempotency key.
    pub key: Box<str>,
    /// Whether it is a probe, which finds out the outcome of another call, or creates a tool.
    pub probe: bool,
    /// When it times out.
    pub deadline: Option<Millis>,
    /// The persona that the tool should use.
    pub persona: Option<Box<str>>,
    /// What it continues; `None` for a new call.
    pub continues: Option<Continuation>,
    /// The hash of the tool's description when the definition was stored, and what to do if it differs.
    pub pinned: Option<(Hash, OnToolChange)>,
}

/// What a call continues.
#[derive(Debug, Clone, PartialEq)]
pub enum Continuation {
    /// A task that runs at the tool's server, by its id. The call polls it.
    Task(Box<str>),
    /// A call that ended with an input request, with the response.
    Answer(Box<InputResponse>),
}

/// The outcome of a child run for the step that waits for it.
fn outcome(end: &Event, gave: Option<&Payload>) -> Option<Result<Payload, Failure>> {
    match end {
        Event::RunCompleted { .. } => Some(Ok(gave.cloned().unwrap_or_default())),
        Event::RunFailed { error } => Some(Err(error.clone())),
        Event::RunCancelled { reason, .. } => {
            let message = format!("the workflow was cancelled: {reason}");
            Some(Err(Failure::new(FailureKind::Cancelled, message)))
        }
        _ => None,
    }
}

/// Removes a call that has not been started yet. Returns whether it was found.
pub(super) fn take_back(effects: &mut Vec<Effect>, id: CallId) -> bool {
    let is_it = |effect: &Effect| matches!(effect, Effect::Call(order) if order.id == id);
    let found = effects.iter().rposition(is_it);
    found.map(|at| effects.remove(at)).is_some()
}

impl Kernel {
    /// Collects the effects of the events of one run.
    pub(super) fn consequences(
        &mut self,
        key: RunId,
        records: &[Record],
        done: &mut Done,
    ) -> Result<(), StoreError> {
        for record in records {
            self.stop_call(key, record, done);
            if let Some(child) = &record.had_child
                && let Ok(child) = child.parse::<RunId>()
            {
                let reason = "the step that waited for it ended".into();
                self.messages.push_back((child, Input::Cancel { by: None, reason }));
            }
            done.effects.extend(record.had_input_request.clone().map(Effect::Forget));
            self.order_call(key, record, done);
            done.effects.extend(self.notice(key, record).map(Effect::Notify));
            self.notify(key, record);
            if let Some(status) = end_of(record) {
                self.run_ended(key, record, status)?;
            }
        }
        Ok(())
    }

    /// Cancels the call of a step that no longer waits for it.
    fn stop_call(&mut self, key: RunId, record: &Record, done: &mut Done) {
        let Some(step) = record.event.step() else { return };
        let Some(id) = self.flights.call_of(key, step.n) else { return };
        let Some(attempt) = self.flights.get(id).map(|flight| flight.attempt) else { return };
        let live = self.runs.get(&key).and_then(|entry| entry.run.live().get(&step.n));
        match live.filter(|live| live.attempt == attempt).map(|live| &live.phase) {
            Some(Phase::Calling | Phase::Verifying | Phase::Creating) => {}
            Some(Phase::Stopping) => done.effects.push(Effect::Cancel(id)),
            _ => {
                self.flights.let_go(key, step.n);
                if take_back(&mut done.effects, id) {
                    self.flights.remove(id);
                } else {
                    done.effects.push(Effect::Cancel(id));
                }
            }
        }
    }

    fn order_call(&mut self, key: RunId, record: &Record, done: &mut Done) {
        let Some(entry) = self.runs.get(&key) else { return };
        let (step, tool, idempotency, deadline, is_probe) = match &record.event {
            Event::StepStarted { step, what: Started::Call { tool, key, .. }, until, .. } => {
                (step, tool, key.clone(), *until, false)
            }
            Event::VerifyStarted { step, tool, args, until, .. }
            | Event::ToolRequested { step, tool, args, until } => {
                (step, tool, args.to_string().into(), *until, true)
            }
            Event::CallResumed { step, tool, task } => (step, tool, task.clone(), None, false),
            _ => return,
        };
        let Some(live) = entry.run.live().get(&step.n) else { return };
        let waits = match &live.phase {
            Phase::Verifying | Phase::Creating => is_probe,
            Phase::Calling => !is_probe,
            _ => false,
        };
        if live.attempt != step.attempt || !waits {
            return;
        }
        let (persona, secrets) = match &entry.compiled.plan.step(live.step).kind {
            Kind::Call(call) => (call.persona.clone(), secrets(&record.event, call)),
            _ => (None, Arc::default()),
        };
        let continues = match (&record.event, &live.input_response) {
            (Event::CallResumed { task, .. }, _) => Some(Continuation::Task(task.clone())),
            (_, Some(asked)) if !is_probe => Some(Continuation::Answer(asked.clone())),
            _ => None,
        };
        let policy = entry.compiled.plan.settings.on_tool_change;
        let pinned = entry.compiled.pins.get(&**tool).map(|hash| (*hash, policy));
        let site = CallSite { tool, principal: &entry.head.principal, run: entry.head.id, path: &step.path };
        let capacity = self.tools.capacity(&site);
        let id = self.flights.add(Flight {
            run: key,
            n: step.n,
            attempt: step.attempt,
            server: capacity.server,
            exclusive: capacity.exclusive,
            definition: entry.head.definition,
            probe: is_probe,
        });
        done.effects.push(Effect::Call(Box::new(CallOrder {
            id,
            tool: tool.clone(),
            args: record.payload.clone().unwrap_or_default(),
            secrets,
            principal: entry.head.principal.clone(),
            run: entry.head.id,
            n: step.n,
            path: step.path.clone(),
            attempt: step.attempt,
            key: idempotency,
            probe: is_probe,
            deadline,
            persona,
            continues,
            pinned,
        })));
    }

    /// Handles the end of a call. Its step continues, unless it has already continued without it.
    pub(super) fn call_ended(
        &mut self,
        id: CallId,
        outcome: &Result<Payload, Failure>,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        let Some(&Flight { run, n, attempt, probe, .. }) = self.flights.get(id) else { return Ok(()) };
        let current = self.flights.call_of(run, n) == Some(id);
        self.flights.remove(id);
        // The input request of a superseded attempt or of a probe is never answered.
        if let Err(Failure { request: Some(request), .. }) = outcome
            && (!current || probe)
        {
            done.effects.push(Effect::Forget(request.state.clone()));
        }
        let input = match (current, outcome) {
            (true, outcome) => {
                self.flights.let_go(run, n);
                Input::CallEnded { n, attempt, outcome: outcome.clone() }
            }
            (false, Ok(output)) if !probe => Input::AnsweredLate { n, attempt, output: output.clone() },
            (false, _) => return Ok(()),
        };
        self.input(run, input, now, done).map(drop)
    }

    /// Handles a report of a call in flight, if its step still waits for it.
    pub(super) fn call_reported(
        &mut self,
        id: CallId,
        report: &Report,
        now: Millis,
        done: &mut Done,
    ) -> Result<(), StoreError> {
        match self.flights.get(id) {
            Some(&Flight { run, n, attempt, probe: false, .. })
                if self.flights.call_of(run, n) == Some(id) =>
            {
                self.input(run, Input::Reported { n, attempt, report: report.clone() }, now, done).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn notice(&self, key: RunId, record: &Record) -> Option<Notice> {
        let head = &self.runs.get(&key)?.head;
        let run = head.id;
        match &record.event {
            Event::ApprovalRequested { step, prompt, notify, .. } => Some(Notice::ApprovalRequested {
                run,
                path: step.path.clone(),
                prompt: prompt.clone(),
                notify: notify.clone(),
            }),
            Event::ApprovalEscalated { step, notify, .. } => {
                Some(Notice::ApprovalEscalated { run, path: step.path.clone(), notify: notify.clone() })
            }
            Event::ApprovalReminded { step, level, .. } => {
                let OpenGate { notify, rules, .. } = self.gate_of(key, record)?;
                let levels = rules.reached(*level).iter().flat_map(|level| &level.notify);
                let notify = notify.iter().chain(levels).cloned().collect();
                Some(Notice::ApprovalReminded { run, path: step.path.clone(), notify })
            }
            Event::StepUncertain { step, .. } => Some(Notice::StepUncertain { run, path: step.path.clone() }),
            Event::ServerAwaited { step, error, until, .. } => Some(Notice::ServerAwaited {
                run,
                path: step.path.clone(),
                reason: error.message.clone(),
                until: *until,
            }),
            _ => end_of(record).map(|status| {
                let created_by = head.principal.id.clone();
                Notice::RunEnded { run, created_by, status }
            }),
        }
    }

    /// Handles the end of a run: notifies the step that waits for it, and cancels its child runs.
    fn run_ended(&mut self, key: RunId, record: &Record, status: RunStatus) -> Result<(), StoreError> {
        let Some(entry) = self.runs.get(&key) else { return Ok(()) };
        self.quotas.ended(&entry.head);
        if status != RunStatus::Completed {
            for child in self.batch.children(key)? {
                let reason = "the run that waited for it ended".into();
                self.messages.push_back((child, Input::Cancel { by: None, reason }));
            }
        }
        if let Some((parent, n, attempt)) = entry.head.parent {
            let told = outcome(&record.event, record.payload.as_ref());
            let told = told.map(|outcome| Input::ChildEnded { n, attempt, outcome });
            self.messages.extend(told.map(|input| (parent, input)));
        }
        Ok(())
    }

    /// After a run is loaded, finds child runs that ended while it could not be notified.
    pub(super) fn find_ended_children(&mut self, key: RunId, run: &Run) -> Result<(), StoreError> {
        for (n, live) in run.live() {
            let Phase::Child { run: child } = &live.phase else { continue };
            let Ok(id) = child.parse::<RunId>() else { continue };
            let Some(head) = self.find_head(id)?.filter(|head| head.state.status.is_terminal()) else {
                continue;
            };
            let gave = match head.state.status {
                RunStatus::Completed => Some(self.batch.value(id, Wanted::Result)?),
                _ => None,
            };
            let end =
                self.batch.log(id)?.into_iter().rev().find_map(|event| outcome(&event.event, gave.as_ref()));
            let told = end.map(|outcome| Input::ChildEnded { n: *n, attempt: live.attempt, outcome });
            self.messages.extend(told.map(|input| (key, input)));
        }
        Ok(())
    }

    /// Returns the output of a completed run.
    pub fn result(&mut self, run: RunId) -> Result<Option<Payload>, StoreError> {
        match self.batch.head(run)?.map(|head| head.state.status) {
            Some(RunStatus::Completed) => self.batch.value(run, Wanted::Result).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the state of a run, folded from its log, for tests and diagnostics.
    pub fn inspect(&mut self, run: RunId) -> Result<Option<Run>, StoreError> {
        if !self.load(run)? {
            return Ok(None);
        }
        Ok(self.runs.get(&run).map(|entry| entry.run.clone()))
    }
}

/// The references to secrets in the arguments of the call that an event starts.
fn secrets(event: &Event, call: &Call) -> Arc<[SecretText]> {
    match event {
        Event::VerifyStarted { .. } => {
            call.verify.as_ref().map(|verify| verify.secrets.clone()).unwrap_or_default()
        }
        // The tool that creates tools gets the arguments as data.
        Event::ToolRequested { .. } => Arc::default(),
        _ => call.secrets.clone(),
    }
}
