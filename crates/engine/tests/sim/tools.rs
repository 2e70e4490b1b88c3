//! Tools: calls that leave the process and end in every way, in time or late.

use serde_json::{Value, json};
use steprail_core::run::{Event, Failure, FailureKind, InputRequest, Payload, Phase, Report};
use steprail_engine::kernel::{CallId, CallOrder, Notification};

use super::Sim;

impl Sim {
    /// One of the calls in flight ends, or is told to stop and does.
    pub(super) fn end_some_call(&mut self) {
        let Some(id) = self.overtaken_call().or_else(|| self.some_call()) else { return };
        let order = self.bench.calls[&id].clone();
        let told_to_stop = self.bench.stopped.contains(&id);
        let stubborn = self.stubborn.contains(&id);
        if stubborn && !self.quiet && self.holds_out(&order) {
            return;
        }
        let outcome =
            if self.quiet { Ok(answer(&order)) } else { self.outcome(&order, told_to_stop && !stubborn) };
        self.tell(format_args!("end {} ({}): {outcome:?}", order.path, order.attempt));
        self.late += u64::from(outcome.is_ok() && self.is_overtaken(&order));
        self.bench.calls.remove(&id);
        self.bench.stopped.retain(|stopped| *stopped != id);
        if outcome.is_ok() {
            self.answered.insert((order.run, order.path.to_string(), order.attempt));
        }
        self.notify(Notification::CallEnded { id, outcome: outcome.map(Payload::new) });
    }

    fn some_call(&mut self) -> Option<CallId> {
        let ids: Vec<CallId> = self.bench.calls.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[self.rng.usize(0..ids.len())])
    }

    /// A call that was given up, while a later attempt is in flight: not always, so that either may be first.
    fn overtaken_call(&mut self) -> Option<CallId> {
        let overtaken = self.bench.calls.values().find(|order| self.is_overtaken(order))?.id;
        self.rng.bool().then_some(overtaken)
    }

    fn is_overtaken(&self, order: &CallOrder) -> bool {
        let later = |other: &CallOrder| {
            other.run == order.run && other.path == order.path && other.attempt > order.attempt
        };
        self.bench.calls.values().any(later)
    }

    /// Whether a stubborn call goes on for now: until its time is up and it is given up, and often until
    /// another attempt has taken its place.
    fn holds_out(&mut self, order: &CallOrder) -> bool {
        let state = self.bench.kernel().inspect(order.run).ok().flatten();
        let step = state.as_ref().and_then(|run| run.live().values().find(|live| live.path == order.path));
        let Some(live) = step else { return false };
        match live.phase {
            Phase::Stopping if live.attempt == order.attempt => true,
            Phase::Calling | Phase::Verifying | Phase::Creating if live.attempt == order.attempt => {
                order.deadline.is_some()
            }
            _ => !self.is_overtaken(order) && self.rng.u8(0..4) != 0,
        }
    }

    /// The server goes down, comes back, or takes fewer calls at the same time.
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
        self.tell(format_args!("the server is up"));
        self.bench.tools.set("up", "demo", "");
        self.notify(Notification::ServerAvailable { server: "demo".into() });
    }

    /// One of the calls in flight tells how far it is, or under which name it goes on by itself.
    pub(super) fn report_some_call(&mut self) {
        let Some(id) = self.some_call() else { return };
        let report = if self.rng.bool() {
            Report::Task { id: format!("task-{}", self.rng.u32(..)).into() }
        } else {
            Report::Progress { progress: 1.0, total: None, message: None }
        };
        self.tell(format_args!("report of {id:?}: {report:?}"));
        self.notify(Notification::CallReported { id, report });
    }

    fn outcome(&mut self, order: &CallOrder, told_to_stop: bool) -> Result<Value, Failure> {
        // What a tool asked once it does not ask again; what was made available is there.
        let fresh = order.continues.is_none();
        let kind = match self.rng.u32(0..100) {
            0..66 => return Ok(answer(order)),
            66..70 if fresh && !told_to_stop => {
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
        let kind = if told_to_stop { FailureKind::Cancelled } else { kind };
        let failure = Failure::new(kind, "it went wrong");
        Err(if self.rng.u8(0..4) == 0 { failure.transient() } else { failure })
    }

    /// A call leaves the process: its intent must be in the store, and it must be the only one.
    pub(super) fn call(&mut self, order: CallOrder) {
        let (path, attempt) = (order.path.clone(), order.attempt);
        self.tell(format_args!("call {path} ({attempt}) {} {}", order.tool, order.args.json()));
        self.intended(&order);
        // A probe that was given up only asked what became of the call; it has another tool.
        let same = |other: &CallOrder| {
            other.run == order.run && other.path == order.path && other.tool == order.tool
        };
        if self.bench.calls.values().any(|other| same(other) && !self.abandoned(other)) {
            self.broken.push(format!("{path}: called beside an attempt that has not ended"));
        }
        let again = self.begun_again(&order);
        let made = (order.run, path.to_string(), attempt, format!("{}/{again}", order.tool));
        if !self.made.insert(made) {
            self.broken.push(format!("{path}: attempt {attempt} was called twice"));
        }
        if self.rng.u8(0..3) == 0 {
            self.stubborn.insert(order.id);
        }
        self.bench.calls.insert(order.id, order);
    }

    fn intended(&mut self, order: &CallOrder) {
        let sql =
            "SELECT s.status, r.status FROM workflow_step_runs s JOIN workflow_runs r ON r.id = s.run_id
                   WHERE r.run_id = ?1 AND s.path = ?2 AND s.attempt = ?3";
        let params = rusqlite::params![order.run.to_string(), &*order.path, order.attempt];
        let store = self.store.lock().expect("the store");
        let intent: Option<(String, String)> =
            store.connection().query_row(sql, params, |row| Ok((row.get(0)?, row.get(1)?))).ok();
        if !matches!(&intent, Some((step, run)) if step == "running" && (run == "running" || run == "paused"))
        {
            self.broken.push(format!("{}: called while the store says {intent:?}", order.path));
        }
    }

    /// How often the log lets an attempt begin again: after an answer, a tool that was created, a restart. A probe may be
    /// asked again after a restart, too.
    fn begun_again(&self, order: &CallOrder) -> u32 {
        let sql = "SELECT count(*) FROM workflow_events e JOIN workflow_runs r ON r.id = e.run_id
                   WHERE r.run_id = ?1 AND e.body ->> '$.step.path' = ?2 AND e.body ->> '$.step.attempt' = ?3
                   AND (e.body ->> '$.type' IN ('approval_granted', 'approval_denied', 'tool_created', 'call_resumed', 'server_awaited')
                        OR ?4 AND e.body ->> '$.type' = 'verify_started')";
        let store = self.store.lock().expect("the store");
        let params = rusqlite::params![order.run.to_string(), &*order.path, order.attempt, order.probe];
        store.connection().query_row(sql, params, |row| row.get(0)).expect("a count")
    }

    /// Whether the log says that a call was given up.
    fn abandoned(&self, order: &CallOrder) -> bool {
        self.events(order.run).iter().any(|(_, event)| match event {
            Event::CallAbandoned { step } => step.path == order.path && step.attempt == order.attempt,
            _ => false,
        })
    }
}

/// What a tool gives: something in which every workflow finds what it looks for.
fn answer(order: &CallOrder) -> Value {
    match &*order.tool {
        "demo__check" => json!(if order.path.contains('#') { "ok" } else { "again" }),
        "demo__look" => json!({ "found": order.attempt.is_multiple_of(2) }),
        _ => json!({ "text": "T", "count": 1, "items": [1, 2], "path": &*order.path }),
    }
}
