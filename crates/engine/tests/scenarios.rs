//! Every kind of step through success, failure, retry, timeout, cancel, pause and crash, as text.

mod common;

#[test]
fn each_scenario_reads_as_it_should() {
    insta::glob!("scenarios/*.txt", |path| {
        let text = std::fs::read_to_string(path).expect("a file");
        insta::assert_snapshot!(common::script::play(&text));
    });
}
