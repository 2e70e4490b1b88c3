//! Tests hostile input: it is accepted or rejected with a clear error, in bounded time and memory.
//!
//! The timeout of the test runner bounds the time. A small stack bounds the recursion.

use std::fmt::Write;

use steprail_core::diagnostic::Code;
use steprail_core::source::Source;
use steprail_core::{Loaded, limits, load};

/// Loads a definition on a small stack, which recursion over the input would overflow.
fn load_small(name: &str, text: String) -> Loaded {
    let source = Source::new(name, text);
    let builder = std::thread::Builder::new().stack_size(1024 * 1024);
    let handle = builder.spawn(move || load(&source)).unwrap();
    handle.join().expect("no panic")
}

fn codes(loaded: &Loaded) -> Vec<Code> {
    loaded.diagnostics.iter().map(|diagnostic| diagnostic.code).collect()
}

fn rejects(name: &str, text: String, code: Code) {
    let loaded = load_small(name, text);
    assert!(loaded.plan.is_none());
    assert!(codes(&loaded).contains(&code), "{:?}", loaded.diagnostics);
}

#[test]
fn deeply_nested_blocks_are_rejected() {
    let mut yaml = String::from("name: deep\nsteps:\n");
    for depth in 0..200 {
        let pad = " ".repeat(depth * 2);
        let _ = write!(yaml, "{pad}- id: s{depth}\n{pad}  items: [1]\n{pad}  steps:\n");
    }
    rejects("deep.yaml", yaml, Code::LimitExceeded);
    let (open, close) = (r#"[{"id":"a","items":[1],"steps":"#.repeat(200), "}]".repeat(200));
    rejects("deep.json", format!(r#"{{"name":"deep","steps":{open}[]{close}}}"#), Code::LimitExceeded);
}

#[test]
fn deeply_nested_brackets_are_rejected() {
    rejects("deep.json", "[".repeat(100_000), Code::InvalidSyntax);
    rejects("deep.json", format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)), Code::LimitExceeded);
    rejects("deep.yaml", "[".repeat(100_000), Code::LimitExceeded);
    rejects("deep.yaml", "- ".repeat(100_000), Code::LimitExceeded);
    rejects("deep.yaml", "{a: ".repeat(100_000), Code::LimitExceeded);
    rejects("keys.yaml", "? ".repeat(10_000), Code::WrongType);
}

#[test]
fn large_file_is_rejected() {
    rejects("large.yaml", "x".repeat(50 * 1024 * 1024), Code::LimitExceeded);
}

#[test]
fn too_many_steps_are_rejected() {
    let mut text = String::from("name: many\nsteps:\n");
    for at in 0..100_000 {
        let _ = writeln!(text, " - {{id: s{at}, tool: t}}");
    }
    rejects("many.yaml", text, Code::LimitExceeded);
}

#[test]
fn maximum_number_of_steps_compiles() {
    let list = |extra: &dyn Fn(usize) -> String| {
        let mut text = String::from("name: many\nsteps:\n");
        for at in 0..limits::STEPS {
            let _ = writeln!(text, " - {{id: s{at}, tool: t{}}}", extra(at));
        }
        text
    };
    let plain = load_small("many.yaml", list(&|_| String::new()));
    assert_eq!(plain.plan.unwrap().steps.len(), limits::STEPS);
    let chain = load_small(
        "chain.yaml",
        list(&|at| if at == 0 { String::new() } else { format!(", depends_on: s{}", at - 1) }),
    );
    assert!(chain.plan.is_some());
    let cycle = load_small("cycle.yaml", list(&|at| format!(", depends_on: s{}", (at + 1) % limits::STEPS)));
    assert_eq!(codes(&cycle), [Code::DependencyCycle]);
}

#[test]
fn maximum_length_of_a_graph_compiles() {
    let mut text = String::from("name: long\nstart: s0\nsteps:\n");
    for at in 0..limits::STEPS {
        let next =
            if at + 1 == limits::STEPS { "done: true".to_owned() } else { format!("next: s{}", at + 1) };
        let _ = writeln!(text, " s{at}: {{tool: t, {next}}}");
    }
    assert!(load_small("long.yaml", text).plan.is_some());
}

#[test]
fn deeply_nested_forks_are_rejected() {
    let mut text = String::from("name: forks\nstart: s0\nsteps:\n");
    for at in 0..5_000 {
        let _ = writeln!(text, " s{at}: {{parallel: [s{}]}}", at + 1);
    }
    text.push_str(" s5000: {tool: t, join: end}\n end: {tool: t, done: true}\n");
    assert!(load_small("forks.yaml", text).plan.is_none());
}

#[test]
fn alias_bomb_is_rejected() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let before = format!("*a{}", level - 1);
        let _ = writeln!(text, "a{level}: &a{level} [{}]", vec![before; 10].join(", "));
    }
    rejects("bomb.yaml", text, Code::LimitExceeded);
}

#[test]
fn aliases_and_merge_keys_are_resolved() {
    let text = "
name: shared
inputs: { x: string }
steps:
  - id: a
    tool: demo__echo
    retry: &patient { max_attempts: 5, backoff: linear }
    args: &common { region: eu, size: 1 }
  - id: b
    tool: demo__echo
    retry: *patient
    args: { <<: *common, size: 2, \"<<\": kept }
";
    let loaded = load_small("shared.yaml", text.into());
    assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
    let printed = loaded.spec.unwrap().to_canonical_json();
    assert!(printed.contains(r#""args":{"<<":"kept","region":"eu","size":2}"#), "{printed}");
    assert_eq!(loaded.plan.unwrap().steps[1].retry.as_ref().unwrap().max_attempts, 5);
}

#[test]
fn control_characters_are_rejected() {
    rejects("nul.yaml", "name: a\0b\nsteps: []\n".into(), Code::InvalidSyntax);
    rejects("nul.json", "{\"name\": \"a\0b\"}".into(), Code::InvalidSyntax);
    let loaded = load_small(
        "control.json",
        r#"{"name": "a\u0000b\u001b[31m", "steps": [{"id": "a\u0007", "tool": "t"}]}"#.into(),
    );
    assert_eq!(codes(&loaded), [Code::InvalidValue, Code::InvalidStepId]);
}

#[test]
fn long_templates_are_limited() {
    let long = |text: &str| {
        load_small(
            "long.yaml",
            format!(
                "name: long\ninputs: {{ x: string }}\nsteps: [{{ id: a, tool: t, args: {{ v: '{text}' }} }}]\n"
            ),
        )
    };
    assert!(long(&"x{{inputs.x}}".repeat(770)).plan.is_some(), "many references in one text are fine");
    assert!(long(&"$".repeat(10_000)).plan.is_some());
    assert_eq!(codes(&long(&"{".repeat(9_998)))[0], Code::InvalidTemplate);
    assert_eq!(
        codes(&long(&format!("{{{{{}1{}}}}}", "(".repeat(5_000), ")".repeat(5_000)))),
        [Code::LimitExceeded]
    );
    assert_eq!(codes(&long(&format!("{{{{1{}}}}}", " + 1".repeat(2_500)))), [Code::LimitExceeded]);
    assert_eq!(codes(&long(&format!("{{{{{}1}}}}", "!".repeat(3_000)))), [Code::LimitExceeded]);
    assert_eq!(codes(&long(&format!("{{{{inputs.x{}}}}}", " | lower".repeat(600)))), [Code::LimitExceeded]);
    assert_eq!(codes(&long(&"x{{inputs.x}}".repeat(8_000))), [Code::LimitExceeded]);
}

#[test]
fn expensive_jsonpath_is_rejected() {
    let path = |text: &str| {
        load_small(
            "path.yaml",
            format!(
                "name: path\nsteps:\n  - {{ id: a, tool: t }}\n  - {{ id: b, tool: t, args: {{ v: '{text}' }} }}\n"
            ),
        )
    };
    for text in [
        format!("$.a{}", "[?@".repeat(500)),
        format!("$.a[?{}@.x{}]", "(".repeat(200), ")".repeat(200)),
        format!("$.a[?{}@.x]", "!".repeat(400)),
        format!("$.a{}", "[*,*]".repeat(90)),
        "$.a..[?count($..[?count($..*)>0])>0]".to_owned(),
        format!("$.a[?@{}]", "[*,*]".repeat(20)),
        format!("$.a[?@.x{}]", " && @.x".repeat(2_000)),
        r#"$.a[*]["\u"]"#.to_owned(),
        r#"$.a[*]["\ud800"]"#.to_owned(),
        r#"$.a[*]["x"#.to_owned(),
        r#"$.a[*]["\"#.to_owned(),
    ] {
        let loaded = path(&text);
        assert!(loaded.plan.is_none(), "{text}");
        assert_eq!(loaded.diagnostics.len(), 1, "{:?}", loaded.diagnostics);
    }
}

#[test]
fn diagnostics_are_limited() {
    let mut text = String::from("name: bad\nsteps:\n");
    for at in 0..5_000 {
        let _ = writeln!(text, " - {{id: s{at}, tool: t, bogus: 1}}");
    }
    let loaded = load_small("bad.yaml", text);
    assert_eq!(loaded.diagnostics.len(), limits::DIAGNOSTICS + 1);
    let last = loaded.diagnostics.last().unwrap();
    assert_eq!(
        (last.code, last.message.as_str()),
        (Code::TooManyProblems, "4900 more problems are not shown")
    );
}

#[test]
fn join_search_is_limited() {
    let mut text = String::from("name: forks\nstart: f0\nsteps:\n");
    for at in 0..3_000 {
        let _ = writeln!(
            text,
            " f{at}: {{parallel: [a{at}, b{at}]}}\n a{at}: {{tool: x, next: w0}}\n b{at}: {{tool: x, next: w0}}"
        );
        let _ = writeln!(
            text,
            " w{at}: {{tool: x, branch: [{{if: result == true, then: w{}}}], else: f{at}}}",
            (at + 1) % 3_000
        );
    }
    rejects("forks.yaml", text, Code::LimitExceeded);
}

#[test]
fn distant_references_resolve_in_bounded_time() {
    let mut text = String::from("name: far\nsteps:\n - {id: s0, tool: t}\n");
    for at in 1..10_000 {
        let _ =
            writeln!(text, " - {{id: s{at}, tool: t, depends_on: s{}, args: {{x: '{{{{s0.x}}}}'}}}}", at - 1);
    }
    assert!(load_small("far.yaml", text).plan.is_some());
}

#[test]
fn unknown_names_are_reported_in_bounded_time() {
    let mut text = String::from("name: lost\nsteps:\n");
    for at in 0..5_000 {
        let _ = writeln!(
            text,
            " - {{id: step_{at}, tool: t, depends_on: stop_{at}, args: {{x: '{{{{stop_{at}.x}}}}'}}}}"
        );
    }
    assert_eq!(load_small("lost.yaml", text).diagnostics.len(), limits::DIAGNOSTICS + 1);
    let dollars = format!("name: d\nsteps: [{{id: a, tool: t, args: {{x: '{}'}}}}]\n", "$a".repeat(30_000));
    assert_eq!(load_small("d.yaml", dollars).diagnostics.len(), limits::DIAGNOSTICS + 1);
}

#[test]
fn message_with_a_long_key_is_truncated() {
    let loaded =
        load_small("key.yaml", format!("name: k\nsteps: [{{id: a, tool: t, {}: 1}}]\n", "k".repeat(1_000)));
    assert_eq!(codes(&loaded), [Code::UnknownKey]);
    let text = format!(
        "{{\"name\": \"k\", \"{}\": 1, \"steps\": [{{\"id\": \"a\", \"tool\": \"t\"}}]}}",
        "k".repeat(1_000_000)
    );
    let loaded = load_small("key.json", text);
    assert_eq!(codes(&loaded), [Code::UnknownKey]);
    assert!(loaded.diagnostics[0].message.len() <= limits::MESSAGE_BYTES + 3);
}

#[test]
fn number_of_regular_expressions_is_limited() {
    let mut text = String::from("name: r\ninputs: {x: string}\nsteps:\n");
    for at in 0..limits::REGEXES + 50 {
        let _ = writeln!(text, " - {{id: s{at}, if: \"matches(x, 'a{{{at}}}')\", then: [], else: []}}");
    }
    let loaded = load_small("r.yaml", text);
    assert_eq!(codes(&loaded), [Code::LimitExceeded; 50]);
}

#[test]
fn size_of_regular_expressions_is_limited() {
    let conditions = |patterns: &[String]| {
        let mut text = String::from("name: r\ninputs: {x: string}\nsteps:\n");
        for (at, pattern) in patterns.iter().enumerate() {
            let _ = writeln!(text, " - {{id: s{at}, if: \"matches(x, '{pattern}')\", then: [], else: []}}");
        }
        load_small("r.yaml", text)
    };
    let inputs = |patterns: &[String]| {
        let mut text = String::from("name: r\ninputs:\n");
        for (at, pattern) in patterns.iter().enumerate() {
            let _ = writeln!(
                text,
                "  x{at}: {{properties: {{a: {{patternProperties: {{'{pattern}': true}}}}}}}}"
            );
        }
        text.push_str("steps: [{id: a, tool: t}]\n");
        load_small("r.yaml", text)
    };
    for pattern in [
        "(a{50}){51}",
        "[a-z]{100000}",
        "((((a{10}){10}){10}){10}){10}",
        &"(".repeat(2_000),
        &"(a".repeat(40),
    ] {
        for loaded in [conditions(&[pattern.to_owned()]), inputs(&[pattern.to_owned()])] {
            assert!(loaded.plan.is_none(), "{pattern}");
            assert_eq!(loaded.diagnostics.len(), 1, "{:?}", loaded.diagnostics);
        }
    }
    let long = inputs(&["a".repeat(limits::REGEX_BYTES + 1)]);
    assert!(long.diagnostics[0].message.contains("too large"), "{:?}", long.diagnostics);
    // Each is allowed, but not all of them together: their compilation would take seconds.
    let unicode: Vec<String> = (1..100).map(|n| format!("\\\\\\\\s{{{n}}}\\\\\\\\w{{20}}")).collect();
    let loaded = conditions(&unicode);
    assert!(loaded.plan.is_none());
    assert!(codes(&loaded).iter().all(|code| *code == Code::LimitExceeded), "{:?}", loaded.diagnostics);
}

#[test]
fn functions_of_jsonpath_that_compile_regular_expressions_are_rejected() {
    for function in ["match", "search"] {
        let text = format!(
            "name: f\nsteps:\n  - {{ id: a, tool: t }}\n  - {{ id: b, tool: t, args: {{ v: \"$.a[?{function}(@.x, 'a')]\" }} }}\n"
        );
        rejects("f.yaml", text, Code::InvalidJsonPath);
    }
}

#[test]
fn large_schemas_are_read_in_bounded_memory() {
    // Each reference would store the path to it.
    let key = "k".repeat(100_000);
    let parts: Vec<String> = (0..10_000).map(|n| format!("\"p{n}\":{{\"$ref\":\"#\"}}")).collect();
    let schema = format!(r#"{{"properties":{{"{key}":{{"properties":{{{}}}}}}}}}"#, parts.join(","));
    let text = format!(r#"{{"name":"s","inputs":{{"x":{schema}}},"steps":[{{"id":"a","tool":"t"}}]}}"#);
    rejects("s.json", text, Code::InvalidValue);
    // The default is compared with every choice.
    let choices: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let default = format!("[{}]", choices.join(","));
    let text = format!(
        r#"{{"name":"s","inputs":{{"x":{{"enum":[{}],"default":{default}}}}},"steps":[{{"id":"a","tool":"t"}}]}}"#,
        choices.join(",")
    );
    rejects("s.json", text, Code::InvalidValue);
}

#[test]
fn errors_are_shown_before_warnings() {
    let mut text = String::from("name: w\nstart: s0\nsteps:\n");
    for at in 0..150 {
        let _ = writeln!(text, " s{at}: {{tool: t, args: {{x: '{{{{input.i{at}}}}}'}}, next: s{}}}", at + 1);
    }
    text.push_str(" s150: {tool: t, done: true, bogus: 1}\n");
    let loaded = load_small("w.yaml", text);
    assert_eq!(loaded.diagnostics.len(), limits::DIAGNOSTICS + 1);
    assert!(codes(&loaded).contains(&Code::UnknownKey));
    assert_eq!(codes(&loaded).last(), Some(&Code::TooManyWarnings));
}

#[test]
fn drawing_of_a_dense_graph_is_limited() {
    let mut text = String::from("name: dense\nsteps:\n");
    for at in 0..300 {
        let before: Vec<String> = (0..at).map(|other| format!("s{other}")).collect();
        let _ = writeln!(text, " - {{id: s{at}, tool: t, depends_on: [{}]}}", before.join(", "));
    }
    let plan = load_small("dense.yaml", text).plan.unwrap();
    assert!(steprail_core::draw::svg(&steprail_core::draw::Picture::of(&plan)).len() < 10_000_000);
}

#[test]
fn terminal_escapes_do_not_reach_the_terminal() {
    let text = r#"{"name": "a\u001b[31m\u202Eb", "steps": [{"id": "a", "tool": "t", "x\u001b[2J": 1}]}"#;
    let yaml = "name: \"\u{1b}[31m\u{202e}\"\nsteps: []\n";
    for source in [Source::new("x.json", text), Source::new("x.yaml", yaml)] {
        for diagnostic in &load(&source).diagnostics {
            let shown = steprail_core::diagnostic::render(diagnostic, &source, false);
            assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{shown:?}");
        }
    }
}

#[test]
fn long_line_is_truncated() {
    let steps = vec![r#"{"id":"a","tool":"t","bogus":1}"#; 3_000].join(",");
    let source = Source::new("line.json", format!(r#"{{"name":"line","steps":[{steps}]}}"#));
    for diagnostic in &load(&source).diagnostics {
        let shown = steprail_core::diagnostic::render(diagnostic, &source, false);
        assert!(shown.len() < 2_000, "{}", shown.len());
    }
}
