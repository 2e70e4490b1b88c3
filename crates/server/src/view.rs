//! What programs read, over REST and on the command line: the same shapes in both.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use steprail_core::run::Millis;
use steprail_engine::{EventPage, Failure, Right, RunId, RunRow, RunStatus, RunView, StepRow, StoredEvent};

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Run {
    /// Its id.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Its definition's name.
    pub name: String,
    /// Its definition's version.
    pub version: u32,
    /// Where it stands.
    pub status: RunStatus,
    /// The run that waits for it.
    #[schemars(with = "Option<String>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Whom it acts as.
    pub created_by: String,
    /// What it was started through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The step that began last, while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<String>,
    /// Its inputs; not in a list.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<RawValue>>,
    /// What it gave; not in a list.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When it was started.
    #[schemars(extend("format" = "date-time"))]
    pub started_at: String,
    /// When it last changed.
    #[schemars(extend("format" = "date-time"))]
    pub updated_at: String,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<String>,
    /// How many events its log has.
    pub seq: u64,
    /// Every attempt of every step; not in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// Open questions of it and of the runs that it waits for; not in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Vec<Approval>>,
    /// Calls of it and of the runs that it waits for whose outcome is unknown: somebody has to say what became of
    /// them. Not in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_calls: Option<Vec<UnknownCall>>,
}

/// A call whose outcome is unknown.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct UnknownCall {
    /// The run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// The step, by its path in that run.
    pub step: String,
    /// The same from the run that was asked for: below the steps that wait for it.
    pub shown: String,
    /// What names the attempt: `intervene` takes it, and refuses it once there was another.
    pub digest: String,
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Why it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl From<steprail_engine::UnknownCall> for UnknownCall {
    fn from(call: steprail_engine::UnknownCall) -> Self {
        let (step, shown) = (call.path, call.shown);
        let digest = call.digest.to_string();
        Self { run_id: call.run_id, step, shown, digest, tool: call.tool, error: call.error }
    }
}

/// One attempt of a step.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Step {
    /// Its id as an event from outside names it: the run, the number of the execution, the attempt.
    pub step_id: String,
    /// Its path in the run.
    pub path: String,
    /// The step's id in the definition.
    pub id: String,
    /// What kind of step it is.
    pub kind: String,
    /// The tool that it calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Where it stands.
    pub status: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// What it was given.
    #[schemars(with = "Option<Value>")]
    pub input: Option<Box<RawValue>>,
    /// What it gave.
    #[schemars(with = "Option<Value>")]
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it may begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<String>,
    /// When it began.
    pub started_at: Option<String>,
    /// When it ended.
    pub completed_at: Option<String>,
}

/// A question to a human.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Approval {
    /// The run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// The step's path.
    pub step: String,
    /// The question.
    pub prompt: String,
    /// What a decision is bound to: send it along with yours.
    pub digest: String,
    /// The tool that runs after a yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its arguments.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Box<RawValue>>,
    /// The JSON Schema of the answer that a tool asks for.
    #[schemars(with = "Option<Value>")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Box<RawValue>>,
    /// When it was asked.
    #[schemars(extend("format" = "date-time"))]
    pub requested_at: String,
    /// Until when it can be answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Whether whoever asks may decide; only in a list of approvals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_decide: Option<bool>,
}

/// Something that happened in a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Event<E = steprail_engine::Event> {
    /// Its number among the events of all runs.
    pub id: i64,
    /// The run.
    #[schemars(with = "String", extend("format" = "uuid"))]
    pub run_id: RunId,
    /// Its number in its run, from 1 and without gaps.
    pub seq: u64,
    /// When it happened.
    #[schemars(extend("format" = "date-time"))]
    pub at: String,
    /// The hash that links it to the one before.
    pub hash: String,
    /// What happened: a map with a `type`.
    #[schemars(with = "Value")]
    pub event: E,
}

/// The same with what happened as it stands in the log.
pub(crate) type RawEvent = Event<Box<RawValue>>;

/// A version of a definition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Definition {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Its hash: its identity.
    pub hash: String,
    /// What it does, in its author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The names of its inputs.
    pub inputs: Vec<String>,
    /// Whether it is offered to agents as a tool.
    pub published: bool,
    /// Who stored it.
    pub created_by: String,
    /// When.
    #[schemars(extend("format" = "date-time"))]
    pub created_at: String,
    /// The definition itself; not in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
}

/// One page of a list.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Page<T> {
    /// The entries.
    pub items: Vec<T>,
    /// Where the next page begins; nothing if this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<E> Page<Event<E>> {
    /// Events of a log; the next page begins after the last of them.
    pub(crate) fn of_events(
        page: EventPage<StoredEvent<E>>,
        place: impl Fn(&StoredEvent<E>) -> String,
    ) -> Self {
        let next = page.events.last().filter(|_| page.has_more).map(place);
        Self { items: page.map(Event::from).events, next }
    }
}

/// A schedule.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Schedule {
    /// Its name.
    pub name: String,
    /// The definition that it starts, in its newest version.
    pub definition: String,
    /// When: a cron pattern.
    pub cron: String,
    /// The time zone of the pattern.
    pub zone: String,
    /// The inputs of each run.
    pub input: Value,
    /// Whom each run acts as.
    pub created_by: String,
    /// Whether a run may start before the last one has ended.
    pub overlap: bool,
    /// When the next run is due; nothing if it is paused.
    pub due_at: Option<String>,
    /// What became of the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Fired>,
}

/// What became of a time at which a run was due.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Fired {
    /// When.
    pub at: String,
    /// The run that was started.
    #[schemars(with = "Option<String>")]
    pub run_id: Option<RunId>,
    /// Why none was.
    pub error: Option<String>,
}

/// A tool that steps can call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Tool {
    /// What it is called here.
    pub name: String,
    /// What it does, in its server's words.
    pub description: String,
    /// What it takes, as JSON Schema.
    pub input_schema: Value,
    /// Whether it changes nothing.
    pub read_only: bool,
    /// Whether it may destroy something.
    pub destructive: bool,
    /// Whether a repeated call does nothing more.
    pub idempotent: bool,
}

/// A server whose tools are called.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Server {
    /// Its name.
    pub name: String,
    /// The user whose connection it is, where each has their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `idle`, `starting`, `up`, `busy` or `down`.
    pub health: String,
    /// Since when it is in that state.
    pub since: String,
    /// The era of the protocol that it speaks: `legacy` (`initialize`) or `modern` (`server/discover`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub era: Option<String>,
    /// Why the last attempt to reach it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds until the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_secs: Option<u64>,
    /// What an operator can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The last lines of its standard error; for operators only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// The login that it needs, and how to log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// The names of its tools, as they were last listed.
    pub tools: Vec<String>,
    /// What is wrong with some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Whoever asks.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Me {
    /// The user's id.
    pub id: String,
    /// The user's name.
    pub name: String,
    /// Whether an agent acts for the user.
    pub agent: bool,
    /// What they may do beside calling tools.
    pub may: BTreeSet<Right>,
    /// The word that a page sends along with what it changes, in the header `X-Steprail-Csrf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
}

impl Run {
    /// A run in a list: without what may be large.
    pub(crate) fn brief(row: RunRow) -> Self {
        Self {
            run_id: row.run_id,
            name: row.name,
            version: row.version,
            status: row.status,
            parent: row.parent,
            created_by: row.created_by,
            via: row.via,
            current_step: row.current_step.filter(|_| !row.status.is_terminal()),
            input: None,
            output: None,
            error: row.error,
            started_at: time(row.started_at),
            updated_at: time(row.updated_at),
            completed_at: row.completed_at.map(time),
            seq: row.seq,
            steps: None,
            approvals: None,
            unknown_calls: None,
        }
    }

    /// A run with everything about it.
    pub(crate) fn full(view: RunView) -> Self {
        let RunView { run, steps, approvals, unknown_calls } = view;
        let (id, input, output) = (run.run_id, Some(run.input.clone()), run.output.clone());
        let steps = Some(steps.into_iter().map(|step| Step::of(id, step)).collect());
        let approvals = Some(approvals.into_iter().map(Approval::from).collect());
        let unknown_calls = Some(unknown_calls.into_iter().map(UnknownCall::from).collect());
        Self { input, output, steps, approvals, unknown_calls, ..Self::brief(run) }
    }
}

impl Step {
    fn of(run: RunId, row: StepRow) -> Self {
        Self {
            step_id: format!("{run}:{}:{}", row.n, row.attempt),
            path: row.path,
            id: row.id,
            kind: row.kind.word().to_owned(),
            tool: row.tool,
            status: row.status.word().to_owned(),
            attempt: row.attempt,
            input: row.input,
            output: row.output,
            error: row.error,
            ready_at: row.ready_at.map(time),
            started_at: row.started_at.map(time),
            completed_at: row.completed_at.map(time),
        }
    }
}

impl From<steprail_engine::Approval> for Approval {
    fn from(row: steprail_engine::Approval) -> Self {
        Self {
            run_id: row.run_id,
            step: row.path,
            prompt: row.prompt,
            digest: row.digest.to_string(),
            tool: row.tool,
            args: row.args,
            form: row.form,
            requested_at: time(row.requested_at),
            expires_at: row.expires_at.map(time),
            may_decide: None,
        }
    }
}

impl<E> From<StoredEvent<E>> for Event<E> {
    fn from(stored: StoredEvent<E>) -> Self {
        Self {
            id: stored.id,
            run_id: stored.run,
            seq: stored.seq,
            at: time(stored.at),
            hash: stored.hash.to_string(),
            event: stored.event,
        }
    }
}

impl Definition {
    /// A definition in a list.
    pub(crate) fn brief(definition: &steprail_engine::Definition) -> Self {
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        Self::of(definition, &spec)
    }

    /// A definition with its text.
    pub(crate) fn full(definition: &steprail_engine::Definition) -> Self {
        let spec: Value = serde_json::from_str(&definition.spec_json).unwrap_or_default();
        let brief = Self::of(definition, &spec);
        Self { spec: Some(spec), ..brief }
    }

    fn of(definition: &steprail_engine::Definition, spec: &Value) -> Self {
        let inputs = spec["inputs"].as_object().map(|inputs| inputs.keys().cloned().collect());
        Self {
            name: definition.name.clone(),
            version: definition.version,
            hash: definition.hash.to_string(),
            description: spec["description"].as_str().map(str::to_owned),
            inputs: inputs.unwrap_or_default(),
            published: !matches!(spec["publish"], Value::Null | Value::Bool(false)),
            created_by: definition.created_by.clone(),
            created_at: time(definition.created_at),
            spec: None,
        }
    }
}

impl From<steprail_engine::Schedule> for Schedule {
    fn from(schedule: steprail_engine::Schedule) -> Self {
        let fired = |fired: steprail_engine::Fired| Fired {
            at: time(fired.at),
            run_id: fired.run,
            error: fired.error,
        };
        Self {
            name: schedule.name,
            definition: schedule.definition,
            cron: schedule.cron,
            zone: schedule.zone,
            input: schedule.inputs,
            created_by: schedule.principal.id,
            overlap: schedule.overlap == steprail_engine::Overlap::Allow,
            due_at: schedule.due.map(time),
            last: schedule.last.map(fired),
        }
    }
}

/// RFC 3339 in UTC, with milliseconds.
pub(crate) fn time(millis: Millis) -> String {
    jiff::Timestamp::from_millisecond(millis).map(|time| format!("{time:.3}")).unwrap_or_default()
}

/// The moment that such a text stands for.
pub(crate) fn millis(text: &str) -> Millis {
    text.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_millisecond).unwrap_or_default()
}
