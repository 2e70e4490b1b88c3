//! Tests the operator policy: diagnostics, verdicts, explanations and versions.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use jiff::tz::{Offset, TimeZone};
use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::diagnostic::{Code, render};
use steprail_core::policy::cases::{CaseOutcome, run_cases};
use steprail_core::policy::{Action, ByAgents, CallFacts, LimitKind, Policy};
use steprail_core::run::Annotations;
use steprail_core::source::Source;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn source(path: &Path) -> Source {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    Source::new(name, std::fs::read_to_string(path).unwrap())
}

/// Knows two time zones; Berlin has winter time.
fn zones(name: &str) -> Option<TimeZone> {
    match name {
        "UTC" => Some(TimeZone::UTC),
        "Europe/Berlin" => Some(TimeZone::fixed(Offset::constant(1))),
        _ => None,
    }
}

fn compile(text: &str) -> Policy {
    let (policy, problems) = Policy::compile(&Source::new("policy.yaml", text), &zones);
    assert!(problems.is_empty(), "{problems:?}");
    policy.unwrap()
}

fn facts<'f>(tool: &'f str, args: &'f Value) -> CallFacts<'f> {
    CallFacts {
        tool,
        args,
        annotations: Annotations::UNANNOTATED,
        user: "lea",
        groups: &[],
        agent: false,
        client: None,
        workflow: None,
        step: "",
        now: 0,
    }
}

#[test]
fn each_problem_shows_its_diagnostic() {
    insta::glob!("invalid_policy/*", |path| {
        let source = source(path);
        let (policy, problems) = Policy::compile(&source, &zones);
        let rendered: Vec<String> = problems.iter().map(|problem| render(problem, &source, false)).collect();
        let outcome = if policy.is_some() { "accepted" } else { "rejected" };
        insta::assert_snapshot!(format!("{outcome}\n\n{}", rendered.join("\n\n")));
    });
}

#[test]
fn every_code_of_policies_has_a_fixture() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(path("invalid_policy")).unwrap() {
        let (_, problems) = Policy::compile(&source(&entry.unwrap().path()), &zones);
        seen.extend(problems.iter().map(|problem| problem.code));
    }
    let of_policies = |code: &&Code| code.id().starts_with("SR6");
    let missing: Vec<_> = Code::ALL.iter().filter(of_policies).filter(|code| !seen.contains(code)).collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn cases_get_their_verdicts() {
    let policy = compile(&std::fs::read_to_string(path("policy/policy.yaml")).unwrap());
    let (outcomes, problems) = run_cases(&source(&path("policy/cases.yaml")), &policy);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(outcomes.len(), 20);
    let failed: Vec<_> = outcomes.iter().filter(|outcome| !outcome.passed()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut reasons = String::new();
    for outcome in &outcomes {
        let checked = outcome.checked.last().and_then(|checked| checked.mismatch.as_ref());
        let why = checked.map(|mismatch| format!(" ({mismatch})")).unwrap_or_default();
        let (verdict, rule) = (outcome.verdict.action.name(), &outcome.verdict.rule);
        writeln!(reasons, "{}: {verdict} by {rule}{why}", outcome.name).unwrap();
    }
    insta::assert_snapshot!(reasons);
}

#[test]
fn judge_and_explain_agree() {
    let policy = compile(&std::fs::read_to_string(path("policy/policy.yaml")).unwrap());
    for tool in ["stripe__refund", "stripe", "search__web", "mail__send", "x", "a__b", "crm__delete_all"] {
        for args in [json!({}), json!({ "amount": 3 }), json!({ "amount": 300 })] {
            let facts = facts(tool, &args);
            let (explained, _) = policy.explain(&facts, &mut Budget::evaluation());
            assert_eq!(policy.judge(&facts, &mut Budget::evaluation()), explained, "{tool}");
        }
    }
}

#[test]
fn settings_are_exposed() {
    let policy = compile(&std::fs::read_to_string(path("policy/policy.yaml")).unwrap());
    assert_eq!(policy.by_agents, ByAgents::Denied);
    assert_eq!(policy.identical_calls.map(|limit| (limit.max, limit.within_ms)), Some((10, 600_000)));
    let args = json!({ "amount": 300 });
    let verdict = policy.judge(&facts("stripe__refund", &args), &mut Budget::evaluation());
    let Action::RequireApproval(approval) = verdict.action else { panic!("{verdict:?}") };
    assert_eq!((approval.quorum, approval.timeout_ms), (2, Some(14_400_000)));
    assert_eq!(approval.approvers[0].to_string(), "group:finance");
    assert_eq!(approval.escalate[0].after_ms, 3_600_000);
}

#[test]
fn the_version_depends_on_the_rules_alone() {
    let one = compile("default: allow\nrules: [{name: a, tools: [x__*], then: deny}]");
    let commented = compile("# why\nrules:\n  - then: deny\n    tools: x__*\n    name: a\ndefault: allow\n");
    let other = compile("default: allow\nrules: [{name: a, tools: [y__*], then: deny}]");
    assert_eq!(one.hash(), commented.hash());
    assert_ne!(one.version(), other.version());
    assert_eq!(one.version().len(), 12);
}

#[test]
fn an_exhausted_budget_denies() {
    let policy = compile("default: allow\nrules: [{name: big, when: '7 in args.list', then: allow}]");
    let args = json!({ "list": vec![0; 2_000_000] });
    let verdict = policy.judge(&facts("a__b", &args), &mut Budget::evaluation());
    let Action::Deny(reason) = verdict.action else { panic!("{verdict:?}") };
    assert!(reason.contains("exceeds the limit"), "{reason}");
}

#[test]
fn windows_start_at_midnight_and_on_mondays() {
    let text = "default: allow\ntime_zone: Europe/Berlin\nrules: [{name: a, then: {limit: {budget: UNIT, per: run}}}]";
    let start = |unit: &str, at: &str| {
        let policy = compile(&text.replace("UNIT", unit));
        let args = json!({});
        let verdict = policy.judge(&facts("a__b", &args), &mut Budget::evaluation());
        let Action::Limit(limit) = verdict.action else { panic!("{verdict:?}") };
        assert_eq!(limit.kind, LimitKind::Budget);
        let now = at.parse::<jiff::Timestamp>().unwrap().as_millisecond();
        jiff::Timestamp::from_millisecond(policy.window_start(&limit, now)).unwrap().to_string()
    };
    assert_eq!(start("5/d", "2026-01-07T22:59:00Z"), "2026-01-06T23:00:00Z");
    assert_eq!(start("5/d", "2026-01-07T23:00:00Z"), "2026-01-07T23:00:00Z");
    assert_eq!(start("5/w", "2026-01-11T22:59:00Z"), "2026-01-04T23:00:00Z");
    assert_eq!(start("5/h", "2026-01-11T22:59:00Z"), "2026-01-11T22:00:00Z");
    assert_eq!(start("5", "2026-01-11T22:59:00Z"), "1970-01-01T00:00:00Z");
}

/// The blocks of `docs/policy.md`: a policy, and test cases that it passes.
#[test]
fn examples_of_the_documentation_are_valid() {
    let page = std::fs::read_to_string(path("../../../docs/policy.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let [policy, cases] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let policy = compile(policy);
    let (outcomes, problems) = run_cases(&Source::new("cases.yaml", cases), &policy);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!(outcomes.len(), 4);
    assert!(outcomes.iter().all(CaseOutcome::passed), "{outcomes:#?}");
}

#[test]
fn the_default_policy_asks_about_destructive_and_unannotated_tools() {
    let file = path("../../server/src/daemon/default_policy.yaml");
    let policy = compile(&std::fs::read_to_string(file).unwrap());
    let verdict = |annotations: Annotations| {
        let args = json!({});
        let facts = CallFacts { annotations, ..facts("a__b", &args) };
        policy.judge(&facts, &mut Budget::evaluation()).action.name()
    };
    let destructive = |value| Annotations { destructive: Some(value), ..Annotations::UNANNOTATED };
    assert_eq!(verdict(Annotations::READ_ONLY), "allow");
    assert_eq!(verdict(destructive(false)), "allow");
    assert_eq!(verdict(destructive(true)), "require_approval");
    assert_eq!(verdict(Annotations::IDEMPOTENT), "require_approval");
    assert_eq!(verdict(Annotations::UNANNOTATED), "require_approval");
}
