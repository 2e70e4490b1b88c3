//! Tests that the examples compile and match the JSON Schema, and snapshots their plans.

use steprail_core::diagnostic::{Code, Diagnostics, Severity, render};
use steprail_core::draw::{Picture, dot, mermaid, svg};
use steprail_core::load;
use steprail_core::source::Source;
use steprail_core::spec::schema::definition_schema;

#[test]
fn each_example_is_valid() {
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
        let reloaded = load(&Source::new("printed.json", printed.as_str()));
        assert_eq!(reloaded.plan.unwrap().hash, plan.hash, "{:?}", reloaded.diagnostics);
        let canonical = serde_json::from_str(&printed).unwrap();
        let errors: Vec<String> = schema.iter_errors(&canonical).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let as_written = document(&source);
        let errors: Vec<String> = schema.iter_errors(&as_written).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    });
}

/// The example as an editor validates it, without defaults.
fn document(source: &Source) -> serde_json::Value {
    let mut out = Diagnostics::default();
    steprail_core::document::read(source, &mut out).unwrap().to_value()
}

/// Errors that a JSON Schema can detect. It cannot resolve names.
const STRUCTURAL: &[Code] = &[
    Code::UnknownKey,
    Code::MissingField,
    Code::WrongType,
    Code::InvalidToolName,
    Code::EmptyStepId,
    Code::InvalidStepId,
];

/// Fixtures whose structural errors depend on other values, or are not expressed in the schema.
const BEYOND_THE_SCHEMA: &[&str] =
    &["ambiguous_start.yaml", "input_schema.yaml", "steps_missing.yaml", "verify.yaml"];

#[test]
fn schema_rejects_invalid_definitions() {
    let schema = jsonschema::validator_for(&definition_schema()).unwrap();
    let mut accepted = Vec::new();
    for entry in std::fs::read_dir(format!("{}/tests/invalid", env!("CARGO_MANIFEST_DIR"))).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let source = Source::new(name.clone(), std::fs::read_to_string(&path).unwrap());
        let structural = load(&source).diagnostics.iter().any(|d| STRUCTURAL.contains(&d.code));
        let mut out = Diagnostics::default();
        let Some(document) = steprail_core::document::read(&source, &mut out) else { continue };
        if structural && schema.is_valid(&document.to_value()) {
            accepted.push(name);
        }
    }
    accepted.sort();
    assert_eq!(accepted, BEYOND_THE_SCHEMA);
}
