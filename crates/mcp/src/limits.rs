//! Every bound of the gateway, named in one place.

/// Bytes of one message of a server.
pub const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Seconds that a call may be silent, where neither its step nor its server's entry says otherwise.
pub const IDLE_SECS: u64 = 60;
/// Seconds that a call may take in all, however much it reports.
pub const CALL_SECS: u64 = 24 * 3600;
/// Seconds that a server has to answer the first time.
pub const CONNECT_SECS: u64 = 30;
/// Attempts to reach a server before it is parked.
pub const ATTEMPTS: u32 = 5;
/// Milliseconds until the next attempt: at first, and at most.
pub const BACKOFF_MS: (u64, u64) = (200, 30_000);
/// Seconds after which a connection counts as one that works.
pub const STEADY_SECS: u64 = 60;
/// Seconds after which a parked server is tried again.
pub const PARKED_SECS: u64 = 300;
/// Milliseconds that a process has to end politely.
pub const STOP_MS: u64 = 2_000;
/// Lines of a process's standard error that are kept.
pub const STDERR_LINES: usize = 20;
/// Characters of such a line.
pub const STDERR_CHARS: usize = 400;
/// Tools of one server.
pub const TOOLS: usize = 5_000;
/// Connections to one server, each for another user.
pub const CONNECTIONS: usize = 1_000;
