//! Notifications over a webhook: an approval reaches its receiver, and a receiver that is down gets it after a `kill -9`.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::receiver::{Receiver, Reply, any_port};
use super::support::{Daemon, output, steprail, test_file};

const CONFIG: &str = "\
[store.secrets]
hook-url = { file = \"hook-url\" }
hook-key = { file = \"hook-key\" }

[notify]
allow = [\"127.0.0.1\"]

[notify.channels.hook]
type = \"webhook\"
url = { secret = \"hook-url\" }
key = { secret = \"hook-key\" }
withdraw = true

[notify.users.lea]
addresses = { hook = \"lea\" }
";

pub(crate) const GATED: &str = "\
name: gated
steps:
  - { id: ask, kind: approve, prompt: Delete it?, notify_user: lea }
  - { id: write, tool: chat__post, args: { path: /srv/old }, depends_on: [ask] }
";

pub(crate) fn private(path: &Path, text: &str) {
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(path);
    file.expect("a file").write_all(text.as_bytes()).expect("written");
}

/// A daemon that sends notifications to an address.
fn daemon(address: SocketAddr) -> Daemon {
    daemon_in(TempDir::new().expect("a folder"), address, CONFIG)
}

fn daemon_in(folder: TempDir, address: SocketAddr, config: &str) -> Daemon {
    private(&folder.path().join("hook-url"), &format!("http://{address}/hook"));
    private(&folder.path().join("hook-key"), "a key of at least 16 bytes");
    std::fs::write(folder.path().join("steprail.toml"), config).expect("written");
    std::fs::write(folder.path().join("gated.yaml"), GATED).expect("written");
    let tools = test_file("../../../examples/tools.yaml").display().to_string();
    Daemon::start_in(folder, &["--tools", &tools])
}

pub(crate) fn steprail_json(daemon: &Daemon, arguments: &[&str]) -> Value {
    let mut command = Command::new(steprail());
    let text = output(command.args(arguments).args(["--json", "--data"]).arg(daemon.folder.path()));
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

pub(crate) fn start(daemon: &Daemon) -> String {
    let file = daemon.folder.path().join("gated.yaml").display().to_string();
    let started = steprail_json(daemon, &["run", &file, "--detach"]);
    started["run_id"].as_str().expect("an id").to_owned()
}

pub(crate) fn approve(daemon: &Daemon, run: &str) {
    output(Command::new(steprail()).args(["approve", run, "--yes", "--data"]).arg(daemon.folder.path()));
}

/// The delivery of the approval, once it has a status. One that is queued was tried at least once.
pub(crate) fn delivery_with(daemon: &Daemon, run: &str, status: &str) -> Value {
    loop {
        let listed = steprail_json(daemon, &["notifications", run]);
        let deliveries = listed[0]["deliveries"].as_array().cloned().unwrap_or_default();
        let found = deliveries.into_iter().find(|delivery| {
            delivery["status"] == status && (status != "queued" || delivery["attempts"] != 0)
        });
        if let Some(found) = found {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_approval_reaches_its_receiver_and_is_withdrawn_after_the_decision() {
    let hook = Receiver::listen(any_port());
    let daemon = daemon(hook.address);
    let run = start(&daemon);
    let request = hook.next();
    let message = &request["message"];
    assert_eq!(
        (&request["event"], &request["address"]),
        (&json!("notification"), &json!("lea")),
        "{request}"
    );
    assert_eq!(message["kind"], "approval_requested", "{request}");
    assert_eq!((&message["run"], &message["step"]), (&json!(run), &json!("ask")), "{request}");
    assert_eq!(message["definition"]["name"], "gated", "{request}");
    let call = &message["calls"][0];
    assert_eq!(call["tool"], "chat__post", "{request}");
    assert!(call["args"].as_str().is_some_and(|args| args.contains("/srv/old")), "{request}");
    assert_eq!(message["prompt"], "Delete it?", "{request}");

    delivery_with(&daemon, &run, "sent");
    approve(&daemon, &run);
    let withdrawal = hook.next();
    assert_eq!(
        (&withdrawal["event"], &withdrawal["id"]),
        (&json!("withdrawal"), &message["id"]),
        "{withdrawal}"
    );
    assert!(
        withdrawal["outcome"].as_str().is_some_and(|text| text.starts_with("approved by")),
        "{withdrawal}"
    );
    delivery_with(&daemon, &run, "withdrawn");

    let tested = steprail_json(&daemon, &["notify", "test", "lea"]);
    assert_eq!(tested["deliveries"][0]["status"], "sent", "{tested}");
    let test = hook.next();
    assert_eq!(test["message"]["kind"], "test");
    assert!(test["text"].as_str().is_some_and(|text| text.contains("tests the channel")), "{test}");
}

/// Sends a request to a link as a proxy does. Returns the status and the page.
async fn open_link(local: &str, link: &str, form: Option<&str>) -> (u16, String) {
    let path = link.strip_prefix("https://steprail.example").expect("a link to the public URL");
    let url = local.replace("/mcp", path);
    let client = reqwest::Client::new();
    let request = match form {
        None => client.get(url),
        Some(form) => client
            .post(url)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("origin", "https://steprail.example")
            .body(form.to_owned()),
    };
    let response = request.header("host", "steprail.example").send().await.expect("a response");
    (response.status().as_u16(), response.text().await.expect("a page"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_link_of_a_notification_decides_with_a_pin() {
    let hook = Receiver::listen(any_port());
    let folder = TempDir::new().expect("a folder");
    private(&folder.path().join("owner"), "lea");
    let mut daemon = daemon_in(folder, hook.address, CONFIG);
    // With a public URL, the daemon prints that one instead of its address.
    let local = daemon.url.clone();
    let config = format!("{CONFIG}\n[http]\nurl = \"https://steprail.example\"\n");
    std::fs::write(daemon.folder.path().join("steprail.toml"), config).expect("written");
    daemon.kill_and_restart();
    let mut set_pin = Command::new(steprail());
    set_pin.args(["presence", "set-pin", "--data"]).arg(daemon.folder.path()).stdin(Stdio::piped());
    let mut set_pin = set_pin.spawn().expect("a process");
    set_pin.stdin.take().expect("stdin").write_all(b"314159\n").expect("written");
    assert!(set_pin.wait().expect("its end").success());

    let run = start(&daemon);
    let message = hook.next()["message"].clone();
    let link = message["link"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
    delivery_with(&daemon, &run, "sent");
    // The key is in the data directory, so that links survive a restart.
    daemon.url.clone_from(&local);
    daemon.kill_and_restart();
    let (status, page) = open_link(&local, &link, None).await;
    assert!(status == 200 && page.contains("/srv/old") && page.contains("Decide as lea"), "{status} {page}");
    let (status, page) = open_link(&local, &link, Some("decision=approve&factor=pin&proof=000000")).await;
    assert!(status == 403 && page.contains("Decide as lea"), "{status} {page}");
    let decision = Some("decision=approve&factor=pin&proof=314159&comment=checked");
    let (status, page) = open_link(&local, &link, decision).await;
    assert!(status == 200 && page.contains("lea approved"), "{status} {page}");
    while steprail_json(&daemon, &["show", &run])["status"] != "completed" {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(open_link(&local, &link, decision).await.0, 409, "a link works once");
    let token = link.rsplit('/').next().expect("a token");
    for file in std::fs::read_dir(daemon.folder.path()).expect("a folder").flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        let found = bytes.windows(token.len()).any(|part| part == token.as_bytes());
        assert!(!found, "the link is in {}", file.path().display());
    }
}

#[test]
fn a_receiver_that_is_down_gets_the_request_after_a_kill() {
    // The port stays free while nobody listens on it.
    let address = TcpListener::bind(any_port()).expect("a port").local_addr().expect("an address");
    let mut daemon = daemon(address);
    let run = start(&daemon);
    let failed = delivery_with(&daemon, &run, "queued");
    assert!(failed["error"].as_str().is_some_and(|error| !error.is_empty()), "{failed}");
    // The other run decides and ends meanwhile: no run waits for a channel.
    let other = start(&daemon);
    approve(&daemon, &other);
    while steprail_json(&daemon, &["show", &other])["status"] != "completed" {
        std::thread::sleep(Duration::from_millis(20));
    }

    daemon.kill();
    let hook = Receiver::listen(address);
    daemon.restart();
    let request = hook.next();
    assert_eq!(
        (&request["message"]["run"], &request["message"]["step"]),
        (&json!(run), &json!("ask")),
        "{request}"
    );
    delivery_with(&daemon, &run, "sent");
}

#[test]
fn a_channel_without_its_secret_is_reported_and_works_once_the_secret_is_there() {
    let hook = Receiver::listen(any_port());
    let mut daemon = daemon(hook.address);
    daemon.kill();
    let key = daemon.folder.path().join("hook-key");
    std::fs::remove_file(&key).expect("removed");
    daemon.restart();
    let test = |daemon: &Daemon| {
        let mut command = Command::new(steprail());
        let command = command.args(["notify", "test", "lea", "--json", "--data"]).arg(daemon.folder.path());
        let output = command.output().expect("an end");
        let tested: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.success(), tested["deliveries"][0].clone())
    };
    let (success, tested) = test(&daemon);
    assert_eq!((success, &tested["status"]), (false, &json!("queued")), "{tested}");
    assert!(tested["error"].as_str().is_some_and(|error| error.contains("hook-key")), "{tested}");
    private(&key, "a key of at least 16 bytes");
    let (success, tested) = test(&daemon);
    assert_eq!((success, &tested["status"]), (true, &json!("sent")), "{tested}");
}

#[test]
fn an_unknown_recipient_is_a_dead_letter() {
    let hook = Receiver::listen(any_port());
    let daemon = daemon(hook.address);
    let definition = GATED.replace("notify_user: lea", "notify_user: leah");
    std::fs::write(daemon.folder.path().join("gated.yaml"), definition).expect("written");
    let run = start(&daemon);
    let failed = delivery_with(&daemon, &run, "failed");
    assert!(failed["error"].as_str().is_some_and(|error| error.contains("unknown user `leah`")), "{failed}");
    let dead = steprail_json(&daemon, &["notifications", "--dead"]);
    assert_eq!(dead[0]["deliveries"][0]["id"], failed["id"], "{dead}");
}

#[test]
fn a_dead_letter_is_sent_again() {
    let hook = Receiver::replying(&[Reply::Status(410)]);
    let daemon = daemon(hook.address);
    let run = start(&daemon);
    let first = hook.next_request();
    let failed = delivery_with(&daemon, &run, "failed");
    assert!(failed["error"].as_str().is_some_and(|error| error.contains("410")), "{failed}");
    steprail_json(&daemon, &["notifications", "resend", &failed["id"].to_string()]);
    let second = hook.next_request();
    assert_eq!(first.header("Idempotency-Key"), second.header("Idempotency-Key"));
    delivery_with(&daemon, &run, "sent");
    assert_eq!(steprail_json(&daemon, &["notifications", "--dead"]), json!([]));
}
