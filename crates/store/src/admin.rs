//! Administrative actions: events of the log that belong to no run, and the rows that they establish.
//!
//! A row that decides what runs, or as whom, has a binding: the hash of its content, in the last action that changed it.
//! The hash chain covers the action, so a row that was changed in the file no longer has its hash.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use steprail_core::plan::Hash;
use steprail_core::presence::Presence;
use steprail_core::run::Millis;
use uuid::Uuid;

use crate::{AccountKind, Cursor, Principal, RunId, StoreError};

/// The run id that administrative actions have in the hash chain.
pub const ADMIN_LOG: RunId = RunId(Uuid::nil());

/// The user who did something, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// Id of the user.
    pub id: String,
    /// Whether an agent acted for the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    /// The client or surface, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Id of the token or browser session, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// The factor with which the user proved that they are present.
    #[serde(default, skip_serializing_if = "Presence::is_none")]
    pub presence: Presence,
}

impl Actor {
    /// A user in person.
    pub fn user(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }
}

impl From<&Principal> for Actor {
    fn from(principal: &Principal) -> Self {
        let Principal { id, agent, via, token, .. } = principal;
        let credential = token.as_deref().map(ToOwned::to_owned);
        let presence = principal.provenance.presence;
        Self { id: id.clone(), agent: *agent, via: via.clone(), credential, presence }
    }
}

/// An administrative action as it is logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminEvent {
    /// What was done.
    #[serde(flatten)]
    pub action: AdminAction,
    /// The user who did it; `None` for the engine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// The rows that the action established or removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Binding>,
}

impl AdminEvent {
    /// An action that establishes no row.
    pub fn new(action: AdminAction, by: Option<Actor>) -> Self {
        Self { action, by, rows: Vec::new() }
    }
}

/// A row and the hash of its content after an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// The kind of the row.
    pub kind: RowKind,
    /// Its key in its table.
    pub id: String,
    /// Hash of its content; `None` if the row was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hash>,
}

/// A kind of row that administrative actions bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum RowKind {
    Definition,
    /// A definition by an agent that waits for a person.
    Proposal,
    Schedule,
    User,
    Group,
    Token,
    SignIn,
    /// The freeze of all calls.
    Freeze,
    /// An approval that also covers later calls.
    Remembered,
    /// A run that was started before its first event covered its row.
    Run,
    /// The result under an idempotency key whose run was deleted.
    Key,
    /// A setting of the operator: no row, only its hash.
    Setting,
}

impl RowKind {
    /// Its name in rows and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Definition => "definition",
            Self::Proposal => "proposal",
            Self::Schedule => "schedule",
            Self::User => "user",
            Self::Group => "group",
            Self::Token => "token",
            Self::SignIn => "sign_in",
            Self::Freeze => "freeze",
            Self::Remembered => "remembered",
            Self::Run => "run",
            Self::Key => "key",
            Self::Setting => "setting",
        }
    }
}

impl From<AccountKind> for RowKind {
    fn from(kind: AccountKind) -> Self {
        match kind {
            AccountKind::User => Self::User,
            AccountKind::Group => Self::Group,
            AccountKind::Token => Self::Token,
            AccountKind::SignIn => Self::SignIn,
        }
    }
}

impl fmt::Display for RowKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What was done. A new kind of action is a new variant; stored variants never change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum AdminAction {
    /// Rows of a database of an earlier format. Rows of the log up to `log_row` may have been purged without a record.
    BaselineTaken {
        log_row: i64,
    },
    DefinitionStored {
        name: String,
        version: u32,
        hash: Hash,
        published: bool,
    },
    /// Hashes of tools and versions of sub-workflows that were unknown when the version was stored.
    DefinitionPinned {
        name: String,
        version: u32,
    },
    DefinitionDeleted {
        name: String,
    },
    /// The user who did it is the owner and author of all versions now.
    DefinitionAdopted {
        name: String,
        from: String,
    },
    /// An agent proposed a definition, which a person has to accept.
    DefinitionProposed {
        name: String,
        hash: Hash,
    },
    /// A person accepted a proposal. The same commit stores the version.
    ProposalAccepted {
        name: String,
        hash: Hash,
    },
    ProposalRejected {
        name: String,
        hash: Hash,
    },
    ScheduleStored {
        name: String,
        definition: String,
    },
    ScheduleDeleted {
        name: String,
    },
    /// A time passed without a run.
    ScheduleMissed {
        name: String,
        reason: String,
    },
    UserCreated {
        id: String,
    },
    UserChanged {
        id: String,
    },
    UserDeleted {
        id: String,
    },
    GroupCreated {
        id: String,
    },
    GroupChanged {
        id: String,
    },
    GroupDeleted {
        id: String,
    },
    TokenCreated {
        id: String,
        user: String,
    },
    TokenChanged {
        id: String,
        user: String,
    },
    TokenRevoked {
        id: String,
    },
    /// A browser session began.
    SignedIn {
        session: String,
        user: String,
    },
    SessionChanged {
        session: String,
        user: String,
    },
    /// A browser session ended.
    SignedOut {
        session: String,
    },
    /// The factor that decisions need, at the start of a daemon whose setting is another than before.
    PresenceConfigured {
        factor: Presence,
    },
    /// A user set a factor that proves that they are present.
    PresenceEnrolled {
        user: String,
        factor: Presence,
    },
    /// The factors of a user were removed.
    PresenceRemoved {
        user: String,
    },
    /// A passkey of a user was removed.
    PasskeyRemoved {
        user: String,
        passkey: String,
    },
    /// A wrong PIN, one-time code or passkey. `locked`: further attempts are refused for a while.
    PresenceRejected {
        user: String,
        factor: Presence,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        locked: bool,
    },
    /// A decision without the proof of presence that it needs.
    DecisionRejected {
        run: RunId,
        step: String,
        user: String,
    },
    /// A client sent a code that was not issued for this decision, or not any more.
    CodeRejected {
        run: RunId,
        step: String,
        user: String,
    },
    /// A program that belongs to an agent connected to the socket for people.
    PeerRejected {
        process: String,
        reason: String,
    },
    /// The policy of the operator, at the start of the daemon and after each change of its file.
    PolicyLoaded {
        version: String,
        hash: Hash,
    },
    /// The daemon started without the policy that it had before.
    PolicyRemoved {},
    Frozen {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Unfrozen {},
    /// An approval also covers later calls of a user.
    ApprovalRemembered {
        id: String,
        rule: String,
        user: String,
        tool: String,
    },
    RememberedRevoked {
        id: String,
    },
    /// Remembered approvals that had ended were deleted.
    RememberedExpired {
        count: usize,
    },
    /// The database is a backup that was restored.
    Restored {
        incarnation: u64,
        backup_at: Millis,
    },
    /// Retention deleted ended runs, by their numbers in the log.
    RunsPurged {
        runs: Vec<PurgedRun>,
        /// The counters of the budgets for which calls of these runs counted.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        budgets: Vec<BudgetCount>,
    },
    DefinitionsPurged {
        count: u64,
    },
}

impl AdminAction {
    /// The name of the action in the log.
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// The action that stored an account. `body` names the user of a token or session.
    pub(crate) fn account_stored(kind: AccountKind, id: &str, body: &str, is_new: bool) -> Self {
        let id = id.to_owned();
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let field = |name: &str| &body[name];
        let user = || field("user").as_str().unwrap_or_default().to_owned();
        match (kind, is_new) {
            // The record of a deleted user stays, so that the id is not given to another user.
            (AccountKind::User, _) if !field("deleted_at").is_null() => Self::UserDeleted { id },
            (AccountKind::User, true) => Self::UserCreated { id },
            (AccountKind::User, false) => Self::UserChanged { id },
            (AccountKind::Group, true) => Self::GroupCreated { id },
            (AccountKind::Group, false) => Self::GroupChanged { id },
            (AccountKind::Token, true) => Self::TokenCreated { id, user: user() },
            (AccountKind::Token, false) => Self::TokenChanged { id, user: user() },
            (AccountKind::SignIn, true) => Self::SignedIn { session: id, user: user() },
            (AccountKind::SignIn, false) => Self::SessionChanged { session: id, user: user() },
        }
    }

    /// The action that deleted an account.
    pub(crate) fn account_deleted(kind: AccountKind, id: &str) -> Self {
        let id = id.to_owned();
        match kind {
            AccountKind::User => Self::UserDeleted { id },
            AccountKind::Group => Self::GroupDeleted { id },
            AccountKind::Token => Self::TokenRevoked { id },
            AccountKind::SignIn => Self::SignedOut { session: id },
        }
    }
}

/// A run that retention deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurgedRun {
    /// Its number, which its rows of the log keep.
    pub key: i64,
    /// Its id.
    pub run: RunId,
}

/// Calls that count for a budget of the policy, in one window of time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetCount {
    /// Whose calls count together.
    pub subject: String,
    /// The rule with the budget.
    pub rule: String,
    /// Start of the window of time.
    pub start: Millis,
    /// The number of calls.
    pub count: u64,
}

/// An administrative action of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAdminEvent {
    /// The position directly after it in the log.
    pub cursor: Cursor,
    /// Its number among the administrative actions, from 1 and without gaps.
    pub seq: u64,
    /// When it happened.
    pub at: Millis,
    /// What happened.
    pub event: AdminEvent,
    /// The hash of its row of the log.
    pub hash: Hash,
}

/// The end of the hash chain of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainHead {
    /// Random id of the database.
    pub database: String,
    /// Number of restores that led to the database, plus one.
    pub incarnation: u64,
    /// The last row of the log; 0 if it is empty.
    pub row: i64,
    /// The hash of that row.
    pub hash: Hash,
}

/// Hash of the facts about a run that its first event does not contain. `run_started` records it.
pub fn run_facts(
    principal_json: &str,
    rerun_json: Option<&str>,
    request_key: Option<&str>,
    interruptible: bool,
) -> Hash {
    let mut hasher = Sha256::new();
    for text in [Some(principal_json), rerun_json, request_key] {
        let length = text.map_or(u64::MAX, |text| text.len() as u64);
        hasher.update(length.to_be_bytes());
        hasher.update(text.unwrap_or_default());
    }
    hasher.update([u8::from(interruptible)]);
    Hash(hasher.finalize().into())
}

/// The same for a run that is about to be created.
pub fn new_run_facts(new: &crate::NewRun) -> Result<Hash, StoreError> {
    let principal = serde_json::to_string(&new.principal)?;
    let rerun = new.rerun.as_ref().map(serde_json::to_string).transpose()?;
    Ok(run_facts(&principal, rerun.as_deref(), new.request_key.as_deref(), new.interruptible))
}
