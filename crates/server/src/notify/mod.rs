//! The courier of the daemon: plans and sends the notifications of the outbox with the channels of `[notify]`.

mod bursts;
mod channels;
mod message;
mod open;
mod pending;
mod people;
mod recipients;
#[cfg(test)]
mod timing_tests;
mod tool;

use std::sync::{Arc, Mutex};

use steprail_core::run::Millis;
use steprail_engine::{
    AttemptOutcome, BoxFuture, Courier, Delivery, DueMessage, Engine, NewDelivery, Notification,
    NotificationQuery, WeakEngine,
};
use steprail_http::LinkSigner;
use steprail_notify::backoff::{self, FailedAttempt, Next};
use steprail_notify::digest::DigestBuilder;
use steprail_notify::{Channel, Message, Receipt, SendError, Withdrawal, limits};
use tokio::sync::watch;

use bursts::Bursts;
pub(crate) use channels::ChannelSet;
pub(crate) use open::open;
pub(crate) use people::KnownPeople;
use recipients::People;
pub(crate) use tool::refusals;

/// Milliseconds until the next attempt while the engine starts or stops.
const ENGINE_MS: Millis = 1_000;
/// The channel of a delivery to a recipient who cannot be reached. It fails, so that the operator sees it.
const NO_CHANNEL: &str = "";

/// Knows the channels and recipients of the configuration.
pub(crate) struct NotifyCourier {
    channels: ChannelSet,
    people: People,
    bursts: Mutex<Bursts>,
    /// Signs the links of approvals, if `http.url` is set.
    links: Option<LinkSigner>,
    /// The engine, from which messages get their facts. It is attached after it has started.
    engine: watch::Receiver<Option<WeakEngine>>,
}

impl Courier for NotifyCourier {
    fn plan<'a>(&'a self, notification: &'a Notification, now: Millis) -> BoxFuture<'a, Vec<NewDelivery>> {
        Box::pin(async move {
            let engine = self.engine().await;
            let message = message::of(engine.as_ref(), notification).await;
            let planned = self.people.deliveries(notification, &message, now);
            let planned = pending::without_repetitions(engine.as_ref(), notification, planned).await;
            let mut bursts = self.bursts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            planned.into_iter().map(|delivery| bursts.admit(delivery, &message, now)).collect()
        })
    }

    fn send<'a>(&'a self, due: &'a DueMessage, now: Millis) -> BoxFuture<'a, AttemptOutcome> {
        Box::pin(async move {
            let delivery = &due.delivery;
            if !self.channels.has(&delivery.channel) {
                return failed(self.no_channel(delivery));
            }
            let Some(engine) = self.engine().await else { return engine_stops(now) };
            let mut message = compose(&engine, due).await;
            if let ([notification], 1, Some(links)) = (&*due.notifications, due.count, &self.links) {
                message.link = message::link(&engine, links, notification, &delivery.recipient, now).await;
            }
            // A service that hangs must not keep the engine from stopping.
            drop(engine);
            match self.send_message(delivery, &message, now).await {
                Ok(receipt) => AttemptOutcome::Sent { receipt: stored(&receipt) },
                Err(error) => after_failure(delivery, &message, error, now),
            }
        })
    }

    fn withdraw<'a>(
        &'a self,
        delivery: &'a Delivery,
        notification: &'a Notification,
        now: Millis,
    ) -> BoxFuture<'a, AttemptOutcome> {
        Box::pin(async move {
            if !self.channels.has(&delivery.channel) {
                return failed(self.no_channel(delivery));
            }
            let Some(engine) = self.engine().await else { return engine_stops(now) };
            let message = message::of(Some(&engine), notification).await;
            let outcome = outcome(&engine, notification).await;
            drop(engine);
            let receipt = delivery.receipt.as_deref().and_then(|receipt| serde_json::from_str(receipt).ok());
            let withdrawal = Withdrawal {
                message: &message,
                address: &delivery.address,
                receipt: &receipt.unwrap_or_default(),
                outcome: &outcome,
                now,
            };
            let withdrawn = match self.channel(delivery).await {
                Ok(channel) => channel.withdraw(withdrawal).await,
                Err(error) => Err(error),
            };
            match withdrawn {
                Ok(_) => AttemptOutcome::Sent { receipt: None },
                Err(error) => after_failure(delivery, &message, error, now),
            }
        })
    }
}

impl NotifyCourier {
    /// The engine, once it has started; `None` if it has stopped.
    async fn engine(&self) -> Option<Engine> {
        let mut engine = self.engine.clone();
        let engine = engine.wait_for(Option::is_some).await.ok()?.clone();
        engine?.upgrade()
    }

    /// The channel of a delivery. One that cannot be opened can be corrected, so that another attempt follows.
    async fn channel(&self, delivery: &Delivery) -> Result<Arc<dyn Channel>, SendError> {
        let channel = self.channels.get(&delivery.channel).await;
        channel.map_err(|problem| SendError::transient(problem.to_string()))
    }

    async fn send_message(
        &self,
        delivery: &Delivery,
        message: &Message,
        now: Millis,
    ) -> Result<Receipt, SendError> {
        let channel = self.channel(delivery).await?;
        let (address, attempts) = (&*delivery.address, delivery.attempts);
        channel.send(steprail_notify::Delivery { message, address, attempts, now }).await
    }

    /// Why a delivery has no channel.
    fn no_channel(&self, delivery: &Delivery) -> String {
        if delivery.channel == NO_CHANNEL {
            return self.people.unreachable(&delivery.recipient);
        }
        format!("the channel `{}` is no longer configured", delivery.channel)
    }
}

fn failed(error: impl Into<String>) -> AttemptOutcome {
    AttemptOutcome::Failed { error: error.into() }
}

fn engine_stops(now: Millis) -> AttemptOutcome {
    let error = "the engine is stopping".to_owned();
    AttemptOutcome::Retry { due: now.saturating_add(ENGINE_MS), error }
}

/// What the store keeps of a receipt.
fn stored(receipt: &Receipt) -> Option<String> {
    receipt.id.as_ref()?;
    serde_json::to_string(receipt).ok()
}

/// The store does not have the time of the first attempt. The shortest time that the attempts took leads to a dead letter
/// rather late than early, and counts from a re-send.
fn after_failure(delivery: &Delivery, message: &Message, error: SendError, now: Millis) -> AttemptOutcome {
    let attempts = delivery.attempts.saturating_add(1);
    let next = backoff::next_attempt(FailedAttempt {
        id: &format!("{}/{}", message.id, delivery.id),
        attempts,
        first: now.saturating_sub(backoff::shortest_time(attempts)),
        now,
        retry: error.retry,
    });
    match next {
        Next::At(due) => AttemptOutcome::Retry { due, error: error.reason },
        Next::DeadLetter => failed(error.reason),
    }
}

/// The message of one notification, or the digest of several. Its id stays the same when it is tried again.
async fn compose(engine: &Engine, due: &DueMessage) -> Message {
    if let ([notification], 1) = (&*due.notifications, due.count) {
        return message::of(Some(engine), notification).await;
    }
    let mut parts = Vec::with_capacity(due.notifications.len());
    for (index, notification) in due.notifications.iter().enumerate() {
        // Only the notifications with a line of their own need the facts of their runs.
        let engine = Some(engine).filter(|_| index < limits::DIGEST_LINES);
        parts.push(message::of(engine, notification).await);
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.urgency));
    let mut digest = DigestBuilder::default();
    parts.iter().for_each(|part| digest.add(part));
    let at = due.delivery.digest_at.unwrap_or_default();
    let mut message = digest.finish(format!("digest-{}-{at}", due.delivery.id), None);
    message.count = due.count;
    message
}

/// What became of an approval.
async fn outcome(engine: &Engine, request: &Notification) -> String {
    let (Some(run), Some(path)) = (request.run, request.path.clone()) else { return "decided".to_owned() };
    let decisions = engine.notifications(NotificationQuery::Decisions(run, path), 1).await;
    let decided = decisions.unwrap_or_default().into_iter().next();
    decided.map_or_else(|| "decided".to_owned(), |(decided, _)| message::decision(&decided))
}
