//! The interface of a channel, which delivers messages to addresses.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;

use crate::limits;
use crate::message::{Message, cut};

/// The boxed future that an async method of a channel returns.
pub type BoxFuture<'f, T> = Pin<Box<dyn Future<Output = T> + Send + 'f>>;

/// Delivers messages. A channel has no queue and no retries: the outbox has both.
pub trait Channel: Send + Sync {
    /// Sends a message once. The outbox calls it again after a failure or a crash, so a message can be sent twice; the
    /// channel passes [`Message::id`] to services that recognise repeated messages.
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>>;

    /// Withdraws or updates a message after the approval was decided.
    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        let _ = withdrawal;
        Box::pin(std::future::ready(Ok(Withdrawn::Unsupported)))
    }
}

/// One message to one address.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'d> {
    /// The message.
    pub message: &'d Message,
    /// The address of the recipient in the channel: user key, topic, e-mail address. Empty if the channel has one receiver.
    pub address: &'d str,
    /// The number of earlier attempts.
    pub attempts: u32,
    /// The current time.
    pub now: Millis,
}

/// A message that is no longer current.
#[derive(Debug, Clone, Copy)]
pub struct Withdrawal<'d> {
    /// The message that was sent.
    pub message: &'d Message,
    /// The address that it was sent to.
    pub address: &'d str,
    /// The receipt of the delivery. Without an id if it was lost in a crash.
    pub receipt: &'d Receipt,
    /// What happened instead, for example `approved by ann`.
    pub outcome: &'d str,
    /// The current time.
    pub now: Millis,
}

/// The service accepted a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The id under which the service can withdraw the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl Receipt {
    /// A receipt with an id, if the id is short and has no unusual characters.
    pub fn new(id: &str) -> Self {
        let is_usable =
            !id.is_empty() && id.len() <= limits::RECEIPT_CHARS && id.bytes().all(|b| b.is_ascii_graphic());
        Self { id: is_usable.then(|| id.to_owned()) }
    }
}

/// Whether a message was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawn {
    /// The service removed or updated the message.
    Done,
    /// The channel cannot change messages that were sent.
    Unsupported,
}

/// Why a message was not sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendError {
    /// The reason, for humans. It contains no secrets.
    pub reason: String,
    /// Whether another attempt can succeed.
    pub retry: Retry,
}

/// Whether and when another attempt can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The message or the configuration is wrong. The message becomes a dead letter.
    Never,
    /// After the time that the service asked for, if it did.
    After(Option<Duration>),
}

impl SendError {
    /// An error that every attempt would have.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::Never }
    }

    /// An error after which another attempt can succeed.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { reason: bounded(reason.into()), retry: Retry::After(None) }
    }
}

fn bounded(mut reason: String) -> String {
    cut(&mut reason, limits::FIELD_CHARS);
    reason
}

impl fmt::Display for SendError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.reason)
    }
}

impl std::error::Error for SendError {}
