//! Test cases of a policy: calls with the verdicts that they should get.

use jiff::Timestamp;
use serde_json::json;

use super::spec::{AnnotationSpec, StartedBy};
use super::{CallFacts, Checked, Policy, Verdict};
use crate::bounded_regex::RegexSet;
use crate::budget::Budget;
use crate::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::document::{self, Node};
use crate::limits;
use crate::run::{Annotations, Millis};
use crate::source::Source;
use crate::spec::fields::{FromNode, Reader, choice, record};
use crate::spec::value::{Spanned, Text};

record! {
    /// A file of test cases.
    pub struct CasesSpec("a test file") {
        /// The cases.
        @required cases: Vec<CaseSpec>,
    }
}

record! {
    /// A call, and the verdict that it should get.
    pub struct CaseSpec("a case") {
        /// What the case shows.
        name: Text,
        /// Full name of the tool.
        @required tool: Text,
        /// The arguments. Default: none.
        args: Node,
        /// Annotations of the tool. Default: none.
        annotations: AnnotationSpec,
        /// Id of the user. Default: `someone`.
        user: Text,
        /// Groups of the user.
        groups: Vec<String>,
        /// Who started the run. Default: `person`.
        by: StartedBy,
        /// Name of the client.
        client: Text,
        /// Name of the workflow. Default: a direct call.
        workflow: Text,
        /// Time of the call, such as `2026-03-02T09:00:00Z`. Default: 1970-01-01.
        time: Text,
        /// The expected verdict.
        @required expect: Expected,
        /// The rule that should decide. Default: any.
        rule: Text,
    }
}

choice! {
    /// An expected verdict.
    pub enum Expected {
        /// The call is made.
        Allow = "allow",
        /// The call fails.
        Deny = "deny",
        /// The call needs an approval.
        RequireApproval = "require_approval",
        /// The call is made within a limit.
        Limit = "limit",
    }
}

/// The result of one test case.
#[derive(Debug)]
pub struct CaseOutcome<'p> {
    /// Name of the case.
    pub name: String,
    /// The expected verdict, and the expected rule if the case names one.
    pub expected: (Expected, Option<String>),
    /// The verdict.
    pub verdict: Verdict,
    /// The rules up to the one that decided.
    pub checked: Vec<Checked<'p>>,
}

impl CaseOutcome<'_> {
    /// Whether the verdict is the expected one.
    pub fn passed(&self) -> bool {
        let (expected, rule) = &self.expected;
        expected.name() == self.verdict.action.name()
            && rule.as_ref().is_none_or(|rule| **rule == *self.verdict.rule)
    }
}

/// Parses test cases and compares the verdicts of a policy with them.
pub fn run_cases<'p>(source: &Source, policy: &'p Policy) -> (Vec<CaseOutcome<'p>>, Vec<Diagnostic>) {
    let mut out = Diagnostics::default();
    let cases = read(source, &mut out).unwrap_or_default();
    let outcomes = cases.iter().filter_map(|case| run(case, policy, &mut out)).collect();
    (outcomes, out.finish())
}

fn read(source: &Source, out: &mut Diagnostics) -> Option<Vec<CaseSpec>> {
    let root = document::read(source, out)?;
    let mut reader = Reader { out, step: None, steps: 0, depth: 0, regexes: RegexSet::default() };
    let mut cases = CasesSpec::from_node(root, &mut reader)?.cases?;
    cases.truncate(limits::POLICY_CASES);
    Some(cases)
}

fn run<'p>(case: &CaseSpec, policy: &'p Policy, out: &mut Diagnostics) -> Option<CaseOutcome<'p>> {
    let (tool, expected) = (case.tool.as_ref()?, case.expect?);
    let args = case.args.as_ref().map_or_else(|| json!({}), Node::to_value);
    let facts = CallFacts {
        tool,
        args: &args,
        annotations: annotations(case.annotations.as_ref()),
        user: case.user.as_ref().map_or("someone", |user| user.as_str()),
        groups: case.groups.as_deref().unwrap_or_default(),
        agent: case.by == Some(StartedBy::Agent),
        client: case.client.as_ref().map(|client| client.as_str()),
        workflow: case.workflow.as_ref().map(|workflow| workflow.as_str()),
        step: "",
        now: case.time.as_ref().map_or(Some(0), |time| millis(time, out))?,
    };
    let (verdict, checked) = policy.explain(&facts, &mut Budget::evaluation());
    let name = case.name.as_ref().map_or(tool, |name| name);
    let rule = case.rule.as_ref().map(|rule| rule.value.clone());
    Some(CaseOutcome { name: name.value.clone(), expected: (expected, rule), verdict, checked })
}

fn annotations(spec: Option<&AnnotationSpec>) -> Annotations {
    let Some(spec) = spec else { return Annotations::UNANNOTATED };
    Annotations {
        read_only: spec.read_only,
        destructive: spec.destructive,
        idempotent: spec.idempotent,
        open_world: spec.open_world,
        ..Annotations::UNANNOTATED
    }
}

fn millis(time: &Spanned<String>, out: &mut Diagnostics) -> Option<Millis> {
    let parsed: Result<Timestamp, _> = time.parse();
    let millis = parsed.map(Timestamp::as_millisecond).ok();
    if millis.is_none() {
        let message = format!("`{}` is not a time", time.value);
        out.push(
            Diagnostic::new(Code::InvalidValue, time.span, message).hint("write `2026-03-02T09:00:00Z`"),
        );
    }
    millis
}
