//! Tests that generated files in the repository are up to date.

use steprail_core::spec::{reference, schema};

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn generated_files_are_up_to_date() {
    assert!(
        file("docs/definition.schema.json") == format!("{:#}\n", schema::definition_schema()),
        "run scripts/gen"
    );
    assert!(file("docs/definition.md") == reference::markdown(), "run scripts/gen");
}
