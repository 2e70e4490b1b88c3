//! What one notification says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;

use crate::limits;

/// One notification, independent of its recipients and channels. The outbox stores it as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// Identifies the notification. Channels use it to recognise a repeated delivery.
    pub id: String,
    /// The event that the notification is about.
    pub kind: Kind,
    /// How soon a person should see it.
    pub urgency: Urgency,
    /// Id of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The definition of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
    /// The labels of the definition.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The user who started the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starter: Option<String>,
    /// Whether an agent started the run for the user.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_agent: bool,
    /// Path of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The calls that an approval covers, at most [`limits::CALLS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// Calls that `calls` does not contain.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_calls: u64,
    /// The prompt of the gate, as the definition or the tool wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// What happened, for example the error of a failed run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The kind of the failure of a failed run, such as `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The user who decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decider: Option<String>,
    /// The comment of the user who decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The time until which a decision is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Millis>,
    /// The page that shows the approval or the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The digest of the approval, which a decision carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// One line per notification that this digest message replaces, at most [`limits::DIGEST_LINES`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<String>,
    /// Notifications that this digest message replaces.
    #[serde(skip_serializing_if = "is_zero")]
    pub count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Name and version of a definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The name.
    pub name: String,
    /// The version.
    pub version: u32,
}

/// A call that an approval covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Name of the tool, `server__tool`.
    pub tool: String,
    /// The arguments as JSON, bounded and with secrets redacted.
    pub args: String,
}

/// The event that a notification is about.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// A gate waits for a decision.
    ApprovalRequested,
    /// A gate still waits.
    Reminder,
    /// A gate still waits, and further users may decide.
    Escalation,
    /// Another user decided.
    Decided,
    /// An approval was denied.
    Denied,
    /// A run failed.
    RunFailed,
    /// A run was cancelled.
    RunCancelled,
    /// The outcome of a call is unknown, and a user has to decide.
    Uncertain,
    /// A schedule did not start a run at its time.
    ScheduleMissed,
    /// Steps wait for a server that is not available.
    ServerUnavailable,
    /// A server needs a new login of the user.
    LoginExpired,
    /// The audit of the log found a difference.
    AuditFailure,
    /// A definition of an agent waits for a person to accept it.
    ProposalWaiting,
    /// Several notifications in one message.
    Digest,
    /// A test of the channel.
    #[default]
    Test,
}

/// How soon a person should see a notification.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Urgency {
    /// Some time today. Can wait for a digest.
    Low,
    /// Soon, outside quiet hours.
    #[default]
    Normal,
    /// Now. Breaks quiet hours by default.
    High,
    /// Now, repeated until it is acknowledged. Always breaks quiet hours.
    Emergency,
}

impl Kind {
    /// Whether the notification asks its recipient for a decision at a gate.
    pub fn is_approval(self) -> bool {
        matches!(self, Self::ApprovalRequested | Self::Reminder | Self::Escalation)
    }

    /// The words that a title starts with.
    pub fn label(self) -> &'static str {
        match self {
            Self::ApprovalRequested => "Approval needed",
            Self::Reminder => "Reminder: approval needed",
            Self::Escalation => "Escalation: approval needed",
            Self::Decided => "Decided",
            Self::Denied => "Denied",
            Self::RunFailed => "Run failed",
            Self::RunCancelled => "Run cancelled",
            Self::Uncertain => "Outcome unknown, decision needed",
            Self::ScheduleMissed => "Scheduled run missed",
            Self::ServerUnavailable => "Server unavailable",
            Self::LoginExpired => "Login needed",
            Self::AuditFailure => "Audit failed",
            Self::ProposalWaiting => "Proposed definition waits for acceptance",
            Self::Digest => "Digest",
            Self::Test => "Test of notifications",
        }
    }
}

impl Message {
    /// The message with every field within its limit. Call it before the message is stored.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let short = [&mut self.run, &mut self.starter, &mut self.step, &mut self.decider, &mut self.digest];
        for text in short.into_iter().chain([&mut self.failure]).flatten() {
            cut(text, limits::FIELD_CHARS);
        }
        for text in [&mut self.prompt, &mut self.detail, &mut self.comment].into_iter().flatten() {
            cut(text, limits::TEXT_CHARS);
        }
        cut(&mut self.id, limits::FIELD_CHARS);
        if let Some(definition) = &mut self.definition {
            cut(&mut definition.name, limits::FIELD_CHARS);
        }
        self.more_calls += self.calls.len().saturating_sub(limits::CALLS) as u64;
        self.calls.truncate(limits::CALLS);
        for call in &mut self.calls {
            cut(&mut call.tool, limits::FIELD_CHARS);
            cut(&mut call.args, limits::TEXT_CHARS);
        }
        self.labels.retain(|name, value| name.len() + value.len() <= limits::FIELD_CHARS);
        while self.labels.len() > limits::LABELS {
            self.labels.pop_last();
        }
        self.entries.truncate(limits::DIGEST_LINES);
        self.entries.iter_mut().for_each(|line| cut(line, limits::FIELD_CHARS));
        // A shortened link leads nowhere.
        self.link = self.link.filter(|link| link.chars().count() <= limits::LINK_CHARS);
        self
    }

    /// The link, if it is an HTTP URL without unusual characters.
    pub fn usable_link(&self) -> Option<&str> {
        let link = self.link.as_deref()?;
        let is_http = link.starts_with("https://") || link.starts_with("http://");
        (is_http && link.bytes().all(|byte| byte.is_ascii_graphic())).then_some(link)
    }
}

/// Shortens a text to a number of characters, with a note at its end.
pub(crate) fn cut(text: &mut String, chars: usize) {
    const NOTE: usize = 30;
    let count = text.chars().count();
    if count > chars {
        let kept = chars.saturating_sub(NOTE);
        let end = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
        text.truncate(end);
        text.push_str(&format!("⟨cut: {} characters⟩", count - kept));
    }
}
