//! Which events cause notifications, and what these say. The commit that contains the event contains the notification.

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use steprail_core::plan::{EscalationLevel, GateRules};
use steprail_core::run::{DENIED, Event, OpenGate, Phase, Record};
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
        let new = notifications(key, &head.principal.id, &record.event, self.gate_of(key, record));
        for new in new {
            self.batch.commit.outbox.push(OutboxChange::Add(Box::new(new)));
        }
    }

    /// The open gate that an event is about.
    pub(super) fn gate_of(&self, key: RunId, record: &Record) -> Option<&OpenGate> {
        let step = record.event.step()?;
        let live = self.runs.get(&key)?.run.live().get(&step.n)?;
        if let Phase::Gate { open, .. } = &live.phase { Some(open) } else { None }
    }
}

/// Those who are asked first. Empty: everyone who may decide.
fn first_asked(notify: &[Box<str>], rules: Option<&GateRules>) -> Vec<String> {
    let approvers = || rules.map(|rules| rules.approvers.as_slice()).unwrap_or_default();
    named(if notify.is_empty() { approvers() } else { notify })
}

/// The recipients of levels, each with its channels.
fn levels(levels: &[EscalationLevel]) -> Vec<Value> {
    levels.iter().map(|level| json!({ "to": level.notify, "channels": level.channels })).collect()
}

fn named(names: &[Box<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn notifications(run: RunId, starter: &str, event: &Event, gate: Option<&OpenGate>) -> Vec<NewNotification> {
    use NotificationKind as Kind;
    let to_starter = || vec![format!("user:{starter}")];
    let new = |kind, to, body: Value| NewNotification {
        kind,
        run: Some(run),
        path: event.step().map(|step| step.path.to_string()),
        to,
        body: to_raw_value(&body).unwrap_or_default(),
    };
    match event {
        Event::ApprovalRequested { digest, prompt, until, level, notify, subject, .. } => {
            let rules = subject.as_ref().map(|subject| &subject.rules);
            let mut body = json!({ "prompt": prompt, "digest": digest, "until": until });
            // A request that replaces an escalated one is also for those who know of that one.
            if let Some(rules) = rules.filter(|_| *level > 0) {
                body["levels"] = levels(rules.reached(*level)).into();
            }
            vec![new(Kind::ApprovalRequested, first_asked(notify, rules), body)]
        }
        Event::ApprovalReminded { count, level, .. } => {
            let Some(OpenGate { notify, rules, .. }) = gate else { return Vec::new() };
            let body = json!({ "count": count, "levels": levels(rules.reached(*level)) });
            vec![new(Kind::Reminder, first_asked(notify, Some(rules)), body)]
        }
        Event::ApprovalEscalated { level, notify, .. } => {
            let reached = gate.and_then(|gate| gate.rules.reached(level.saturating_add(1)).last());
            let channels = reached.map(|level| level.channels.as_slice()).unwrap_or_default();
            let body = json!({ "level": level, "channels": channels });
            vec![new(Kind::ApprovalEscalated, named(notify), body)]
        }
        Event::ApprovalGranted { by, .. } => {
            vec![new(Kind::ApprovalDecided, Vec::new(), json!({ "by": by, "approved": true }))]
        }
        Event::ApprovalDenied { by, reason, .. } => {
            let body = match by {
                Some(_) => {
                    let comment = Some(reason).filter(|reason| &***reason != DENIED);
                    json!({ "by": by, "approved": false, "reason": comment })
                }
                None => json!({ "approved": false, "error": "nobody decided in time" }),
            };
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
