//! Notifications and their deliveries. The commit that causes a notification writes it, and it stays until it is delivered.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use steprail_core::run::Millis;

use crate::RunId;

/// The maximum number of notifications that are read of a digest. The others are counted.
pub(crate) const DIGEST_PARTS: usize = 200;

/// What a notification is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationKind {
    /// A gate waits for a decision.
    ApprovalRequested,
    /// A gate still waits for a decision.
    Reminder,
    /// A gate has waited for longer than its escalation time.
    ApprovalEscalated,
    /// A gate was decided, so that others need not.
    ApprovalDecided,
    /// A gate was denied, or its approval expired.
    ApprovalDenied,
    /// The outcome of a call is unknown.
    StepUncertain,
    /// A step waits for a server that accepts no calls.
    ServerUnavailable,
    /// A run failed.
    RunFailed,
    /// A run was cancelled.
    RunCancelled,
    /// A schedule did not start its run.
    ScheduleMissed,
    /// A user has to log in to a server again.
    LoginExpired,
    /// The audit found damage.
    AuditFailed,
    /// A definition of an agent waits for a person to accept it.
    ProposalWaiting,
    /// A message to test the channels of a user.
    Test,
}

impl NotificationKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::ApprovalRequested,
        Self::Reminder,
        Self::ApprovalEscalated,
        Self::ApprovalDecided,
        Self::ApprovalDenied,
        Self::StepUncertain,
        Self::ServerUnavailable,
        Self::RunFailed,
        Self::RunCancelled,
        Self::ScheduleMissed,
        Self::LoginExpired,
        Self::AuditFailed,
        Self::ProposalWaiting,
        Self::Test,
    ];

    /// The name in the database and on the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApprovalRequested => "approval_requested",
            Self::Reminder => "reminder",
            Self::ApprovalEscalated => "approval_escalated",
            Self::ApprovalDecided => "approval_decided",
            Self::ApprovalDenied => "approval_denied",
            Self::StepUncertain => "step_uncertain",
            Self::ServerUnavailable => "server_unavailable",
            Self::RunFailed => "run_failed",
            Self::RunCancelled => "run_cancelled",
            Self::ScheduleMissed => "schedule_missed",
            Self::LoginExpired => "login_expired",
            Self::AuditFailed => "audit_failed",
            Self::ProposalWaiting => "proposal_waiting",
            Self::Test => "test",
        }
    }

    /// The kind with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A notification that a commit causes.
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// What it is about.
    pub kind: NotificationKind,
    /// The run that causes it.
    pub run: Option<RunId>,
    /// Path of the step that causes it.
    pub path: Option<String>,
    /// The recipients: users, groups or addresses. Empty: everyone who may act on it.
    pub to: Vec<String>,
    /// What the recipients need to know, as JSON.
    pub body: Box<RawValue>,
}

/// A notification in the store.
#[derive(Debug, Clone, Serialize)]
pub struct Notification {
    /// Its number.
    pub id: i64,
    /// What it is about.
    pub kind: NotificationKind,
    /// The run that caused it.
    pub run: Option<RunId>,
    /// Path of the step that caused it.
    pub path: Option<String>,
    /// The recipients: users, groups or addresses. Empty: everyone who may act on it.
    pub to: Vec<String>,
    /// What the recipients need to know.
    pub body: Box<RawValue>,
    /// When it was caused.
    pub created_at: Millis,
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// It is sent when it is due.
    Queued,
    /// The channel accepted it.
    Sent,
    /// It was given up: a dead letter.
    Failed,
    /// The recipient has read it.
    Read,
    /// It was sent, and is taken back because its approval was decided.
    Withdrawing,
    /// It was taken back, or is no longer needed.
    Withdrawn,
}

impl DeliveryStatus {
    /// Every status.
    pub const ALL: [Self; 6] =
        [Self::Queued, Self::Sent, Self::Failed, Self::Read, Self::Withdrawing, Self::Withdrawn];

    /// The name in the database and on the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Read => "read",
            Self::Withdrawing => "withdrawing",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// The status with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A delivery to plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    /// The user, group or address that it is for.
    pub recipient: String,
    /// Name of the channel.
    pub channel: String,
    /// Where the channel delivers it.
    pub address: String,
    /// When it is due.
    pub due: Millis,
    /// Whether it waits for others and is sent together with those of the same recipient, channel, address and time.
    pub in_digest: bool,
}

/// The delivery of a notification to one recipient over one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Its number.
    pub id: i64,
    /// The number of its notification.
    pub notification: i64,
    /// The user, group or address that it is for.
    pub recipient: String,
    /// Name of the channel.
    pub channel: String,
    /// Where the channel delivers it.
    pub address: String,
    /// Its state.
    pub status: DeliveryStatus,
    /// Number of attempts so far, also of those to take it back.
    pub attempts: u32,
    /// When the next attempt is due.
    pub due: Option<Millis>,
    /// The time of the digest that it is part of. It stays the same when the digest is tried again.
    pub digest_at: Option<Millis>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// What the channel needs to take the message back, as JSON.
    pub receipt: Option<String>,
    /// When it was sent, read or given up.
    pub ended_at: Option<Millis>,
}

/// A change of the outbox.
#[derive(Debug, Clone)]
pub enum OutboxChange {
    /// Adds a notification that no run causes.
    Add(Box<NewNotification>),
    /// Plans the deliveries of a notification. A notification is planned once.
    Plan {
        /// The notification.
        notification: i64,
        /// Its deliveries.
        deliveries: Vec<NewDelivery>,
    },
    /// Takes back the requests of an approval that was decided: those of the same run and step that are older than the
    /// notification of the decision. Those that wait are dropped, and those that were sent alone are withdrawn.
    Withdraw {
        /// The notification of the decision.
        decided: i64,
    },
    /// Records an attempt to send a message or to take it back. A digest is recorded by any of its deliveries.
    Attempt {
        /// The delivery.
        delivery: i64,
        /// The last delivery of the message. Later ones of the same digest were not part of it.
        last: i64,
        /// How it ended.
        outcome: AttemptOutcome,
    },
    /// Records that a sent message was read.
    Read {
        /// The delivery.
        delivery: i64,
    },
    /// Queues a dead letter again. It is sent alone.
    Resend {
        /// The delivery.
        delivery: i64,
    },
}

/// How an attempt to deliver ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The channel accepted the message.
    Sent {
        /// What the channel needs to take it back, as JSON.
        receipt: Option<String>,
    },
    /// It is tried again.
    Retry {
        /// When.
        due: Millis,
        /// Why it failed.
        error: String,
    },
    /// It is given up.
    Failed {
        /// Why.
        error: String,
    },
}

impl AttemptOutcome {
    /// The next status of a delivery, and when its next attempt is due; `None` if the result is out of date.
    pub(crate) fn next(
        &self,
        status: DeliveryStatus,
        now: Millis,
    ) -> Option<(DeliveryStatus, Option<Millis>)> {
        use DeliveryStatus as Status;
        let due = match self {
            Self::Retry { due, .. } => Some(*due),
            Self::Sent { .. } | Self::Failed { .. } => None,
        };
        match (status, self) {
            (Status::Queued, Self::Sent { .. }) => Some((Status::Sent, None)),
            (Status::Queued, Self::Failed { .. }) => Some((Status::Failed, None)),
            (Status::Queued | Status::Withdrawing, Self::Retry { .. }) => Some((status, due)),
            // The approval was decided while its message was sent.
            (Status::Withdrawn, Self::Sent { .. }) => Some((Status::Withdrawing, Some(now))),
            (Status::Withdrawing, Self::Sent { .. } | Self::Failed { .. }) => Some((Status::Withdrawn, None)),
            (Status::Sent | Status::Failed | Status::Read | Status::Withdrawn, _) => None,
        }
    }

    /// Why the attempt failed.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Retry { error, .. } | Self::Failed { error } => Some(error),
            Self::Sent { .. } => None,
        }
    }

    /// What the channel needs to take the message back.
    pub(crate) fn receipt(&self) -> Option<&str> {
        match self {
            Self::Sent { receipt } => receipt.as_deref(),
            Self::Retry { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Work of the outbox.
#[derive(Debug, Clone, Default)]
pub struct OutboxWork {
    /// Notifications whose deliveries are not planned, oldest first.
    pub unplanned: Vec<Notification>,
    /// Messages that are due. Those with the earliest time come first.
    pub due: Vec<DueMessage>,
    /// When the next delivery is due, if none is due now.
    pub next: Option<Millis>,
}

/// A message to send or to take back: one delivery, or a digest.
#[derive(Debug, Clone)]
pub struct DueMessage {
    /// The first delivery. Recipient, channel and address of all are the same.
    pub delivery: Delivery,
    /// The notifications, the first ones of a digest.
    pub notifications: Vec<Notification>,
    /// The number of notifications.
    pub count: u64,
    /// The last delivery.
    pub last: i64,
}

/// Selects notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotificationQuery {
    /// Those of a run, oldest first.
    OfRun(RunId),
    /// The decisions of the approvals of a step of a run, newest first.
    Decisions(RunId, String),
    /// Those with this delivery.
    OfDelivery(i64),
    /// Those with a delivery that was given up, newest first.
    DeadLetters,
    /// The newest first.
    Newest,
}
