//! Values that a store reads and writes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use steprail_core::display::ApprovalText;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Failure, Millis, RunStatus, StepStatus, Subject, TimerKind};
use steprail_core::spec::step::KindName;
use uuid::Uuid;

use crate::{Cursor, Principal, RunCursor, RunState, StepCursor, StoreError, TokenScope, Visibility};

/// The public id of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub Uuid);

impl fmt::Display for RunId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl FromStr for RunId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Tools by name, each with the hash of the description that its server gave.
pub type Pins = BTreeMap<String, Hash>;

/// A version that a definition or a schedule keeps. The hash tells it from a later version with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionPin {
    /// The version.
    pub version: u32,
    /// Hash of its content.
    pub hash: Hash,
}

impl From<&Definition> for VersionPin {
    fn from(definition: &Definition) -> Self {
        Self { version: definition.version, hash: definition.hash }
    }
}

/// The versions of sub-workflows that a definition keeps, by name; `NAME@VERSION` where a step names a version.
pub type WorkflowPins = BTreeMap<String, VersionPin>;

/// A definition by an agent that waits for a person to accept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Name of the definition.
    pub name: String,
    /// SHA-256 of `spec_json`.
    pub hash: Hash,
    /// The canonical JSON of its Spec.
    pub spec_json: String,
    /// When it was proposed.
    pub created_at: Millis,
    /// The user for whom the agent acted.
    pub created_by: String,
    /// The client or tool of the agent.
    pub via: Option<String>,
}

/// A stored version of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Its id in the store.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// SHA-256 of `spec_json`.
    pub hash: Hash,
    /// The canonical JSON of its Spec.
    pub spec_json: String,
    /// When it was stored.
    pub created_at: Millis,
    /// The id of the user who stored it.
    pub created_by: String,
    /// Whether an agent stored it for the user.
    pub by_agent: bool,
    /// Whether new runs can no longer use this version.
    pub deleted: bool,
    /// The tools that it calls, as they were described when it was stored.
    pub pins: Pins,
    /// The versions of the sub-workflows that it starts.
    pub workflows: WorkflowPins,
}

/// A rerun: steps with the same path and arguments reuse the results of an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The earlier run.
    pub of: RunId,
    /// Paths of steps that are executed again in any case.
    pub except: Vec<String>,
}

/// The facts about a run that never change, and its state as stored.
#[derive(Debug, Clone)]
pub struct Head {
    /// Its id.
    pub id: RunId,
    /// Id of its definition in the store.
    pub definition: i64,
    /// The principal that it acts as.
    pub principal: Arc<Principal>,
    /// The run, execution and attempt that wait for it; `None` also if that run was deleted.
    pub parent: Option<(RunId, u32, u32)>,
    /// Number of its ancestors.
    pub depth: u32,
    /// The earlier run whose results it reuses.
    pub rerun: Option<Rerun>,
    /// The state in its row.
    pub state: RunState,
    /// Bytes that the run uses of its user's storage quota.
    pub stored_bytes: u64,
}

/// The resources that a user occupies, for quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Unfinished runs, except the child runs of other runs.
    pub active_runs: u64,
    /// Bytes of runs and definitions.
    pub stored_bytes: u64,
}

/// An event of the log.
///
/// `E` is the event itself, parsed or as JSON text.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent<E = Event> {
    /// The position directly after it in the log of all runs.
    pub cursor: Cursor,
    /// The run.
    pub run: RunId,
    /// Its sequence number in its run, from 1 and without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Millis,
    /// What happened.
    pub event: E,
    /// The hash of its log row, which includes the hash of the row before.
    pub hash: Hash,
}

/// The position after which the log of one run is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// After the event with this sequence number; 0 is before the first one.
    Seq(u64),
    /// After a position in the log of all runs.
    Cursor(Cursor),
}

/// Consecutive events of a log.
#[derive(Debug, Clone)]
pub struct EventPage<E> {
    /// The events.
    pub events: Vec<E>,
    /// Where the next page begins, if more events follow: a page has a limited number of events and of bytes.
    pub next: Option<Cursor>,
}

impl<E> EventPage<E> {
    /// Converts each event.
    pub fn map<T>(self, change: impl FnMut(E) -> T) -> EventPage<T> {
        EventPage { events: self.events.into_iter().map(change).collect(), next: self.next }
    }
}

/// An event as JSON text, for readers that pass it on without parsing it.
pub type RawEvent = StoredEvent<Box<RawValue>>;

impl RawEvent {
    /// Parses the event.
    pub fn read(self) -> Result<StoredEvent, StoreError> {
        let Self { cursor, run, seq, at, event, hash } = self;
        Ok(StoredEvent { cursor, run, seq, at, event: serde_json::from_str(event.get())?, hash })
    }
}

/// The number of rows that retention deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Deleted runs.
    pub runs: usize,
    /// Deleted definitions and results under idempotency keys.
    pub others: usize,
}

impl Purged {
    /// Whether nothing was deleted.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Identifies a value of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// The run's inputs.
    Inputs,
    /// The run's output.
    Result,
    /// The input of an execution.
    Input(u32),
    /// The output of an execution.
    Output(u32),
    /// The failure of an execution.
    Error(u32),
    /// The value of an event, by the event's sequence number.
    EventValue(u64),
}

/// A durable timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// The run.
    pub run: RunId,
    /// The number of the execution.
    pub n: u32,
    /// The kind of timer. An execution has at most one timer of a kind.
    pub kind: TimerKind,
    /// When it is due.
    pub due: Millis,
}

/// A run as clients read it.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    /// Its cursor in the list of runs.
    #[serde(skip)]
    pub cursor: RunCursor,
    /// Its id.
    pub run_id: RunId,
    /// Its definition's name.
    pub name: String,
    /// Its definition's version.
    pub version: u32,
    /// Its status.
    pub status: RunStatus,
    /// The run that waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The id of the user for whom it runs.
    pub created_by: String,
    /// The client or tool that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The trace in which it was started, as a `traceparent`.
    #[serde(skip)]
    pub trace: Option<String>,
    /// The scope of the token that started it.
    #[serde(skip)]
    pub scope: Option<TokenScope>,
    /// The step that started last.
    pub current_step: Option<String>,
    /// Its inputs.
    pub input: Box<RawValue>,
    /// Its output.
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it was created.
    pub started_at: Millis,
    /// When it last changed.
    pub updated_at: Millis,
    /// When it ended.
    pub completed_at: Option<Millis>,
    /// How many events its log has.
    pub seq: u64,
}

/// One attempt of a step execution as clients read it.
#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    /// The number of the execution in its run.
    pub n: u32,
    /// Its path.
    pub path: String,
    /// The id of the step.
    pub id: String,
    /// The kind of the step.
    pub kind: KindName,
    /// The tool that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its status.
    pub status: StepStatus,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// Its input: for a tool step, the arguments of the call.
    pub input: Option<Box<RawValue>>,
    /// Its output.
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// From when the attempt could start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Millis>,
    /// When it started.
    pub started_at: Option<Millis>,
    /// When it ended.
    pub completed_at: Option<Millis>,
}

impl StepRow {
    /// Its position in the list of steps of its run.
    pub fn cursor(&self) -> StepCursor {
        StepCursor::new(self.n, self.attempt)
    }
}

/// A call whose outcome is unknown. A human has to resolve it.
#[derive(Debug, Clone, Serialize)]
pub struct UnknownCall {
    /// The run.
    pub run_id: RunId,
    /// The step's path.
    pub path: String,
    /// The path as seen from the run that was queried, which includes the steps of parent runs.
    pub shown: String,
    /// Identifies the attempt. A request that resolves the call has to repeat it.
    pub digest: Hash,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The failure, which says why the outcome is unknown.
    pub error: Option<Failure>,
}

/// The hash that identifies one attempt of a step execution.
pub fn attempt_digest(run: RunId, path: &str, attempt: u32) -> Hash {
    Hash::of(format!("{run}/{path}#{attempt}").as_bytes())
}

/// An approval: the request of a gate, and the decision.
#[derive(Debug, Clone, Serialize)]
pub struct Approval {
    /// The run.
    pub run_id: RunId,
    /// The number of the execution.
    #[serde(skip)]
    pub n: u32,
    /// The step's path.
    pub path: String,
    /// `open`, or the decision.
    pub status: String,
    /// The hash of the request. A decision has to repeat it.
    pub digest: Hash,
    /// The text that asks for the decision.
    pub prompt: String,
    /// The tool that is called after the approval.
    pub tool: Option<String>,
    /// Its arguments.
    pub args: Option<Box<RawValue>>,
    /// When the gate was reached.
    pub requested_at: Millis,
    /// When the approval expires.
    pub expires_at: Option<Millis>,
    /// When it was decided.
    pub decided_at: Option<Millis>,
    /// The id of the user who decided.
    pub decided_by: Option<String>,
    /// The reason that the user gave.
    pub reason: Option<String>,
    /// The JSON Schema of the form of an input request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Box<RawValue>>,
    /// What the approval covers and who may decide, a [`steprail_core::run::Subject`]. Approvals of earlier versions have
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Box<RawValue>>,
    /// The users who approved before the quorum was reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed: Vec<String>,
    /// The user who started the run.
    pub created_by: String,
    /// Whether an agent started the run for the user.
    pub by_agent: bool,
    /// The name of the run's definition.
    pub definition: String,
    /// The version of the run's definition.
    pub version: u32,
    /// The scope of the token that started the run.
    #[serde(skip)]
    pub scope: Option<TokenScope>,
}

impl Approval {
    /// The approval as it is shown to a person.
    pub fn text(&self) -> ApprovalText<'_> {
        let subject: Option<Subject> =
            self.subject.as_ref().and_then(|subject| serde_json::from_str(subject.get()).ok());
        let (covered, workflows) =
            subject.map(|subject| (subject.calls, subject.workflows)).unwrap_or_default();
        ApprovalText {
            covered,
            workflows,
            tool: self.tool.as_deref(),
            args: self.args.as_ref().map(|args| args.get()),
            starter: &self.created_by,
            by_agent: self.by_agent,
            definition: (&self.definition, self.version),
            step: &self.path,
            prompt: &self.prompt,
        }
    }
}

/// The session of an MCP client. It survives a restart of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// The id of its user.
    pub user: String,
    /// The state that resumes the session, as JSON.
    pub state: String,
}

/// A user, a group, a token or a browser session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Which of these it is.
    pub kind: AccountKind,
    /// Its id, unique among accounts of its kind.
    pub id: String,
    /// Its other fields, as JSON.
    pub body: String,
}

/// The kinds of accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountKind {
    /// A user.
    User,
    /// A group of users.
    Group,
    /// An API token of a user.
    Token,
    /// A browser session of a user.
    SignIn,
}

impl AccountKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::User, Self::Group, Self::Token, Self::SignIn];

    /// The name of the kind in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Token => "token",
            Self::SignIn => "sign_in",
        }
    }

    /// The kind with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A query for runs. The default is the newest hundred runs.
#[derive(Debug, Clone)]
pub struct ListRuns {
    /// Only runs with this status.
    pub status: Option<RunStatus>,
    /// Only runs of this user.
    pub created_by: Option<String>,
    /// Only runs of this definition.
    pub name: Option<String>,
    /// Only runs before this cursor, which is the last one of the previous page.
    pub before: Option<RunCursor>,
    /// The maximum number of runs.
    pub limit: usize,
    /// Whether to omit inputs and outputs, which can be large. `input` is `null` then.
    pub brief: bool,
    /// Only those that the reader may see.
    pub visible: Visibility,
}

impl Default for ListRuns {
    fn default() -> Self {
        Self {
            status: None,
            created_by: None,
            name: None,
            before: None,
            limit: 100,
            brief: false,
            visible: Visibility::default(),
        }
    }
}
