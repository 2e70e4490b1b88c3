//! Every example is a sound definition, fits the JSON Schema, and becomes the plan that it should.

use steprail_core::diagnostic::{Code, Diagnostics, Severity, render};
use steprail_core::draw::{Picture, dot, mermaid, svg};
use steprail_core::load;
use steprail_core::source::Source;
use steprail_core::spec::schema::definition_schema;

#[test]
fn each_example_is_sound() {
    let schema = jsonschema::validator_for(&definition_schema()).unwrap();
    insta::glob!("../../../examples/workflows", "**/*.{yaml,json}", |path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let source = Source::new(name, std::fs::read_to_string(path).unwrap());
        let loaded = load(&source);
        let shown: Vec<String> = loaded.diagnostics.iter().map(|d| render(d, &source, false)).collect();
        assert!(
            loaded.diagnostics.iter().all(|d| d.code.severity() == Severity::Warning),
            "{}",
            shown.join("\n")
        );
        let plan = loaded.plan.unwrap();
        let picture = Picture::of(&plan);
        insta::assert_snapshot!(format!("{}\nhash {}\n\n{}", shown.join("\n"), plan.hash, mermaid(&picture)));
        assert!(svg(&picture).ends_with("</svg>\n") && dot(&picture).ends_with("}\n"));

        let printed = loaded.spec.unwrap().to_canonical_json();
        let again = load(&Source::new("printed.json", printed.as_str()));
        assert_eq!(again.plan.unwrap().hash, plan.hash, "{:?}", again.diagnostics);
        let canonical = serde_json::from_str(&printed).unwrap();
        let errors: Vec<String> = schema.iter_errors(&canonical).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let as_written = document(&source);
        let errors: Vec<String> = schema.iter_errors(&as_written).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    });
}

/// The example as the editor sees it, before anything is filled in.
fn document(source: &Source) -> serde_json::Value {
    let mut out = Diagnostics::default();
    steprail_core::document::read(source, &mut out).unwrap().to_value()
}

/// Mistakes of form: a schema can see them. (It cannot see what a name refers to.)
const OF_FORM: &[Code] = &[
    Code::UnknownKey,
    Code::MissingField,
    Code::WrongType,
    Code::InvalidToolName,
    Code::EmptyStepId,
    Code::InvalidStepId,
];

/// Fixtures whose mistakes of form depend on values elsewhere, or are more than a schema should say.
const BEYOND_THE_SCHEMA: &[&str] =
    &["ambiguous_start.yaml", "input_schema.yaml", "steps_missing.yaml", "verify.yaml"];

#[test]
fn the_schema_refuses_what_check_refuses() {
    let schema = jsonschema::validator_for(&definition_schema()).unwrap();
    let mut accepted = Vec::new();
    for entry in std::fs::read_dir(format!("{}/tests/invalid", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let source = Source::new(name.clone(), std::fs::read_to_string(&path).unwrap());
        let of_form = load(&source).diagnostics.iter().any(|d| OF_FORM.contains(&d.code));
        let mut out = Diagnostics::default();
        let Some(document) = steprail_core::document::read(&source, &mut out) else { continue };
        if of_form && schema.is_valid(&document.to_value()) {
            accepted.push(name);
        }
    }
    accepted.sort();
    assert_eq!(accepted, BEYOND_THE_SCHEMA);
}
