//! Every example is a sound definition, fits the JSON Schema, and becomes the plan that it should.

use steprail_core::diagnostic::{Severity, render};
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

        let canonical = serde_json::from_str(&loaded.spec.unwrap().to_canonical_json()).unwrap();
        let errors: Vec<String> = schema.iter_errors(&canonical).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let as_written = document(&source);
        let errors: Vec<String> = schema.iter_errors(&as_written).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    });
}

/// The example as the editor sees it, before anything is filled in.
fn document(source: &Source) -> serde_json::Value {
    let mut out = steprail_core::diagnostic::Diagnostics::default();
    steprail_core::document::read(source, &mut out).unwrap().to_value()
}

#[test]
fn the_schema_refuses_what_check_refuses() {
    let schema = jsonschema::validator_for(&definition_schema()).unwrap();
    for name in ["unknown_key", "missing_field", "wrong_type", "unknown_kind", "graph_transition"] {
        let path = format!("{}/tests/invalid/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let source = Source::new(name, std::fs::read_to_string(path).unwrap());
        assert!(!schema.is_valid(&document(&source)), "{name}");
    }
}
