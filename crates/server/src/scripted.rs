//! Scripted tools: a file defines the output, the duration and the failures of each tool.
//!
//! ```yaml
//! shop__list: { return: { orders: [1, 2] }, read_only: true }
//! mail__send: { echo: true, sleep: 200ms, fail: { times: 1, kind: transport, message: refused } }
//! "*": { echo: true } # every other tool
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use steprail_core::diagnostic::{Code, Diagnostic, Diagnostics, suggest};
use steprail_core::document::{self, Data, MapEntry, Node};
use steprail_core::source::{Source, Span};
use steprail_core::spec::value::{DurationSpec, ToolName};
use steprail_engine::{Annotations, BoxFuture, Failure, FailureKind, Outcome, RunId, ToolCall, ToolCaller};

/// The name of the entry for all tools that are not listed.
const OTHERS: &str = "*";
const KEYS: &[&str] = &["return", "echo", "sleep", "fail", "read_only", "idempotent", "destructive"];
const FAIL_KEYS: &[&str] = &["times", "kind", "message", "transient"];

/// The behaviour of every tool.
#[derive(Debug, Default)]
pub(crate) struct Script {
    file: String,
    tools: BTreeMap<Box<str>, Behaviour>,
    /// Failures with `kind: transport` per attempt. Such a call counts as not sent, so the engine repeats the attempt.
    transport_failures: Mutex<HashMap<Attempt, u32>>,
}

/// An attempt of a step: the run, the path of the step and the number of the attempt.
type Attempt = (RunId, Arc<str>, u32);

/// The behaviour of one tool.
#[derive(Debug, Clone, Default)]
struct Behaviour {
    output: Output,
    sleep: Duration,
    fail: Option<Fail>,
    annotations: Annotations,
}

#[derive(Debug, Clone)]
enum Output {
    Value(Value),
    /// The arguments of the call.
    Echo,
}

impl Default for Output {
    fn default() -> Self {
        Self::Value(Value::Null)
    }
}

/// How a tool fails before it succeeds.
#[derive(Debug, Clone)]
struct Fail {
    /// The number of calls of a step that fail; `None` means all of them.
    times: Option<u32>,
    kind: FailureKind,
    message: Option<String>,
    transient: bool,
}

impl Default for Fail {
    fn default() -> Self {
        Self { times: None, kind: FailureKind::ToolError, message: None, transient: false }
    }
}

impl Script {
    /// Parses a script. Returns every problem if there are errors.
    pub(crate) fn read(source: &Source) -> Result<Self, Vec<Diagnostic>> {
        let mut reader = Reader::default();
        let root = document::read(source, &mut reader.0);
        let tools = root.map(|root| reader.tools(&root)).unwrap_or_default();
        if reader.0.has_errors() {
            return Err(reader.0.finish());
        }
        Ok(Self { file: source.name().to_owned(), tools, transport_failures: Mutex::default() })
    }

    /// The names of the listed tools.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(|name| &**name).filter(|name| *name != OTHERS)
    }

    fn behaviour(&self, tool: &str) -> Option<&Behaviour> {
        self.tools.get(tool).or_else(|| self.tools.get(OTHERS))
    }

    /// The number of the call within its step, from 1.
    fn call_number(&self, fail: &Fail, call: &ToolCall) -> u32 {
        if fail.kind != FailureKind::Transport {
            return call.attempt;
        }
        let mut failures = self.transport_failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry((call.run, call.path.clone(), call.attempt)).or_default();
        *count += 1;
        call.attempt - 1 + *count
    }

    fn no_tool(&self, tool: &str) -> Failure {
        let message = format!("{} has no tool `{tool}`", self.file);
        Failure::new(FailureKind::NotFound, message)
    }
}

impl ToolCaller for Script {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        Box::pin(async move {
            let Some(behaviour) = self.behaviour(&call.tool) else { return Err(self.no_tool(&call.tool)) };
            tokio::select! {
                biased;
                () = call.cancelled.cancelled() => {
                    return Err(Failure::new(FailureKind::Cancelled, "the call was cancelled"));
                }
                () = tokio::time::sleep(behaviour.sleep) => {}
            }
            match &behaviour.fail {
                Some(fail) => match self.call_number(fail, &call) {
                    number if fail.covers(number) => Err(fail.failure(number)),
                    _ => Ok(behaviour.output.of(&call)),
                },
                None => Ok(behaviour.output.of(&call)),
            }
        })
    }

    fn annotations(&self, tool: &str) -> Annotations {
        self.behaviour(tool).map(|behaviour| behaviour.annotations).unwrap_or_default()
    }
}

impl Output {
    fn of(&self, call: &ToolCall) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Echo => call.args.value().clone(),
        }
    }
}

impl Fail {
    fn covers(&self, attempt: u32) -> bool {
        self.times.is_none_or(|times| attempt <= times)
    }

    fn failure(&self, attempt: u32) -> Failure {
        let message = match (&self.message, self.times) {
            (Some(message), _) => message.clone(),
            (None, Some(times)) => format!("scripted failure {attempt} of {times}"),
            (None, None) => "scripted failure".to_owned(),
        };
        let failure = Failure::new(self.kind, message);
        if self.transient { failure.transient() } else { failure }
    }
}

/// Parses a script and collects its problems.
#[derive(Default)]
struct Reader(Diagnostics);

impl Reader {
    fn report(&mut self, code: Code, span: Span, message: String, hint: &str) {
        let diagnostic = Diagnostic::new(code, span, message);
        self.0.push(if hint.is_empty() { diagnostic } else { diagnostic.hint(hint) });
    }

    /// Reports a value of the wrong type.
    fn expected(&mut self, node: &Node, what: &str) {
        let message = format!("expected {what}, found {}", node.type_name());
        self.report(Code::WrongType, node.span, message, "");
    }

    fn unknown(&mut self, entry: &MapEntry, what: &str, known: &[&str]) {
        let message = format!("unknown key `{}` in {what}", entry.key);
        let hint = suggest(&entry.key, known).unwrap_or_default();
        self.report(Code::UnknownKey, entry.key_span, message, &hint);
    }

    fn tools(&mut self, root: &Node) -> BTreeMap<Box<str>, Behaviour> {
        let Data::Map(entries) = &root.data else {
            self.expected(root, "a map from tool names to behaviours");
            return BTreeMap::new();
        };
        for entry in entries.iter().filter(|entry| &*entry.key != OTHERS && !ToolName::is_valid(&entry.key)) {
            let message = format!("`{}` is not a valid tool name", entry.key);
            let hint = "write a qualified name such as `mail__send`, or `\"*\"` for all other tools";
            self.report(Code::InvalidToolName, entry.key_span, message, hint);
        }
        entries.iter().map(|entry| (entry.key.clone(), self.behaviour(&entry.value))).collect()
    }

    fn behaviour(&mut self, node: &Node) -> Behaviour {
        let mut behaviour = Behaviour::default();
        let Data::Map(entries) = &node.data else {
            self.expected(node, "the behaviour of a tool, such as `{ return: 1 }`");
            return behaviour;
        };
        for entry in entries {
            let value = &entry.value;
            match &*entry.key {
                "return" => behaviour.output = Output::Value(value.to_value()),
                "echo" => behaviour.output = if self.flag(value) { Output::Echo } else { Output::default() },
                "sleep" => behaviour.sleep = self.duration(value),
                "fail" => behaviour.fail = Some(self.fail(value)),
                "read_only" => behaviour.annotations.read_only = Some(self.flag(value)),
                "idempotent" => behaviour.annotations.idempotent = Some(self.flag(value)),
                "destructive" => behaviour.annotations.destructive = Some(self.flag(value)),
                _ => self.unknown(entry, "the behaviour of a tool", KEYS),
            }
        }
        if let (Some(_), Some(echo)) = (node.get("return"), node.get("echo")) {
            let message = "`return` and `echo` exclude each other".to_owned();
            self.report(Code::ConflictingFields, echo.span, message, "remove one of them");
        }
        behaviour
    }

    fn flag(&mut self, node: &Node) -> bool {
        if let Data::Bool(flag) = node.data {
            return flag;
        }
        self.expected(node, "`true` or `false`");
        false
    }

    fn duration(&mut self, node: &Node) -> Duration {
        let text = match &node.data {
            Data::Text(text) => text.to_string(),
            Data::Number(seconds) => format!("{seconds}s"),
            _ => {
                self.expected(node, "a duration");
                return Duration::ZERO;
            }
        };
        match DurationSpec::parse(&text) {
            Ok(duration) => Duration::from_millis(duration.millis),
            Err(reason) => {
                self.report(Code::InvalidValue, node.span, reason, "write `200ms`, `2s`, `1m 30s`");
                Duration::ZERO
            }
        }
    }

    /// Parses the number of failures, or a map of `FAIL_KEYS`.
    fn fail(&mut self, node: &Node) -> Fail {
        let mut fail = Fail::default();
        let Data::Map(entries) = &node.data else {
            fail.times = self.count(node, "a non-negative integer, or a map");
            return fail;
        };
        for entry in entries {
            match &*entry.key {
                "times" => fail.times = self.count(&entry.value, "a non-negative integer"),
                "kind" => fail.kind = self.kind(&entry.value),
                "message" => fail.message = self.text(&entry.value),
                "transient" => fail.transient = self.flag(&entry.value),
                _ => self.unknown(entry, "`fail`", FAIL_KEYS),
            }
        }
        fail
    }

    fn count(&mut self, node: &Node, what: &str) -> Option<u32> {
        let count = match &node.data {
            Data::Number(number) => number.as_u64().and_then(|count| u32::try_from(count).ok()),
            _ => None,
        };
        if count.is_none() {
            self.expected(node, what);
        }
        count
    }

    fn text(&mut self, node: &Node) -> Option<String> {
        let text = node.as_text().map(str::to_owned);
        if text.is_none() {
            self.expected(node, "text");
        }
        text
    }

    fn kind(&mut self, node: &Node) -> FailureKind {
        let name = node.as_text().unwrap_or_default();
        match FailureKind::from_name(name) {
            Some(FailureKind::Transient) => {
                let message = "`transient` is not a failure kind".to_owned();
                self.report(
                    Code::InvalidValue,
                    node.span,
                    message,
                    "write `transient: true` beside the kind",
                );
            }
            Some(kind) => return kind,
            None => {
                let kinds: Vec<&str> =
                    FailureKind::NAMES.iter().copied().filter(|kind| *kind != "transient").collect();
                let hint = suggest(name, &kinds).unwrap_or_default();
                self.report(Code::InvalidValue, node.span, format!("unknown failure kind `{name}`"), &hint);
            }
        }
        FailureKind::ToolError
    }
}

#[cfg(test)]
mod tests {
    use steprail_core::diagnostic::render;

    use super::*;

    fn problems(text: &str) -> String {
        let source = Source::new("tools.yaml", text);
        let problems = Script::read(&source).unwrap_err();
        problems.iter().map(|problem| render(problem, &source, false) + "\n\n").collect()
    }

    #[test]
    fn every_problem_is_reported() {
        insta::assert_snapshot!(problems(
            "a: { retrun: 1 }\nb: 1\nc: { return: 1, echo: true }\nd: { sleep: long, fail: -1 }\n\
             e: { fail: { times: 1, kind: transprot, often: 2 } }\nf: { fail: { kind: transient } }\n\
             'no name': { echo: 1 }\n"
        ));
    }

    #[test]
    fn rejects_a_script_that_is_not_a_map() {
        insta::assert_snapshot!(problems("- a\n"));
    }

    #[test]
    fn only_the_first_calls_fail() {
        let fail = |times| Fail { times, ..Fail::default() };
        assert!(fail(Some(2)).covers(2) && !fail(Some(2)).covers(3));
        assert!(fail(None).covers(u32::MAX), "without a number, every call fails");
        assert_eq!(&*fail(Some(2)).failure(1).message, "scripted failure 1 of 2");
    }

    #[test]
    fn star_defines_all_other_tools() {
        let source = Source::new("tools.yaml", "a: { read_only: true }\n'*': { destructive: true }\n");
        let script = Script::read(&source).unwrap();
        assert!(script.annotations("a").is_read_only() && !script.annotations("a").is_destructive());
        assert!(script.annotations("b").is_destructive());
    }
}
