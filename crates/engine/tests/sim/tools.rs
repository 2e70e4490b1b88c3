//! Simulated tools: calls end with random outcomes, on time or late.

use serde_json::{Value, json};
use steprail_core::run::{Event, Failure, FailureKind, InputRequest, Payload, Phase, Report};
use steprail_engine::kernel::{CallId, CallOrder, Notification};

use super::Sim;

impl Sim {
    /// Ends one of the calls in flight, or cancels it.
    pub(super) fn end_some_call(&mut self) {
        let Some(id) = self.superseded_call().or_else(|| self.some_call()) else { return };
        let order = self.bench.calls[&id].clone();
        let cancelled = self.bench.stopped.contains(&id);
        let stubborn = self.stubborn.contains(&id);
        if stubborn && !self.quiet && self.keeps_running(&order) {
            return;
        }
        let outcome =
            if self.quiet { Ok(answer(&order)) } else { self.outcome(&order, cancelled && !stubborn) };
        self.trace(format_args!("end {} ({}): {outcome:?}", order.path, order.attempt));
        self.late += u64::from(outcome.is_ok() && self.is_superseded(&order));
        self.bench.calls.remove(&id);
        self.bench.stopped.retain(|stopped| *stopped != id);
        if outcome.is_ok() {
            self.answered.insert((order.run, order.path.to_string(), order.attempt));
        }
        self.notify(Notification::CallEnded { id, outcome: outcome.map(Payload::new) });
        // Later, the attempt that was completed by this result may have returned its own.
        self.check_results(order.run, &self.events(order.run));
    }

    fn some_call(&mut self) -> Option<CallId> {
        let ids: Vec<CallId> = self.bench.calls.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.rng.usize(0..ids.len())])
    }

    /// Sometimes returns an abandoned call while a later attempt is in flight, so that either can end first.
    fn superseded_call(&mut self) -> Option<CallId> {
        let superseded = self.bench.calls.values().find(|order| self.is_superseded(order))?.id;
        self.rng.bool().then_some(superseded)
    }

    fn is_superseded(&self, order: &CallOrder) -> bool {
        let later = |other: &CallOrder| {
            other.run == order.run && other.path == order.path && other.attempt > order.attempt
        };
        self.bench.calls.values().any(later)
    }

    /// Whether a call that ignores cancellation keeps running: until it is abandoned, and often until another
    /// attempt has superseded it.
    fn keeps_running(&mut self, order: &CallOrder) -> bool {
        let state = self.bench.kernel().inspect(order.run).ok().flatten();
        let step = state.as_ref().and_then(|run| run.live().values().find(|live| live.path == order.path));
        let Some(live) = step else { return false };
        match live.phase {
            Phase::Stopping if live.attempt == order.attempt => true,
            Phase::Calling | Phase::Verifying | Phase::Creating if live.attempt == order.attempt => {
                order.deadline.is_some()
            }
            _ => !self.is_superseded(order) && self.rng.u8(0..4) != 0,
        }
    }

    /// Makes the server unavailable or available, or changes its number of slots.
    pub(super) fn change_server(&mut self) {
        match self.rng.u8(0..3) {
            0 => self.bench.tools.set("down", "demo", "demo is unreachable"),
            1 => {
                let slots = self.rng.u32(1..4).to_string();
                self.bench.tools.set("slots", "demo", &slots);
            }
            _ => self.server_is_up(),
        }
    }

    pub(super) fn server_is_up(&mut self) {
        self.trace(format_args!("the server is up"));
        self.bench.tools.set("up", "demo", "");
        self.notify(Notification::ServerAvailable { server: "demo".into() });
    }

    /// Makes one of the calls in flight report progress or a task id.
    pub(super) fn report_some_call(&mut self) {
        let Some(id) = self.some_call() else { return };
        let report = if self.rng.bool() {
            Report::Task { id: format!("task-{}", self.rng.u32(..)).into() }
        } else {
            Report::Progress { progress: 1.0, total: None, message: None }
        };
        self.trace(format_args!("report of {id:?}: {report:?}"));
        self.notify(Notification::CallReported { id, report });
    }

    fn outcome(&mut self, order: &CallOrder, cancelled: bool) -> Result<Value, Failure> {
        // A call that continues an earlier one neither requests input again nor finds its tool missing.
        let fresh = order.continues.is_none();
        let kind = match self.rng.u32(0..100) {
            0..66 => return Ok(answer(order)),
            66..70 if fresh && !cancelled => {
                let form = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
                return Err(Failure::input_required(InputRequest {
                    message: "what?".into(),
                    form,
                    state: json!("s"),
                }));
            }
            66..70 => return Ok(answer(order)),
            70..78 => FailureKind::ToolError,
            78..84 => FailureKind::Transport,
            84..92 => FailureKind::Lost,
            92..94 => FailureKind::Permission,
            94..96 if fresh => FailureKind::NotFound,
            94..96 => return Ok(answer(order)),
            _ => FailureKind::Timeout,
        };
        let kind = if cancelled { FailureKind::Cancelled } else { kind };
        let failure = Failure::new(kind, "the tool failed");
        Err(if self.rng.u8(0..4) == 0 { failure.transient() } else { failure })
    }

    /// Sends a call. Its `step_started` must be committed, and no other call of the step may be in flight.
    pub(super) fn call(&mut self, order: CallOrder) {
        let (path, attempt) = (order.path.clone(), order.attempt);
        self.trace(format_args!("call {path} ({attempt}) {} {}", order.tool, order.args.json()));
        self.check_intent(&order);
        // An abandoned probe calls another tool and has no effect.
        let same = |other: &CallOrder| {
            other.run == order.run && other.path == order.path && other.tool == order.tool
        };
        if self.bench.calls.values().any(|other| same(other) && !self.abandoned(other)) {
            self.violations.push(format!("{path}: called while another attempt is in flight"));
        }
        let again = self.allowed_restarts(&order);
        let made = (order.run, path.to_string(), attempt, format!("{}/{again}", order.tool));
        if !self.calls_made.insert(made) {
            self.violations.push(format!("{path}: attempt {attempt} was called twice"));
        }
        if self.rng.u8(0..3) == 0 {
            self.stubborn.insert(order.id);
        }
        self.bench.calls.insert(order.id, order);
    }

    fn check_intent(&mut self, order: &CallOrder) {
        let (runs, rows) = self.read(|tables| (tables.runs(), tables.rows(order.run)));
        let run = runs.into_iter().find(|run| run.id == order.run).map(|run| run.status);
        let step = rows.steps.get(&(order.n, order.attempt)).cloned();
        let is_running = matches!(run.as_deref(), Some("running" | "paused"));
        if !is_running || step.as_deref() != Some("running") {
            let path = &order.path;
            self.violations
                .push(format!("{path}: called while the stored status is {step:?}, of the run {run:?}"));
        }
    }

    /// Counts how often an attempt may be called again: after an answer, the creation of its tool, or a restart. A
    /// probe may be repeated after a restart, too.
    fn allowed_restarts(&self, order: &CallOrder) -> usize {
        let restarts = |event: &Event| match event {
            Event::ApprovalGranted { .. }
            | Event::ApprovalDenied { .. }
            | Event::ToolCreated { .. }
            | Event::CallResumed { .. }
            | Event::ServerAwaited { .. } => true,
            Event::VerifyStarted { .. } => order.probe,
            _ => false,
        };
        let of_attempt = |event: &Event| {
            event.step().is_some_and(|step| step.path == order.path && step.attempt == order.attempt)
        };
        let events = self.events(order.run);
        events.iter().filter(|(_, event)| of_attempt(event) && restarts(event)).count()
    }

    /// Whether the log has `call_abandoned` for a call.
    fn abandoned(&self, order: &CallOrder) -> bool {
        self.events(order.run).iter().any(|(_, event)| match event {
            Event::CallAbandoned { step } => step.path == order.path && step.attempt == order.attempt,
            _ => false,
        })
    }
}

/// Returns the result of a tool, with all fields that the workflows read.
fn answer(order: &CallOrder) -> Value {
    match &*order.tool {
        "demo__check" => json!(if order.path.contains('#') { "ok" } else { "again" }),
        "demo__look" => json!({ "found": order.attempt.is_multiple_of(2) }),
        _ => json!({ "text": "T", "count": 1, "items": [1, 2], "path": &*order.path }),
    }
}
