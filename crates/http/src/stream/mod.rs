//! Event streams over SSE and WebSocket, resumable by cursor.

mod bandwidth;
mod batch;
mod follower;
mod hub;
mod page_cache;
mod socket;
mod sse;

#[cfg(test)]
pub(super) use follower::Follower;
pub(crate) use hub::Hub;
pub(super) use socket::socket;
pub(super) use sse::{StreamQuery, all, run};

use std::time::Duration;

/// Interval of heartbeats, and of re-checking the credential of a stream.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
