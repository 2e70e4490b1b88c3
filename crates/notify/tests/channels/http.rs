//! The requests of each channel, as a receiver gets them, and how its answers are understood.

use std::time::Duration;

use steprail_notify::{Kind, Message, Receipt, Retry, Urgency, Withdrawn};

use crate::support::{Counterpart, approval, channel, channel_with_timeout, send, show, withdraw};

const USER: &str = "uQiRzpo4DXghDmr9QzzfQu27cmVRsG:phone";
const PUSHOVER: &str = "type = \"pushover\"\ntoken = { secret = \"azGDORePK8gMaC0QOYAMyEEuzJnyUi\" }\n";

#[test]
fn pushover_repeats_approvals_and_stops_when_they_are_decided() {
    let mut receiver = Counterpart::http();
    let channel = channel(&format!("{PUSHOVER}url = {:?}", receiver.url("/")));
    let receipt = send(&*channel, &approval(), USER).unwrap();
    insta::assert_snapshot!("pushover_send", show(&receiver.next()));
    assert_eq!(receipt.id.as_deref(), Some("rLqVuqTRh62UzxtmqiaLzQmVcPgiCy"));
    assert_eq!(withdraw(&*channel, &approval(), USER, &receipt), Ok(Withdrawn::Done));
    insta::assert_snapshot!("pushover_withdraw", show(&receiver.next()));
    assert_eq!(withdraw(&*channel, &approval(), USER, &Receipt::default()), Ok(Withdrawn::Done));
    insta::assert_snapshot!("pushover_withdraw_without_receipt", show(&receiver.next()));
}

#[test]
fn pushover_sends_other_messages_once() {
    let mut receiver = Counterpart::http();
    let channel = channel(&format!("{PUSHOVER}url = {:?}", receiver.url("/")));
    let message = Message {
        kind: Kind::Denied,
        urgency: Urgency::Low,
        comment: Some("not today".to_owned()),
        ..approval()
    };
    let receipt = send(&*channel, &message, "u").unwrap();
    insta::assert_snapshot!("pushover_denied", show(&receiver.next()));
    assert_eq!(withdraw(&*channel, &message, "u", &receipt), Ok(Withdrawn::Unsupported));
}

#[test]
fn ntfy_publishes_and_deletes() {
    let mut receiver = Counterpart::http();
    let url = receiver.url("");
    let channel = channel(&format!(
        "type = \"ntfy\"\nurl = {url:?}\ntoken = {{ secret = \"tk_AgQdq7mVBoFD37zQVN29RhuMzNIz2\" }}"
    ));
    let receipt = send(&*channel, &approval(), "ops").unwrap();
    insta::assert_snapshot!("ntfy_send", show(&receiver.next()));
    assert_eq!(withdraw(&*channel, &approval(), "ops", &receipt), Ok(Withdrawn::Done));
    insta::assert_snapshot!("ntfy_withdraw", show(&receiver.next()));
}

#[test]
fn ntfy_of_an_older_version_cannot_delete() {
    let receiver = Counterpart::http();
    let channel = channel(&format!("type = \"ntfy\"\nurl = {:?}", receiver.url("/missing")));
    assert_eq!(withdraw(&*channel, &approval(), "ops", &Receipt::default()), Ok(Withdrawn::Unsupported));
}

#[test]
fn slack_and_teams_get_text_without_markup() {
    let mut receiver = Counterpart::http();
    for kind in ["slack", "teams"] {
        let channel = channel(&format!(
            "type = {kind:?}\nurl = {{ secret = {:?} }}",
            receiver.url("/services/T0/B0/X")
        ));
        let receipt = send(&*channel, &approval(), "").unwrap();
        insta::assert_snapshot!(format!("{kind}_send"), show(&receiver.next()));
        assert_eq!(withdraw(&*channel, &approval(), "", &receipt), Ok(Withdrawn::Unsupported));
    }
}

#[test]
fn webhook_is_signed() {
    let mut receiver = Counterpart::http();
    let channel = channel(&format!(
        "type = \"webhook\"\nurl = {{ secret = {:?} }}\nkey = {{ secret = \"0123456789abcdef\" }}\n\
         bearer = {{ secret = \"token-1\" }}\nwithdraw = true",
        receiver.url("/hook?x=1")
    ));
    let receipt = send(&*channel, &approval(), "lea").unwrap();
    let request = receiver.next();
    insta::assert_snapshot!("webhook_send", show(&request));
    check_signature(&request);
    assert_eq!(withdraw(&*channel, &approval(), "lea", &receipt), Ok(Withdrawn::Done));
    let request = receiver.next();
    insta::assert_snapshot!("webhook_withdraw", show(&request));
    check_signature(&request);
}

/// Runs the receiver's check of `docs/notifications.md` on a request, and on a changed one.
fn check_signature(request: &serde_json::Value) {
    let docs = include_str!("../../../../docs/notifications.md");
    let example =
        docs.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the example");
    let program = format!(
        "{example}\nimport json, sys\nrequest = json.loads(sys.argv[1])\nheaders = {{k.title(): v for k, v in \
         request['headers'].items()}}\nbody = request['body'].encode()\nkey = b'0123456789abcdef'\n\
         now = int(headers['Steprail-Timestamp'])\nassert is_genuine(key, headers, body, now)\n\
         assert not is_genuine(key, headers, body + b' ', now)\nassert not is_genuine(b'other', headers, body, now)\n\
         assert not is_genuine(key, headers, body, now + 301)\n"
    );
    let output =
        std::process::Command::new("python3").args(["-c", &program, &request.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn templates_replace_title_and_text() {
    let mut receiver = Counterpart::http();
    let channel = channel(&format!(
        "type = \"ntfy\"\nurl = {:?}\ntitle = \"{{{{definition}}}} v{{{{version}}}}\"\nbody = \"{{{{starter}}}}: {{{{link}}}}\"",
        receiver.url("")
    ));
    send(&*channel, &approval(), "ops").unwrap();
    let body: serde_json::Value = serde_json::from_str(receiver.next()["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["title"], "deploy v3");
    assert_eq!(body["message"], "ann: https://steprail.example.org/a/1?t=x|y");
}

/// The error of a webhook whose receiver behaves in some way.
fn failure(receiver: &Counterpart, path: &str) -> (String, Retry) {
    let secs = if path.starts_with("/hang") { 1 } else { 60 };
    let config = format!("type = \"slack\"\nurl = {{ secret = {:?} }}", receiver.url(path));
    let channel = channel_with_timeout(secs, &config);
    let error = send(&*channel, &approval(), "").unwrap_err();
    (error.reason.replace(&receiver.port.to_string(), "PORT"), error.retry)
}

#[test]
fn failures_say_what_happened_and_whether_to_retry() {
    let receiver = Counterpart::http();
    let after = |secs: u64| Retry::After(Some(Duration::from_secs(secs)));
    for (path, reason, retry) in [
        ("/fail", "127.0.0.1:PORT answered 500: out of order⟨U+001B⟩[2J", Retry::After(None)),
        ("/limited", "127.0.0.1:PORT answered 429: slow down", after(120)),
        ("/busy", "127.0.0.1:PORT answered 503", after(300)),
        ("/gone", "127.0.0.1:PORT answered 410: channel_is_archived", Retry::Never),
        ("/hang", "127.0.0.1:PORT did not respond within 1 s", Retry::After(None)),
        ("/hang-body", "127.0.0.1:PORT did not respond within 1 s", Retry::After(None)),
        ("/huge-error", "127.0.0.1:PORT answered 500", Retry::After(None)),
        ("/redirect?code=302&to=/ok", "127.0.0.1:PORT answered 302", Retry::Never),
        ("/circle", "127.0.0.1:PORT redirects more than 3 times", Retry::Never),
    ] {
        assert_eq!(failure(&receiver, path), (reason.to_owned(), retry), "{path}");
    }
}

#[test]
fn a_huge_response_is_not_read() {
    let receiver = Counterpart::http();
    let channel = channel(&format!("type = \"slack\"\nurl = {{ secret = {:?} }}", receiver.url("/huge")));
    assert_eq!(send(&*channel, &approval(), ""), Ok(Receipt::default()));
}

#[test]
fn no_listener_is_a_temporary_failure() {
    let receiver = Counterpart::http();
    let url = receiver.url("/secret-path");
    receiver.stop();
    let channel = channel(&format!("type = \"slack\"\nurl = {{ secret = {url:?} }}"));
    let error = send(&*channel, &approval(), "").unwrap_err();
    assert!(error.reason.starts_with("cannot connect to 127.0.0.1"), "{error}");
    assert!(!error.reason.contains("secret-path"), "{error}");
    assert_eq!(error.retry, Retry::After(None));
}

#[test]
fn secrets_are_not_in_errors() {
    let receiver = Counterpart::http();
    let url = receiver.url("/echo/T0/B0/PATHSECRET?sig=QUERYSECRET");
    let webhook = format!(
        "type = \"webhook\"\nurl = {{ secret = {url:?} }}\nkey = {{ secret = \"0123456789abcdefKEY\" }}\nbearer = {{ secret = \"BEARERSECRET\" }}"
    );
    let slack = format!("type = \"slack\"\nurl = {{ secret = {url:?} }}");
    let pushover = format!("{PUSHOVER}url = {:?}", receiver.url("/echo"));
    for config in [webhook, slack, pushover] {
        let reason = send(&*channel(&config), &approval(), "u").unwrap_err().reason;
        for secret in ["PATHSECRET", "QUERYSECRET", "BEARERSECRET", "abcdefKEY", "azGDORePK8"] {
            assert!(!reason.contains(secret), "{reason}");
        }
    }
}
