//! The conditions of one rule, compiled, and an index of rules by server.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{CallFacts, Values};
use super::judge::Mismatch;
use super::spec::{CallKind, PrincipalName, StartedBy};
use crate::budget::Budget;
use crate::expr::Condition;
use crate::names;

/// The conditions of a rule. An absent condition holds for every call.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    pub tools: Option<Patterns>,
    pub annotations: AnnotationTest,
    pub principals: Option<Box<[PrincipalName]>>,
    pub by: Option<StartedBy>,
    pub clients: Option<Patterns>,
    pub workflows: Option<Patterns>,
    pub calls: Option<CallKind>,
    pub when: Option<Condition>,
}

/// The expected annotations; `None`: any.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct AnnotationTest {
    pub read_only: Option<bool>,
    pub destructive: Option<bool>,
    pub idempotent: Option<bool>,
    pub open_world: Option<bool>,
}

impl AnnotationTest {
    fn is_any(self) -> bool {
        [self.read_only, self.destructive, self.idempotent, self.open_world].iter().all(Option::is_none)
    }

    /// The first annotation that differs.
    fn mismatch(self, facts: &CallFacts) -> Option<(&'static str, bool)> {
        let hints = &facts.annotations;
        let tests = [
            ("read_only", self.read_only, hints.is_read_only()),
            ("destructive", self.destructive, hints.is_destructive()),
            ("idempotent", self.idempotent, hints.is_idempotent()),
            ("open_world", self.open_world, hints.is_open_world()),
        ];
        let differs =
            |(_, expected, actual): &&(_, Option<bool>, bool)| expected.is_some_and(|e| e != *actual);
        tests.iter().find(differs).map(|(name, _, actual)| (*name, *actual))
    }
}

impl Matcher {
    /// Whether the rule matches every call.
    pub(super) fn is_any(&self) -> bool {
        let any_tool = self.tools.as_ref().is_none_or(Patterns::match_all);
        any_tool
            && self.annotations.is_any()
            && self.principals.is_none()
            && self.by.is_none()
            && self.clients.is_none()
            && self.workflows.is_none()
            && self.calls.is_none()
            && self.when.is_none()
    }

    /// Whether the rule matches a call, with the cheap tests first. Returns the first condition that does not hold.
    pub(super) fn check(
        &self,
        facts: &CallFacts,
        values: &Values,
        budget: &mut Budget,
    ) -> Result<(), Mismatch> {
        self.check_tool(facts)?;
        self.check_caller(facts)?;
        let Some(when) = &self.when else { return Ok(()) };
        match when.holds(values, budget) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Mismatch::When),
            Err(error) => Err(Mismatch::Error(error.message)),
        }
    }

    fn check_tool(&self, facts: &CallFacts) -> Result<(), Mismatch> {
        if self.calls.is_some_and(|calls| (calls == CallKind::Step) != facts.workflow.is_some()) {
            return Err(Mismatch::Calls);
        }
        if self.tools.as_ref().is_some_and(|tools| !tools.matches(facts.tool)) {
            return Err(Mismatch::Tools);
        }
        match self.annotations.mismatch(facts) {
            Some((name, actual)) => Err(Mismatch::Annotation(name, actual)),
            None => Ok(()),
        }
    }

    fn check_caller(&self, facts: &CallFacts) -> Result<(), Mismatch> {
        if self.by.is_some_and(|by| (by == StartedBy::Agent) != facts.agent) {
            return Err(Mismatch::By);
        }
        let covers = |names: &[PrincipalName]| names.iter().any(|name| name.covers(facts.user, facts.groups));
        if self.principals.as_ref().is_some_and(|names| !covers(names)) {
            return Err(Mismatch::Principals);
        }
        let matches =
            |patterns: &Patterns, name: Option<&str>| name.is_some_and(|name| patterns.matches(name));
        if self.clients.as_ref().is_some_and(|clients| !matches(clients, facts.client)) {
            return Err(Mismatch::Clients);
        }
        if self.workflows.as_ref().is_some_and(|workflows| !matches(workflows, facts.workflow)) {
            return Err(Mismatch::Workflows);
        }
        Ok(())
    }
}

/// Patterns of names, of which one has to match.
#[derive(Debug)]
pub(super) struct Patterns(Box<[Pattern]>);

/// A pattern, split at its stars when the policy is compiled. Most names are rejected by its first or last characters.
#[derive(Debug)]
struct Pattern {
    written: Box<str>,
    /// Without stars, the whole name.
    prefix: Box<str>,
    /// The parts after the first star; empty without stars.
    parts: Box<[Box<str>]>,
}

impl Pattern {
    fn new(written: &str) -> Self {
        let mut parts = written.split('*').map(Into::into);
        let prefix = parts.next().unwrap_or_default();
        Self { written: written.into(), prefix, parts: parts.collect() }
    }

    fn matches(&self, name: &str) -> bool {
        let Some((suffix, middle)) = self.parts.split_last() else { return *self.prefix == *name };
        // An empty text has no address. Comparing it costs more than a long one: the masked load of `memcmp` faults.
        let rest = if self.prefix.is_empty() { Some(name) } else { name.strip_prefix(&*self.prefix) };
        let inner =
            rest.and_then(|rest| if suffix.is_empty() { Some(rest) } else { rest.strip_suffix(&**suffix) });
        let Some(mut rest) = inner else { return false };
        middle.iter().all(|part| {
            let found = rest.find(&**part).map(|at| at + part.len());
            rest = found.map_or("", |end| &rest[end..]);
            found.is_some()
        })
    }
}

impl Patterns {
    pub(super) fn new<'p>(written: impl Iterator<Item = &'p str>) -> Self {
        Self(written.map(Pattern::new).collect())
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }

    fn match_all(&self) -> bool {
        self.0.iter().any(|pattern| &*pattern.written == "*")
    }
}

/// The rules that can match the tools of each server, in order, so that a call is not compared with the others.
#[derive(Debug, Default)]
pub(super) struct RuleIndex {
    servers: BTreeMap<Box<str>, Box<[u32]>>,
    /// The rules for tools of all other servers.
    others: Box<[u32]>,
}

impl RuleIndex {
    pub(super) fn new<'r>(rules: impl Iterator<Item = &'r Matcher>) -> Self {
        let rules: Vec<&Matcher> = rules.collect();
        let servers: BTreeSet<&str> =
            rules.iter().filter_map(|rule| servers_of(rule.tools.as_ref())).flatten().collect();
        let of = |server: Option<&str>| -> Box<[u32]> {
            let applies = |rule: &Matcher| match servers_of(rule.tools.as_ref()) {
                None => true,
                Some(servers) => server.is_some_and(|server| servers.contains(&server)),
            };
            let numbered = (0_u32..).zip(&rules);
            numbered.filter(|(_, rule)| applies(rule)).map(|(at, _)| at).collect()
        };
        let others = of(None);
        Self { servers: servers.iter().map(|server| ((*server).into(), of(Some(server)))).collect(), others }
    }

    /// The rules that can match a tool, in order.
    pub(super) fn candidates(&self, tool: &str) -> &[u32] {
        self.servers.get(names::server(tool)).unwrap_or(&self.others)
    }
}

/// The servers whose tools the patterns can match; `None`: any.
fn servers_of(tools: Option<&Patterns>) -> Option<Vec<&str>> {
    tools?.0.iter().map(|pattern| server_of(&pattern.written)).collect()
}

/// The server of all tools that a pattern matches; `None` if it can match tools of several servers.
fn server_of(pattern: &str) -> Option<&str> {
    match pattern.split_once('*') {
        None => Some(names::server(pattern)),
        Some((prefix, _)) => names::split(prefix).map(|(server, _)| server),
    }
}

#[cfg(test)]
mod tests {
    use super::Patterns;
    use crate::pattern;

    #[test]
    fn compiled_patterns_match_like_those_of_grants() {
        let patterns = ["crm__read_*", "*", "git__log", "*__get_*_by_id", "a*a", "**", "*a*b*", "", "x*"];
        let names =
            ["crm__read_contact", "git__log", "git__logs", "crm__get_c_by_id", "a", "aa", "xaxbx", "", "ba"];
        for written in patterns {
            let compiled = Patterns::new([written].into_iter());
            for name in names {
                assert_eq!(compiled.matches(name), pattern::matches(written, name), "{written} on {name}");
            }
        }
    }
}
