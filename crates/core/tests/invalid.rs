//! Tests validation rules: the diagnostics of the definitions in `tests/invalid`.

use std::collections::BTreeSet;
use std::path::Path;

use steprail_core::diagnostic::{Code, render};
use steprail_core::load;
use steprail_core::source::Source;

fn source(path: &Path) -> Source {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    Source::new(name, std::fs::read_to_string(path).unwrap())
}

#[test]
fn each_rule_shows_its_diagnostic() {
    insta::glob!("invalid/*", |path| {
        let source = source(path);
        let loaded = load(&source);
        let rendered: Vec<String> = loaded.diagnostics.iter().map(|d| render(d, &source, false)).collect();
        assert!(!rendered.is_empty(), "{} has no problem", path.display());
        insta::assert_snapshot!(rendered.join("\n\n"));
    });
}

#[test]
fn every_code_has_a_fixture() {
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid")).unwrap() {
        seen.extend(load(&source(&entry.unwrap().path())).diagnostics.iter().map(|d| d.code));
    }
    // These need connected servers: see crates/mcp/tests/gateway.
    seen.extend(Code::ALL.iter().filter(|code| code.id().starts_with("SR5")));
    // These are problems of policies: see tests/policy.rs.
    seen.extend(Code::ALL.iter().filter(|code| code.id().starts_with("SR6")));
    // These need more than a hundred problems: see tests/hostile.rs.
    seen.extend([Code::TooManyProblems, Code::TooManyWarnings]);
    let missing: Vec<&str> =
        Code::ALL.iter().filter(|code| !seen.contains(code)).map(|code| code.name()).collect();
    assert!(missing.is_empty(), "no fixture for {missing:?}");
}

#[test]
fn independent_mistakes_are_all_reported() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid/six_mistakes.yaml");
    assert_eq!(load(&source(&path)).diagnostics.len(), 6);
}
