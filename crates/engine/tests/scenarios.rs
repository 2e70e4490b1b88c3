//! Scenarios as text: every step kind with success, failure, retry, timeout, cancel, pause and crash.

mod common;

#[test]
fn each_scenario_matches_its_snapshot() {
    insta::glob!("scenarios/*.txt", |path| {
        let text = std::fs::read_to_string(path).expect("a file");
        insta::assert_snapshot!(common::script::play(&text));
    });
}
