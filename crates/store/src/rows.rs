//! Values that a store reads and writes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use steprail_core::plan::Hash;
use steprail_core::run::{Event, Failure, Millis, RunStatus, StepStatus, TimerKind};
use steprail_core::spec::step::KindName;
use uuid::Uuid;

use crate::{Cursor, Principal, RunCursor, RunState, StoreError};

/// The id of a run, as the world knows it.
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

/// Tools by their names, with hashes of what their servers say about them.
pub type Pins = BTreeMap<String, Hash>;

/// A stored version of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Its number in the store.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: u32,
    /// Its hash.
    pub hash: Hash,
    /// Its canonical JSON.
    pub spec_json: String,
    /// When it was stored.
    pub created_at: Millis,
    /// By whom.
    pub created_by: String,
    /// Whether new runs can no longer use it.
    pub deleted: bool,
    /// What its tools were like when it was stored.
    pub pins: Pins,
}

/// A run whose results another one takes over where path and arguments are the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rerun {
    /// The run.
    pub of: RunId,
    /// Paths of steps that run anew all the same.
    pub except: Vec<String>,
}

/// The facts about a run that never change, and its state.
#[derive(Debug, Clone)]
pub struct Head {
    /// Its id.
    pub id: RunId,
    /// Id of its definition in the store.
    pub definition: i64,
    /// The principal that it acts as.
    pub principal: Arc<Principal>,
    /// The run, execution and attempt that wait for it.
    pub parent: Option<(RunId, u32, u32)>,
    /// Number of its ancestors.
    pub depth: u32,
    /// The run whose results are reused.
    pub rerun: Option<Rerun>,
    /// The state in its row.
    pub state: RunState,
    /// Bytes that it counts for in the quota of its user.
    pub stored_bytes: u64,
}

/// What a user occupies, for quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Unfinished runs, without those that another run waits for.
    pub active_runs: u64,
    /// Bytes of runs and definitions.
    pub stored_bytes: u64,
}

/// An event of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent<E = Event> {
    /// The position directly after it in the log of all runs.
    pub cursor: Cursor,
    /// The run.
    pub run: RunId,
    /// Its number in its run, from 1 and without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Millis,
    /// What happened.
    pub event: E,
    /// The hash that links it to the one before.
    pub hash: Hash,
}

/// Where to read on in the log of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// After the event with this sequence number; 0 is before the first one.
    Seq(u64),
    /// After a position in the log of all runs.
    Cursor(Cursor),
}

/// Events of a log that come after one another.
#[derive(Debug, Clone)]
pub struct EventPage<E> {
    /// The events.
    pub events: Vec<E>,
    /// Where the next page begins, if more events follow: a page has a limited number of events and of bytes.
    pub next: Option<Cursor>,
}

impl<E> EventPage<E> {
    /// The same of something else.
    pub fn map<T>(self, change: impl FnMut(E) -> T) -> EventPage<T> {
        EventPage { events: self.events.into_iter().map(change).collect(), next: self.next }
    }
}

/// An event as it stands in the log, for those who pass it on unread.
pub type RawEvent = StoredEvent<Box<RawValue>>;

impl RawEvent {
    /// The same, read.
    pub fn read(self) -> Result<StoredEvent, StoreError> {
        let Self { cursor, run, seq, at, event, hash } = self;
        Ok(StoredEvent { cursor, run, seq, at, event: serde_json::from_str(event.get())?, hash })
    }
}

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Runs.
    pub runs: usize,
    /// Definitions and results under keys.
    pub others: usize,
}

impl Purged {
    /// Whether there was nothing left to delete.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Which payload of a run is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// The run's inputs.
    Inputs,
    /// The run's output.
    Result,
    /// What an execution was given.
    Input(u32),
    /// What an execution gave.
    Output(u32),
    /// Why an execution failed.
    Error(u32),
    /// The value that an event carries.
    Noted(u64),
}

/// An timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// The run.
    pub run: RunId,
    /// The execution.
    pub n: u32,
    /// Which of its timers.
    pub kind: TimerKind,
    /// When it is due.
    pub due: Millis,
}

/// A run, for those who look.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    /// Its position in the list of runs.
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
    /// Whom it acts as.
    pub created_by: String,
    /// What it was started through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The trace that it was started in, as a `traceparent`.
    #[serde(skip)]
    pub trace: Option<String>,
    /// The step that began last.
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

/// One attempt of a step, for those who look.
#[derive(Debug, Clone, Serialize)]
pub struct StepRow {
    /// The number of the execution.
    pub n: u32,
    /// Its path.
    pub path: String,
    /// The step's id.
    pub id: String,
    /// Its kind.
    pub kind: KindName,
    /// The tool that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Its status.
    pub status: StepStatus,
    /// The attempt.
    pub attempt: u32,
    /// What it was given.
    pub input: Option<Box<RawValue>>,
    /// What it gave.
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    pub error: Option<Failure>,
    /// When it may begin, or could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Millis>,
    /// When it began.
    pub started_at: Option<Millis>,
    /// When it ended.
    pub completed_at: Option<Millis>,
}

/// A call whose outcome is unknown: a human has to say what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct UnknownCall {
    /// The run.
    pub run_id: RunId,
    /// The step's path.
    pub path: String,
    /// The same from the run that was asked for: below the steps that wait for it.
    pub shown: String,
    /// What names the attempt: whoever says what became of the call repeats it.
    pub digest: Hash,
    /// The tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Why it is unknown.
    pub error: Option<Failure>,
}

/// What names one attempt of a step.
pub fn attempt_digest(run: RunId, path: &str, attempt: u32) -> Hash {
    Hash::of(format!("{run}/{path}#{attempt}").as_bytes())
}

/// A question to a human.
#[derive(Debug, Clone, Serialize)]
pub struct Approval {
    /// The run.
    pub run_id: RunId,
    /// The number of the execution.
    #[serde(skip)]
    pub n: u32,
    /// The step's path.
    pub path: String,
    /// `open`, or how it ended.
    pub status: String,
    /// What the decision is bound to.
    pub digest: Hash,
    /// The question.
    pub prompt: String,
    /// The tool that runs after a yes.
    pub tool: Option<String>,
    /// Its arguments.
    pub args: Option<Box<RawValue>>,
    /// When it was asked.
    pub requested_at: Millis,
    /// Until when it can be answered.
    pub expires_at: Option<Millis>,
    /// When it was answered.
    pub decided_at: Option<Millis>,
    /// By whom.
    pub decided_by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// The JSON Schema of the answer that a tool asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<Box<RawValue>>,
}

/// The session of a client, which outlives the process that it began with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// What it takes to go on with it, as JSON.
    pub state: String,
}

/// Something that is kept about who may do what: a user, a group, a token, a sign-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// What it is.
    pub kind: AccountKind,
    /// Its id, which no other of its kind has.
    pub id: String,
    /// The rest, as JSON.
    pub body: String,
}

/// What an account is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountKind {
    /// A user.
    User,
    /// A group of users.
    Group,
    /// A token of a user.
    Token,
    /// A browser that a user has signed in with.
    SignIn,
}

impl AccountKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::User, Self::Group, Self::Token, Self::SignIn];

    /// Its word in rows.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Token => "token",
            Self::SignIn => "sign_in",
        }
    }

    /// The one that a word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Which runs to list: by default the newest hundred.
#[derive(Debug, Clone)]
pub struct ListRuns {
    /// Only those with this status.
    pub status: Option<RunStatus>,
    /// Only those of this user.
    pub created_by: Option<String>,
    /// Only those of this definition.
    pub name: Option<String>,
    /// Only those before this one, from the end of the last page.
    pub before: Option<RunCursor>,
    /// At most so many.
    pub limit: usize,
    /// Whether inputs and outputs, which may be large, are left out: inputs are `null` then.
    pub brief: bool,
}

impl Default for ListRuns {
    fn default() -> Self {
        Self { status: None, created_by: None, name: None, before: None, limit: 100, brief: false }
    }
}
