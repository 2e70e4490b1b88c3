//! Files in the repository that are made from the code are as the code makes them.

use steprail_core::spec::{reference, schema};

fn file(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_schema_and_the_reference_are_current() {
    assert!(
        file("docs/definition.schema.json") == format!("{:#}\n", schema::definition_schema()),
        "run scripts/gen"
    );
    assert!(file("docs/definition.md") == reference::markdown(), "run scripts/gen");
}
