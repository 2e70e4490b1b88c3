//! Notifications and deliveries in memory.

use std::collections::BTreeMap;

use steprail_core::run::Millis;

use crate::outbox::DIGEST_PARTS;
use crate::{
    AttemptOutcome, Delivery, DeliveryStatus, DueMessage, Notification, NotificationKind, NotificationQuery,
    OutboxChange, OutboxWork, RunId,
};

/// The rows of the outbox, by their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct OutboxTables {
    /// Each with whether its deliveries are planned.
    notifications: BTreeMap<i64, (Notification, bool)>,
    deliveries: BTreeMap<i64, Delivery>,
    last: i64,
    last_delivery: i64,
}

impl OutboxTables {
    pub(super) fn apply(&mut self, change: &OutboxChange, now: Millis) {
        match change {
            OutboxChange::Add(new) => {
                self.last += 1;
                let notification = Notification {
                    id: self.last,
                    kind: new.kind,
                    run: new.run,
                    path: new.path.clone(),
                    to: new.to.clone(),
                    body: new.body.clone(),
                    created_at: now,
                };
                self.notifications.insert(self.last, (notification, false));
            }
            OutboxChange::Plan { notification, deliveries } => {
                let planned = self.notifications.get_mut(notification).map(|(_, planned)| planned);
                if let Some(planned) = planned.filter(|planned| !**planned) {
                    *planned = true;
                    deliveries.iter().for_each(|new| self.queue(*notification, new));
                }
            }
            OutboxChange::Withdraw { decided } => self.withdraw(*decided, now),
            OutboxChange::Attempt { delivery, last, outcome } => {
                self.attempt((*delivery, *last), outcome, now);
            }
            OutboxChange::Read { delivery } => {
                let found = self.deliveries.get_mut(delivery);
                if let Some(found) = found.filter(|found| found.status == DeliveryStatus::Sent) {
                    (found.status, found.ended_at) = (DeliveryStatus::Read, Some(now));
                }
            }
            OutboxChange::Resend { delivery } => {
                let found = self.deliveries.get_mut(delivery);
                if let Some(found) = found.filter(|found| found.status == DeliveryStatus::Failed) {
                    (found.status, found.attempts) = (DeliveryStatus::Queued, 0);
                    (found.due, found.digest_at, found.ended_at) = (Some(now), None, None);
                }
            }
        }
    }

    fn queue(&mut self, notification: i64, new: &crate::NewDelivery) {
        self.last_delivery += 1;
        let delivery = Delivery {
            id: self.last_delivery,
            notification,
            recipient: new.recipient.clone(),
            channel: new.channel.clone(),
            address: new.address.clone(),
            status: DeliveryStatus::Queued,
            attempts: 0,
            due: Some(new.due),
            digest_at: new.in_digest.then_some(new.due),
            error: None,
            receipt: None,
            ended_at: None,
        };
        self.deliveries.insert(self.last_delivery, delivery);
    }

    fn withdraw(&mut self, decided: i64, now: Millis) {
        let Some((decision, _)) = self.notifications.get(&decided) else { return };
        let is_request = |request: &Notification| {
            let kinds = [
                NotificationKind::ApprovalRequested,
                NotificationKind::Reminder,
                NotificationKind::ApprovalEscalated,
            ];
            request.run.is_some()
                && (request.run, &request.path) == (decision.run, &decision.path)
                && request.id < decided
                && kinds.contains(&request.kind)
        };
        for delivery in self.deliveries.values_mut() {
            if !self.notifications.get(&delivery.notification).is_some_and(|(of, _)| is_request(of)) {
                continue;
            }
            (delivery.status, delivery.due, delivery.ended_at) = match (delivery.status, delivery.digest_at) {
                (DeliveryStatus::Sent, None) => (DeliveryStatus::Withdrawing, Some(now), None),
                (DeliveryStatus::Sent | DeliveryStatus::Queued, _) => {
                    (DeliveryStatus::Withdrawn, None, Some(now))
                }
                _ => continue,
            };
        }
    }

    /// Records an attempt of a delivery, or of all deliveries of its digest.
    fn attempt(&mut self, (id, last): (i64, i64), outcome: &AttemptOutcome, now: Millis) {
        let Some(of) = self.deliveries.get(&id).cloned() else { return };
        let is_part = |delivery: &&mut Delivery| match of.digest_at {
            None => delivery.id == id,
            Some(_) => {
                let is_due = delivery.due.is_some_and(|due| due <= now);
                is_due && delivery.id <= last && digest(delivery) == digest(&of)
            }
        };
        let mut recorded = 0;
        for delivery in self.deliveries.values_mut().filter(is_part) {
            let Some((status, due)) = outcome.next(delivery.status, now) else { continue };
            (delivery.status, delivery.due) = (status, due);
            delivery.attempts += 1;
            delivery.ended_at = due.is_none().then_some(now);
            delivery.error = outcome.error().map(str::to_owned);
            delivery.receipt = outcome.receipt().map(str::to_owned).or(delivery.receipt.take());
            recorded += 1;
        }
        if let Some(alone) = self.deliveries.get_mut(&id).filter(|_| recorded == 1) {
            alone.digest_at = None;
        }
    }

    pub(super) fn work(&self, now: Millis, limit: usize, busy: &[String]) -> OutboxWork {
        let unplanned = self.notifications.values().filter(|(_, planned)| !planned);
        let mut queued: Vec<(Millis, &Delivery)> =
            self.deliveries.values().filter_map(|delivery| Some((delivery.due?, delivery))).collect();
        queued.sort_by_key(|(due, delivery)| (*due, delivery.id));
        let mut due: Vec<DueMessage> = Vec::new();
        for (at, delivery) in &queued {
            let Some((notification, _)) = self.notifications.get(&delivery.notification) else { continue };
            if *at > now || busy.contains(&delivery.channel) {
                continue;
            }
            let is_same = |of: &&mut DueMessage| {
                delivery.digest_at.is_some() && digest(&of.delivery) == digest(delivery)
            };
            match due.iter_mut().find(is_same) {
                Some(digest) => {
                    (digest.count, digest.last) = (digest.count + 1, digest.last.max(delivery.id));
                    if digest.notifications.len() < DIGEST_PARTS {
                        digest.notifications.push(notification.clone());
                    }
                }
                None => due.push(DueMessage {
                    delivery: (*delivery).clone(),
                    notifications: vec![notification.clone()],
                    count: 1,
                    last: delivery.id,
                }),
            }
        }
        due.truncate(limit);
        OutboxWork {
            unplanned: unplanned.map(|(notification, _)| notification.clone()).take(limit).collect(),
            due,
            next: queued.iter().map(|(due, _)| *due).find(|due| *due > now),
        }
    }

    pub(super) fn notifications(
        &self,
        query: NotificationQuery,
        limit: usize,
    ) -> Vec<(Notification, Vec<Delivery>)> {
        let of = |notification: &Notification| -> Vec<Delivery> {
            let of = self.deliveries.values().filter(|delivery| delivery.notification == notification.id);
            of.cloned().collect()
        };
        let all =
            self.notifications.values().map(|(notification, _)| (notification.clone(), of(notification)));
        match query {
            NotificationQuery::OfRun(run) => {
                all.filter(|(notification, _)| notification.run == Some(run)).take(limit).collect()
            }
            NotificationQuery::Decisions(run, path) => {
                let is_decision = |of: &Notification| {
                    of.kind == NotificationKind::ApprovalDecided
                        && (of.run, of.path.as_ref()) == (Some(run), Some(&path))
                };
                all.rev().filter(|(notification, _)| is_decision(notification)).take(limit).collect()
            }
            NotificationQuery::OfDelivery(id) => {
                all.filter(|(_, deliveries)| deliveries.iter().any(|of| of.id == id)).take(limit).collect()
            }
            NotificationQuery::DeadLetters => {
                let is_dead = |deliveries: &[Delivery]| {
                    deliveries.iter().any(|delivery| delivery.status == DeliveryStatus::Failed)
                };
                all.rev().filter(|(_, deliveries)| is_dead(deliveries)).take(limit).collect()
            }
            NotificationQuery::Newest => all.rev().take(limit).collect(),
        }
    }

    /// Deletes the notifications of a run.
    pub(super) fn forget_run(&mut self, run: RunId) {
        self.retain(|notification| notification.run != Some(run));
    }

    /// Deletes notifications that no run caused and that are older than `before`. Returns their number.
    pub(super) fn purge(&mut self, before: Millis, limit: usize) -> usize {
        let is_old =
            |notification: &Notification| notification.run.is_none() && notification.created_at < before;
        let old: Vec<i64> = self
            .notifications
            .values()
            .filter(|(notification, _)| is_old(notification))
            .map(|(of, _)| of.id)
            .take(limit)
            .collect();
        self.retain(|notification| !old.contains(&notification.id));
        old.len()
    }

    fn retain(&mut self, keep: impl Fn(&Notification) -> bool) {
        self.notifications.retain(|_, (notification, _)| keep(notification));
        let kept = &self.notifications;
        self.deliveries.retain(|_, delivery| kept.contains_key(&delivery.notification));
    }
}

/// What identifies the digest of a delivery.
fn digest(delivery: &Delivery) -> (&str, &str, &str, Option<Millis>) {
    (&delivery.recipient, &delivery.channel, &delivery.address, delivery.digest_at)
}
