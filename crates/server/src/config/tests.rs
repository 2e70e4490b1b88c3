//! Files, variables and flags in; settings with their sources, or problems, out.

use std::num::NonZeroU32;

use tempfile::TempDir;

use super::declare::Key;
use super::*;
use crate::daemon::DataDir;

/// A data directory with a config file.
struct Data(TempDir);

impl Data {
    fn with(file: &str) -> Self {
        let data = Self(TempDir::new().unwrap());
        std::fs::write(data.0.path().join(FILE), file).unwrap();
        data
    }

    fn load(&self, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, Vec<Problem>> {
        let data_dir = DataDir::find(Some(self.0.path().to_owned())).unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let flags: Vec<_> = flags.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        Config::load(&data_dir, None, env, &flags)
    }

    /// The rendered problems.
    fn problems(&self, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> String {
        let problems = self.load(env, flags).unwrap_err();
        let text: String = problems.iter().map(|problem| problem.render(false) + "\n\n").collect();
        self.without_path(&text)
    }

    /// Removes the path of the data directory.
    fn without_path(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn problems(file: &str) -> String {
    Data::with(file).problems(&[], &[])
}

#[test]
fn empty_file_has_the_defaults() {
    let config = Data::with("").load(&[], &[]).unwrap();
    insta::assert_snapshot!(config.to_toml("", ""));
}

#[test]
fn later_sources_take_precedence() {
    let data = Data::with("[engine]\ncalls = 1\nshutdown = '1s'\n[log]\nlevel = 'info'\nformat = 'json'\n");
    let env = [("STEPRAIL_ENGINE_CALLS", "2"), ("STEPRAIL_ENGINE_SHUTDOWN", "2s"), ("HOME", "/nowhere")];
    let config = data.load(&env, &[("engine.calls", "3")]).unwrap();
    let source = |key: &str| data.without_path(&config.source(key).to_string());
    assert_eq!(config.engine.calls, NonZeroU32::new(3).unwrap());
    assert_eq!(source("engine.calls"), "command line");
    assert_eq!(config.engine.shutdown.as_secs(), 2);
    assert_eq!(source("engine.shutdown"), "$STEPRAIL_ENGINE_SHUTDOWN");
    assert_eq!(&*config.log.level, "info");
    assert_eq!(source("log.level"), "steprail.toml:5");
    assert_eq!(source("log.format"), "steprail.toml:6");
    assert_eq!(source("http.listen"), "default");
}

/// A value other than the default for every key.
const EVERYTHING: &str = "\
[http]
listen = 'off'
url = 'https://steps.example.org'
hosts = ['flows.example.org', 'localhost:8080']
origins = ['https://app.example.org', 'http://localhost:5173']
max_body = '1MiB'
[auth]
mode = 'users'
presence = 'totp'
group_sockets = true
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
secrets.crm = { command = ['op', 'read', 'op://ops/crm'], servers = ['crm'] }
secrets.db = { keyring = { service = 'db', account = 'ann' } }
secrets.erp = { servers = ['erp', 'billing'] }
secrets.git = { env = 'GIT_TOKEN' }
secrets.key = { file = '/run/secrets/key' }
[audit]
checkpoints = 'https://heads.example.org'
checkpoint_every = '10m'
[definitions]
env = ['REGION', 'STAGE']
[mcp]
tool_names = 'both'
expose = ['git__*', 'read_*=files__read_*']
federate = ['git', 'files']
provider = 'tools__create'
ask_clients = true
[engine]
calls = 0x10
shutdown = '1500ms'
[quota]
active_runs = 100
starts_per_minute = 60
stored_bytes = '1GiB'
schedules = 0
subscriptions = 8
connections = 0x20
[notify]
direct = ['mail']
allow = ['10.0.0.0/8', 'ntfy.internal']
timeout = '5s'
proxy = { secret = 'proxy' }
certificates = ['-----BEGIN CERTIFICATE-----']
channels.mail = { type = 'email', host = 'smtp.example.org', from = 'steprail@example.org' }
channels.phone = { type = 'pushover', token = { secret = 'pushover' } }
users.lea = { time_zone = 'Europe/Berlin', addresses = { mail = 'lea@example.org', phone = 'u1' }, digest = { at = ['09:00'] } }
groups.ops = { members = ['lea'] }
on_call.ops = { users = ['lea'], shift = '1w', start = '2026-01-05T09:00' }
subscriptions = [{ to = ['group:ops'], kinds = ['run_failed'], definition = 'billing*' }]
[log]
format = 'json'
level = 'warn,steprail=debug'
[telemetry]
otlp = 'http://127.0.0.1:4318/v1/traces'
otlp_headers = { env = 'OTLP_HEADERS' }
service = 'flows'
";

#[test]
fn output_of_every_key_can_be_parsed_again() {
    let env = [("OTLP_HEADERS", "authorization=hunter2")];
    let data = Data::with(EVERYTHING);
    let config = data.load(&env, &[]).unwrap();
    assert!(
        keys::all().all(|key| matches!(config.source(key.path), SettingSource::File { .. })),
        "a key is missing here"
    );
    let printed = data.without_path(&config.to_toml("", ""));
    insta::assert_snapshot!(printed);
    let again = Data::with(&printed).load(&env, &[]).unwrap();
    for key in keys::all() {
        assert_eq!((key.to_toml)(&again), (key.to_toml)(&config), "{}", key.path);
    }
}

#[test]
fn every_key_can_be_set_in_the_environment() {
    let file = Data::with(EVERYTHING).load(&[("OTLP_HEADERS", "x")], &[]).unwrap();
    let text = |value: toml::Value| match value {
        toml::Value::Array(parts) => {
            parts.iter().filter_map(|part| part.as_str()).collect::<Vec<_>>().join(",")
        }
        toml::Value::Table(_) => "env:OTLP_HEADERS".to_owned(),
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    // Tables are written in the file only, and `direct` refers to one.
    let in_file_only = |key: &Key| (key.expected)().ends_with("(in the file only)");
    let keys = || keys::all().filter(|key| !in_file_only(key) && key.path != "notify.direct");
    let mut env: Vec<(String, String)> =
        keys().map(|key| (key.variable(), (key.to_toml)(&file).map(text).unwrap())).collect();
    env.push(("OTLP_HEADERS".to_owned(), "x".to_owned()));
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let config = Data::with("").load(&env, &[]).unwrap();
    for key in keys() {
        assert_eq!((key.to_toml)(&config), (key.to_toml)(&file), "{}", key.path);
        assert!(matches!(config.source(key.path), SettingSource::Variable(_)), "{}", key.path);
    }
}

#[test]
fn unknown_names_have_suggestions() {
    insta::assert_snapshot!(problems(
        "listen = 'off'\nlog = 'info'\n[htpp]\n[http]\nlsten = 'off'\nmode = 'users'\nports = 1\n[extra.deep]\n"
    ));
}

#[test]
fn wrong_types_are_reported() {
    insta::assert_snapshot!(problems(
        "[http]\nlisten = 8462\nhosts = 'a'\norigins = ['https://a.org', 1]\nmax_body = 10\n[mcp]\n\
         ask_clients = 'yes'\n[engine]\ncalls = '4'\nshutdown = 20\n[store]\nkeep = 2026-01-01\n\
         [log]\nlevel = { a = 1 }\n"
    ));
}

#[test]
fn invalid_values_are_reported() {
    insta::assert_snapshot!(problems(
        "[http]\nlisten = 'localhost:8462'\nhosts = ['https://a.org']\n\
         origins = ['https://a.org', 'https://b.org/', '*']\nmax_body = '10 parsecs'\n\
         [auth]\nmode = 'user'\nsession_idle = '0s'\nsession_max = '400000d'\noidc_user_claim = ''\n\
         [store]\ndurability = 'none'\nkeep = '30'\n[mcp]\nexpose = ['a*=b']\nprovider = 'a tool'\n\
         [engine]\ncalls = 0\n[log]\nlevel = 'wran'\n[telemetry]\notlp = 'traces.org'\n"
    ));
}

#[test]
fn problems_of_notifications_are_reported_without_secrets() {
    let problems = [
        problems("[notify.channels.phone]\ntype = 'pushover'\ntoken = 'hunter2'\n"),
        problems("[notify.channels.phone]\ntype = 'pushovr'\n"),
        problems("[notify.channels.phone]\ntype = 'desktop'\nurgent = true\n"),
        problems("[notify]\nproxy = 'hunter2'\n"),
        problems(
            "[notify.users.lea]\naddresses = { phone = 'u1' }\n[[notify.subscriptions]]\nto = ['group:ops']\n",
        ),
    ];
    assert!(problems.iter().all(|problem| !problem.contains("hunter2")), "{problems:?}");
    insta::assert_snapshot!(problems.join("\n"));
}

#[test]
fn syntax_errors_are_reported() {
    insta::assert_snapshot!(problems("[http]\nlisten 'off'\n[log\n"));
    insta::assert_snapshot!(problems("[http]\nlisten = 'off'\nlisten = 'off'\n[http]\n"));
}

#[test]
fn problems_in_variables_and_flags_are_reported() {
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
fn conflicting_settings_are_rejected() {
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
    assert!(Data::with(users).load(&open, &[]).is_ok(), "authentication is required");
}

#[test]
fn empty_variable_unsets_an_optional_setting() {
    let data = Data::with("[store]\nkeep = '30d'\n[http]\nhosts = ['a.org']\n");
    let config = data.load(&[("STEPRAIL_STORE_KEEP", ""), ("STEPRAIL_HTTP_HOSTS", "")], &[]).unwrap();
    assert!(config.store.keep.is_none() && config.http.hosts.is_empty());
}

#[test]
fn paths_are_relative_to_the_file() {
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
fn secrets_are_redacted() {
    let key = "telemetry.otlp_headers";
    let data = Data::with("[telemetry]\notlp_headers = { env = 'TOKEN' }\n");
    let config = data.load(&[("TOKEN", "hunter2")], &[]).unwrap();
    let printed = format!("{} {} {config:?}", config.to_toml("", ""), config.to_json());
    assert!(!printed.contains("hunter2"), "{printed}");
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
    let mut reported: String = plain.map(problems).join("---\n\n");
    let env = [
        ("STEPRAIL_TELEMETRY_OTLP_HEADERS", "hunter2"),
        ("STEPRAIL_TELEMETRY_OTLP", "https://me:hunter2@traces.org"),
    ];
    reported += &Data::with("").problems(&env, &[(key, "hunter2")]);
    assert!(!reported.contains("hunter2"), "{reported}");
    insta::assert_snapshot!(reported);
}

#[test]
fn accepted_log_filters_are_valid() {
    for filter in ["warn", "off", "warn,steprail=debug"] {
        let config = Data::with("").load(&[("STEPRAIL_LOG_LEVEL", filter)], &[]).unwrap();
        assert!(config.log.level.parse::<tracing_subscriber::filter::Targets>().is_ok(), "{filter}");
    }
}
