//! The time to parse, check and compile a definition, and to evaluate its expressions.
//!
//! Compare ratios within one run, because other load changes the absolute times. The `floor_` cases measure the YAML parser
//! and `serde_json` alone on the same text.

#[path = "../tests/common/expensive.rs"]
mod expensive;

use std::fmt::Write;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{Condition, Context, Problem, Ref, RefPath, Resolve, Root, Template, parse};
use steprail_core::source::Source;
use steprail_core::{load, plan::StepIx};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn plain(steps: usize) -> String {
    let mut text = String::from("name: bench\nsteps:\n");
    for at in 0..steps {
        let _ = write!(text, "  - id: s{at}\n    tool: demo__echo\n");
    }
    text
}

fn with_arguments(steps: usize) -> String {
    let mut text = String::from(
        "name: bench\ninputs:\n  q: { type: string }\nsteps:\n  - id: s0\n    tool: demo__echo\n",
    );
    for at in 1..steps {
        let before = at - 1;
        let _ = write!(
            text,
            "  - id: s{at}\n    tool: demo__echo\n    args: {{ text: \"{{{{inputs.q}}}}\", from: \"{{{{s{before}.x}}}}\" }}\n"
        );
    }
    text
}

fn definitions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("definition");
    for steps in [100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(steps as u64));
        for (name, text) in [("plain", plain(steps)), ("arguments", with_arguments(steps))] {
            let yaml = Source::new("bench.yaml", text);
            let loaded = load(&yaml);
            assert!(loaded.plan.is_some(), "{:?}", loaded.diagnostics);
            let json = Source::new("bench.json", loaded.spec.unwrap().to_canonical_json());
            group.bench_function(BenchmarkId::new(format!("{name}/yaml"), steps), |b| {
                b.iter(|| load(black_box(&yaml)));
            });
            group.bench_function(BenchmarkId::new(format!("{name}/json"), steps), |b| {
                b.iter(|| load(black_box(&json)));
            });
            group.bench_function(BenchmarkId::new(format!("{name}/floor_yaml_events"), steps), |b| {
                b.iter(|| saphyr_parser::Parser::new_from_str(black_box(yaml.text())).count());
            });
            group.bench_function(BenchmarkId::new(format!("{name}/floor_json_value"), steps), |b| {
                b.iter(|| serde_json::from_str::<Value>(black_box(json.text())).unwrap());
            });
        }
    }
    group.finish();
}

/// Resolves every name to the only step.
struct OneStep;

impl Resolve for OneStep {
    fn resolve(&mut self, path: RefPath) -> Result<Ref, Problem> {
        Ok(path.below(Root::Output(StepIx(0)), 1))
    }

    fn is_known(&mut self, _: &str) -> bool {
        false
    }
}

struct Values(Value);

impl Context for Values {
    fn value(&self, root: &Root) -> Option<&Value> {
        matches!(root, Root::Output(_)).then_some(&self.0)
    }
}

/// An output of about this many bytes, with the referenced values at its end.
fn output(bytes: usize) -> Values {
    let filler: Vec<Value> =
        (0..bytes / 50).map(|n| json!({ "id": n, "name": "some name", "size": 12345 })).collect();
    Values(json!({ "filler": filler, "user": { "status": "active", "count": 11, "tags": ["a", "b"] } }))
}

fn evaluation(criterion: &mut Criterion) {
    let reference = parse("result.user.tags[1]", &mut OneStep).unwrap();
    let condition =
        Condition::parse("result.user.status == \"active\" && result.user.count > 10", &mut OneStep).unwrap();
    let jsonpath = Condition::parse("$.result.user.status", &mut OneStep).unwrap();
    let mixed = Template::parse(
        "user is {{result.user.status}} ({{result.user.count}})",
        &mut OneStep,
        &mut Vec::new(),
    );
    let mut group = criterion.benchmark_group("evaluation");
    for bytes in [1_000, 10_000, 1_000_000] {
        let context = output(bytes);
        group.bench_function(BenchmarkId::new("reference", bytes), |b| {
            b.iter(|| black_box(&reference).eval(&context, &mut Budget::evaluation()).is_ok());
        });
        group.bench_function(BenchmarkId::new("condition", bytes), |b| {
            b.iter(|| black_box(&condition).holds(&context, &mut Budget::evaluation()));
        });
        group.bench_function(BenchmarkId::new("jsonpath_condition", bytes), |b| {
            b.iter(|| black_box(&jsonpath).holds(&context, &mut Budget::evaluation()));
        });
        group.bench_function(BenchmarkId::new("mixed_template", bytes), |b| {
            b.iter(|| black_box(&mixed).eval(&context, &mut Budget::evaluation()).is_ok());
        });
    }
    group.finish();
}

/// The time of evaluations that spend a known part of their budget, for each kind of work. The time of an exhausted budget
/// is `time * EVALUATION_COST / spent`; the name of each benchmark ends with the spent units in thousands.
fn budget(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("budget");
    for case in expensive::cases() {
        let expr = parse(case.text, &mut OneStep).unwrap();
        let context = Values((case.values)(case.sizes.0)["x"].clone());
        let mut spent = Budget::evaluation();
        let _ = expr.eval(&context, &mut spent);
        group.bench_function(BenchmarkId::new(case.name, spent.spent() / 1_000), |b| {
            b.iter(|| expr.eval(&context, &mut Budget::evaluation()).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, definitions, evaluation, budget);
criterion_main!(benches);
