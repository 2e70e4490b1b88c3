//! The facts about a call that rules compare, and their values in conditions.

use std::cell::OnceCell;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::bounded_regex::{BoundedRegex, RegexError, RegexSet};
use crate::diagnostic::{Code, suggest};
use crate::expr::{CallFact, Context, Problem, Ref, RefPath, Resolve, Root};
use crate::names;
use crate::run::{Annotations, Millis};

/// Everything that rules can compare about one call.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'f> {
    /// Full name of the tool: `server__tool`.
    pub tool: &'f str,
    /// The arguments.
    pub args: &'f Value,
    /// The annotations of the tool.
    pub annotations: Annotations,
    /// Id of the user that the call acts for.
    pub user: &'f str,
    /// The groups of the user.
    pub groups: &'f [String],
    /// Whether an agent started the run.
    pub agent: bool,
    /// Name of the client through which the run was started.
    pub client: Option<&'f str>,
    /// Name of the workflow; `None` for a direct call.
    pub workflow: Option<&'f str>,
    /// Path of the step that makes the call.
    pub step: &'f str,
    /// The time of the call.
    pub now: Millis,
}

/// The names of the values that conditions can read.
const NAMES: &[&str] = &["args", "user", "tool", "workflow", "client", "time"];

/// Resolves the names in a condition of a rule.
#[derive(Default)]
pub(super) struct Names {
    regexes: RegexSet,
}

impl Resolve for Names {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        let first = path.name(0).unwrap_or_default();
        let fact = match first {
            "args" => CallFact::Args,
            "user" => CallFact::User,
            "tool" => CallFact::Tool,
            "workflow" => CallFact::Workflow,
            "client" => CallFact::Client,
            "time" => CallFact::Time,
            _ => {
                let message = format!("unknown name `{first}`");
                let mut problem = Problem::new(Code::UnknownTemplateVar, path.at.clone(), message);
                problem.hint = suggest(first, NAMES);
                return Err(problem);
            }
        };
        if let (Some(allowed), Some(key)) = (keys(fact), path.name(1))
            && !allowed.contains(&key)
        {
            let message = format!("`{first}` has no `{key}`");
            let mut problem = Problem::new(Code::UnknownTemplateVar, path.at.clone(), message);
            problem.hint = suggest(key, allowed);
            return Err(problem);
        }
        Ok(path.below(Root::Call(fact), 1))
    }

    fn regex(&mut self, pattern: &str) -> Result<BoundedRegex, RegexError> {
        self.regexes.compile(pattern)
    }
}

/// The keys of a fact that is a map with fixed keys.
fn keys(fact: CallFact) -> Option<&'static [&'static str]> {
    match fact {
        CallFact::Args | CallFact::Client => None,
        CallFact::User => Some(&["id", "groups", "agent"]),
        CallFact::Tool => Some(&["name", "server", "read_only", "destructive", "idempotent", "open_world"]),
        CallFact::Workflow => Some(&["name", "step"]),
        CallFact::Time => Some(&["hour", "minute", "weekday", "date"]),
    }
}

/// The values of a call's facts, built when a condition reads them.
pub(super) struct Values<'f> {
    facts: &'f CallFacts<'f>,
    zone: &'f TimeZone,
    user: OnceCell<Value>,
    tool: OnceCell<Value>,
    workflow: OnceCell<Value>,
    client: OnceCell<Value>,
    time: OnceCell<Value>,
}

impl<'f> Values<'f> {
    pub(super) fn new(facts: &'f CallFacts<'f>, zone: &'f TimeZone) -> Self {
        let empty = OnceCell::new;
        Self { facts, zone, user: empty(), tool: empty(), workflow: empty(), client: empty(), time: empty() }
    }

    fn tool_value(&self) -> Value {
        let hints = &self.facts.annotations;
        json!({
            "name": self.facts.tool,
            "server": names::server(self.facts.tool),
            "read_only": hints.is_read_only(),
            "destructive": hints.is_destructive(),
            "idempotent": hints.is_idempotent(),
            "open_world": hints.is_open_world(),
        })
    }

    fn workflow_value(&self) -> Value {
        match self.facts.workflow {
            Some(name) => json!({ "name": name, "step": self.facts.step }),
            None => Value::Null,
        }
    }

    fn time_value(&self) -> Value {
        let Ok(now) = Timestamp::from_millisecond(self.facts.now) else { return Value::Null };
        let local = now.to_zoned(self.zone.clone());
        json!({
            "hour": local.hour(),
            "minute": local.minute(),
            "weekday": weekday(local.weekday()),
            "date": local.date().to_string(),
        })
    }
}

fn weekday(day: jiff::civil::Weekday) -> &'static str {
    use jiff::civil::Weekday;
    match day {
        Weekday::Monday => "mon",
        Weekday::Tuesday => "tue",
        Weekday::Wednesday => "wed",
        Weekday::Thursday => "thu",
        Weekday::Friday => "fri",
        Weekday::Saturday => "sat",
        Weekday::Sunday => "sun",
    }
}

impl Context for Values<'_> {
    fn value(&self, root: &Root) -> Option<&Value> {
        let Root::Call(fact) = root else { return None };
        let facts = self.facts;
        Some(match fact {
            CallFact::Args => facts.args,
            CallFact::User => self
                .user
                .get_or_init(|| json!({ "id": facts.user, "groups": facts.groups, "agent": facts.agent })),
            CallFact::Tool => self.tool.get_or_init(|| self.tool_value()),
            CallFact::Workflow => self.workflow.get_or_init(|| self.workflow_value()),
            CallFact::Client => self.client.get_or_init(|| json!(facts.client)),
            CallFact::Time => self.time.get_or_init(|| self.time_value()),
        })
    }
}
