//! The courier of the daemon: plans and sends the notifications of the outbox with the channels of `[notify]`.

mod bursts;
mod channels;
mod message;
mod open;
mod pending;
mod recipients;
#[cfg(test)]
mod timing_tests;

use std::sync::Mutex;

use steprail_core::run::Millis;
use steprail_engine::{
    AttemptOutcome, BoxFuture, Courier, Delivery, Engine, NewDelivery, Notification, NotificationKind,
    NotificationQuery, WeakEngine,
};
use steprail_http::LinkSigner;
use steprail_notify::backoff::{self, FailedAttempt, Next};
use steprail_notify::digest::DigestBuilder;
use steprail_notify::{Message, Receipt, SendError, Withdrawal, limits};
use tokio::sync::watch;

use bursts::Bursts;
pub(crate) use channels::ChannelSet;
pub(crate) use open::open;
use recipients::People;

/// Notifications of a run that are searched for the decision of an approval.
const SEARCHED: usize = 1_000;
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

    fn send<'a>(
        &'a self,
        messages: &'a [(Delivery, Notification)],
        now: Millis,
    ) -> BoxFuture<'a, AttemptOutcome> {
        Box::pin(async move {
            let Some((delivery, _)) = messages.first() else { return failed("there is no message") };
            if !self.channels.has(&delivery.channel) {
                return failed(self.no_channel(delivery));
            }
            let Some(engine) = self.engine().await else {
                let error = "the engine is stopping".to_owned();
                return AttemptOutcome::Retry { due: now.saturating_add(ENGINE_MS), error };
            };
            let mut message = compose(&engine, messages).await;
            if let ([(delivery, notification)], Some(links)) = (messages, &self.links) {
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

    fn withdraw<'a>(&'a self, delivery: &'a Delivery, notification: &'a Notification) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Ok(channel) = self.channels.get(&delivery.channel).await else { return };
            let Some(engine) = self.engine().await else { return };
            let message = message::of(Some(&engine), notification).await;
            let outcome = outcome(&engine, notification).await;
            let now = engine.now();
            drop(engine);
            let receipt = delivery.receipt.as_deref().and_then(|receipt| serde_json::from_str(receipt).ok());
            let withdrawal = Withdrawal {
                message: &message,
                address: &delivery.address,
                receipt: &receipt.unwrap_or_default(),
                outcome: &outcome,
                now,
            };
            if let Err(error) = channel.withdraw(withdrawal).await {
                tracing::warn!(channel = delivery.channel, %error, "cannot withdraw a notification");
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

    /// Sends a message. A channel that cannot be opened can be corrected, so that another attempt follows.
    async fn send_message(
        &self,
        delivery: &Delivery,
        message: &Message,
        now: Millis,
    ) -> Result<Receipt, SendError> {
        let channel = self.channels.get(&delivery.channel).await;
        let channel = channel.map_err(|problem| SendError::transient(problem.to_string()))?;
        channel.send(steprail_notify::Delivery { message, address: &delivery.address, now }).await
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

/// The message of one notification, or the digest of several.
async fn compose(engine: &Engine, messages: &[(Delivery, Notification)]) -> Message {
    if let [(_, notification)] = messages {
        return message::of(Some(engine), notification).await;
    }
    let mut parts = Vec::with_capacity(messages.len());
    for (index, (_, notification)) in messages.iter().enumerate() {
        // Only the notifications with a line of their own need the facts of their runs.
        let engine = Some(engine).filter(|_| index < limits::DIGEST_LINES);
        parts.push(message::of(engine, notification).await);
    }
    parts.sort_by_key(|part| std::cmp::Reverse(part.urgency));
    let mut digest = DigestBuilder::default();
    parts.iter().for_each(|part| digest.add(part));
    let first = messages.first().map(|(delivery, notification)| (delivery.id, notification.created_at));
    let (first, created_at) = first.unwrap_or_default();
    digest.finish(format!("digest-{first}-{}-{created_at}", messages.len()), None)
}

/// What became of an approval, as far as the latest notifications of its run say.
async fn outcome(engine: &Engine, request: &Notification) -> String {
    let Some(run) = request.run else { return "decided".to_owned() };
    let of_run = engine.notifications(NotificationQuery::OfRun(run), SEARCHED).await.unwrap_or_default();
    let decided = of_run.iter().rev().map(|(notification, _)| notification).find(|notification| {
        notification.kind == NotificationKind::ApprovalDecided && notification.path == request.path
    });
    decided.map_or_else(|| "decided".to_owned(), message::decision)
}
