//! `steprail config`, with the real binary.

mod common;

use common::Folder;

/// Runs a command without the `STEPRAIL_` variables of this process. Returns its output and exit code.
fn run(folder: &Folder, arguments: &str, env: &[(&str, &str)]) -> String {
    let mut command = folder.command(arguments);
    let inherited = std::env::vars_os().map(|(name, _)| name);
    inherited.filter(|name| name.to_string_lossy().starts_with("STEPRAIL_")).for_each(|name| {
        command.env_remove(name);
    });
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    let printed =
        format!("$ steprail {arguments}\n{err}--- stdout\n{out}--- exit {}\n", output.status.code().unwrap());
    printed
        .replace(&folder.0.path().canonicalize().unwrap().display().to_string(), "[folder]")
        .replace(&folder.0.path().display().to_string(), "[folder]")
}

const FILE: &str = "\
[http]
hosts = [\"flows.example.org\"]

[telemetry]
otlp_headers = { env = \"OTLP_HEADERS\" }
";

#[test]
fn config_shows_settings_with_their_sources() {
    let folder = Folder::with(&[("steprail.toml", FILE)]);
    let env = [("OTLP_HEADERS", "authorization=hunter2"), ("STEPRAIL_STORE_KEEP", "30d")];
    let shown = run(&folder, "config --data .", &env);
    assert!(!shown.contains("hunter2") && !shown.contains('\x1b'), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn config_prints_json() {
    let folder = Folder::with(&[("steprail.toml", FILE)]);
    let env = [("OTLP_HEADERS", "authorization=hunter2"), ("STEPRAIL_STORE_KEEP", "30d")];
    let shown = run(&folder, "config --data . --json", &env);
    assert!(!shown.contains("hunter2"), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn config_reports_every_problem() {
    let folder = Folder::with(&[("other.toml", "[http]\nlisten = \"here\"\nhost = \"a.org\"\n")]);
    let env = [("STEPRAIL_HTTP_LISTN", "off")];
    insta::assert_snapshot!(run(&folder, "config --data . --config other.toml", &env));
}

#[test]
fn file_named_by_the_user_must_exist() {
    let folder = Folder::with(&[]);
    let by_flag = run(&folder, "config --data . --config missing.toml", &[]);
    let by_variable = run(&folder, "config --data .", &[("STEPRAIL_CONFIG", "missing.toml")]);
    insta::assert_snapshot!(format!("{by_flag}\n{by_variable}"));
    let without = run(&folder, "config --data .", &[("STEPRAIL_CONFIG", "")]);
    assert!(without.ends_with("--- exit 0\n"), "{without}");
}

#[test]
fn explain_and_json_cannot_be_combined() {
    insta::assert_snapshot!(Folder::with(&[]).run("config --explain --json"));
}

#[test]
fn page_in_docs_is_up_to_date() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let output = Folder::with(&[]).command("config --explain").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(std::fs::read_to_string(page).unwrap() == printed, "run scripts/gen");
}
