//! The time that a policy of 200 rules adds to a call. The limit is 10 µs.

use std::fmt::Write;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use jiff::tz::TimeZone;
use serde_json::json;
use steprail_core::budget::Budget;
use steprail_core::policy::{CallFacts, Policy};
use steprail_core::run::Annotations;
use steprail_core::source::Source;

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn policy(rule: impl Fn(usize) -> String) -> Policy {
    let mut text = String::from("default: deny\nrules:\n");
    for at in 0..200 {
        let _ = writeln!(text, "  - {{ name: r{at}, {}, then: allow }}", rule(at));
    }
    let (policy, problems) = Policy::compile(&Source::new("policy.yaml", text), &|_| Some(TimeZone::UTC));
    assert!(problems.is_empty(), "{problems:?}");
    policy.unwrap()
}

/// Rules as operators write them: half of them about other servers, some with conditions.
fn mixed(at: usize) -> String {
    match at % 8 {
        0..4 => format!("tools: 'server{at}__*', when: 'args.amount > 5'"),
        4 => format!("tools: 'stripe__list_{at}'"),
        5 => format!("principals: [user:u{at}, group:g{at}], tools: 'stripe__*'"),
        6 => "annotations: {read_only: true}, by: agent".to_owned(),
        _ => format!("tools: 'stripe__*', when: 'args.amount > {at}00 + 12'"),
    }
}

/// In each policy no rule matches the call, so all rules that can match its server are compared.
fn judge(criterion: &mut Criterion) {
    let args = json!({ "amount": 12, "to": "someone", "note": "a short text" });
    let groups = ["finance".to_owned(), "support".to_owned(), "everyone".to_owned()];
    let facts = CallFacts {
        tool: "stripe__create_refund",
        args: &args,
        annotations: Annotations::UNANNOTATED,
        user: "lea",
        groups: &groups,
        agent: true,
        client: Some("claude-code"),
        workflow: Some("refund_with_approval"),
        step: "refund",
        now: 1_767_225_600_000,
    };
    let policies = [
        ("by_server", policy(|at| format!("tools: 'server{at}__*', when: 'args.amount > {at}00'"))),
        ("patterns", policy(|at| format!("tools: '*_list_{at}'"))),
        ("annotations", policy(|_| "annotations: {read_only: true}".to_owned())),
        ("principals", policy(|at| format!("principals: [user:u{at}, group:g{at}, group:h{at}]"))),
        ("same_server", policy(|at| format!("tools: 'stripe__*_charge{at}', by: agent"))),
        ("mixed", policy(mixed)),
        ("conditions", policy(|at| format!("when: 'args.amount > {at}00 + 12'"))),
        ("two_facts", policy(|at| format!("when: 'time.hour == 25 or tool.name == \"t{at}\"'"))),
    ];
    let mut group = criterion.benchmark_group("policy_of_200_rules");
    for (name, policy) in &policies {
        group.bench_function(*name, |b| {
            b.iter(|| policy.judge(black_box(&facts), &mut Budget::evaluation()));
        });
    }
    group.finish();
}

criterion_group!(benches, judge);
criterion_main!(benches);
