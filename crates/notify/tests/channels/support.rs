//! Counterparts, messages and channels of the tests.

use std::io::{BufRead, BufReader, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use steprail_notify::config::Channels;
use steprail_notify::outbound::{Lookup, SystemLookup};
use steprail_notify::{
    BoxFuture, Call, Channel, ConfigError, Definition, Delivery, Kind, Message, NotifyConfig, Receipt,
    SendError, Urgency, Withdrawal, Withdrawn,
};

/// 2025-11-18T10:00:00Z
pub(crate) const NOW: i64 = 1_763_460_000_000;

/// A Python program that prints its port and then one JSON value per line.
pub(crate) struct Counterpart {
    process: Child,
    lines: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl Counterpart {
    pub(crate) fn start(python: &str, script: &str, arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/channels").join(script);
        let mut command = Command::new(python);
        command.arg("-B").arg(script).args(arguments).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut port = String::new();
        lines.read_line(&mut port).expect("the port");
        Self { process, lines, port: port.trim().parse().expect("a port") }
    }

    /// An HTTP receiver on loopback.
    pub(crate) fn http() -> Self {
        Self::start("python3", "receiver.py", &["127.0.0.1"])
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The next request or mail.
    pub(crate) fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Stops the program; returns the number of requests that were not read.
    pub(crate) fn stop(mut self) -> usize {
        self.process.kill().expect("kill");
        self.lines.by_ref().lines().map_while(Result::ok).count()
    }
}

impl Drop for Counterpart {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request with the headers that matter.
pub(crate) fn show(request: &Value) -> String {
    let mut shown = format!("{} {}\n", text(&request["method"]), text(&request["path"]));
    let names =
        ["Content-Type", "Authorization", "Steprail-Timestamp", "Steprail-Signature", "Idempotency-Key"];
    let headers = request["headers"].as_object().expect("headers");
    for name in names {
        let value = headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        value.iter().for_each(|(_, value)| shown += &format!("{name}: {}\n", text(value)));
    }
    let body = text(&request["body"]);
    if let Ok(json) = serde_json::from_str::<Value>(body) {
        return shown + &serde_json::to_string_pretty(&json).expect("JSON");
    }
    let pairs = url::form_urlencoded::parse(body.as_bytes());
    shown + &pairs.map(|(name, value)| format!("{name} = {value:?}\n")).collect::<String>()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// An approval with all fields, and with hostile text.
pub(crate) fn approval() -> Message {
    let some = |text: &str| Some(text.to_owned());
    Message {
        id: "run_1/ask#1/lea".to_owned(),
        kind: Kind::ApprovalRequested,
        urgency: Urgency::High,
        run: some("run_1"),
        definition: Some(Definition { name: "deploy".to_owned(), version: 3 }),
        starter: some("ann"),
        by_agent: true,
        step: some("ask"),
        calls: vec![Call {
            tool: "git__push".to_owned(),
            args: r#"{"branch":"main","force":true}"#.to_owned(),
        }],
        prompt: some("Deploy <!channel> & [click](http://evil)?\ntool: harmless\u{202e}\u{7}"),
        deadline: Some(NOW + 3_600_000),
        link: some("https://steprail.example.org/a/1?t=x|y"),
        digest: some("4be1"),
        ..Message::default()
    }
}

/// The channels of a configuration, with the secrets that tests use. The name of a secret is its value.
pub(crate) fn open(config: &str) -> Result<Channels, Vec<ConfigError>> {
    open_with(config, Arc::new(SystemLookup))
}

pub(crate) fn open_with(config: &str, lookup: Arc<dyn Lookup>) -> Result<Channels, Vec<ConfigError>> {
    let config: NotifyConfig = toml::from_str(config).expect("a valid configuration");
    let config = config.resolve(|name| Ok::<_, String>(name.to_owned())).expect("secrets");
    config.open(lookup, &|_, _| Err(ConfigError::new("no tools")))
}

/// A channel that may use loopback.
pub(crate) fn channel(config: &str) -> Arc<dyn Channel> {
    channel_with_timeout(60, config)
}

/// A channel that may use loopback, with a timeout in seconds.
pub(crate) fn channel_with_timeout(secs: u32, config: &str) -> Arc<dyn Channel> {
    let config = format!("allow = [\"127.0.0.0/8\"]\ntimeout = {secs}.0\n[channels.c]\n{config}");
    open(&config).expect("channels")["c"].clone()
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

pub(crate) fn send(channel: &dyn Channel, message: &Message, address: &str) -> Result<Receipt, SendError> {
    run(channel.send(Delivery { message, address, attempts: 0, now: NOW }))
}

pub(crate) fn withdraw(
    channel: &dyn Channel,
    message: &Message,
    address: &str,
    receipt: &Receipt,
) -> Result<Withdrawn, SendError> {
    run(channel.withdraw(Withdrawal { message, address, receipt, outcome: "approved by bob", now: NOW }))
}

/// A host that has another address at each lookup.
pub(crate) struct Rebinding {
    answers: Mutex<Vec<Vec<IpAddr>>>,
    pub(crate) lookups: AtomicUsize,
}

impl Rebinding {
    pub(crate) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse =
            |answer: &&[&str]| answer.iter().map(|address| address.parse().expect("an address")).collect();
        let answers = answers.iter().rev().map(parse).collect();
        Arc::new(Self { answers: Mutex::new(answers), lookups: AtomicUsize::new(0) })
    }
}

impl Lookup for Rebinding {
    fn lookup<'f>(&'f self, _: &'f str) -> BoxFuture<'f, std::io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.lock().expect("the lock").pop();
        Box::pin(std::future::ready(answer.ok_or_else(|| std::io::Error::other("no answer"))))
    }
}

/// A certificate authority, and a certificate for `hook.test` and `localhost` in files.
pub(crate) struct Certificates {
    pub(crate) authority: String,
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = parameters.self_signed(&key).expect("a certificate");
        let issuer = rcgen::Issuer::new(parameters, key);
        let leaf_key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["hook.test".to_owned(), "localhost".to_owned()];
        let leaf = rcgen::CertificateParams::new(names).expect("parameters");
        let leaf = leaf.signed_by(&leaf_key, &issuer).expect("a certificate");
        std::fs::write(folder.path().join("leaf.pem"), leaf.pem()).expect("a file");
        std::fs::write(folder.path().join("leaf.key"), leaf_key.serialize_pem()).expect("a file");
        Self { authority: authority.pem(), folder }
    }

    pub(crate) fn files(&self) -> [String; 2] {
        let path = |name: &str| -> PathBuf { self.folder.path().join(name) };
        ["leaf.pem", "leaf.key"].map(|name| path(name).display().to_string())
    }
}
