//! Simulated humans: they decide, resolve, intervene and send signals, and at the end answer all requests.

use serde_json::json;
use steprail_core::plan::Hash;
use steprail_core::run::{ApprovalKind, Edit, Event, Intervention, OpenGate, Payload, Phase, Resolution};
use steprail_engine::kernel::{Command, Notification, Request, Signal};
use steprail_engine::{DecisionRequest, Principal, RunId};

use super::Sim;

/// A request of a human.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one step of the simulation")]
enum Action {
    Command(Command),
    Signal(Signal),
}

impl Sim {
    fn act(&mut self, action: Action) {
        match action {
            Action::Command(command) => drop(self.ask(|reply| Request::Command(Box::new(command), reply))),
            Action::Signal(signal) => drop(self.ask(|reply| Request::Signal(signal, reply))),
        }
    }

    pub(super) fn act_as_human(&mut self) {
        let Some(run) = self.some_run() else { return };
        let Some((path, phase)) = self.some_step(run) else { return };
        let by = Principal::user(["ann", "tom", "bob", "eve"][self.rng.usize(0..4)]);
        let action = match self.rng.u32(0..20) {
            0 => Action::Command(Command::Cancel { run, by: by.id, reason: "asked to".to_owned() }),
            1 => Action::Command(Command::Pause { run, by }),
            2..5 => resume(run, by),
            chance @ 5..9 => {
                let intervention = self.intervention(chance, run, path);
                Action::Command(Command::Intervene { run, intervention, by })
            }
            9 if matches!(phase, Phase::Gate { .. }) => {
                return self.edit_after_approval(run, &path, &phase, by);
            }
            _ => match self.answer_to(run, path, phase, by) {
                Some(action) => action,
                None => return,
            },
        };
        self.trace(format_args!("human: {action:?}"));
        self.act(action);
    }

    /// Approves while the run is paused, then changes a value that the approved call may depend on.
    fn edit_after_approval(&mut self, run: RunId, path: &str, phase: &Phase, by: Principal) {
        self.trace(format_args!("human: {} approves `{path}` during a pause and changes a value", by.id));
        self.act(Action::Command(Command::Pause { run, by: by.clone() }));
        if let Some(approval) = final_answer(run, path.to_owned(), phase, self.rng.usize(0..8)) {
            self.act(approval);
        }
        let intervention = self.other_value(run);
        self.act(Action::Command(Command::Intervene { run, intervention, by }));
    }

    fn intervention(&mut self, which: u32, run: RunId, path: String) -> Intervention {
        let path = path.into();
        match which {
            5 => Intervention::Skip { path },
            6 => Intervention::SupplyResult { path, output: Payload::new(json!("by hand")) },
            7 => Intervention::SetArguments { path, args: json!({ "edited": self.rng.u8(..) }) },
            _ => self.other_value(run),
        }
    }

    fn other_value(&mut self, run: RunId) -> Intervention {
        let value = json!({ "text": "set", "count": 7 });
        Intervention::SetValue(Edit { id: self.some_step_id(run), value })
    }

    /// Returns an answer to what a step waits for, sometimes a wrong one.
    fn answer_to(&mut self, run: RunId, path: String, phase: Phase, by: Principal) -> Option<Action> {
        match phase {
            Phase::Gate { .. } if self.rng.u8(0..4) == 0 => {
                self.decide_with_stale_digest(run, path);
                None
            }
            // A value that the arguments depend on changes after the request was shown.
            Phase::Gate { .. } if self.rng.u8(0..4) == 0 => {
                let intervention = self.other_value(run);
                Some(Action::Command(Command::Intervene { run, intervention, by }))
            }
            Phase::Gate { digest, open, .. } => {
                let approved = self.rng.u8(0..4) != 0;
                // Without a digest, only the first request of a gate can be decided.
                let digest = self.rng.bool().then_some(digest);
                let answer = answer_of(&open).filter(|_| self.rng.bool());
                let decision =
                    Box::new(DecisionRequest { approved, digest, answer, ..DecisionRequest::default() });
                Some(Action::Command(Command::Decide { run, path, by, decision }))
            }
            Phase::Uncertain => {
                let resolution = match self.rng.u8(0..4) {
                    0 => Resolution::Happened(Payload::new(json!({ "text": "T", "count": 1 }))),
                    1 => Resolution::Skip,
                    2 => Resolution::Fail,
                    _ => Resolution::Retry,
                };
                Some(Action::Command(Command::Resolve { run, path, resolution, digest: None, by }))
            }
            phase => signal_for(run, &phase),
        }
    }

    /// Decides with the digest of an outdated request, which must have no effect.
    fn decide_with_stale_digest(&mut self, run: RunId, path: String) {
        let violation = format!("{path}: approved with a stale digest");
        let (by, digest) = (Principal::user("bob"), Some(Hash([7; 32])));
        let decision = Box::new(DecisionRequest { approved: true, digest, ..DecisionRequest::default() });
        let command = Command::Decide { run, path, by, decision };
        if let Some(Ok(())) = self.ask(|reply| Request::Command(Box::new(command), reply)) {
            self.violations.push(violation);
        }
    }

    fn some_step_id(&mut self, run: RunId) -> Option<Box<str>> {
        let events = self.events(run);
        let Some((_, Event::RunStarted { definition, .. })) = events.first() else { return None };
        let steps = &self.plans[&**definition].steps;
        Some(steps[self.rng.usize(0..steps.len())].id.clone())
    }

    fn some_run(&mut self) -> Option<RunId> {
        (!self.runs.is_empty()).then(|| self.runs[self.rng.usize(0..self.runs.len())])
    }

    fn some_step(&mut self, run: RunId) -> Option<(String, Phase)> {
        let state = self.bench.kernel().inspect(run).ok()??;
        let live: Vec<_> = state.live().values().collect();
        let step = (!live.is_empty()).then(|| live[self.rng.usize(0..live.len())])?;
        Some((step.path.to_string(), step.phase.clone()))
    }

    /// Answers all requests, sends all signals and advances time.
    pub(super) fn answer_everything(&mut self) {
        for run in self.unfinished() {
            let Some(state) = self.bench.kernel().inspect(run).ok().flatten() else { continue };
            self.act(resume(run, Principal::user("bob")));
            for live in state.live().values() {
                self.uncertain += u64::from(live.phase == Phase::Uncertain);
                let turn = self.rng.usize(0..8);
                let Some(action) = final_answer(run, live.path.to_string(), &live.phase, turn) else {
                    continue;
                };
                self.trace(format_args!("final answer: {action:?}"));
                self.act(action);
            }
        }
        if let Ok(Some(due)) = self.bench.kernel().next_timer() {
            self.bench.now = self.bench.now.max(due);
            self.notify(Notification::TimersDue);
        }
    }
}

fn resume(run: RunId, by: Principal) -> Action {
    Action::Command(Command::Resume { run, by, force: Vec::new(), expected_hash: None, strict: false })
}

/// Returns one of the approvers of a gate. With a quorum, several of them have to decide.
fn approver(approvers: &[&str], turn: usize) -> Principal {
    let Some(name) = approvers.get(turn % approvers.len().max(1)) else {
        return Principal::user(["bob", "eve", "kim"][turn % 3]);
    };
    match name.split_once(':') {
        Some(("group", group)) => {
            let mut member = Principal::user(format!("{group}-{}", turn % 2));
            member.groups.push(group.to_owned());
            member
        }
        Some((_, user)) => Principal::user(user),
        None => Principal::user(*name),
    }
}

/// Returns an answer to the input request of a tool.
fn answer_of(open: &OpenGate) -> Option<serde_json::Value> {
    (open.kind == ApprovalKind::Input).then(|| json!({ "a": "b" }))
}

/// Returns the signal that a step waits for.
fn signal_for(run: RunId, phase: &Phase) -> Option<Action> {
    let Phase::Waiting { event, correlate } = phase else { return None };
    let payload = correlate.clone().unwrap_or(json!({ "n": 1 }));
    Some(Action::Signal(Signal { event: event.to_string(), payload, run: Some(run) }))
}

/// Returns the action that makes a step continue.
fn final_answer(run: RunId, path: String, phase: &Phase, turn: usize) -> Option<Action> {
    let by = match phase {
        Phase::Gate { open, level, .. } => {
            let approvers: Vec<&str> = open.rules.approvers_at(*level).collect();
            approver(if open.rules.approvers.is_empty() { &[] } else { &approvers }, turn)
        }
        _ => Principal::user("bob"),
    };
    match phase {
        Phase::Gate { digest, open, .. } => {
            let (digest, answer) = (Some(*digest), answer_of(open));
            let decision =
                Box::new(DecisionRequest { approved: true, digest, answer, ..DecisionRequest::default() });
            Some(Action::Command(Command::Decide { run, path, by, decision }))
        }
        Phase::Uncertain => Some(Action::Command(Command::Resolve {
            run,
            path,
            resolution: Resolution::Retry,
            digest: None,
            by,
        })),
        phase => signal_for(run, phase),
    }
}
