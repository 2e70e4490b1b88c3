//! Files, variables and flags in; settings, their places, or problems out.

use std::num::NonZeroU32;

use tempfile::TempDir;

use super::*;
use crate::daemon::Home;

/// A data directory, perhaps with a file.
struct Data(TempDir);

impl Data {
    fn with(file: &str) -> Self {
        let data = Self(TempDir::new().unwrap());
        std::fs::write(data.0.path().join(FILE), file).unwrap();
        data
    }

    fn load(&self, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, Vec<Problem>> {
        let home = Home::find(Some(self.0.path().to_owned())).unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let flags: Vec<_> = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        Config::load(&home, None, env, &flags)
    }

    /// What is wrong, with the folder left out.
    fn problems(&self, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> String {
        let problems = self.load(env, flags).unwrap_err();
        let text: String = problems.iter().map(|problem| problem.render(false) + "\n\n").collect();
        self.told(&text)
    }

    fn told(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn problems(file: &str) -> String {
    Data::with(file).problems(&[], &[])
}

#[test]
fn the_defaults_are_what_an_empty_file_gives() {
    let config = Data::with("").load(&[], &[]).unwrap();
    insta::assert_snapshot!(config.to_toml("", ""));
}

#[test]
fn later_sources_win() {
    let data = Data::with("[engine]\ncalls = 1\nshutdown = '1s'\n[log]\nlevel = 'info'\nformat = 'json'\n");
    let env = [("STEPRAIL_ENGINE_CALLS", "2"), ("STEPRAIL_ENGINE_SHUTDOWN", "2s"), ("HOME", "/nowhere")];
    let config = data.load(&env, &[("engine.calls", "3")]).unwrap();
    let told = |key: &str| data.told(&config.place(key).to_string());
    assert_eq!(config.engine.calls, NonZeroU32::new(3).unwrap());
    assert_eq!(told("engine.calls"), "command line");
    assert_eq!(config.engine.shutdown.as_secs(), 2);
    assert_eq!(told("engine.shutdown"), "$STEPRAIL_ENGINE_SHUTDOWN");
    assert_eq!(&*config.log.level, "info");
    assert_eq!(told("log.level"), "steprail.toml:5");
    assert_eq!(told("log.format"), "steprail.toml:6");
    assert_eq!(told("http.listen"), "default");
}

/// A value of every key that is not its default.
const EVERYTHING: &str = "\
[http]
listen = 'off'
url = 'https://steps.example.org'
hosts = ['flows.example.org', 'localhost:8080']
origins = ['https://app.example.org', 'http://localhost:5173']
max_body = '1MiB'
[auth]
mode = 'users'
session_idle = '90m'
session_max = '1d 12h'
oidc_issuer = 'https://login.example.org/'
oidc_audience = 'steprail'
oidc_jwks = 'https://login.example.org/keys'
oidc_user_claim = 'email'
oidc_groups_claim = 'roles'
[store]
durability = 'process'
keep = '30d'
secrets_key = '/run/secrets/steprail.key'
[mcp]
tool_names = 'both'
expose = ['git__*', 'read_*=files__read_*']
federate = ['git', 'files']
provider = 'tools__create'
ask_clients = true
[engine]
calls = 0x10
shutdown = '1500ms'
[log]
format = 'json'
level = 'warn,steprail=debug'
[telemetry]
otlp = 'http://127.0.0.1:4318/v1/traces'
otlp_headers = { env = 'OTLP_HEADERS' }
service = 'flows'
";

#[test]
fn every_key_is_read_and_shown_and_read_again() {
    let env = [("OTLP_HEADERS", "authorization=hunter2")];
    let data = Data::with(EVERYTHING);
    let config = data.load(&env, &[]).unwrap();
    assert!(
        keys::all().all(|key| matches!(config.place(key.path), Place::File { .. })),
        "a key is missing here"
    );
    let shown = data.told(&config.to_toml("", ""));
    insta::assert_snapshot!(shown);
    let again = Data::with(&shown).load(&env, &[]).unwrap();
    for key in keys::all() {
        assert_eq!((key.shown)(&again), (key.shown)(&config), "{}", key.path);
    }
}

#[test]
fn every_key_is_read_from_the_environment() {
    let file = Data::with(EVERYTHING).load(&[("OTLP_HEADERS", "x")], &[]).unwrap();
    let text = |value: toml::Value| match value {
        toml::Value::Array(parts) => {
            parts.iter().filter_map(|part| part.as_str()).collect::<Vec<_>>().join(",")
        }
        toml::Value::Table(_) => "env:OTLP_HEADERS".to_owned(),
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    let mut env: Vec<(String, String)> =
        keys::all().map(|key| (key.variable(), (key.shown)(&file).map(text).unwrap())).collect();
    env.push(("OTLP_HEADERS".to_owned(), "x".to_owned()));
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let config = Data::with("").load(&env, &[]).unwrap();
    for key in keys::all() {
        assert_eq!((key.shown)(&config), (key.shown)(&file), "{}", key.path);
        assert!(matches!(config.place(key.path), Place::Variable(_)), "{}", key.path);
    }
}

#[test]
fn mistakes_of_names_are_told_with_what_was_meant() {
    insta::assert_snapshot!(problems(
        "listen = 'off'\nlog = 'info'\n[htpp]\n[http]\nlsten = 'off'\nmode = 'users'\nports = 1\n[extra.deep]\n"
    ));
}

#[test]
fn mistakes_of_types_say_what_is_expected() {
    insta::assert_snapshot!(problems(
        "[http]\nlisten = 8462\nhosts = 'a'\norigins = ['https://a.org', 1]\nmax_body = 10\n[mcp]\n\
         ask_clients = 'yes'\n[engine]\ncalls = '4'\nshutdown = 20\n[store]\nkeep = 2026-01-01\n\
         [log]\nlevel = { a = 1 }\n"
    ));
}

#[test]
fn mistakes_of_values_say_what_may_be_written() {
    insta::assert_snapshot!(problems(
        "[http]\nlisten = 'localhost:8462'\nhosts = ['https://a.org']\n\
         origins = ['https://a.org', 'https://b.org/', '*']\nmax_body = '10 parsecs'\n\
         [auth]\nmode = 'user'\nsession_idle = '0s'\nsession_max = '400000d'\noidc_user_claim = ''\n\
         [store]\ndurability = 'none'\nkeep = '30'\n[mcp]\nexpose = ['a*=b']\nprovider = 'a tool'\n\
         [engine]\ncalls = 0\n[log]\nlevel = 'wran'\n[telemetry]\notlp = 'traces.org'\n"
    ));
}

#[test]
fn a_file_that_is_not_toml() {
    insta::assert_snapshot!(problems("[http]\nlisten 'off'\n[log\n"));
    insta::assert_snapshot!(problems("[http]\nlisten = 'off'\nlisten = 'off'\n[http]\n"));
}

#[test]
fn mistakes_in_the_environment_and_in_flags() {
    let env = [
        ("STEPRAIL_HTTP_LISTN", "off"),
        ("STEPRAIL_SEED", "1"),
        ("STEPRAIL_ENGINE_CALLS", "many"),
        ("STEPRAIL_MCP_ASK_CLIENTS", "1"),
        ("STEPRAIL_HTTP_ORIGINS", "https://a.org, b"),
        ("STEPRAIL_DATA", "/data"),
    ];
    let flags = [("http.listen", "8462"), ("http.port", "1")];
    insta::assert_snapshot!(Data::with("[http]\nmax_body = 'big'\n").problems(&env, &flags));
}

#[test]
fn settings_fit_one_another() {
    let users = "[auth]\nmode = 'users'\n";
    insta::assert_snapshot!(
        [
            Data::with("[http]\nlisten = '0.0.0.0:8462'\n").problems(&[], &[]),
            Data::with(&format!("{users}oidc_jwks = 'keys.json'\n")).problems(&[], &[]),
            Data::with("").problems(
                &[
                    ("STEPRAIL_AUTH_OIDC_ISSUER", "https://a.org"),
                    ("STEPRAIL_AUTH_OIDC_AUDIENCE", "steprail"),
                    ("STEPRAIL_AUTH_OIDC_JWKS", "/keys.json"),
                ],
                &[]
            ),
        ]
        .join("---\n\n")
    );
    let open = [("STEPRAIL_HTTP_LISTEN", "0.0.0.0:8462")];
    assert!(Data::with(users).load(&open, &[]).is_ok(), "with users it may be reached");
}

#[test]
fn an_empty_variable_takes_back_what_has_no_default() {
    let data = Data::with("[store]\nkeep = '30d'\n[http]\nhosts = ['a.org']\n");
    let config = data.load(&[("STEPRAIL_STORE_KEEP", ""), ("STEPRAIL_HTTP_HOSTS", "")], &[]).unwrap();
    assert!(config.store.keep.is_none() && config.http.hosts.is_empty());
}

#[test]
fn paths_in_the_file_start_from_its_folder() {
    let data = Data::with(
        "[auth]\nmode = 'users'\noidc_issuer = 'a'\noidc_audience = 'b'\noidc_jwks = 'keys.json'\n\
         [telemetry]\notlp_headers = { file = 'headers' }\n",
    );
    std::fs::write(data.0.path().join("headers"), "a=hunter2\n").unwrap();
    let config = data.load(&[], &[]).unwrap();
    assert_eq!(config.auth.oidc_jwks, Some(types::Location::File(data.0.path().join("keys.json"))));
    assert_eq!(config.telemetry.otlp_headers.unwrap().reveal(), "a=hunter2");
}

#[test]
fn secrets_are_never_shown() {
    let key = "telemetry.otlp_headers";
    let kept = Data::with("[telemetry]\notlp_headers = { env = 'TOKEN' }\n");
    let config = kept.load(&[("TOKEN", "hunter2")], &[]).unwrap();
    let shown = format!("{} {} {config:?}", config.to_toml("", ""), config.to_json());
    assert!(!shown.contains("hunter2"), "{shown}");
    let plain = [
        "[telemetry]\notlp_headers = 'hunter2'\n",
        "[telemetry]\notlp_headers = '''\nhunter2'''\n",
        "[telemetry]\notlp_headers = { value = 'hunter2' }\n",
        "[telemetry]\notlp_headers = { env = 'TOKEN', file = 'b' }\n",
        "[telemetry]\notlp_headres = 'hunter2'\n",
        "[http]\notlp_headers = 'hunter2'\n",
        "telemetry = { otlp_headers = 'hunter2', otpl = 1 }\n",
        "otlp_headers = 'hunter2'\n",
        "[telemetry]\notlp_headers = 'hunter2\n",
        "[telemetry]\notlp = 'https://me:hunter2@traces.org'\n",
        "[telemetry]\notlp_headers = { env = 'MISSING' }\n",
        "[telemetry]\notlp_headers = { file = '/nowhere/token' }\n",
    ];
    let mut told: String = plain.map(problems).join("---\n\n");
    let env = [
        ("STEPRAIL_TELEMETRY_OTLP_HEADERS", "hunter2"),
        ("STEPRAIL_TELEMETRY_OTLP", "https://me:hunter2@traces.org"),
    ];
    told += &Data::with("").problems(&env, &[(key, "hunter2")]);
    assert!(!told.contains("hunter2"), "{told}");
    insta::assert_snapshot!(told);
}

#[test]
fn a_default_filter_and_any_other_is_one_for_the_log() {
    for filter in ["warn", "off", "warn,steprail=debug"] {
        let config = Data::with("").load(&[("STEPRAIL_LOG_LEVEL", filter)], &[]).unwrap();
        assert!(config.log.level.parse::<tracing_subscriber::filter::Targets>().is_ok(), "{filter}");
    }
}
