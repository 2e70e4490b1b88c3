//! Delivers notifications: plans them, sends what is due and records the results. Runs never wait for it.
//!
//! A notification is in the store before anything is sent, and a result is recorded after it was sent. A restart between
//! the two sends it again with the same id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use serde_json::json;
use serde_json::value::to_raw_value;
use steprail_core::run::Millis;
use steprail_store::{
    AttemptOutcome, Delivery, DeliveryStatus, DueMessage, NewDelivery, NewNotification, Notification,
    NotificationKind, NotificationQuery, OutboxChange, OutboxWork, RunId, StoreError,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::engine::{Engine, Shared};
use crate::error::Error;
use crate::kernel::Command;
use crate::limits::{OUTBOX_BATCH, OUTBOX_IDLE, OUTBOX_LISTED, OUTBOX_SEND_TIME, OUTBOX_SENDS};
use crate::ports::BoxFuture;

/// Knows the recipients and the channels of notifications.
pub trait Courier: Send + Sync {
    /// Plans who gets a notification, over which channels and when.
    fn plan<'a>(&'a self, notification: &'a Notification, now: Millis) -> BoxFuture<'a, Vec<NewDelivery>>;

    /// Sends a notification, or a digest, to one recipient over one channel as one message.
    fn send<'a>(&'a self, message: &'a DueMessage, now: Millis) -> BoxFuture<'a, AttemptOutcome>;

    /// Takes a message back that was sent, because nobody needs to act on it any more.
    fn withdraw<'a>(
        &'a self,
        delivery: &'a Delivery,
        notification: &'a Notification,
        now: Millis,
    ) -> BoxFuture<'a, AttemptOutcome>;
}

impl Engine {
    /// Plans and sends what is due, once. Returns when the next delivery is due.
    pub async fn deliver_notifications(&self) -> Result<Option<Millis>, Error> {
        loop {
            let (next, sending) = self.start_deliveries().await?;
            let is_later = next.is_none_or(|next| next > self.now());
            if is_later && sending.is_empty() && self.busy_channels().is_empty() {
                return Ok(next);
            }
            futures::future::join_all(sending).await;
            // Another task may be sending.
            tokio::task::yield_now().await;
        }
    }

    /// Plans some notifications, and starts to send what is due, each channel in a task of its own. Returns when there is more
    /// to do: the next delivery is due, or other notifications are to be planned. Those that keep arriving do not delay the
    /// deliveries of earlier ones.
    async fn start_deliveries(&self) -> Result<(Option<Millis>, Vec<JoinHandle<()>>), Error> {
        let Some(courier) = self.0.courier.clone() else { return Ok((None, Vec::new())) };
        let _delivering = self.0.delivering.lock().await;
        let now = self.now();
        let mut work = self.outbox_work(now).await?;
        if !work.unplanned.is_empty() {
            self.command(Command::Outbox(plan(&*courier, &work.unplanned, now).await)).await?;
            work = self.outbox_work(now).await?;
        }
        let next = if work.unplanned.is_empty() { work.next } else { Some(now) };
        let by_channel = by_channel(work.due).into_iter();
        let sending = by_channel.map(|(channel, due)| self.send_over(&courier, channel, due, now));
        Ok((next, sending.collect()))
    }

    async fn outbox_work(&self, now: Millis) -> Result<OutboxWork, Error> {
        let busy: Vec<String> = self.busy_channels().iter().cloned().collect();
        self.read(move |readers| readers.outbox_work(now, OUTBOX_BATCH, &busy)).await
    }

    /// Sends over one channel and records the results.
    fn send_over(
        &self,
        courier: &Arc<dyn Courier>,
        channel: String,
        due: Vec<DueMessage>,
        now: Millis,
    ) -> JoinHandle<()> {
        let (engine, courier) = (self.clone(), courier.clone());
        let busy = BusyChannel::new(self, channel);
        tokio::spawn(async move {
            let results = stream::iter(due).map(|message| attempt(&*courier, message, now));
            let mut results = results.buffer_unordered(OUTBOX_SENDS).ready_chunks(OUTBOX_SENDS);
            while let Some(results) = results.next().await {
                if let Err(error) = engine.command(Command::Outbox(results)).await {
                    tracing::warn!("results of deliveries were not stored, and they are sent again: {error}");
                    drop(engine);
                    // Messages are not sent all the time while results cannot be stored.
                    tokio::time::sleep(OUTBOX_IDLE).await;
                    break;
                }
            }
            // Not before: a delivery without a result is still due.
            drop(busy);
        })
    }

    fn busy_channels(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.busy_channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifications of a run with their deliveries, oldest first, at most `limit`.
    pub async fn notifications(
        &self,
        query: NotificationQuery,
        limit: usize,
    ) -> Result<Vec<(Notification, Vec<Delivery>)>, Error> {
        self.read(move |readers| readers.notifications(query, limit)).await
    }

    /// Queues a dead letter again.
    pub async fn resend_notification(&self, delivery: i64) -> Result<(), Error> {
        let found = self.notifications(NotificationQuery::OfDelivery(delivery), 1).await?;
        let is_dead = |of: &Delivery| of.id == delivery && of.status == DeliveryStatus::Failed;
        if !found.iter().any(|(_, deliveries)| deliveries.iter().any(is_dead)) {
            return Err(Error::NotFound(format!("there is no failed delivery {delivery}")));
        }
        self.command(Command::Outbox(vec![OutboxChange::Resend { delivery }])).await
    }

    /// Sends a test message to a recipient, and waits until each channel was tried once. Returns the notification with its
    /// deliveries.
    pub async fn test_notification(&self, to: &str) -> Result<(Notification, Vec<Delivery>), Error> {
        if self.0.courier.is_none() {
            return Err(Error::Conflict(
                "no channel is configured; add one to [notify] in steprail.toml".to_owned(),
            ));
        }
        let test = uuid::Uuid::now_v7().to_string();
        let new = NewNotification {
            kind: NotificationKind::Test,
            run: None,
            path: None,
            to: vec![to.to_owned()],
            body: to_raw_value(&json!({ "test": test })).unwrap_or_default(),
        };
        self.command(Command::Outbox(vec![OutboxChange::Add(Box::new(new))])).await?;
        if let Ok(delivered) = tokio::time::timeout(OUTBOX_SEND_TIME, self.deliver_notifications()).await {
            delivered?;
        }
        let newest = self.notifications(NotificationQuery::Newest, OUTBOX_LISTED).await?;
        let found = newest.into_iter().find(|(notification, _)| notification.body.get().contains(&test));
        found.ok_or_else(|| Error::NotFound("the test message is no longer listed".to_owned()))
    }
}

/// A channel that is sending. It is released in any case: a panic of a courier must not end its deliveries.
struct BusyChannel {
    shared: Weak<Shared>,
    channel: String,
}

impl BusyChannel {
    fn new(engine: &Engine, channel: String) -> Self {
        engine.busy_channels().insert(channel.clone());
        Self { shared: Arc::downgrade(&engine.0), channel }
    }
}

impl Drop for BusyChannel {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            Engine(shared).busy_channels().remove(&self.channel);
        }
    }
}

/// The deliveries of notifications. A decision takes back the requests before it.
async fn plan(courier: &dyn Courier, unplanned: &[Notification], now: Millis) -> Vec<OutboxChange> {
    let mut changes = Vec::with_capacity(unplanned.len());
    for notification in unplanned {
        if notification.kind == NotificationKind::ApprovalDecided {
            changes.push(OutboxChange::Withdraw { decided: notification.id });
        }
        let deliveries = courier.plan(notification, now).await;
        changes.push(OutboxChange::Plan { notification: notification.id, deliveries });
    }
    changes
}

fn by_channel(due: Vec<DueMessage>) -> BTreeMap<String, Vec<DueMessage>> {
    let mut channels = BTreeMap::<String, Vec<_>>::new();
    for message in due {
        channels.entry(message.delivery.channel.clone()).or_default().push(message);
    }
    channels
}

/// Sends a message or takes it back. A channel that does not answer in time has failed for now.
async fn attempt(courier: &dyn Courier, message: DueMessage, now: Millis) -> OutboxChange {
    let DueMessage { delivery, notifications, .. } = &message;
    let sending = match (delivery.status, notifications.first()) {
        (DeliveryStatus::Withdrawing, Some(notification)) => courier.withdraw(delivery, notification, now),
        _ => courier.send(&message, now),
    };
    let outcome = tokio::time::timeout(OUTBOX_SEND_TIME, sending).await;
    let outcome = outcome.unwrap_or_else(|_| AttemptOutcome::Retry {
        due: now.saturating_add_unsigned(OUTBOX_SEND_TIME.as_secs() * 1_000),
        error: format!("the channel did not answer within {} s", OUTBOX_SEND_TIME.as_secs()),
    });
    OutboxChange::Attempt { delivery: delivery.id, last: message.last, outcome }
}

/// Delivers until the engine stops.
pub(crate) async fn deliver_forever(shared: Weak<Shared>, mut changed: watch::Receiver<()>) {
    let mut wait = Duration::ZERO;
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            Some(_) = sending.next() => {}
            change = changed.changed() => if change.is_err() { return },
        }
        let Some(shared) = shared.upgrade() else { return };
        let engine = Engine(shared);
        wait = match engine.start_deliveries().await {
            Ok((next, started)) => {
                sending.extend(started);
                next.map_or(OUTBOX_IDLE, |due| {
                    let millis = u64::try_from(due.saturating_sub(engine.now())).unwrap_or_default();
                    Duration::from_millis(millis).min(OUTBOX_IDLE)
                })
            }
            Err(Error::Stopped) => return,
            Err(error) => {
                tracing::warn!("notifications are not delivered for now: {error}");
                OUTBOX_IDLE
            }
        };
    }
}

/// Writes a notification for each run that does not continue because its stored state is damaged. After a restart the damage
/// is found and told again.
async fn report_damage(shared: Weak<Shared>, mut damaged: watch::Receiver<BTreeMap<RunId, StoreError>>) {
    let mut told = BTreeSet::new();
    loop {
        let found = damaged.borrow_and_update().clone();
        let new: Vec<_> = found.iter().filter(|(run, _)| !told.contains(*run)).collect();
        let failure = |(run, error): &(&RunId, &StoreError)| {
            crate::kernel::audit_failure(&format!("run {run}"), &error.to_string())
        };
        let changes: Vec<OutboxChange> = new.iter().map(failure).collect();
        told.extend(new.into_iter().map(|(run, _)| *run));
        if !changes.is_empty() {
            let Some(shared) = shared.upgrade() else { return };
            if let Err(error) = Engine(shared).command(Command::Outbox(changes)).await {
                tracing::warn!("the notification of damaged runs was not stored: {error}");
            }
        }
        if damaged.changed().await.is_err() {
            return;
        }
    }
}

/// Starts the delivery of an engine with a courier.
pub(crate) fn spawn(shared: &Arc<Shared>, changed: watch::Receiver<()>) {
    if shared.courier.is_some() {
        tokio::spawn(deliver_forever(Arc::downgrade(shared), changed));
        tokio::spawn(report_damage(Arc::downgrade(shared), shared.damaged.clone()));
    }
}
