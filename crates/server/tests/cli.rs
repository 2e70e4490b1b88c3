//! Output and exit codes of the binary, without a daemon.

use assert_cmd::Command;
use tempfile::TempDir;

/// A temporary directory with files, in which the binary runs.
struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        for (name, text) in files {
            std::fs::write(folder.0.path().join(name), text).unwrap();
        }
        folder
    }

    /// Returns exit code, standard output and standard error.
    fn run(&self, arguments: &[&str]) -> String {
        self.run_with(arguments, "")
    }

    fn run_with(&self, arguments: &[&str], stdin: &str) -> String {
        let mut command = Command::cargo_bin("steprail").unwrap();
        let output = command.current_dir(self.0.path()).args(arguments).write_stdin(stdin).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        format!("exit {code}\n--- stdout\n{}--- stderr\n{}", text(output.stdout), text(output.stderr))
    }
}

const GOOD: &str = "name: good\nsteps:\n  - { id: greet, tool: demo__echo, args: { text: hello } }\n";
const WARNS: &str = "name: warns\nsteps:\n  - { id: a, tool: demo__echo }\n  - { id: b, cases: [{ if: steps.a.output.ok, then: [] }] }\n";
const TYPO: &str = "\
name: greeting
steps:
  - id: greet
    tool: demo__echo
    args: { text: hello }
    timeout_sec: 5
";

#[test]
fn check_accepts_a_valid_definition() {
    let folder = Folder::with(&[("good.yaml", GOOD)]);
    insta::assert_snapshot!(folder.run(&["check", "good.yaml"]));
}

#[test]
fn check_explains_a_typo() {
    let folder = Folder::with(&[("typo.yaml", TYPO)]);
    insta::assert_snapshot!(folder.run(&["check", "typo.yaml"]));
}

#[test]
fn check_counts_the_problems_of_all_files() {
    let folder = Folder::with(&[("good.yaml", GOOD), ("warns.yaml", WARNS), ("typo.yaml", TYPO)]);
    insta::assert_snapshot!(folder.run(&["check", "good.yaml", "warns.yaml", "typo.yaml"]));
}

#[test]
fn warnings_do_not_fail_the_check() {
    let folder = Folder::with(&[("warns.yaml", WARNS)]);
    insta::assert_snapshot!(folder.run(&["check", "warns.yaml", "--format", "json"]));
}

#[test]
fn check_prints_json() {
    let folder = Folder::with(&[("good.yaml", GOOD), ("typo.yaml", TYPO)]);
    insta::assert_snapshot!(folder.run(&["check", "--format", "json", "good.yaml", "typo.yaml"]));
}

#[test]
fn unreadable_file_does_not_stop_the_check() {
    let folder = Folder::with(&[("typo.yaml", TYPO)]);
    std::fs::write(folder.0.path().join("binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    insta::assert_snapshot!(folder.run(&["check", "missing.yaml", "binary.yaml", "typo.yaml"]));
}

#[test]
fn check_reads_standard_input() {
    let folder = Folder::with(&[]);
    insta::assert_snapshot!(folder.run_with(&["check", "-"], r#"{"steps": [{"id": "a", "tool": "t"}]}"#));
}

#[test]
fn check_requires_a_file() {
    let folder = Folder::with(&[]);
    insta::assert_snapshot!(folder.run(&["check"]));
}

#[test]
fn graph_draws_each_format() {
    let folder = Folder::with(&[("warns.yaml", WARNS)]);
    insta::assert_snapshot!("mermaid", folder.run(&["graph", "warns.yaml"]));
    insta::assert_snapshot!("dot", folder.run(&["graph", "warns.yaml", "--format", "dot"]));
    insta::assert_snapshot!("svg", folder.run(&["graph", "warns.yaml", "--format", "svg"]));
}

#[test]
fn graph_prints_the_errors_of_the_definition() {
    let folder = Folder::with(&[("typo.yaml", TYPO)]);
    insta::assert_snapshot!(folder.run(&["graph", "typo.yaml"]));
}

/// Code blocks of the README in a language.
fn readme_blocks(language: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let opening = format!("```{language}\n");
    readme.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn readme_examples_are_valid() {
    let typo = include_str!("../../../examples/typo.yaml");
    let folder = Folder::with(&[]);
    std::fs::create_dir(folder.0.path().join("examples")).unwrap();
    std::fs::write(folder.0.path().join("examples/typo.yaml"), typo).unwrap();
    let output = folder.run(&["check", "examples/typo.yaml"]);
    let expected = readme_blocks("text").remove(1);
    assert!(output.contains(expected.trim_end().trim_end_matches('…').trim_end()), "{output}");
    for definition in readme_blocks("yaml") {
        let checked = folder.run_with(&["check", "-"], &definition);
        assert!(checked.contains("1 file checked: no problems"), "{checked}");
    }
}

#[test]
fn schema_prints_json() {
    let folder = Folder::with(&[]);
    let printed = folder.run(&["schema"]);
    let json = printed.split_once("--- stdout\n").unwrap().1.split_once("--- stderr").unwrap().0;
    let schema: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(schema["title"], "Steprail workflow definition");
}

#[test]
fn connect_prints_the_entry_or_adds_it_to_the_file() {
    let folder = Folder::with(&[(
        ".mcp.json",
        "{ \"mcpServers\": { \"git\": { \"command\": \"mcp-server-git\" } }, \"odd\": 1 }",
    )]);
    let printed = folder.run(&["connect", "claude-code"]);
    assert!(
        printed.contains("\"mcp\"") && printed.contains("add this to .mcp.json, or pass --write"),
        "{printed}"
    );
    assert!(folder.run(&["connect", "claude-code", "--write"]).contains("steprail was added to .mcp.json"));
    assert!(
        folder
            .run(&["connect", "claude-code", "--write", "--data", "d"])
            .contains("steprail was replaced in .mcp.json")
    );
    let text = std::fs::read_to_string(folder.0.path().join(".mcp.json")).expect("the file");
    let config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&config["odd"], &config["mcpServers"]["git"]["command"]),
        (&1.into(), &"mcp-server-git".into())
    );
    let args = &config["mcpServers"]["steprail"]["args"];
    assert!(args[0] == "mcp" && args[2].as_str().is_some_and(|data| data.starts_with('/')), "{config}");
    std::fs::write(folder.0.path().join(".mcp.json"), "{ // mine\n }").expect("a comment");
    let rejected = folder.run(&["connect", "claude-code", "--write"]);
    assert!(rejected.contains("is not plain JSON") && rejected.contains("exit 2"), "{rejected}");
}
