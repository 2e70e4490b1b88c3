//! Notifications and deliveries in memory.

use std::collections::BTreeMap;

use steprail_core::run::Millis;

use crate::{
    AttemptOutcome, Delivery, DeliveryStatus, Notification, NotificationQuery, OutboxChange, OutboxWork,
    RunId,
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
            OutboxChange::Attempt { delivery, outcome } => {
                let found = self.deliveries.get_mut(delivery);
                if let Some(found) = found.filter(|found| found.status == DeliveryStatus::Queued) {
                    attempt(found, outcome, now);
                }
            }
            OutboxChange::Close { delivery, status } => {
                let is_open =
                    |of: &&mut Delivery| matches!(of.status, DeliveryStatus::Queued | DeliveryStatus::Sent);
                if let Some(found) = self.deliveries.get_mut(delivery).filter(is_open) {
                    (found.status, found.due, found.ended_at) = (*status, None, Some(now));
                }
            }
            OutboxChange::Resend { delivery } => {
                let found = self.deliveries.get_mut(delivery);
                if let Some(found) = found.filter(|found| found.status == DeliveryStatus::Failed) {
                    (found.status, found.attempts) = (DeliveryStatus::Queued, 0);
                    (found.due, found.ended_at) = (Some(now), None);
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
            in_digest: new.in_digest,
            error: None,
            receipt: None,
            ended_at: None,
        };
        self.deliveries.insert(self.last_delivery, delivery);
    }

    pub(super) fn work(&self, now: Millis, limit: usize, busy: &[String]) -> OutboxWork {
        let unplanned = self.notifications.values().filter(|(_, planned)| !planned);
        let mut queued: Vec<(Millis, &Delivery)> =
            self.deliveries.values().filter_map(|delivery| Some((delivery.due?, delivery))).collect();
        queued.sort_by_key(|(due, delivery)| (*due, delivery.id));
        let is_free = |delivery: &Delivery| !busy.contains(&delivery.channel);
        let due = queued.iter().filter(|(due, delivery)| *due <= now && is_free(delivery)).take(limit);
        let with_notification = |delivery: &Delivery| {
            Some((delivery.clone(), self.notifications.get(&delivery.notification)?.0.clone()))
        };
        OutboxWork {
            unplanned: unplanned.map(|(notification, _)| notification.clone()).take(limit).collect(),
            due: due.filter_map(|(_, delivery)| with_notification(delivery)).collect(),
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

fn attempt(delivery: &mut Delivery, outcome: &AttemptOutcome, now: Millis) {
    delivery.attempts += 1;
    (delivery.due, delivery.ended_at) = (None, Some(now));
    match outcome {
        AttemptOutcome::Sent { receipt } => {
            (delivery.status, delivery.error) = (DeliveryStatus::Sent, None);
            delivery.receipt = receipt.clone().or(delivery.receipt.take());
        }
        AttemptOutcome::Retry { due, error } => {
            (delivery.due, delivery.ended_at) = (Some(*due), None);
            delivery.error = Some(error.clone());
        }
        AttemptOutcome::Failed { error } => {
            (delivery.status, delivery.error) = (DeliveryStatus::Failed, Some(error.clone()));
        }
    }
}
