//! Every bound of the core, named in one place.

/// Bytes of a definition's text.
pub const DEFINITION_BYTES: usize = 4 * 1024 * 1024;
/// Lists and maps inside one another in a document.
pub const DOCUMENT_DEPTH: usize = 64;
/// Keys and values in a document.
pub const DOCUMENT_NODES: usize = 500_000;
/// Keys and values that aliases (`*name`) may add to a YAML document.
pub const ALIAS_NODES: usize = 20_000;
/// Steps in a definition, nested ones included.
pub const STEPS: usize = 20_000;
/// `foreach`, `parallel` and `branch` blocks inside one another.
pub const BLOCK_DEPTH: usize = 16;
/// Branches of one `parallel`, and names of one graph-form fork.
pub const BRANCHES: usize = 1_000;
/// Steps looked at in all to find where the forks of a graph join.
pub const FORK_SEARCH: usize = 500_000;
/// Problems reported for one definition; the rest is counted.
pub const DIAGNOSTICS: usize = 100;
/// Bytes of one message.
pub const MESSAGE_BYTES: usize = 600;
/// Keys of a map that a message about a missing key names.
pub const SHOWN_KEYS: usize = 12;
/// Bytes of such a key; longer ones are counted only.
pub const SHOWN_KEY_BYTES: usize = 40;
/// Places that arrows of a drawing keep free; beyond, they are drawn straight through.
pub const DRAWN_PASSAGES: usize = 5_000;

/// Bytes of a string that holds `{{…}}` or `$key` references.
pub const TEMPLATE_BYTES: usize = 64 * 1024;
/// Bytes of one expression.
pub const EXPRESSION_BYTES: usize = 4 * 1024;
/// Operators and brackets inside one another in an expression.
pub const EXPRESSION_DEPTH: usize = 32;
/// Bytes of one JSONPath query.
pub const JSONPATH_BYTES: usize = 512;
/// Brackets inside one another in a JSONPath query.
pub const JSONPATH_DEPTH: usize = 16;
/// Bytes that one evaluated expression or string template may produce.
pub const RESULT_BYTES: usize = 1024 * 1024;
/// Bytes of a compiled regular expression.
pub const REGEX_BYTES: usize = 1024 * 1024;
/// Different regular expressions in one definition.
pub const REGEXES: usize = 100;

/// Seconds that the result under an idempotency key may be kept: ten years.
pub const KEY_TTL_SECS: u64 = 10 * 365 * 24 * 3600;
/// Characters of a step id or a definition's name.
pub const NAME_CHARS: usize = 128;
/// Labels of a definition.
pub const LABELS: usize = 64;

/// Bytes of a failure's message; the rest is cut.
pub const FAILURE_BYTES: usize = 4 * 1024;
/// Bytes of one output, one set of arguments or inputs, as JSON.
pub const PAYLOAD_BYTES: usize = 16 * 1024 * 1024;
/// Lists and maps inside one another in a value of a run. What reads JSON back gives up soon after.
pub const VALUE_DEPTH: usize = 100;
/// Milliseconds that a probe has to answer, where its step has no time limit.
pub const PROBE_MS: u64 = 60_000;
/// Bytes of what a signal carries, and of arguments and values that a human sets.
pub const NOTE_BYTES: usize = 256 * 1024;
/// Signals that a run keeps until a step waits for them.
pub const SIGNALS: usize = 1_000;
/// Workflows that wait for one another.
pub const RUN_DEPTH: u32 = 16;
/// Attempts after an unknown outcome, where no retry policy sets a number.
pub const LOST_ATTEMPTS: u32 = 5;
/// Restarts of the engine that may cut off one step before a human is asked: its call may be what ends the engine.
pub const RESTARTS: u32 = 20;
/// Milliseconds until a call that its server refused is tried again: the first delays; the last one repeats.
pub const REFUSED_DELAYS_MS: [u64; 6] = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// Milliseconds that a server may ask to be left alone (`Retry-After`).
pub const RETRY_AFTER_MS: u64 = 24 * 3_600_000;
/// Milliseconds that a call is given to stop after it was told to.
pub const CANCEL_GRACE_MS: i64 = 5_000;

/// What a run may use. A definition's `limits` may lower these, never raise them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// Step executions in one run, loops and items included.
    pub step_runs: u32,
    /// Items of one `foreach`.
    pub foreach_items: u32,
    /// Times that one step of a graph may be entered.
    pub loop_visits: u32,
    /// Steps of one run in flight at the same time.
    pub concurrency: u32,
}

impl RunLimits {
    /// The bounds of a run that sets none of its own, and the highest that it may set.
    pub const MAX: Self =
        Self { step_runs: 1_000_000, foreach_items: 100_000, loop_visits: 10_000, concurrency: 256 };
}
/// Bytes of what a call says about itself before it ends.
pub const REPORT_BYTES: usize = 1_000;

/// A text that is not longer than so many bytes.
pub(crate) fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

/// Nested and repeated parts of one JSON Schema.
pub const SCHEMA_NODES: usize = 20_000;
/// Levels of nesting of one JSON Schema.
pub const SCHEMA_DEPTH: usize = 64;
/// Nested evaluations of schemas, references included.
pub const SCHEMA_CALLS: usize = 400;
/// Steps that checking a value may take,
pub const SCHEMA_STEPS: usize = 20_000;
/// and more for each value in it.
pub const SCHEMA_STEPS_PER_NODE: usize = 100;
/// Bytes of a compiled regular expression of a schema.
pub const PATTERN_BYTES: usize = 1 << 20;
