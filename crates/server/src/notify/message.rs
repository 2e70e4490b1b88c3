//! What a notification says: its own facts, and those of its run and its approval as the engine has them. Values that the
//! engine stores are redacted already.

use std::collections::BTreeMap;

use serde::Deserialize;
use steprail_core::run::{GuardedCall, Millis, Subject};
use steprail_engine::{Approval, Engine, Notification, NotificationKind, RunId};
use steprail_http::LinkSigner;
use steprail_notify::{Call, Definition, Kind, Message, Urgency, limits};

/// The body of a notification. Each kind has some of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    prompt: Option<String>,
    digest: Option<String>,
    until: Option<Millis>,
    error: Option<String>,
    by: Option<String>,
    reason: Option<String>,
    approved: bool,
    /// Whether the request was closed without a decision.
    closed: bool,
    labels: BTreeMap<String, String>,
    /// What the error is about, if no run is: a server, a schedule, a definition, or a part of the database.
    server: Option<String>,
    schedule: Option<String>,
    definition: Option<String>,
    what: Option<String>,
}

impl Body {
    /// What happened, in one line.
    fn detail(&self) -> Option<String> {
        let named = |name: &str, value: &Option<String>| Some(format!("{name} `{}`", value.as_ref()?));
        let about = named("server", &self.server)
            .or_else(|| named("schedule", &self.schedule))
            .or_else(|| self.what.clone())
            .or_else(|| named("definition", &self.definition));
        match (about, &self.error) {
            (Some(about), Some(error)) => Some(format!("{about}: {error}")),
            (about, error) => about.or_else(|| error.clone()),
        }
    }
}

fn body(notification: &Notification) -> Body {
    serde_json::from_str(notification.body.get()).unwrap_or_default()
}

/// The message of a notification. Without the engine it has only what the notification itself says.
pub(super) async fn of(engine: Option<&Engine>, notification: &Notification) -> Message {
    let (kind, urgency) = kind(notification.kind);
    let body = body(notification);
    let detail = body.detail();
    let mut message = Message {
        // The number alone is not unique among installations that share a receiver.
        id: format!("{}-{}", notification.id, notification.created_at),
        kind,
        urgency,
        run: notification.run.map(|run| run.to_string()),
        step: notification.path.clone(),
        prompt: body.prompt.filter(|prompt| !prompt.is_empty()),
        detail,
        decider: body.by,
        comment: body.reason.filter(|reason| !reason.is_empty()),
        deadline: body.until,
        digest: body.digest,
        labels: body.labels,
        ..Message::default()
    };
    if kind == Kind::Test {
        message.detail = Some("This message tests the channel. Nothing has to be done.".to_owned());
    }
    if let (Some(engine), Some(run)) = (engine, notification.run) {
        add_run(&mut message, engine, run).await;
        if let Some(path) = notification.path.as_deref().filter(|_| kind.is_approval()) {
            add_approval(&mut message, engine, run, path).await;
        }
    }
    message.bounded()
}

/// The link to the request of a notification for one recipient; `None` if the notification requests no decision, or the
/// request has ended.
pub(super) async fn link(
    engine: &Engine,
    links: &LinkSigner,
    notification: &Notification,
    recipient: &str,
    now: Millis,
) -> Option<String> {
    let (run, path) = (notification.run?, notification.path.as_deref()?);
    if !kind(notification.kind).0.is_approval() {
        return None;
    }
    let last = engine.last_approval(run, path).await.ok().flatten();
    let open = last.filter(|approval| approval.status == "open")?;
    Some(links.link(&open, recipient, now)).filter(|link| link.len() <= limits::LINK_CHARS)
}

/// The decision of an approval in words: `approved by ann`.
pub(super) fn decision(notification: &Notification) -> String {
    let Body { by, approved, closed, .. } = body(notification);
    match (by, approved) {
        (None, _) if closed => "no longer needed".to_owned(),
        (Some(by), true) => format!("approved by {by}"),
        (Some(by), false) => format!("denied by {by}"),
        (None, _) => "expired".to_owned(),
    }
}

/// The kind of a message, and how soon a person should see it.
fn kind(kind: NotificationKind) -> (Kind, Urgency) {
    use NotificationKind as Stored;
    match kind {
        Stored::ApprovalRequested => (Kind::ApprovalRequested, Urgency::Normal),
        Stored::Reminder => (Kind::Reminder, Urgency::Normal),
        Stored::ApprovalEscalated => (Kind::Escalation, Urgency::High),
        Stored::ApprovalDecided => (Kind::Decided, Urgency::Low),
        Stored::ApprovalDenied => (Kind::Denied, Urgency::Normal),
        Stored::StepUncertain => (Kind::Uncertain, Urgency::High),
        Stored::ServerUnavailable => (Kind::ServerUnavailable, Urgency::High),
        Stored::RunFailed => (Kind::RunFailed, Urgency::Normal),
        Stored::RunCancelled => (Kind::RunCancelled, Urgency::Low),
        Stored::ScheduleMissed => (Kind::ScheduleMissed, Urgency::Normal),
        Stored::LoginExpired => (Kind::LoginExpired, Urgency::High),
        Stored::ProposalWaiting => (Kind::ProposalWaiting, Urgency::Normal),
        Stored::AuditFailed => (Kind::AuditFailure, Urgency::Emergency),
        Stored::Test => (Kind::Test, Urgency::Normal),
    }
}

/// Adds the facts of the run. A message about a run that cannot be read, or was deleted, is sent without them.
async fn add_run(message: &mut Message, engine: &Engine, run: RunId) {
    let Ok(row) = engine.row(run).await else { return };
    message.failure = row.error.map(|error| error.kind.name().to_owned());
    message.definition = Some(Definition { name: row.name, version: row.version });
    message.starter = Some(row.created_by);
}

/// Adds the facts of the approval while it is open.
async fn add_approval(message: &mut Message, engine: &Engine, run: RunId, path: &str) {
    let open = engine.run_approvals(run).await.unwrap_or_default();
    let Some(approval) = open.into_iter().find(|open| open.run_id == run && open.path == path) else {
        return;
    };
    let subject: Option<Subject> =
        approval.subject.as_ref().and_then(|subject| serde_json::from_str(subject.get()).ok());
    message.calls = calls(&approval, subject.as_ref());
    // The number of the calls that are left out is not known.
    message.more_calls = u64::from(subject.is_some_and(|subject| subject.more_calls));
    message.by_agent = approval.by_agent;
    message.prompt = Some(approval.prompt).filter(|prompt| !prompt.is_empty());
    message.deadline = approval.expires_at;
    message.digest = Some(approval.digest.to_string());
}

/// The call that waits, or else those that follow the approval.
fn calls(approval: &Approval, subject: Option<&Subject>) -> Vec<Call> {
    match &approval.tool {
        Some(tool) => {
            let args = approval.args.as_ref().map(|args| args.get().to_owned()).unwrap_or_default();
            vec![Call { tool: tool.clone(), args }]
        }
        None => subject.map(|subject| subject.calls.iter().map(guarded).collect()).unwrap_or_default(),
    }
}

fn guarded(call: &GuardedCall) -> Call {
    let mut args = match &call.args {
        Some(args) => args.to_string(),
        None => "(too large to show)".to_owned(),
    };
    if !call.unknown.is_empty() {
        args.push_str(&format!(" (not yet known: {})", call.unknown.join(", ")));
    }
    Call { tool: call.tool.to_string(), args }
}
