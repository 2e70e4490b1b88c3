//! Delivery of notifications: what a message says, who gets it, through which channel, and when it is tried again.
//!
//! The crate has no clock, no queue and no database. The outbox of the engine stores messages and deliveries, and calls
//! [`Channel::send`] with the current time. All requests go through [`outbound::Outbound`], which connects only to addresses
//! that the operator permits.

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
pub mod template;

pub use channel::{BoxFuture, Channel, Delivery, Receipt, Retry, SendError, Withdrawal, Withdrawn};
pub use config::{ChannelConfig, ConfigError, NotifyConfig};
pub use message::{Call, Definition, Kind, Message, Urgency};
pub use render::TextForm;
pub use secret::{Secret, SecretRef};
