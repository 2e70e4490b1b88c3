//! Every bound of the gateway and of the server, named in one place.

/// Bytes of one message of a server.
pub const ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Seconds that a call may be silent, where neither its step nor its server's entry says otherwise.
pub const IDLE_SECS: u64 = 60;
/// Seconds that a call may take in all, however much it reports.
pub const CALL_SECS: u64 = 24 * 3600;
/// Milliseconds between questions for a task: at least, and at most.
pub const TASK_POLL_MS: (u64, u64) = (100, 10_000);
/// Questions for a task that may fail one after another.
pub const POLL_TRIES: u32 = 10;
/// Calls whose tools wait for an answer on an open connection.
pub const HELD_CALLS: usize = 1_000;
/// Things that a server says about one call and that the call has not taken in yet.
pub const HEARD: usize = 64;
/// Seconds that a server has to answer what is no call of a tool.
pub const REQUEST_SECS: u64 = 30;
/// Seconds that a server has to start and to answer for the first time, where its entry does not say: enough for a cold
/// `npx -y`, `uvx` or container.
pub const START_SECS: u64 = 60;
/// Servers that start at the same time.
pub const STARTS: usize = 8;
/// Seconds after which a server that is still starting makes room for the next.
pub const START_TURN_SECS: u64 = 3;
/// Seconds until a server that does not answer the probe is taken for a legacy one.
pub const PROBE_SECS: u64 = 10;
/// Messages of a server that are kept while the probe is waited for.
pub const EARLY_MESSAGES: usize = 64;
/// Calls to one server at the same time, where its entry does not say.
pub const SERVER_CALLS: u32 = 256;
/// Seconds that a TCP and TLS connection may take.
pub const DIAL_SECS: u64 = 10;
/// Bytes of the body of an HTTP error that are read.
pub const ERROR_BODY_BYTES: usize = 64 * 1024;
/// Calls that were in flight when their server crashed, and are repeated one by one.
pub const SUSPECTS: usize = 1_000;
/// Milliseconds that a server has to end when its input is closed, and again after SIGTERM.
pub const SUPERVISOR_GRACE_MS: u64 = 1_000;
/// Times that the descendants of a server are killed: some may fork meanwhile.
pub const KILL_ROUNDS: u32 = 500;
/// Milliseconds that an answer may still be on its way when a process has ended.
pub const LAST_WORDS_MS: u64 = 200;
/// Attempts to reach a server before it is parked.
pub const ATTEMPTS: u32 = 5;
/// Milliseconds until the next attempt: at first, and at most.
pub const BACKOFF_MS: (u64, u64) = (200, 30_000);
/// Seconds after which a connection counts as one that works.
pub const STEADY_SECS: u64 = 60;
/// Seconds after which a parked server is tried again.
pub const PARKED_SECS: u64 = 300;
/// Milliseconds that a process has to end after its input was closed; longer than its supervisor needs.
pub const STOP_MS: u64 = 4_000;
/// Milliseconds that an answer may still be on its way when a call is stopped.
pub const STOP_ANSWER_MS: u64 = 500;
/// Seconds by which a timer may be late before the process counts as having been stopped meanwhile.
pub const STALL_SECS: u64 = 2;
/// Seconds that answers have to be read after such a stop.
pub const STALL_GRACE_SECS: u64 = 10;
/// Lines of a process's standard error that are kept.
pub const STDERR_LINES: usize = 20;
/// Characters of such a line.
pub const STDERR_CHARS: usize = 400;
/// Tools of one server.
pub const TOOLS: usize = 5_000;
/// Connections to one server, each for another user.
pub const CONNECTIONS: usize = 1_000;

/// Scopes that a server's entry or challenge names.
pub const OAUTH_SCOPES: usize = 100;
/// Seconds before its expiry at which a token is refreshed.
pub const REFRESH_BEFORE_SECS: u64 = 30;
/// Seconds after a token was issued in which its rejection ends in a login and not in another token request.
pub const REISSUE_SECS: u64 = 30;
/// Seconds in which a failed token request is not repeated.
pub const RETRY_SECS: u64 = 5;
/// Bytes of a `WWW-Authenticate` header that is read.
pub const CHALLENGE_BYTES: usize = 8 * 1024;
/// Bytes of a scope.
pub const SCOPE_BYTES: usize = 256;
/// Seconds that all requests for one token may take: discovery, registration and the exchange.
pub const TOKEN_SECS: u64 = 60;
/// Seconds between the beginning and the end of a login.
pub const LOGIN_SECS: u64 = 600;
/// Seconds after which a call that needs a login is tried again, unless the login is made sooner.
pub const LOGIN_WAIT_SECS: u64 = 60;
/// Logins of one user that are under way; the oldest gives way.
pub const USER_LOGINS: usize = 5;
/// Logins that are under way.
pub const LOGINS: usize = 500;
/// Bytes of a redirect URL that ends a login.
pub const REDIRECT_BYTES: usize = 16 * 1024;
/// Bytes of a secret.
pub const SECRET_BYTES: usize = 64 * 1024;
/// Characters of a secret's name.
pub const SECRET_NAME: usize = 128;

/// Seconds that a call waits for a run, where it does not say.
pub const WAIT_SECS: f64 = 10.0;
/// Seconds that a call waits at most: clients give up after 60.
pub const MAX_WAIT_SECS: f64 = 45.0;
/// Seconds that a call of another server's tool is waited for; then it is a run that goes on.
pub const PASSED_ON_SECS: f64 = 45.0;
/// Resources, resource templates and prompts of one federated server, each.
pub const FEDERATED: usize = 2_000;
/// Bytes of a resource's URI.
pub const URI_BYTES: usize = 2_048;
/// States of federated servers that clients may send back.
pub const STATES: usize = 1_000;
/// Resources of servers that are watched at the same time.
pub const WATCHED: usize = 5_000;
/// Milliseconds after which a lost subscription to a resource is made again.
pub const WATCH_RETRY_MS: u64 = 1_000;
/// Changes that a slow reader may be behind; then it takes everything for changed.
pub const CHANGES: usize = 1_024;
/// Clients that wait for relayed calls at the same time.
pub const RELAYS: usize = 10_000;
/// Bytes of the answers of a client to what a relayed tool asked.
pub const RELAY_BYTES: usize = 1024 * 1024;
/// Times that a relayed tool may ask a client with a session during one call.
pub const RELAY_ROUNDS: usize = 10;
/// Seconds after which a run becomes a task for clients that know tasks.
pub const TASK_SECS: f64 = 0.5;
/// Milliseconds after which a client should ask for a task again: one under way, and one that waits for somebody.
pub const POLL_MS: u64 = 2_000;
/// See [`POLL_MS`].
pub const POLL_PAUSED_MS: u64 = 5_000;
/// Seconds of silence after which a client that waits is told that the run is still under way.
pub const HEARTBEAT_SECS: u64 = 5;
/// Steps of a run that an answer shows: the last ones.
pub const HISTORY: usize = 50;
/// Bytes of an output that an answer shows.
pub const OUTPUT_BYTES: usize = 16_000;
/// Entries of a list, where the call does not say.
pub const PAGE: usize = 50;
/// Events of a list, where the call does not say.
pub const EVENTS_PAGE: usize = 100;
/// Events of a run that a resource shows.
pub const RESOURCE_EVENTS: usize = 10_000;
/// Tools, resources or prompts on one page of a list.
pub const TOOLS_PAGE: usize = 500;
/// Milliseconds that a list may be kept by a client.
pub const LIST_TTL_MS: u64 = 5_000;
/// Milliseconds within which a start with the same inputs may be a repetition.
pub const DUPLICATE_MS: i64 = 120_000;
/// Runs among which a repetition is looked for.
pub const DUPLICATE_RUNS: usize = 20;
/// Resources that one client watches.
pub const WATCHES: usize = 1_000;
/// Milliseconds in which changes of resources are collected before they are told.
pub const NEWS_MS: u64 = 500;
/// Names that a hint about an unknown name lists.
pub const SUGGESTIONS: usize = 20;
/// The same where one of them is nearly the unknown name.
pub const NEAR_SUGGESTIONS: usize = 5;
/// Arguments that the one-line signature of a tool names.
pub const SIGNATURE_ARGUMENTS: usize = 20;
/// Values of an `enum` that it names.
pub const SIGNATURE_WORDS: usize = 6;
/// Levels of maps and lists in example arguments.
pub const EXAMPLE_DEPTH: usize = 4;
/// Seconds that a check or a search waits for servers that have not answered yet.
pub const SERVERS_WAIT_SECS: u64 = 10;
/// Calls that are checked in a definition that does not compile.
pub const DRAFT_CALLS: usize = 200;
/// Tools on one page of a search, where the call does not say.
pub const FOUND_TOOLS: usize = 40;
/// Tools that a search shows in full, where the call does not say.
pub const DETAILED_TOOLS: usize = 3;
/// Bytes of a tool's schema that a search shows.
pub const SCHEMA_BYTES: usize = 6_000;
/// Bytes of a tool's description in a list, and in full.
pub const DESCRIPTION_BYTES: (usize, usize) = (100, 1_000);
/// Bytes of the input or the output of a step in a list of several.
pub const STEP_VALUE_BYTES: usize = 2_000;
/// Bytes of the input or the output of a single step.
pub const STEP_PAGE_BYTES: usize = 16_000;
/// Bytes of images, audio and files that one answer carries; larger ones become links.
pub const BLOCK_BYTES: usize = 1_000_000;
/// Bytes of an error message of a step.
pub const ERROR_BYTES: usize = 600;
/// Bytes of a section of the guide.
pub const GUIDE_BYTES: usize = 7_500;
