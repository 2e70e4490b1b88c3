//! `steprail config`, with the real binary.

mod common;

use common::Folder;

/// What a call prints, in an environment with nothing of ours but what is given.
fn run(folder: &Folder, arguments: &str, env: &[(&str, &str)]) -> String {
    let mut command = folder.command(arguments);
    let ours = std::env::vars_os().map(|(name, _)| name);
    ours.filter(|name| name.to_string_lossy().starts_with("STEPRAIL_")).for_each(|name| {
        command.env_remove(name);
    });
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    let told =
        format!("$ steprail {arguments}\n{err}--- stdout\n{out}--- exit {}\n", output.status.code().unwrap());
    told.replace(&folder.0.path().canonicalize().unwrap().display().to_string(), "[folder]")
        .replace(&folder.0.path().display().to_string(), "[folder]")
}

const FILE: &str = "\
[http]
hosts = [\"flows.example.org\"]

[telemetry]
otlp_headers = { env = \"OTLP_HEADERS\" }
";

#[test]
fn config_shows_what_is_set_and_by_what() {
    let folder = Folder::with(&[("steprail.toml", FILE)]);
    let env = [("OTLP_HEADERS", "authorization=hunter2"), ("STEPRAIL_STORE_KEEP", "30d")];
    let shown = run(&folder, "config --data .", &env);
    assert!(!shown.contains("hunter2") && !shown.contains('\x1b'), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn config_prints_json_for_programs() {
    let folder = Folder::with(&[("steprail.toml", FILE)]);
    let env = [("OTLP_HEADERS", "authorization=hunter2"), ("STEPRAIL_STORE_KEEP", "30d")];
    let shown = run(&folder, "config --data . --json", &env);
    assert!(!shown.contains("hunter2"), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn config_tells_every_mistake() {
    let folder = Folder::with(&[("other.toml", "[http]\nlisten = \"here\"\nhost = \"a.org\"\n")]);
    let env = [("STEPRAIL_HTTP_LISTN", "off")];
    insta::assert_snapshot!(run(&folder, "config --data . --config other.toml", &env));
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let folder = Folder::with(&[]);
    let by_flag = run(&folder, "config --data . --config missing.toml", &[]);
    let by_variable = run(&folder, "config --data .", &[("STEPRAIL_CONFIG", "missing.toml")]);
    insta::assert_snapshot!(format!("{by_flag}\n{by_variable}"));
    let without = run(&folder, "config --data .", &[("STEPRAIL_CONFIG", "")]);
    assert!(without.ends_with("--- exit 0\n"), "{without}");
}

#[test]
fn the_page_is_not_json() {
    insta::assert_snapshot!(Folder::with(&[]).run("config --explain --json"));
}

#[test]
fn the_page_in_docs_is_current() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let output = Folder::with(&[]).command("config --explain").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(std::fs::read_to_string(page).unwrap() == printed, "run scripts/gen");
}
