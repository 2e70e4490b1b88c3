//! Every channel through the daemon: delivered once, tried again after failures, and as a digest after a burst.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::notifications::{GATED, approve, private, start, steprail_json};
use super::receiver::{Receiver, Reply, any_port};
use super::support::{Daemon, client, output, steprail, test_file};

/// A mail server with TLS, and the authority of its certificate.
struct MailServer {
    process: Child,
    lines: BufReader<ChildStdout>,
    port: String,
    authority: String,
}

impl MailServer {
    fn start(folder: &Path) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = authority.self_signed(&key).expect("a certificate").pem();
        let leaf_key = rcgen::KeyPair::generate().expect("a key");
        let leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let leaf = leaf.signed_by(&leaf_key, &rcgen::Issuer::new(authority, key)).expect("a certificate");
        private(&folder.join("leaf.pem"), &leaf.pem());
        private(&folder.join("leaf.key"), &leaf_key.serialize_pem());
        let script = test_file("../../notify/tests/channels/smtp_server.py");
        let mut command = Command::new(client("python-aiosmtpd"));
        command.arg(script).args(["tls", "leaf.pem", "leaf.key"]).current_dir(folder);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("a mail server");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut port = String::new();
        lines.read_line(&mut port).expect("the port");
        Self { process, lines, port: port.trim().to_owned(), authority: pem }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder with settings, secrets by name and the definition with a gate.
fn folder(settings: &str, secrets: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let mut text = "[store.secrets]\n".to_owned();
    for (name, value) in secrets {
        private(&folder.path().join(name), value);
        text += &format!("{name} = {{ file = {name:?} }}\n");
    }
    std::fs::write(folder.path().join("steprail.toml"), text + settings).expect("written");
    std::fs::write(folder.path().join("gated.yaml"), GATED).expect("written");
    folder
}

fn serve(folder: TempDir) -> Daemon {
    let tools = test_file("../../../examples/tools.yaml").display().to_string();
    Daemon::start_in(folder, &["--tools", &tools])
}

/// The deliveries of the first notification of a run, once none of them is queued.
fn ended_deliveries(daemon: &Daemon, run: &str) -> Vec<Value> {
    loop {
        let listed = steprail_json(daemon, &["notifications", run]);
        let deliveries = listed[0]["deliveries"].as_array().cloned().unwrap_or_default();
        if !deliveries.is_empty() && deliveries.iter().all(|delivery| delivery["status"] != "queued") {
            return deliveries;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shown(deliveries: &[Value]) -> Vec<String> {
    let show = |delivery: &Value| {
        let text = |name: &str| delivery[name].as_str().unwrap_or_default().to_owned();
        format!("{} {} after {}", text("channel"), text("status"), delivery["attempts"])
    };
    let mut shown: Vec<String> = deliveries.iter().map(show).collect();
    shown.sort();
    shown
}

/// Settings with every channel of a user.
fn all_channels(receiver: &Receiver, mail: &MailServer, program: &Path) -> String {
    let MailServer { authority, port, .. } = mail;
    let (pushover, ntfy, program) = (receiver.url("/pushover/"), receiver.url("/ntfy"), program.display());
    format!(
        "[notify]
allow = ['127.0.0.1']
certificates = [{authority:?}]
channels.phone = {{ type = 'pushover', token = {{ secret = 'pushover-token' }}, url = '{pushover}' }}
channels.topic = {{ type = 'ntfy', url = '{ntfy}' }}
channels.slack = {{ type = 'slack', url = {{ secret = 'slack-url' }} }}
channels.teams = {{ type = 'teams', url = {{ secret = 'teams-url' }} }}
channels.hook = {{ type = 'webhook', url = {{ secret = 'hook-url' }}, key = {{ secret = 'hook-key' }} }}
channels.program = {{ type = 'command', argv = ['sh', '-c', 'cat >> {program}'] }}
channels.chat = {{ type = 'tool', tool = 'chat__post', args = {{ to = '{{{{address}}}}', text = '{{{{title}}}}' }} }}

[notify.channels.mail]
type = 'email'
host = 'localhost'
port = {port}
tls = 'tls'
from = 'steprail@example.org'
user = 'ann'
password = {{ secret = 'smtp-password' }}

[notify.users.lea.addresses]
phone = 'uQiRzpo4DXghDmr9QzzfQu27cmVRsG'
topic = 'lea'
slack = ''
teams = ''
hook = 'lea'
mail = 'lea@example.org'
program = 'lea'
chat = '#ops'
"
    )
}

#[test]
fn every_channel_delivers_once() {
    let receiver = Receiver::listen(any_port());
    let files = TempDir::new().expect("a folder");
    let mut mail = MailServer::start(files.path());
    let program = files.path().join("input");
    let urls = ["/slack", "/teams", "/hook"].map(|path| receiver.url(path));
    let secrets = [
        ("pushover-token", "azGDORePK8gMaC0QOYAMyEEuzJnyUi"),
        ("slack-url", &*urls[0]),
        ("teams-url", &*urls[1]),
        ("hook-url", &*urls[2]),
        ("hook-key", "a key of at least 16 bytes"),
        ("smtp-password", "open sesame"),
    ];
    let daemon = serve(folder(&all_channels(&receiver, &mail, &program), &secrets));
    let run = start(&daemon);
    let deliveries = ended_deliveries(&daemon, &run);
    let all = ["chat", "hook", "mail", "phone", "program", "slack", "teams", "topic"];
    assert_eq!(shown(&deliveries), all.map(|name| format!("{name} sent after 1")), "{deliveries:#?}");

    let mut requests = receiver.rest();
    requests.sort_by(|a, b| a.path.cmp(&b.path));
    let paths: Vec<&str> = requests.iter().map(|request| &*request.path).collect();
    assert_eq!(paths, ["/hook", "/ntfy", "/pushover/1/messages.json", "/slack", "/teams"]);
    assert!(requests.iter().all(|request| request.body.contains("gated")), "{requests:#?}");
    let sent = mail.next();
    assert_eq!(sent["to"], json!(["lea@example.org"]), "{sent}");
    let input = std::fs::read_to_string(&program).expect("the input of the program");
    assert_eq!(input.lines().count(), 1, "{input}");
    // The call of the tool is a run of the service principal, of which nobody is told.
    let runs = steprail_json(&daemon, &["runs"]);
    let call = runs.as_array().expect("runs").iter().find(|run| run["name"] == "notify chat__post");
    let call = call.unwrap_or_else(|| panic!("{runs:#}"));
    assert_eq!(
        (&call["status"], &call["created_by"]),
        (&json!("completed"), &json!("service:notifications"))
    );
    let listed = steprail_json(&daemon, &["notifications", call["run_id"].as_str().expect("an id")]);
    assert_eq!(listed, json!([]));
}

/// Settings with channels that post to receivers, all of them for `lea`.
fn webhooks(names: &[&str]) -> String {
    let mut settings = "[notify]\nallow = ['127.0.0.1']\ntimeout = '2s'\n".to_owned();
    for name in names {
        settings += &format!(
            "channels.{name} = {{ type = 'webhook', url = {{ secret = '{name}' }}, key = {{ secret = 'hook-key' }} }}\n"
        );
    }
    let addresses: Vec<String> = names.iter().map(|name| format!("{name} = ''")).collect();
    settings + &format!("users.lea.addresses = {{ {} }}\n", addresses.join(", "))
}

#[test]
fn failing_receivers_get_the_message_later_and_internal_addresses_never() {
    let fails = Receiver::replying(&[Reply::Status(500)]);
    let limited = Receiver::replying(&[Reply::RetryAfter(1)]);
    let hangs = Receiver::replying(&[Reply::Hang]);
    let works = Receiver::replying(&[]);
    let internal = Receiver::listen("127.0.0.2:0".parse().expect("an address"));
    let redirects = Receiver::replying(&vec![Reply::Redirect(internal.url("/secret")); 3]);
    let names = ["fails", "limited", "hangs", "works", "redirects"];
    let receivers = [&fails, &limited, &hangs, &works, &redirects];
    let urls: Vec<String> = receivers.iter().map(|receiver| receiver.url("/hook")).collect();
    let mut secrets: Vec<(&str, &str)> = names.into_iter().zip(urls.iter().map(|url| &**url)).collect();
    secrets.push(("hook-key", "a key of at least 16 bytes"));
    let daemon = serve(folder(&webhooks(&names), &secrets));
    let run = start(&daemon);
    works.next();
    approve_other(&daemon);
    let deliveries = ended_deliveries(&daemon, &run);
    let ends = [
        "fails sent after 2",
        "hangs sent after 2",
        "limited sent after 2",
        "redirects failed after 1",
        "works sent after 1",
    ];
    assert_eq!(shown(&deliveries), ends, "{deliveries:#?}");
    for receiver in [&fails, &limited, &hangs] {
        let mut requests = receiver.rest();
        requests.retain(|request| request.body.contains(&run));
        let keys: Vec<_> = requests.iter().map(|request| request.header("Idempotency-Key")).collect();
        assert!(keys.len() == 2 && keys[0] == keys[1] && keys[0].is_some(), "{keys:?}");
    }
    assert!(internal.rest().is_empty(), "an internal address got a request");
    let error = deliveries.iter().find_map(|delivery| delivery["error"].as_str()).expect("an error");
    assert!(error.contains("127.0.0.2"), "{error}");
}

/// A run that needs an approval ends while channels fail.
fn approve_other(daemon: &Daemon) {
    let other = start(daemon);
    approve(daemon, &other);
    while steprail_json(daemon, &["show", &other])["status"] != "completed" {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_burst_becomes_single_messages_and_one_digest() {
    const APPROVALS: usize = 12;
    let hook = Receiver::listen(any_port());
    let url = hook.url("/hook");
    let secrets = [("hook", &*url), ("hook-key", "a key of at least 16 bytes")];
    let daemon = serve(folder(&webhooks(&["hook"]), &secrets));
    for _ in 0..APPROVALS {
        start(&daemon);
    }
    for _ in 0..5 {
        assert_eq!(hook.next()["message"]["kind"], "approval_requested");
    }
    let digest = hook.next();
    let message = &digest["message"];
    assert_eq!((&message["kind"], &message["count"]), (&json!("digest"), &json!(APPROVALS - 5)), "{digest}");
    assert_eq!(message["entries"].as_array().map(Vec::len), Some(APPROVALS - 5), "{digest}");
    assert!(hook.rest().is_empty());
}

const TOOL: &str = "[notify]
channels.chat = { type = 'tool', tool = 'chat__post', args = { text = '{{title}}' } }
users.lea.addresses = { chat = '' }
";
const ASK_BEFORE_POSTS: &str = "
default: allow
rules:
  - { name: posts, tools: chat__post, then: require_approval }
";

#[test]
fn a_tool_that_requires_an_approval_is_refused() {
    let folder = folder(TOOL, &[]);
    std::fs::write(folder.path().join("policy.yaml"), ASK_BEFORE_POSTS).expect("written");
    let mut serve = Command::new(steprail());
    serve.args(["serve", "--listen", "off", "--data"]).arg(folder.path());
    let refused = serve.output().expect("an end");
    let stderr = String::from_utf8_lossy(&refused.stderr);
    let problem = "channels.chat: the rule `posts` of policy.yaml requires an approval for `chat__post`";
    assert!(!refused.status.success() && stderr.contains(problem), "{stderr}");
    let mut doctor = Command::new(steprail());
    let doctor = doctor.args(["doctor", "--data"]).arg(folder.path()).output().expect("an end");
    let stdout = String::from_utf8_lossy(&doctor.stdout);
    assert!(stdout.contains(problem), "{stdout}");
}

#[test]
fn a_tool_that_requires_an_approval_later_fails_without_one() {
    let folder = folder(TOOL, &[]);
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, "default: allow\n").expect("written");
    let daemon = serve(folder);
    std::fs::write(&policy, ASK_BEFORE_POSTS).expect("written");
    let explain = |daemon: &Daemon| {
        let mut command = Command::new(steprail());
        output(command.args(["policy", "explain", "chat__post", "--data"]).arg(daemon.folder.path()))
    };
    while !explain(&daemon).contains("require_approval") {
        std::thread::sleep(Duration::from_millis(50));
    }
    let run = start(&daemon);
    let deliveries = ended_deliveries(&daemon, &run);
    assert_eq!(shown(&deliveries), ["chat failed after 1"]);
    let error = deliveries[0]["error"].as_str().expect("an error");
    assert!(error.contains("a notification cannot wait for one"), "{error}");
    let open = steprail_json(&daemon, &["approvals"]);
    let runs: Vec<_> = open.as_array().expect("approvals").iter().map(|open| &open["run_id"]).collect();
    assert_eq!(runs, [&json!(run)], "only the gate of the run");
}

#[test]
fn operators_subscribe_to_runs_by_label() {
    let hook = Receiver::listen(any_port());
    let url = hook.url("/hook");
    let secrets = [("hook", &*url), ("hook-key", "a key of at least 16 bytes")];
    let subscription =
        "subscriptions = [{ to = ['kim'], kinds = ['approval_requested'], labels = { team = 'pay*' } }]\n";
    let settings = webhooks(&["hook"]) + "users.kim.addresses = { hook = 'kim' }\n" + subscription;
    let daemon = serve(folder(&settings, &secrets));
    start(&daemon);
    assert_eq!(hook.next()["address"], "");
    let labelled = GATED.replace("name: gated", "name: gated\nlabels: { team: payments }");
    std::fs::write(daemon.folder.path().join("gated.yaml"), labelled).expect("written");
    let run = start(&daemon);
    let mut addresses = [hook.next(), hook.next()].map(|request| {
        assert_eq!(request["message"]["run"], json!(run), "{request}");
        request["address"].as_str().expect("an address").to_owned()
    });
    addresses.sort();
    assert_eq!(addresses, ["", "kim"]);
}

#[test]
fn definitions_name_known_people() {
    let accounts = "[auth]\nmode = 'users'\n";
    let daemon = serve(folder(accounts, &[]));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(steprail());
        let done =
            command.args(arguments).args(["--data"]).arg(daemon.folder.path()).output().expect("an end");
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let file = daemon.folder.path().join("gated.yaml").display().to_string();
    let (stored, stderr) = run(&["define", &file]);
    assert!(
        !stored && stderr.contains("SR515") && stderr.contains("unknown user or group `lea`"),
        "{stderr}"
    );
    assert!(stderr.contains("gated.yaml:3:"), "with its position: {stderr}");
    assert!(run(&["user", "add", "lea"]).0);
    let (stored, stderr) = run(&["define", &file]);
    assert!(stored, "{stderr}");
}
