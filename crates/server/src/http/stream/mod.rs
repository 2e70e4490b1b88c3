//! Live streams: events over SSE and over a WebSocket, each resumable by its cursor.

mod follower;
mod hub;
mod pace;
mod page;
mod shelf;
mod socket;
mod sse;

#[cfg(test)]
pub(super) use follower::Follower;
pub(crate) use hub::Hub;
pub(super) use socket::socket;
pub(super) use sse::{From, everything, run};

use std::time::Duration;

/// How often a stream that has nothing to say shows that it is there, and looks whether it still may be.
const ALIVE: Duration = Duration::from_secs(15);
