//! Limits of notifications. A constant whose comment states no unit is a maximum number.

/// The maximum length of a field of a message, in characters.
pub const FIELD_CHARS: usize = 500;
/// The maximum length of a prompt, a comment, a detail or the arguments of a call, in characters.
pub const TEXT_CHARS: usize = 8_000;
/// Labels that a message contains.
pub const LABELS: usize = 50;
/// Guarded calls that a message contains.
pub const CALLS: usize = 20;
/// The minimum length to which the arguments of a call are cut, in characters.
pub const MIN_ARGS_CHARS: usize = 40;
/// The maximum length of a title, in characters.
pub const TITLE_CHARS: usize = 200;
/// The maximum length of a rendered text, in characters, unless the channel allows less.
pub const BODY_CHARS: usize = 16_000;
/// The maximum length of a link, in characters.
pub const LINK_CHARS: usize = 2_000;

/// Lines of a digest. Further notifications are counted.
pub const DIGEST_LINES: usize = 20;
/// Messages that one recipient gets through one channel within [`BURST_MS`] before the rest becomes a digest.
pub const BURST: u32 = 5;
/// The interval in which messages of one recipient and channel are counted, and after which the digest of the others is
/// sent, in milliseconds.
pub const BURST_MS: i64 = 60_000;

/// Recipients of one message.
pub const RECIPIENTS: usize = 1_000;
/// Users of a group or an on-call rotation.
pub const MEMBERS: usize = 1_000;
/// Subscriptions.
pub const SUBSCRIPTIONS: usize = 1_000;
/// Windows of quiet hours of one recipient, and times of its digests.
pub const WINDOWS: usize = 16;

/// Delay before the second attempt, in milliseconds. It doubles with each attempt.
pub const BACKOFF_MS: i64 = 5_000;
/// The longest delay between attempts, in milliseconds. After an outage of a day, the message is sent within this time.
pub const BACKOFF_MAX_MS: i64 = 15 * 60_000;
/// Milliseconds after the first attempt at which a message becomes a dead letter.
pub const DEAD_LETTER_MS: i64 = 3 * 24 * 3_600_000;
/// The longest `Retry-After` that is honoured, in milliseconds.
pub const RETRY_AFTER_MAX_MS: i64 = 24 * 3_600_000;

/// Default timeout of an outbound request with its redirects, in seconds.
pub const REQUEST_SECS: u64 = 20;
/// The longest timeout that can be configured, in seconds.
pub const MAX_TIMEOUT_SECS: u64 = 600;
/// Timeout of a TCP and TLS connect, in seconds.
pub const CONNECT_SECS: u64 = 10;
/// Redirects of one request.
pub const REDIRECTS: usize = 3;
/// Addresses of a host that are tried.
pub const ADDRESSES: usize = 16;
/// The maximum size of a response, in bytes. Services answer with a few hundred.
pub const RESPONSE_BYTES: usize = 64 * 1024;
/// The maximum length of the part of a response, or of the output of a command, that an error quotes, in characters.
pub const QUOTED_CHARS: usize = 200;
/// The maximum length of a receipt, in characters.
pub const RECEIPT_CHARS: usize = 200;
/// Entries of the list of allowed hosts and networks.
pub const ALLOWED: usize = 1_000;

/// Default timeout of a command, in seconds.
pub const COMMAND_SECS: u64 = 20;
/// The maximum size of the output of a command, in bytes. A command that writes more is killed.
pub const COMMAND_OUTPUT_BYTES: usize = 64 * 1024;

/// The maximum length of a message of Pushover, in characters.
pub const PUSHOVER_CHARS: usize = 1_024;
/// The maximum length of a link of Pushover, in characters. A longer link becomes part of the text.
pub const PUSHOVER_LINK_CHARS: usize = 512;
/// Interval at which Pushover repeats a message that is not acknowledged, in seconds. The service requires at least 30.
pub const PUSHOVER_RETRY_SECS: i64 = 60;
/// The longest time for which Pushover repeats a message, in seconds.
pub const PUSHOVER_EXPIRE_SECS: i64 = 10_800;
/// The maximum length of a message of ntfy, in bytes. The service turns longer messages into attachments.
pub const NTFY_BYTES: usize = 4_000;
/// The maximum length of a section of a message of Slack, in characters.
pub const SLACK_CHARS: usize = 2_900;
/// The maximum length of a message of Teams, in characters. The service accepts cards of 28 KB.
pub const TEAMS_CHARS: usize = 4_000;
/// Lines of a message of Teams.
pub const TEAMS_LINES: usize = 120;
/// The maximum length of the text of a desktop notification, in characters.
pub const DESKTOP_CHARS: usize = 1_000;
