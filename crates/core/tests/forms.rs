//! Tests the plans of the three forms: blocks, transitions, inherited policies, references.

use serde_json::{Value, json};
use steprail_core::budget::Budget;
use steprail_core::expr::{Context, Root};
use steprail_core::plan::{BackoffKind, Kind, Next, OnDeny, OnError, Plan, StepIx};
use steprail_core::source::Source;
use steprail_core::spec::policy::OnUncertain;
use steprail_core::{Loaded, load};

fn plan(text: &str) -> Plan {
    let Loaded { plan, diagnostics, .. } = load(&Source::new("test.yaml", text));
    plan.unwrap_or_else(|| panic!("{diagnostics:?}"))
}

/// Renders the plan as an outline: each step with its next steps, nested blocks indented.
fn outline(plan: &Plan) -> String {
    fn block(plan: &Plan, at: steprail_core::plan::BlockIx, depth: usize, out: &mut String) {
        let id = |step: &StepIx| plan.step(*step).id.to_string();
        let block_ = plan.block(at);
        let entry: Vec<String> = block_.entry.iter().map(id).collect();
        let name = block_.name.as_deref().unwrap_or("block");
        out.push_str(&format!("{}{name}: enters {}\n", "  ".repeat(depth), entry.join(", ")));
        for step in &block_.steps {
            let step = plan.step(*step);
            let next = match &step.next {
                Next::End => "end".to_owned(),
                Next::Step(next) => id(next),
                Next::Dependents(list) => format!("all of {:?}", list.iter().map(id).collect::<Vec<_>>()),
                Next::Choose { choices, otherwise } => {
                    let choices: Vec<String> =
                        choices.iter().map(|c| format!("{} ? {:?}", c.written, c.to)).collect();
                    format!("{} : {otherwise:?}", choices.join(" : "))
                }
            };
            out.push_str(&format!("{}{} -> {next}\n", "  ".repeat(depth + 1), step.id));
            let inside = match &step.kind {
                Kind::Foreach(foreach) => vec![foreach.body],
                Kind::Parallel(parallel) => parallel.branches.clone(),
                Kind::Branch(branch) => {
                    branch.cases.iter().map(|case| case.then).chain(branch.otherwise).collect()
                }
                _ => Vec::new(),
            };
            inside.into_iter().for_each(|at| block(plan, at, depth + 2, out));
        }
    }
    let mut out = String::new();
    block(plan, Plan::ROOT, 0, &mut out);
    out
}

#[test]
fn a_tree_nests_blocks() {
    let plan = plan(
        "
name: tree
steps:
  - { id: a, tool: t }
  - id: each
    items: [1, 2]
    steps:
      - { id: b, tool: t }
      - id: fork
        kind: parallel
        branches:
          right: [{ id: r, tool: t }]
          left: [{ id: l1, tool: t }, { id: l2, tool: t }]
  - id: pair
    kind: parallel
    steps: [{ id: p1, tool: t }, { id: p2, tool: t }]
  - id: choice
    cases:
      - { if: a.x, then: [{ id: c1, tool: t }] }
      - { if: a.y, then: [] }
    else: [{ id: c3, tool: t }]
",
    );
    insta::assert_snapshot!(outline(&plan));
}

#[test]
fn a_dag_waits_for_its_dependencies() {
    let plan = plan(
        "
name: dag
steps:
  - { id: last, tool: t, depends_on: [left, right] }
  - { id: left, tool: t, depends_on: first }
  - { id: right, tool: t, depends_on: first }
  - { id: first, tool: t }
  - { id: alone, tool: t }
",
    );
    insta::assert_snapshot!(outline(&plan));
}

#[test]
fn a_graph_keeps_loops_and_nests_forks() {
    let plan = plan(
        "
name: graph
start: ask
steps:
  ask: { tool: t, branch: [{ if: result.again, then: wait }, { else: spread }] }
  wait: { kind: sleep, for: 1m, next: ask }
  spread: { tool: t, parallel: [a, inner] }
  a: { tool: t, branch: [{ if: result.twice, then: a2 }, { else: after }] }
  a2: { tool: t, join: after }
  inner: { parallel: [x, y], join: meet }
  x: { tool: t, next: x2 }
  x2: { tool: t, next: meet }
  y: { tool: t, join: meet }
  meet: { tool: t, args: { both: '{{x2}} {{y}}' }, join: after }
  after: { tool: t, args: { all: '{{meet}} {{a}} {{spread}}' }, done: true }
",
    );
    insta::assert_snapshot!(outline(&plan));
}

#[test]
fn graph_step_is_found_by_key_and_name() {
    let plan = plan("
start: { name: search, tool: t, next: report }
report: { tool: t, args: { a: '{{search.x}}', b: '{{steps.start.output.x}}', c: $.start.x }, branch: [{ if: result.more, then: start }, { else: end }] }
end: { tool: t, done: true }
");
    assert_eq!(plan.find("search"), plan.block(Plan::ROOT).entry.first().copied());
    insta::assert_snapshot!(outline(&plan));
}

#[test]
fn nested_steps_inherit_policies_of_their_block() {
    let plan = plan(
        "
name: policies
on_uncertain: fail
steps:
  - id: each
    items: [1]
    timeout: 1h
    retry: { max_attempts: 4, backoff: [1s, 2s] }
    on_uncertain: retry
    on_error: continue
    steps:
      - { id: inherits, tool: t }
      - { id: own, tool: t, retry: 0, on_uncertain: ask, timeout_secs: 5 }
  - { id: outside, tool: t }
",
    );
    let step = |id| plan.step(plan.find(id).unwrap());
    let uncertain = |id| match &step(id).kind {
        Kind::Call(call) => call.on_uncertain,
        _ => None,
    };
    assert_eq!(
        (step("each").timeout_ms, step("inherits").timeout_ms, step("own").timeout_ms),
        (Some(3_600_000), None, Some(5_000))
    );
    assert_eq!((step("each").on_error, step("inherits").on_error), (OnError::Continue, OnError::Fail));
    assert_eq!(step("each").retry, None, "blocks are not retried, their steps are");
    let inherited = step("inherits").retry.as_ref().unwrap();
    assert_eq!(
        (inherited.max_attempts, &inherited.backoff),
        (4, &BackoffKind::Delays([1_000, 2_000].into()))
    );
    assert_eq!((step("own").retry.as_ref().unwrap().max_attempts, &step("outside").retry), (1, &None));
    assert_eq!(uncertain("inherits"), Some(OnUncertain::Retry));
    assert_eq!(uncertain("own"), Some(OnUncertain::Ask));
    assert_eq!(uncertain("outside"), Some(OnUncertain::Fail));
}

#[test]
fn each_form_has_its_defaults() {
    let on_deny = |plan: &Plan| match &plan.steps[0].kind {
        Kind::Approve(approve) => approve.on_deny,
        other => panic!("{other:?}"),
    };
    let tree = plan("{ name: tree, steps: [{ id: gate, prompt: ok? }, { id: a, tool: t }] }");
    let graph = plan(
        "{ name: graph, start: gate, steps: { gate: { tool: null, next: a }, a: { tool: t, done: true } } }",
    );
    assert_eq!((on_deny(&tree), on_deny(&graph)), (OnDeny::Fail, OnDeny::Cancel));
    let attempts =
        |plan: &Plan| plan.step(plan.find("a").unwrap()).retry.as_ref().map(|retry| retry.max_attempts);
    assert_eq!((attempts(&tree), attempts(&graph)), (None, Some(3)));
}

/// A run in which all steps have the same output.
struct Run {
    inputs: Value,
    output: Value,
    item: Value,
}

impl Context for Run {
    fn value(&self, root: &Root) -> Option<&Value> {
        match root {
            Root::Inputs => Some(&self.inputs),
            Root::Output(_) | Root::FileRefs(_) => Some(&self.output),
            Root::Item(_) => Some(&self.item),
            _ => None,
        }
    }
}

fn arguments(text: &str, id: &str, run: &Run) -> Result<Value, String> {
    let plan = plan(text);
    match &plan.step(plan.find(id).unwrap()).kind {
        Kind::Call(call) => call.args.eval(run, &mut Budget::evaluation()).map_err(|error| error.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn references_resolve_in_their_scope() {
    let text = "
name: references
inputs: { scene: string, note: { type: string, optional: true } }
steps:
  - { id: m, tool: t, outputs: [found] }
  - id: each-file
    items: $.m.files
    as: file
    steps:
      - id: export
        tool: t
        args:
          input: '{{scene}} {{inputs.scene}} {{input.scene}}'
          output: '{{steps.m.output.n}}'
          bare: '{{m.n}}'
          file_ref: '{{steps.m.file_refs[0].uri}}'
          item: '{{item}}'
          file: 'file {{file.name}}'
          outputs: $found
          maybe: '{{inputs.note | default(\"none\")}}'
  - { id: use, tool: t, args: { all: '{{steps.each-file.output}}', hyphen: $.each-file } }
";
    let run = Run {
        inputs: json!({ "scene": "s1" }),
        output: json!([{ "uri": "file:///a" }]),
        item: json!({ "name": "a.txt" }),
    };
    assert_eq!(arguments(text, "use", &run).unwrap()["hyphen"], json!([{ "uri": "file:///a" }]));
    let error = arguments(text, "export", &run).unwrap_err();
    assert_eq!(error, "`steps.m.output.n` cannot be resolved: there is no `n`; the list has 1 item");
    let with_map = Run { output: json!({ "n": 3, "0": "x" }), ..run };
    let without_files = text.replace("          file_ref: '{{steps.m.file_refs[0].uri}}'\n", "");
    insta::assert_json_snapshot!(arguments(&without_files, "export", &with_map).unwrap());
}

#[test]
fn missing_input_is_empty_only_in_the_graph_form() {
    let run = Run { inputs: json!({}), output: json!(null), item: json!(null) };
    let graph =
        "{ name: g, start: a, steps: { a: { tool: t, args: { x: '{{input.topic}}' }, done: true } } }";
    assert_eq!(arguments(graph, "a", &run).unwrap(), json!({ "x": "" }));
    let tree = "{ name: t, inputs: { topic: string }, steps: [{ id: a, tool: t, args: { x: '{{inputs.topic}}' } }] }";
    assert_eq!(
        arguments(tree, "a", &run).unwrap_err(),
        "`inputs.topic` cannot be resolved: there is no `topic`; the map is empty"
    );
}

#[test]
fn declared_output_is_a_key_or_the_whole_output() {
    let text = "
name: outputs
steps:
  - { id: s1, tool: t, outputs: [results] }
  - { id: s2, tool: t, args: { body: $results }, depends_on: s1 }
";
    let run = |output: Value| Run { inputs: json!({}), output, item: json!(null) };
    assert_eq!(
        arguments(text, "s2", &run(json!({ "results": [1], "more": 2 }))).unwrap()["body"],
        json!([1])
    );
    assert_eq!(arguments(text, "s2", &run(json!("plain"))).unwrap()["body"], json!("plain"));
}

#[test]
fn accepts_valid_variants() {
    let definitions = [
        ("a condition of a transition reads the step itself", "
            { name: g, start: a, steps: {
                a: { tool: t, branch: [{ if: 'steps.a.output.count > 3', then: b }, { if: $.a.ok, then: b }], else: b },
                b: { tool: t, done: true } } }"),
        ("a branch step in a graph has steps under else", "
            { name: g, start: a, steps: {
                a: { kind: branch, if: '1 < 2', then: [{ id: x, tool: t }], else: [{ id: y, tool: t }], next: b },
                b: { tool: t, done: true } } }"),
        ("fields of a bare graph can look like steps", "
            { labels: { kind: nightly }, inputs: { tool: { type: string } }, output: { done: '{{b.x}}' },
              start: { tool: t, next: b }, b: { tool: t, done: true } }"),
        ("`start` names the first step among the steps", "{ name: g, flow: { start: b, b: { tool: t, done: true } } }"),
        ("a result can be compared with any text", "
            { name: g, start: a, steps: { a: { tool: t, branch: [
                { if: result == v1.2, then: b }, { if: result != p/q, then: b }, { if: 'result == https://x.y', then: b },
                { if: result == 50%, then: b }, { if: result == not found, then: b }, { else: b } ] },
                b: { tool: t, done: true } } }"),
        ("names can contain letters of any language", "
            { name: t, inputs: { größe: integer }, steps: [{ id: a, tool: t, args: { x: '{{inputs.größe}} {{größe}}', y: $.inputs.größe } }] }"),
        ("a loop variable can be written with a dollar sign", "
            { name: t, steps: [{ id: a, items: [1], as: file, steps: [{ id: b, tool: t, args: { x: $file, y: '{{file}}' } }] }] }"),
        ("a filter binds to the preceding value", "
            { name: t, inputs: { n: integer }, steps: [{ id: a, if: 'inputs.n | default(0) > 3 and n == n | default(1)', then: [], else: [] }] }"),
        ("`$schema` is allowed for editors", "{ $schema: ./definition.schema.json, name: t, steps: [{ id: a, tool: t }] }"),
        ("null is the same as no value", "{ name: t, inputs: null, steps: [{ id: a, kind: null, tool: t, args: null, retry: null }] }"),
        ("windows line ends and tabs", "name: t\r\nsteps:\r\n  - id: a\r\n    tool: t\r\n    args: {\tx: 1 }\r\n"),
        (
            "steps of a bare graph can have the names of fields of a definition",
            "{ name: g, start: { tool: x, next: publish }, publish: { tool: y, next: output }, output: { tool: z, done: true } }",
        ),
        (
            "branches of a fork with `join` need no transition",
            "{ name: g, start: f, steps: { f: { tool: x, parallel: [b, c], join: d }, b: { tool: y }, c: { tool: y, on_error: { goto: d } }, d: { tool: y, done: true } } }",
        ),
        (
            "the six result forms are allowed in a list",
            "{ name: t, steps: [{ id: a, tool: t }, { id: b, if: result == active, then: [], else: [] }] }",
        ),
        (
            "a path with a star needs no dollar sign",
            "{ name: t, inputs: { list: array }, steps: [{ id: l, tool: t }, { id: b, tool: t, args: { x: '{{steps.l.output[*].name}}', y: '{{ size(inputs.list[?@.ok == true]) }}' } }] }",
        ),
        ("not can be repeated", "{ name: t, inputs: { a: boolean }, steps: [{ id: s, if: 'not not a', then: [], else: [] }] }"),
        ("a byte order mark", "\u{feff}name: t\nsteps: [{ id: a, tool: t }]\n"),
    ];
    for (case, text) in definitions {
        let Loaded { plan, diagnostics, .. } = load(&Source::new("accepted.yaml", text));
        assert!(plan.is_some(), "{case}: {diagnostics:#?}");
    }
    let json = load(&Source::new(
        "bom.json",
        "\u{feff}{\"name\": \"t\", \"steps\": [{\"id\": \"a\", \"tool\": \"t\"}]}",
    ));
    assert!(json.plan.is_some(), "{:?}", json.diagnostics);
}

#[test]
fn gate_result_matches_approved_or_denied() {
    let plan = plan(
        "
name: gate
start: ask
steps:
  ask: { tool: null, branch: [{ if: result == approved, then: go }, { else: stop }] }
  go: { tool: t, done: true }
  stop: { tool: t, done: true }
",
    );
    let Next::Choose { choices, .. } = &plan.steps[0].next else { panic!("a choice") };
    let run = |output: Value| Run { inputs: json!({}), output, item: json!(null) };
    let holds = |output| choices[0].when.holds(&run(output), &mut Budget::evaluation()).unwrap();
    assert!(holds(json!({ "approved": true, "by": "ann" })) && !holds(json!({ "approved": false })));
}
