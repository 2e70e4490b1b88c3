//! Limits of the gateway and of the MCP server. A constant whose comment states no unit is a maximum number.

/// The maximum size of one message of a server, in bytes.
pub const RESPONSE_BYTES: usize = 32 * 1024 * 1024;
/// Idle timeout of a call if neither its step nor its server entry sets one, in seconds. Progress resets it.
pub const IDLE_SECS: u64 = 60;
/// The maximum duration of a call, in seconds, even if it reports progress.
pub const CALL_SECS: u64 = 24 * 3600;
/// The shortest and longest interval between polls of a task, in milliseconds.
pub const TASK_POLL_MS: (u64, u64) = (100, 10_000);
/// Failed polls of a task in a row after which the call is lost.
pub const TASK_POLL_FAILURES: u32 = 10;
/// Calls that hold a connection open because their tools wait for input.
pub const HELD_CALLS: usize = 1_000;
/// Messages of a server that are queued for one call.
pub const CALL_MESSAGES: usize = 64;
/// Timeout of requests to servers other than tool calls, in seconds.
pub const REQUEST_SECS: u64 = 30;
/// Default time limit for starting a server and for its first response, in seconds. Enough for a cold `npx -y`, `uvx` or
/// container.
pub const START_SECS: u64 = 60;
/// Servers that start at the same time.
pub const CONCURRENT_STARTS: usize = 8;
/// Seconds after which a server that is still starting no longer counts against [`CONCURRENT_STARTS`].
pub const START_TURN_SECS: u64 = 3;
/// Seconds after which a server that has not answered the probe is treated as legacy.
pub const PROBE_SECS: u64 = 10;
/// Messages of a server that are queued until the probe is answered.
pub const EARLY_MESSAGES: usize = 64;
/// Default of the maximum number of calls in flight per server.
pub const SERVER_CALLS: u32 = 256;
/// Timeout of a TCP and TLS connect, in seconds.
pub const DIAL_SECS: u64 = 10;
/// Bytes that are read of the body of an HTTP error.
pub const ERROR_BODY_BYTES: usize = 64 * 1024;
/// Calls that were in flight when their server crashed and must be repeated one at a time.
pub const SUSPECTS: usize = 1_000;
/// Milliseconds that a server has to exit after its input is closed, and again after SIGTERM.
pub const SUPERVISOR_GRACE_MS: u64 = 1_000;
/// Rounds of SIGKILL for the descendants of a server. Processes may fork between rounds.
pub const KILL_ROUNDS: u32 = 500;
/// Milliseconds to wait for a response that a process may have written before it exited.
pub const EXIT_DRAIN_MS: u64 = 200;
/// Failed connection attempts after which a server that no step waits for is parked.
pub const CONNECT_ATTEMPTS: u32 = 5;
/// The first and the longest backoff between connection attempts, in milliseconds.
pub const BACKOFF_MS: (u64, u64) = (200, 30_000);
/// Seconds after which a connection counts as stable and the backoff is reset.
pub const STABLE_SECS: u64 = 60;
/// Backoff of a parked server, in seconds.
pub const PARKED_SECS: u64 = 300;
/// Milliseconds that a process has to exit after its input is closed. Longer than its supervisor needs.
pub const STOP_MS: u64 = 4_000;
/// Milliseconds to wait for a response that may be in transit when a call is cancelled.
pub const CANCEL_GRACE_MS: u64 = 500;
/// Delay of a timer, in seconds, after which this process is assumed to have been suspended.
pub const STALL_SECS: u64 = 2;
/// Seconds to read buffered responses after such a suspension.
pub const STALL_GRACE_SECS: u64 = 10;
/// Lines that are kept of the standard error of a process.
pub const STDERR_LINES: usize = 20;
/// The maximum length of such a line, in characters.
pub const STDERR_CHARS: usize = 400;
/// Tools of one server.
pub const TOOLS: usize = 5_000;
/// Connections of the gateway, and logins in memory.
pub const CONNECTIONS: usize = 1_000;

/// Scopes of a server entry or of a challenge.
pub const OAUTH_SCOPES: usize = 100;
/// Seconds before expiry at which a token is refreshed.
pub const REFRESH_BEFORE_SECS: u64 = 30;
/// Seconds after a rejected token was replaced during which another rejection requires a login.
pub const REISSUE_SECS: u64 = 30;
/// Seconds during which a failed token request is not repeated.
pub const RETRY_SECS: u64 = 5;
/// The maximum size of a `WWW-Authenticate` header, in bytes.
pub const CHALLENGE_BYTES: usize = 8 * 1024;
/// The maximum size of a scope, in bytes.
pub const SCOPE_BYTES: usize = 256;
/// Timeout of all requests for one token, in seconds: discovery, registration and exchange.
pub const TOKEN_SECS: u64 = 60;
/// Time limit of a login, in seconds.
pub const LOGIN_SECS: u64 = 600;
/// Seconds after which a call that needs a login is retried, unless the login is made sooner.
pub const LOGIN_WAIT_SECS: u64 = 60;
/// Pending logins of one user. A new login evicts the oldest.
pub const USER_LOGINS: usize = 5;
/// Pending logins of all users.
pub const LOGINS: usize = 500;
/// The maximum size of a redirect URL, in bytes.
pub const REDIRECT_BYTES: usize = 16 * 1024;
/// The maximum size of a secret, in bytes.
pub const SECRET_BYTES: usize = 64 * 1024;
/// The minimum size of a secret, in bytes. Shorter values occur by chance, so they cannot be redacted.
pub const SECRET_MIN_BYTES: usize = 6;
/// Secrets that are redacted. The oldest are forgotten first: expired access tokens.
pub const KNOWN_SECRETS: usize = 4_096;
/// The maximum length of the name of a secret, in characters.
pub const SECRET_NAME: usize = 128;

/// Default time that a call waits for a run, in seconds.
pub const WAIT_SECS: f64 = 10.0;
/// The longest time that a call waits for a run, in seconds. Clients time out after 60.
pub const MAX_WAIT_SECS: f64 = 45.0;
/// Seconds after which a relayed call returns and its run continues in the background.
pub const RELAYED_CALL_SECS: f64 = 45.0;
/// Resources of one federated server; the same limit applies to its resource templates and to its prompts.
pub const FEDERATED: usize = 2_000;
/// The maximum size of the URI of a resource, in bytes.
pub const URI_BYTES: usize = 2_048;
/// Request states of federated servers that clients can return.
pub const STATES: usize = 1_000;
/// Resource subscriptions at servers.
pub const RESOURCE_SUBSCRIPTIONS: usize = 5_000;
/// Delay before a lost resource subscription is renewed, in milliseconds.
pub const RESUBSCRIBE_MS: u64 = 1_000;
/// Changes that are buffered for a slow reader. A reader that falls further behind treats everything as changed.
pub const CHANGES: usize = 1_024;
/// Clients that wait for relayed calls.
pub const RELAYS: usize = 10_000;
/// The maximum size of a client's responses to the input requests of a relayed call, in bytes.
pub const RELAY_BYTES: usize = 1024 * 1024;
/// Input requests to a client with a session during one relayed call.
pub const RELAY_ROUNDS: usize = 10;
/// Seconds after which a run becomes a task for clients that support tasks.
pub const TASK_SECS: f64 = 0.5;
/// Suggested poll interval of a running task, in milliseconds.
pub const POLL_MS: u64 = 2_000;
/// Suggested poll interval of a task that waits for a human, in milliseconds.
pub const POLL_PAUSED_MS: u64 = 5_000;
/// Interval of heartbeats to a client that waits for a run, in seconds.
pub const HEARTBEAT_SECS: u64 = 5;
/// Steps of a run in a response: the most recent ones.
pub const LISTED_STEPS: usize = 50;
/// The maximum size of an output in a response, in bytes.
pub const OUTPUT_BYTES: usize = 16_000;
/// Default page size of lists.
pub const PAGE: usize = 50;
/// Default page size of lists of events.
pub const EVENTS_PAGE: usize = 100;
/// Events of a run in its resource.
pub const RESOURCE_EVENTS: usize = 10_000;
/// Page size of lists of tools, resources and prompts.
pub const TOOLS_PAGE: usize = 500;
/// Milliseconds that a client may cache a list.
pub const LIST_TTL_MS: u64 = 5_000;
/// Milliseconds within which a start with the same inputs may be a duplicate.
pub const DUPLICATE_MS: i64 = 120_000;
/// Recent runs that are searched for a duplicate.
pub const DUPLICATE_RUNS: usize = 20;
/// Resource subscriptions of one client.
pub const CLIENT_SUBSCRIPTIONS: usize = 1_000;
/// Milliseconds during which changes of resources are batched into one notification.
pub const CHANGE_BATCH_MS: u64 = 500;
/// Names in a hint about an unknown name.
pub const SUGGESTIONS: usize = 20;
/// Names in such a hint if it also names the closest match.
pub const NEAR_SUGGESTIONS: usize = 5;
/// Arguments in the one-line signature of a tool.
pub const SIGNATURE_ARGUMENTS: usize = 20;
/// Values of an `enum` in such a signature.
pub const SIGNATURE_ENUM_VALUES: usize = 6;
/// Nesting depth of example arguments.
pub const EXAMPLE_DEPTH: usize = 4;
/// Seconds that a check or search waits for servers that are starting.
pub const SERVERS_WAIT_SECS: u64 = 10;
/// Calls that are checked in a definition that does not compile.
pub const DRAFT_CALLS: usize = 200;
/// Default page size of a tool search.
pub const FOUND_TOOLS: usize = 40;
/// Default number of tools that a search describes in full.
pub const DETAILED_TOOLS: usize = 3;
/// The maximum size of a schema in search results, in bytes.
pub const SCHEMA_BYTES: usize = 6_000;
/// The maximum size of a tool's description in a list and in full, in bytes.
pub const DESCRIPTION_BYTES: (usize, usize) = (100, 1_000);
/// The maximum size of a step's input or output in a list of steps, in bytes.
pub const STEP_VALUE_BYTES: usize = 2_000;
/// The maximum size of the input or output of a single step, in bytes.
pub const STEP_PAGE_BYTES: usize = 16_000;
/// The maximum size of images, audio and files in one response, in bytes. Larger ones become links.
pub const BLOCK_BYTES: usize = 1_000_000;
/// The maximum size of a step's error message, in bytes.
pub const ERROR_BYTES: usize = 600;
/// The maximum size of a section of the guide, in bytes.
pub const GUIDE_BYTES: usize = 7_500;

/// Definitions whose tools are looked up for the hints of a published workflow. Beyond it, the hints are the defaults.
pub const SUB_WORKFLOWS: usize = 200;

/// Failed attempts to connect after which an outage is reported.
pub const OUTAGE_FAILURES: u32 = 3;
/// The minimum time between two reports about one connection.
pub const OUTAGE_INTERVAL: std::time::Duration = std::time::Duration::from_mins(15);
