//! Which events cause notifications, and what these say. The commit that contains the event contains the notification.

use std::collections::BTreeMap;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use steprail_core::plan::{EscalationLevel, GateRules};
use steprail_core::run::{DENIED, Event, OpenGate, Phase, Record};
use steprail_store::{NewNotification, NotificationKind, Origin, OutboxChange, RunId, Schedule};

use super::Kernel;
use crate::ports::Outage;

impl Kernel {
    /// Adds the notifications of an event to the batch.
    pub(super) fn notify(&mut self, key: RunId, record: &Record) {
        if !self.has_outbox {
            return;
        }
        let Some(entry) = self.runs.get(&key) else { return };
        let (head, compiled) = (entry.head.clone(), entry.compiled.clone());
        // The outbox records a notification that cannot be delivered; another one could not be delivered either.
        if head.principal.origin == Some(Origin::Notification) {
            return;
        }
        // The end of a child run is the matter of the run that waits for it.
        if head.parent.is_some() && record.event.step().is_none() {
            return;
        }
        let gate = self.gate_of(key, record);
        let mut news = notifications(key, &head.principal.id, &record.event, gate);
        if record.had_gate && gate.is_none() && news.is_empty() {
            news.extend(closed(key, &record.event));
        }
        for mut new in news {
            add_labels(&mut new, &compiled.plan.settings.labels);
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

/// Takes back the requests of a gate that was closed without a decision: its run ended, or it was skipped.
fn closed(run: RunId, event: &Event) -> Option<NewNotification> {
    Some(NewNotification {
        kind: NotificationKind::ApprovalDecided,
        run: Some(run),
        path: Some(event.step()?.path.to_string()),
        to: Vec::new(),
        body: to_raw_value(&json!({ "closed": true })).ok()?,
    })
}

/// Adds the labels of the definition, which subscriptions can select.
fn add_labels(new: &mut NewNotification, labels: &BTreeMap<String, String>) {
    if labels.is_empty() {
        return;
    }
    let mut body: Value = serde_json::from_str(new.body.get()).unwrap_or_default();
    if let Value::Object(fields) = &mut body {
        fields.insert("labels".to_owned(), json!(labels));
        new.body = to_raw_value(&body).unwrap_or_default();
    }
}

/// The recipients of events that concern the operation of the daemon.
const OPERATORS: &str = "right:administer";

impl Kernel {
    /// Adds a notification that no run causes to the batch.
    pub(super) fn notify_of(&mut self, kind: NotificationKind, to: Vec<String>, body: &Value) {
        if self.has_outbox {
            self.batch.commit.outbox.push(without_run(kind, to, body));
        }
    }

    /// Tells the owner of a schedule that its run was not started. Further times that fail for a reason are not told, until a
    /// run was started.
    pub(super) fn notify_missed(&mut self, schedule: &Schedule, reason: &str) {
        let body = json!({ "schedule": schedule.name, "definition": schedule.definition, "error": reason });
        let owner = vec![format!("user:{}", schedule.principal.id)];
        self.notify_of(NotificationKind::ScheduleMissed, owner, &body);
    }

    /// Tells the operators, or the user whose login is needed, that a server cannot be reached.
    pub(super) fn notify_outage(&mut self, outage: &Outage) {
        let Outage { server, reason, needs_login, user } = outage;
        let to = match user {
            Some(user) if *needs_login => format!("user:{user}"),
            _ => OPERATORS.to_owned(),
        };
        let kind = match needs_login {
            true => NotificationKind::LoginExpired,
            false => NotificationKind::ServerUnavailable,
        };
        self.notify_of(kind, vec![to], &json!({ "server": server, "error": reason }));
    }

    /// The notification of a proposal for those who may accept it.
    pub(super) fn proposal_notification(&self, name: &str, by: &str) -> Option<OutboxChange> {
        let to = vec![format!("user:{by}"), OPERATORS.to_owned()];
        let body = json!({ "definition": name, "by": by });
        self.has_outbox.then(|| without_run(NotificationKind::ProposalWaiting, to, &body))
    }
}

/// The notification of a failed check of stored rows.
pub(crate) fn audit_failure(what: &str, error: &str) -> OutboxChange {
    let body = json!({ "what": what, "error": error });
    without_run(NotificationKind::AuditFailed, vec![OPERATORS.to_owned()], &body)
}

fn without_run(kind: NotificationKind, to: Vec<String>, body: &Value) -> OutboxChange {
    let body = to_raw_value(body).unwrap_or_default();
    OutboxChange::Add(Box::new(NewNotification { kind, run: None, path: None, to, body }))
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
