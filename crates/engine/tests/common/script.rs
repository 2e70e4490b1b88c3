//! Runs scenarios that are written as text: definitions, then one input per line. Prints what the engine did.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{
    ApprovedBy, Edit, Ending, Event, Failure, FailureKind, InputRequest, Intervention, Next, Payload,
    PolicyUse, Report, Resolution, Started,
};
use steprail_core::source::Source;
use steprail_core::spec::value::DurationSpec;
use steprail_engine::kernel::{
    Command, Continuation, Effect, Handled, Interrupt, Notification, Request, RunSource, Signal, StartRun,
};
use steprail_engine::{
    Annotations, DecisionRequest, Error, Limits, Principal, Remember, RunId, compile_policy,
};
use steprail_store::Store as _;
use steprail_store::sqlite::SqliteStore;
use steprail_store::{Actor, Freeze, PolicyChange};

use super::audit::audit;
use super::{Bench, NoTools};

/// A scenario in progress.
pub(crate) struct Scenario {
    bench: Bench,
    store: Arc<Mutex<SqliteStore>>,
    names: Vec<String>,
    run: Option<RunId>,
    seen: i64,
    out: String,
}

/// Runs all scenarios of a file, each with a new engine.
///
/// A file has definitions in YAML, separated by `---`, then scenarios that start with `== title`. Lines that
/// start with `>` are inputs.
pub(crate) fn play(text: &str) -> String {
    let (definitions, scenarios) = text.split_once("\n==").expect("a scenario");
    let mut out = String::new();
    for scenario in scenarios.split("\n==") {
        let mut lines = scenario.lines();
        writeln!(out, "== {}", lines.next().unwrap_or_default().trim()).expect("text");
        let mut play = Scenario::new(definitions);
        for line in lines.map(str::trim).filter(|line| !line.is_empty()) {
            play.line(line.strip_prefix("> ").expect("a line that begins with `> `"));
        }
        play.finish();
        out.push_str(&play.out);
        out.push('\n');
    }
    out
}

impl Scenario {
    fn new(definitions: &str) -> Self {
        let store = SqliteStore::in_memory().expect("a database");
        let store = Arc::new(Mutex::new(store));
        let tools = NoTools::new([
            ("demo__read".to_owned(), Annotations::READ_ONLY),
            ("demo__destroy".to_owned(), Annotations { destructive: Some(true), ..Annotations::UNANNOTATED }),
        ]);
        let bench =
            Bench::new(Box::new(super::shared::Shared::new(store.clone())), tools, Limits::default(), 1);
        let mut scenario = Self { bench, store, names: Vec::new(), run: None, seen: 0, out: String::new() };
        for definition in definitions.split("\n---\n") {
            scenario.bench.define(definition);
            let name = definition.lines().find_map(|line| line.strip_prefix("name: ")).expect("a name");
            scenario.names.push(name.to_owned());
        }
        scenario
    }

    fn line(&mut self, line: &str) {
        writeln!(self.out, "> {line}").expect("text");
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let handled = match word {
            "start" => {
                let inputs = if rest.is_empty() { Value::Object(serde_json::Map::new()) } else { json(rest) };
                let name = self.names[0].clone();
                let (id, answer, handled) = self.bench.start(&name, inputs);
                self.run = Some(id);
                self.print_answer(answer.as_ref());
                vec![handled]
            }
            "done" | "fail" | "asks" | "changed" | "task" | "progress" => match self.bench.call_at(first) {
                Some(id) if word == "done" => vec![self.bench.end_call(id, Ok(json(second)))],
                Some(id) if word == "asks" => vec![self.bench.end_call(id, Err(question(second)))],
                Some(id) if word == "changed" => vec![self.bench.end_call(id, Err(changed(second)))],
                Some(id) if word != "fail" => {
                    let report = report(word, second);
                    vec![self.bench.notify(Notification::CallReported { id, report })]
                }
                Some(id) => vec![self.bench.end_call(id, Err(failure(second)))],
                None => {
                    writeln!(self.out, "  NO CALL").expect("text");
                    Vec::new()
                }
            },
            "policy" => {
                let (policy, problems) = compile_policy(&Source::new("policy.yaml", rest));
                assert!(problems.is_empty(), "{problems:?}");
                self.bench.policy.replace(policy);
                Vec::new()
            }
            // The lines that follow are about the newest child run.
            "child" => {
                let child = self.newest_child();
                self.run = Some(child);
                Vec::new()
            }
            "define" => {
                self.bench.define(rest);
                Vec::new()
            }
            "describe" => {
                self.bench.tools.describe(first, second);
                Vec::new()
            }
            "down" | "slots" | "crashed" => {
                self.bench.tools.set(word, first, second);
                Vec::new()
            }
            "up" => {
                self.bench.tools.set(word, first, second);
                vec![self.bench.notify(Notification::ServerAvailable { server: first.into() })]
            }
            "slice" => {
                self.bench.limits.slice_events = first.parse().expect("a number of events");
                self.bench.limits.slices_per_commit = second.parse().expect("a number of slices");
                self.bench.by_hand = true;
                let store = self.bench.die();
                self.bench.boot(store);
                Vec::new()
            }
            "continue" if first == "all" => {
                let mut all = Vec::new();
                while self.bench.kernel().owes_continuation() {
                    all.push(self.bench.commit(Vec::new()));
                }
                all
            }
            "continue" => vec![self.bench.commit(Vec::new())],
            "advance" => {
                let period = DurationSpec::parse(rest).expect("a length of time");
                self.bench.advance(i64::try_from(period.millis).expect("a length of time"))
            }
            "crash" => {
                let interrupt = if rest == "interrupting" { Interrupt::All } else { Interrupt::Declared };
                let store = self.bench.die();
                self.bench.boot(store);
                self.bench.recover(interrupt)
            }
            "rerun" => self.rerun(rest),
            "signal" | "broadcast" => {
                let run = self.run.filter(|_| word == "signal");
                let signal = Signal { event: first.to_owned(), payload: json(second), run };
                let (answer, handled) = self.bench.ask(|reply| Request::Signal(signal, reply));
                self.print_answer(answer.as_ref());
                vec![handled]
            }
            _ => {
                let command = self.command(word, first, second);
                let (answer, handled) = self.bench.command(command);
                self.print_answer(answer.as_ref());
                vec![handled]
            }
        };
        self.show(&handled);
    }

    fn newest_child(&self) -> RunId {
        let store = self.store.lock().expect("the store");
        let sql = "SELECT run_id FROM workflow_runs ORDER BY id DESC LIMIT 1";
        let id: String = store.connection().query_row(sql, [], |row| row.get(0)).expect("a run");
        id.parse().expect("a run id")
    }

    fn rerun(&mut self, rest: &str) -> Vec<Handled> {
        let id = self.bench.new_id();
        let except =
            rest.strip_prefix("reuse").map(|rest| rest.split_whitespace().map(str::to_owned).collect());
        let start = StartRun {
            workflow: RunSource::Rerun { of: self.run.expect("a run"), reuse_except: except },
            inputs: Value::Null,
            principal: Principal::user("ann"),
            request_key: None,
            id,
        };
        let (answer, handled) = self.bench.ask(|reply| Request::Start(Box::new(start), reply));
        self.print_answer(answer.as_ref());
        if matches!(answer, Some(Ok(_))) {
            self.run = Some(id);
        }
        vec![handled]
    }

    fn command(&self, word: &str, first: &str, second: &str) -> Command {
        let run = self.run.expect("a run");
        let path = first.to_owned();
        let (word, actor) = word.split_once('@').unwrap_or((word, "ann"));
        let by = match actor.strip_prefix("agent:") {
            Some(user) => Principal::user(user).through_agent(),
            None => Principal::user(actor),
        };
        let intervene = |intervention| Command::Intervene { run, intervention, by: by.clone() };
        match word {
            "approve" | "deny" => self.decision(path, second, word == "approve"),
            "answer" => Command::Decide {
                run,
                path,
                by: Principal::user("lea"),
                decision: Box::new(DecisionRequest {
                    approved: true,
                    answer: Some(json(second)),
                    ..DecisionRequest::default()
                }),
            },
            "freeze" => {
                Command::Policy(PolicyChange::Freeze(Freeze { by: by.id, reason: None, at: self.bench.now }))
            }
            "unfreeze" => Command::Policy(PolicyChange::Unfreeze { by: Actor::user(by.id) }),
            "cancel" => Command::Cancel { run, by: by.id, reason: "asked to".to_owned() },
            "pause" => Command::Pause { run, by },
            "resume" => Command::Resume {
                run,
                by,
                force: first.split_whitespace().filter(|word| *word != "strict").map(str::to_owned).collect(),
                expected_hash: None,
                strict: first == "strict" || second == "strict",
            },
            "resolve" => {
                let (how, output) = second.split_once(' ').unwrap_or((second, "null"));
                let resolution = match how {
                    "happened" => Resolution::Happened(Payload::new(json(output))),
                    "retry" => Resolution::Retry,
                    "skip" => Resolution::Skip,
                    _ => Resolution::Fail,
                };
                Command::Resolve { run, path, resolution, digest: None, by }
            }
            "skip" => intervene(Intervention::Skip { path: first.into() }),
            "supply" => intervene(Intervention::SupplyResult {
                path: first.into(),
                output: Payload::new(json(second)),
            }),
            "args" => intervene(Intervention::SetArguments { path: first.into(), args: json(second) }),
            "set" => {
                let id = (first != "inputs").then(|| first.into());
                intervene(Intervention::SetValue(Edit { id, value: json(second) }))
            }
            other => panic!("unknown line `{other}`"),
        }
    }

    /// `lea`, `agent lea`, `lea in finance`, `lea stale`, `lea edited {…}`. The decision has the digest of the open request,
    /// unless it is `blind`.
    fn decision(&self, path: String, text: &str, approved: bool) -> Command {
        let run = self.run.expect("a run");
        let (text, remember) = match text.split_once(" remember ") {
            Some((text, remember)) => (text, Some(self::remember(remember))),
            None => (text, None),
        };
        let (who, edited) = text.split_once(" edited ").unwrap_or((text, ""));
        let (who, group) = who.split_once(" in ").unwrap_or((who, ""));
        let (id, flag) = match who.strip_prefix("agent ") {
            Some(id) => (id, "agent"),
            None => who.split_once(' ').unwrap_or((who, "")),
        };
        let mut by = Principal::user(id);
        by.agent = flag == "agent";
        by.groups.extend((!group.is_empty()).then(|| group.to_owned()));
        let digest = match flag {
            "stale" => Some(Hash([7; 32])),
            "blind" => None,
            _ => self.digest(run, &path),
        };
        let edited = (!edited.is_empty()).then(|| json(edited));
        let decision =
            Box::new(DecisionRequest { approved, digest, edited, remember, ..DecisionRequest::default() });
        Command::Decide { run, path, by, decision }
    }

    /// The digest of the last request of a step.
    fn digest(&self, run: RunId, path: &str) -> Option<Hash> {
        let log = self.store.lock().expect("a store").log(run).expect("a log");
        log.iter().rev().find_map(|stored| match &stored.event {
            Event::ApprovalRequested { step, digest, .. } if *step.path == *path => Some(*digest),
            _ => None,
        })
    }

    fn print_answer<T>(&mut self, answer: Option<&Result<T, Error>>) {
        if let Some(Err(error)) = answer {
            writeln!(self.out, "  refused ({}): {error}", error.code()).expect("text");
        }
    }

    /// Prints new events and effects.
    fn show(&mut self, handled: &[Handled]) {
        let events = self.new_events();
        for (run, event) in events {
            let prefix = if Some(run) == self.run { "" } else { "child: " };
            let described = describe(&event);
            writeln!(self.out, "  {prefix}{described}").expect("text");
        }
        for effect in handled.iter().flat_map(|handled| &handled.effects) {
            match effect {
                Effect::Call(order) => {
                    let again =
                        if order.attempt > 1 { format!(" ({})", order.attempt) } else { String::new() };
                    let goes_on = match &order.continues {
                        None => String::new(),
                        Some(Continuation::Task(task)) => format!(" (asks for {task})"),
                        Some(Continuation::Answer(response)) => {
                            format!(" (with {} {:?})", response.state, response.answer)
                        }
                    };
                    writeln!(
                        self.out,
                        "    call {}{again}: {} {}{goes_on}",
                        order.path,
                        order.tool,
                        order.args.json()
                    )
                    .expect("text");
                }
                Effect::Cancel(id) => {
                    let path = self.bench.calls.get(id).map_or("?", |order| &order.path);
                    writeln!(self.out, "    stop {path}").expect("text");
                }
                Effect::Forget(state) => writeln!(self.out, "    forget {state}").expect("text"),
                Effect::Reply(_) | Effect::Notify(_) => {}
            }
        }
        for fault in handled.iter().filter_map(|handled| handled.fault.as_ref()) {
            writeln!(self.out, "  FAULT {fault}").expect("text");
        }
        let store = self.store.lock().expect("the store");
        for broken in audit(store.connection()) {
            writeln!(self.out, "  BROKEN {broken}").expect("text");
        }
    }

    fn new_events(&mut self) -> Vec<(RunId, Event)> {
        let store = self.store.lock().expect("the store");
        let mut statement = store
            .connection()
            .prepare_cached(
                "SELECT e.id, r.run_id, e.body FROM workflow_events e JOIN workflow_runs r ON r.id = e.run_id
                 WHERE e.id > ?1 ORDER BY e.id",
            )
            .expect("a statement");
        let rows = statement
            .query_map([self.seen], |row| {
                Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
            })
            .expect("rows");
        let mut events = Vec::new();
        for row in rows {
            let (id, run, body) = row.expect("a row");
            self.seen = id;
            events.push((run.parse().expect("a run id"), serde_json::from_str(&body).expect("an event")));
        }
        events
    }

    fn finish(&mut self) {
        let run = self.run.expect("a run");
        let store = self.store.lock().expect("the store");
        let (status, output): (String, Option<String>) = store
            .connection()
            .query_row(
                "SELECT status, output_json FROM workflow_runs WHERE run_id = ?1",
                [run.to_string()],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .expect("the run");
        let output = output.map(|output| format!(" {output}")).unwrap_or_default();
        writeln!(self.out, "{status}{output}").expect("text");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `tool 1h`, `arguments 1h`
fn remember(text: &str) -> Remember {
    let (scope, period) = text.split_once(' ').expect("a scope and a length of time");
    let period = DurationSpec::parse(period).expect("a length of time");
    Remember { any_arguments: scope == "tool", millis: period.millis }
}

fn allowed(policy: &PolicyUse) -> String {
    let approved = match &policy.approved {
        None => String::new(),
        Some(ApprovedBy::Step) => ", approved".to_owned(),
        Some(ApprovedBy::Gate(gate)) => format!(", approved at step {gate}"),
        Some(ApprovedBy::Remembered(_)) => ", remembered".to_owned(),
    };
    format!("rule {}{approved}", policy.rule.rule)
}

/// `tool_error boom`, `transient transport gone`
fn failure(text: &str) -> Failure {
    let (word, message) = text.split_once(' ').unwrap_or((text, "it failed"));
    if word == "transient" {
        return failure(message).transient();
    }
    let kind = FailureKind::from_name(word).unwrap_or_else(|| panic!("no kind `{word}`"));
    Failure::new(kind, message)
}

/// `asks deploy Which region?`: an input request.
fn question(text: &str) -> Failure {
    let form = serde_json::json!({ "type": "object", "properties": { "region": { "type": "string" } } });
    Failure::input_required(InputRequest { message: text.into(), form, state: "s-1".into() })
}

/// `changed deploy It deletes now`: the description of the tool has changed.
fn changed(text: &str) -> Failure {
    Failure::input_required(InputRequest::confirm_call(text.to_owned(), Some(Hash([9; 32]))))
}

/// `task export T-7`, `progress export 2/5 reading`
fn report(word: &str, text: &str) -> Report {
    if word == "task" {
        return Report::Task { id: text.into() };
    }
    let (numbers, message) = text.split_once(' ').unwrap_or((text, ""));
    let (progress, total) = numbers.split_once('/').unwrap_or((numbers, ""));
    let message = (!message.is_empty()).then(|| message.into());
    Report::Progress { progress: progress.parse().expect("a number"), total: total.parse().ok(), message }
}

fn describe(event: &Event) -> String {
    let mut out = event.name().to_owned();
    if let Some(step) = event.step() {
        write!(out, " {}", step.path).expect("text");
        if step.attempt > 1 {
            write!(out, " ({})", step.attempt).expect("text");
        }
    }
    let extra = match event {
        Event::StepFailed { error, .. }
        | Event::StepUncertain { error, .. }
        | Event::RunFailed { error }
        | Event::RunFailing { error } => format!("{}: {error}", error.kind.name()),
        Event::ServerAwaited { error, due, until, .. } => {
            let when = |when: &Option<i64>| {
                when.map_or("never".to_owned(), |at| format!("+{}ms", at - super::EPOCH))
            };
            format!("{error}; again at {}, gives up at {}", when(due), when(until))
        }
        Event::RetryScheduled { error, due, .. } => {
            format!("{}: {error}; again at +{}ms", error.kind.name(), due - super::EPOCH)
        }
        Event::StepStarted { what: Started::Call { policy: Some(policy), .. }, .. } => allowed(policy),
        Event::StepStarted { what: Started::Sleep { due }, .. } => format!("until +{}ms", due - super::EPOCH),
        Event::StepStarted { what: Started::Foreach { items, .. }, .. } => format!("of {items}"),
        Event::StepStarted { what: Started::Wait { event, .. }, .. } => format!("for {event}"),
        Event::StepStarted { what: Started::Workflow { definition, .. }, .. } => format!("of {definition}"),
        Event::StepCompleted { from: Some(from), .. } => format!("from {from}"),
        Event::StepSkipped { reason, .. } => reason.to_string(),
        Event::StepCancelled { in_flight: true, .. } => "in flight".to_owned(),
        Event::BranchTaken { to, .. } => match to {
            Next::Case(case) => format!("case {case}"),
            Next::Step(id) => format!("to {id}"),
            Next::End => "to the end".to_owned(),
        },
        Event::BlockCompleted { index, error, .. } => match error {
            Some(error) => format!("[{index}] failed: {error}"),
            None => format!("[{index}]"),
        },
        Event::ApprovalRequested { prompt, .. } => prompt.to_string(),
        Event::ApprovalGranted { by, .. } => format!("by {by}"),
        Event::ApprovalDenied { by, reason, .. } => format!("by {by:?}: {reason}"),
        Event::ApprovalEscalated { notify, .. } => format!("to {}", notify.join(", ")),
        Event::ApprovalReminded { count, remind, .. } => match remind {
            Some(next) => format!("{count}, next at +{}ms", next - super::EPOCH),
            None => format!("{count}, the last"),
        },
        Event::UncertaintyResolved { how, by, .. } => format!("{how:?} by {by}"),
        Event::RunCancelled { reason, .. } | Event::RunCancelling { reason, .. } => reason.to_string(),
        Event::StepEnding { how, .. } => match how {
            Ending::Failed { error } => format!("failed: {error}"),
            Ending::Skipped { reason } => format!("skipped: {reason}"),
            Ending::Completed { output, by } => format!("completed by {by}: {output}"),
        },
        Event::RunPaused { reason, .. } => format!("{reason:?}"),
        Event::SignalReceived { event, .. } => event.to_string(),
        Event::StepProgressed { progress, total, message, .. } => {
            format!("{progress} of {total:?}: {}", message.as_deref().unwrap_or_default())
        }
        Event::CallAccepted { task, .. } | Event::CallResumed { task, .. } => format!("as {task}"),
        _ => return out,
    };
    write!(out, " {extra}").expect("text");
    out
}
