//! Delivery of notifications: what a message says, who gets it, through which channel, and when it is tried again.
//!
//! The crate has no clock, no queue and no database. The outbox of the engine stores messages and deliveries, and calls
//! [`Channel::send`] with the current time. All requests go through [`outbound::Outbound`], which connects only to addresses
//! that the operator permits.
//!
//! 1. Read [`NotifyConfig`], [`NotifyConfig::resolve`] its secrets, [`NotifyConfig::open`] the channels and compile the
//!    [`routing::Directory`].
//! 2. When an event causes a notification, create a [`Message`], bound it ([`Message::bounded`]), and store it with the
//!    deliveries of [`routing::Directory::route`] to its recipients and to [`routing::Directory::subscribers`].
//! 3. When a delivery is due, ask [`digest::Burst::admit`] whether it is sent on its own or in a digest, and send it.
//! 4. After a failure, [`backoff::next_attempt`] says when to try again.
//! 5. After a decision, [`Channel::withdraw`] the messages of the others.

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod backoff;
pub mod channel;
pub mod channels;
pub mod config;
pub mod digest;
pub mod limits;
mod local_time;
pub mod message;
pub mod outbound;
mod process;
mod render;
pub mod rotation;
pub mod routing;
mod secret;
pub mod subscription;
pub mod template;

pub use channel::{BoxFuture, Channel, Delivery, Receipt, Retry, SendError, Withdrawal, Withdrawn};
pub use config::{ChannelConfig, ConfigError, NotifyConfig};
pub use message::{Call, Definition, Kind, Message, Urgency};
pub use render::TextForm;
pub use secret::{Secret, SecretRef};
