//! Which events cause notifications, and what these say. The commit that contains the event contains the notification.

use serde_json::json;
use serde_json::value::to_raw_value;
use steprail_core::run::{Event, Record};
use steprail_store::{NewNotification, NotificationKind, OutboxChange, RunId};

use super::Kernel;

impl Kernel {
    /// Adds the notifications of an event to the batch.
    pub(super) fn notify(&mut self, key: RunId, record: &Record) {
        if !self.has_outbox {
            return;
        }
        let Some(head) = self.runs.get(&key).map(|entry| entry.head.clone()) else { return };
        // The end of a child run is the matter of the run that waits for it.
        if head.parent.is_some() && record.event.step().is_none() {
            return;
        }
        for new in notifications(key, &head.principal.id, &record.event) {
            self.batch.commit.outbox.push(OutboxChange::Add(Box::new(new)));
        }
    }
}

fn notifications(run: RunId, starter: &str, event: &Event) -> Vec<NewNotification> {
    use NotificationKind as Kind;
    let to_starter = || vec![format!("user:{starter}")];
    let named = |names: &[Box<str>]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let new = |kind, to, body: serde_json::Value| NewNotification {
        kind,
        run: Some(run),
        path: event.step().map(|step| step.path.to_string()),
        to,
        body: to_raw_value(&body).unwrap_or_default(),
    };
    match event {
        Event::ApprovalRequested { digest, prompt, until, notify, subject, .. } => {
            let approvers = subject.iter().flat_map(|subject| named(&subject.rules.approvers)).collect();
            let to = if notify.is_empty() { approvers } else { named(notify) };
            vec![new(
                Kind::ApprovalRequested,
                to,
                json!({ "prompt": prompt, "digest": digest, "until": until }),
            )]
        }
        Event::ApprovalEscalated { level, notify, .. } => {
            vec![new(Kind::ApprovalEscalated, named(notify), json!({ "level": level }))]
        }
        Event::ApprovalGranted { by, .. } => {
            vec![new(Kind::ApprovalDecided, Vec::new(), json!({ "by": by, "approved": true }))]
        }
        Event::ApprovalDenied { by, reason, .. } => {
            let body = json!({ "by": by, "approved": false, "reason": reason });
            vec![
                new(Kind::ApprovalDecided, Vec::new(), body.clone()),
                new(Kind::ApprovalDenied, to_starter(), body),
            ]
        }
        Event::StepUncertain { error, .. } => {
            vec![new(Kind::StepUncertain, to_starter(), json!({ "error": error.message }))]
        }
        Event::RunFailed { error } => {
            vec![new(Kind::RunFailed, to_starter(), json!({ "error": error.to_string() }))]
        }
        // Who cancels a run need not be told about it.
        Event::RunCancelled { by, reason, .. } if by.as_deref() != Some(starter) => {
            vec![new(Kind::RunCancelled, to_starter(), json!({ "by": by, "reason": reason }))]
        }
        _ => Vec::new(),
    }
}
