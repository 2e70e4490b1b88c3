//! The limits of the core, in one file.

/// Maximum size of a definition's text, in bytes.
pub const DEFINITION_BYTES: usize = 4 * 1024 * 1024;
/// Maximum nesting of lists and maps in a document.
pub const DOCUMENT_DEPTH: usize = 64;
/// Maximum number of keys and values in a document.
pub const DOCUMENT_NODES: usize = 500_000;
/// Maximum number of keys and values that aliases (`*name`) add to a YAML document.
pub const ALIAS_NODES: usize = 20_000;
/// Maximum number of steps in a definition, including nested ones.
pub const STEPS: usize = 20_000;
/// Maximum nesting of `foreach`, `parallel` and `branch` blocks.
pub const BLOCK_DEPTH: usize = 16;
/// Maximum number of branches of a `parallel` step, in any form.
pub const BRANCHES: usize = 1_000;
/// Maximum number of steps visited to find the joins of all forks of a graph.
pub const FORK_SEARCH: usize = 500_000;
/// Maximum number of errors, and of warnings, reported for one definition; the rest is counted.
pub const DIAGNOSTICS: usize = 100;
/// Maximum size of a diagnostic message, in bytes.
pub const MESSAGE_BYTES: usize = 600;
/// Maximum number of keys of a map that an error about a missing key lists.
pub const SHOWN_KEYS: usize = 12;
/// Maximum size of a key in such a list, in bytes; longer keys are only counted.
pub const SHOWN_KEY_BYTES: usize = 40;
/// Maximum number of layers that the arrows of a drawing cross, in total, to be routed around steps.
pub const DRAWN_PASSAGES: usize = 5_000;

/// Maximum size of a string with `{{…}}` or `$key` references, in bytes.
pub const TEMPLATE_BYTES: usize = 64 * 1024;
/// Maximum size of an expression, in bytes.
pub const EXPRESSION_BYTES: usize = 4 * 1024;
/// Maximum nesting of operators and brackets in an expression.
pub const EXPRESSION_DEPTH: usize = 32;
/// Maximum size of a JSONPath query, in bytes.
pub const JSONPATH_BYTES: usize = 512;
/// Maximum nesting of brackets in a JSONPath query.
pub const JSONPATH_DEPTH: usize = 16;
/// Maximum size of the result of an expression or string template, in bytes.
pub const RESULT_BYTES: usize = 1024 * 1024;
/// Maximum number of conditions of `fail_if`.
pub const FAIL_RULES: usize = 20;
/// Maximum size of a result in the message of a failure, in bytes; longer ones are truncated.
pub const SHOWN_RESULT_BYTES: usize = 200;
/// Maximum number of names of a `let` step.
pub const LET_VALUES: usize = 256;
/// Maximum nesting of functions with a variable, such as `xs.map(x, …)`.
pub const VARIABLES: usize = 4;
/// Maximum number of items that `range` returns.
pub const RANGE_ITEMS: usize = 100_000;
/// Maximum number of decimals that `format` writes.
pub const FORMAT_DIGITS: usize = 100;
/// Maximum size of a time or a format of times, in bytes.
pub const TIME_BYTES: usize = 256;
/// Maximum size of a regular expression, in bytes.
pub const REGEX_BYTES: usize = 4 * 1024;
/// Maximum nesting of groups and repetitions in a regular expression.
pub const REGEX_DEPTH: u32 = 32;
/// Maximum number of positions of a regular expression, with its repetitions written out: `[a-z]{3}x` has four.
pub const REGEX_POSITIONS: usize = 2_500;
/// Maximum size of a regular expression in ranges of characters, with its repetitions written out: `\w` has about 770.
pub const REGEX_RANGES: usize = 100_000;
/// Maximum number of different regular expressions in the expressions of a definition, in the schemas of its inputs, or in
/// the schema of a tool.
pub const REGEXES: usize = 250;
/// Maximum size of those regular expressions together, in ranges of characters.
pub const REGEXES_RANGES: usize = 200_000;
/// Maximum size of a compiled regular expression in memory, in bytes.
pub const COMPILED_REGEX_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of the cache for matches of a regular expression, in bytes.
pub const REGEX_CACHE_BYTES: usize = 1024 * 1024;

/// Maximum cost of one evaluation: an expression, a condition, a template or the arguments of a step, in units (see
/// [`crate::budget`]). Spending it takes 2 to 30 ms.
pub const EVALUATION_COST: u64 = 1_000_000;
/// Maximum cost of all evaluations of one decision of a run, in units. A decision makes no further transition after it has
/// spent [`EVALUATION_COST`], so only a single step with several expensive evaluations can reach this limit.
pub const DECISION_COST: u64 = 2 * EVALUATION_COST;
/// Maximum cost of a decision and of those that continue it, in units: the work that follows from one input of a run.
pub const CHAIN_COST: u64 = 100 * EVALUATION_COST;
/// Cost of a check against a JSON Schema that is allowed for each value in the checked value, besides
/// [`EVALUATION_COST`], in units.
pub const CHECK_COST_PER_NODE: u64 = 100;
/// Maximum of that allowance, in units.
pub const MAX_CHECK_COST: u64 = 50 * EVALUATION_COST;
/// Maximum size of all stored values that one evaluation reads, as JSON, in bytes.
pub const EVALUATION_BYTES: usize = 4 * PAYLOAD_BYTES;

/// Maximum number of rules of a policy.
pub const POLICY_RULES: usize = 1_000;
/// Maximum number of patterns of one condition of a rule.
pub const POLICY_PATTERNS: usize = 200;
/// Maximum number of test cases of a policy that are run.
pub const POLICY_CASES: usize = 10_000;

/// Maximum `idempotency_ttl_secs`: ten years.
pub const KEY_TTL_SECS: u64 = 10 * 365 * 24 * 3600;
/// Maximum length of a step id or definition name, in characters.
pub const NAME_CHARS: usize = 128;
/// Minimum `remind` of a gate, in milliseconds.
pub const REMIND_MS: u64 = 60_000;
/// Maximum number of reminders of one request.
pub const REMINDERS: u32 = 100;
/// Maximum number of escalation levels of a gate.
pub const ESCALATION_LEVELS: usize = 20;
/// Maximum `quorum` of a gate.
pub const APPROVERS: u32 = 100;
/// Maximum number of calls after a gate that its approval shows. Further ones are counted.
pub const GUARDED_CALLS: usize = 50;
/// Maximum number of steps visited to find the calls that all gates of a definition guard.
pub const GUARD_SEARCH: usize = 500_000;
/// Maximum size of the arguments of such a call in an approval, as JSON, in bytes. Larger ones are shown by their hash.
pub const GUARDED_ARGS_BYTES: usize = 16 * 1024;
/// Maximum number of open approvals of a run that an intervention replaces at once. Others are replaced when they are decided.
pub const RENEWED_APPROVALS: usize = 64;
/// Maximum number of labels of a definition.
pub const LABELS: usize = 64;

/// Maximum size of a failure message, in bytes; longer messages are truncated.
pub const FAILURE_BYTES: usize = 4 * 1024;
/// Maximum size of an output, or of the arguments or inputs of a step or run, as JSON, in bytes.
pub const PAYLOAD_BYTES: usize = 16 * 1024 * 1024;
/// Maximum nesting of lists and maps in a value of a run, below the recursion limit of JSON parsers.
pub const VALUE_DEPTH: usize = 100;
/// Timeout of a probe whose step has no timeout, in milliseconds.
pub const PROBE_MS: u64 = 60_000;
/// Maximum size of a value that an event contains (the payload of a signal, arguments and values set by a human, an
/// input request, the details of a failure), in bytes.
pub const EVENT_VALUE_BYTES: usize = 256 * 1024;
/// Maximum number of signals that a run buffers until a step waits for them.
pub const SIGNALS: usize = 1_000;
/// Maximum nesting of runs: a workflow that runs a workflow, and so on.
pub const RUN_DEPTH: u32 = 16;
/// Maximum number of attempts after unknown outcomes if the step has no retry policy.
pub const LOST_ATTEMPTS: u32 = 5;
/// Calls that an event names when the database of a run was restored. Further ones are counted.
pub const RESTORED_CALLS: usize = 100;
/// Number of restarts that may interrupt one step before a human has to decide: its call may crash the engine.
pub const RESTARTS: u32 = 20;
/// Backoff after a server refused a call, in milliseconds; the last delay repeats.
pub const REFUSED_DELAYS_MS: [u64; 6] = [1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// Maximum `Retry-After` of a server that is honoured, in milliseconds.
pub const RETRY_AFTER_MS: u64 = 24 * 3_600_000;
/// Grace period of a call after its cancellation, in milliseconds.
pub const CANCEL_GRACE_MS: i64 = 5_000;
/// Number of events after which a decision makes no further transition. The rest follows in later decisions.
pub const SLICE_EVENTS: usize = 256;
/// Size of the payloads of a decision after which it makes no further transition, in bytes.
pub const SLICE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of a progress message or task id of a call, in bytes.
pub const REPORT_BYTES: usize = 1_000;

/// The resources that one run may use. A definition's `limits` can lower them, never raise them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum number of step executions in a run, including those in loops.
    pub step_runs: u32,
    /// Maximum number of items of a `foreach`.
    pub foreach_items: u32,
    /// Maximum number of executions of one step of a graph.
    pub loop_visits: u32,
    /// Maximum number of calls of a run in flight.
    pub concurrency: u32,
}

impl RunLimits {
    /// The defaults, which are also the maximum that a definition can set.
    pub const MAX: Self =
        Self { step_runs: 1_000_000, foreach_items: 100_000, loop_visits: 10_000, concurrency: 256 };
}

/// Truncates a text to a number of bytes, with an ellipsis.
pub(crate) fn cut(mut text: String, bytes: usize) -> String {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push('…');
    }
    text
}

/// Maximum number of nested and repeated parts of a JSON Schema.
pub const SCHEMA_NODES: usize = 20_000;
/// Maximum nesting of a JSON Schema.
pub const SCHEMA_DEPTH: usize = 64;
/// Maximum size of the JSON pointer of a part of a JSON Schema, in bytes.
pub const SCHEMA_POINTER_BYTES: usize = 2 * 1024;
/// Maximum nesting of evaluations of JSON Schemas, including references.
pub const SCHEMA_CALLS: usize = 400;

/// Lines of an untrusted text that are shown before its middle is folded.
pub const SHOWN_LINES: usize = 40;

/// Characters of a line of an untrusted text that are shown before its middle is folded.
pub const SHOWN_LINE_CHARS: usize = 500;

/// Empty lines in a row that are shown.
pub const SHOWN_BLANK_LINES: usize = 1;
