//! Attacks on outbound requests: internal addresses, redirects to them, DNS rebinding, downgrades and false certificates.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steprail_notify::{Channel, Retry, SendError};

use crate::support::{Certificates, Counterpart, Rebinding, approval, channel, open, open_with, send, text};

/// The problem of a webhook whose URL is refused when the configuration is read.
fn refused(allow: &str, url: &str) -> String {
    let config = format!("allow = [{allow}]\n[channels.c]\ntype = \"slack\"\nurl = {{ secret = {url:?} }}");
    match open(&config) {
        Ok(_) => "accepted".to_owned(),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn urls_with_internal_addresses_are_refused() {
    let urls = [
        "https://127.0.0.1/",
        "https://127.1/",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://0177.0.0.1/",
        "https://0/",
        "https://[::1]/",
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:a9fe:a9fe]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://[fe80::1]/",
        "https://[fd00:ec2::254]/",
        "https://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
        "https://192.168.0.1/",
        "https://172.16.0.1/",
        "https://100.64.0.1/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "http://example.org/",
        "ftp://example.org/",
        "file:///etc/passwd",
        "https:///",
        "not a url",
        "https://１２７.0.0.1/",
    ];
    let shown: Vec<String> = urls.iter().map(|url| format!("{url} → {}", refused("", url))).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn the_operator_can_allow_networks_and_hosts() {
    for (allow, url) in [
        ("\"10.0.0.0/8\"", "http://10.1.2.3/"),
        ("\"127.0.0.1\"", "http://127.0.0.1/"),
        ("\"127.0.0.0/8\"", "https://[::ffff:127.0.0.1]/"),
        ("\"fd00::/8\"", "https://[fd00::1]/"),
        ("\"ntfy.internal\"", "http://ntfy.internal/"),
        ("", "https://hooks.slack.com/services/T/B/X"),
    ] {
        assert_eq!(refused(allow, url), "accepted", "{url}");
    }
    assert!(refused("\"127.0.0.1\"", "https://127.0.0.2/").contains("loopback"));
    for entry in ["*.example.org", "10.0.0.0/33", "", "a b", "https://x/"] {
        assert!(
            refused(&format!("{entry:?}"), "https://example.org/").contains("is not a network"),
            "{entry}"
        );
    }
}

#[test]
fn redirects_to_internal_addresses_are_refused() {
    let receiver = Counterpart::http();
    let targets = [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "https://192.168.1.1/x",
        "http://example.org/",
        "ftp://127.0.0.1/",
        "http://",
        "//10.0.0.1/",
    ];
    let mut shown = Vec::new();
    for target in targets {
        let query = url::form_urlencoded::byte_serialize(target.as_bytes()).collect::<String>();
        let url = receiver.url(&format!("/redirect?code=307&to={query}"));
        let channel = channel(&format!("type = \"slack\"\nurl = {{ secret = {url:?} }}"));
        let error = send(&*channel, &approval(), "").unwrap_err();
        assert_eq!(error.retry, Retry::Never);
        shown.push(format!("{target} → {error}"));
    }
    insta::assert_snapshot!(shown.join("\n").replace(&receiver.port.to_string(), "PORT"));
    assert_eq!(receiver.stop(), targets.len());
}

#[test]
fn a_redirect_to_another_origin_gets_no_token() {
    let (mut first, mut second) = (Counterpart::http(), Counterpart::http());
    let to = url::form_urlencoded::byte_serialize(second.url("/ok").as_bytes()).collect::<String>();
    let url = first.url(&format!("/redirect?code=308&to={to}"));
    let channel = channel(&format!(
        "type = \"webhook\"\nurl = {{ secret = {url:?} }}\nkey = {{ secret = \"0123456789abcdef\" }}\nbearer = {{ secret = \"t\" }}"
    ));
    send(&*channel, &approval(), "").unwrap();
    let (first, second) = (first.next(), second.next());
    assert_eq!(first["headers"]["authorization"], "Bearer t");
    assert_eq!(second["headers"]["authorization"], serde_json::Value::Null);
    assert_eq!((&first["body"], &first["method"]), (&second["body"], &second["method"]));
}

#[test]
fn a_redirect_of_pushover_is_not_followed() {
    let (mut first, second) = (Counterpart::http(), Counterpart::http());
    let to = url::form_urlencoded::byte_serialize(second.url("/").as_bytes()).collect::<String>();
    let url = first.url(&format!("/redirect?code=307&to={to}"));
    let channel = channel(&format!("type = \"pushover\"\ntoken = {{ secret = \"token\" }}\nurl = {url:?}"));
    let error = send(&*channel, &approval(), "u").unwrap_err();
    assert!(error.reason.contains("answered 307"), "{error}");
    assert!(text(&first.next()["path"]).starts_with("/redirect"));
    assert_eq!(second.stop(), 0);
}

/// A channel to `https://hook.test`, whose certificate has an authority of its own.
fn tls_channel(certificates: Option<&Certificates>, port: u16, lookup: Arc<Rebinding>) -> Arc<dyn Channel> {
    let authority =
        certificates.map(|certificates| format!("{:?}", certificates.authority)).unwrap_or_default();
    let config = format!(
        "allow = [\"127.0.0.2/32\"]\ntimeout = 60.0\ncertificates = [{authority}]\n[channels.c]\ntype = \"slack\"\n\
         url = {{ secret = \"https://hook.test:{port}/x\" }}"
    );
    open_with(&config, lookup).expect("channels")["c"].clone()
}

fn tls_receiver(certificates: &Certificates) -> Counterpart {
    let [leaf, key] = certificates.files();
    Counterpart::start("python3", "receiver.py", &["127.0.0.2", &leaf, &key])
}

/// The address that was checked is the address of the connection: there is one lookup per connection. 127.0.0.2 is in the
/// place of a public address, and 127.0.0.1 is internal.
#[test]
fn dns_rebinding_does_not_reach_an_internal_address() {
    let certificates = Certificates::new();
    let receiver = tls_receiver(&certificates);
    let lookup =
        Rebinding::new(&[&["127.0.0.2"], &["127.0.0.1"], &["127.0.0.2", "127.0.0.1"], &["::ffff:127.0.0.1"]]);
    let channel = tls_channel(Some(&certificates), receiver.port, lookup.clone());
    send(&*channel, &approval(), "").unwrap();
    assert_eq!(lookup.lookups.load(Ordering::SeqCst), 1);
    for address in ["127.0.0.1", "127.0.0.1", "::ffff:127.0.0.1"] {
        let error = send(&*channel, &approval(), "").unwrap_err();
        let reason = format!(
            "{address} (an address of hook.test) is loopback; if the request is intended, add the network or host to \
             `notify.allow`"
        );
        // The addresses of a host can be wrong for a time, for example in a network with a login page.
        assert_eq!(error, SendError::transient(reason));
    }
    assert_eq!(lookup.lookups.load(Ordering::SeqCst), 4);
    assert_eq!(receiver.stop(), 1);
}

#[test]
fn a_redirect_is_resolved_and_checked_again() {
    let certificates = Certificates::new();
    let receiver = tls_receiver(&certificates);
    let lookup = Rebinding::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let config = format!(
        "allow = [\"127.0.0.2/32\"]\ncertificates = [{:?}]\n[channels.c]\ntype = \"slack\"\n\
         url = {{ secret = \"https://hook.test:{port}/redirect?code=307&to=https://localhost:{port}/\" }}",
        certificates.authority,
        port = receiver.port
    );
    let channel = open_with(&config, lookup).expect("channels")["c"].clone();
    let error = send(&*channel, &approval(), "").unwrap_err();
    assert!(error.reason.contains("127.0.0.1 (an address of localhost) is loopback"), "{error}");
    assert_eq!(receiver.stop(), 1);
}

#[test]
fn https_does_not_become_http() {
    let certificates = Certificates::new();
    let receiver = tls_receiver(&certificates);
    let config = format!(
        "allow = [\"127.0.0.0/8\"]\ncertificates = [{:?}]\n[channels.c]\ntype = \"slack\"\n\
         url = {{ secret = \"https://hook.test:{}/redirect?code=307&to=http://127.0.0.1/\" }}",
        certificates.authority, receiver.port
    );
    let channel = open_with(&config, Rebinding::new(&[&["127.0.0.2"]])).expect("channels")["c"].clone();
    let error = send(&*channel, &approval(), "").unwrap_err();
    assert!(error.reason.contains("redirects from https to http"), "{error}");
    assert_eq!(error.retry, Retry::Never);
}

#[test]
fn certificates_are_verified() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let receiver = tls_receiver(&certificates);
    for trusted in [None, Some(&others)] {
        let channel = tls_channel(trusted, receiver.port, Rebinding::new(&[&["127.0.0.2"]]));
        let error = send(&*channel, &approval(), "").unwrap_err();
        assert!(error.reason.contains("invalid peer certificate"), "{error}");
    }
    assert_eq!(receiver.stop(), 0);
}

#[test]
fn an_unknown_host_is_a_temporary_failure() {
    let channel = tls_channel(None, 443, Rebinding::new(&[]));
    let error = send(&*channel, &approval(), "").unwrap_err();
    assert_eq!(error, SendError::transient("cannot connect to hook.test: no answer"));
}

/// Requests go to the proxy, and addresses in URLs are still checked.
#[test]
fn a_proxy_is_used_only_if_configured() {
    let mut proxy = Counterpart::http();
    let config = |url: &str| {
        format!(
            "allow = [\"hook.test\"]\nproxy = {{ secret = {:?} }}\n[channels.c]\ntype = \"slack\"\nurl = {{ secret = {url:?} }}",
            proxy.url("")
        )
    };
    let lookup = Rebinding::new(&[]);
    let channel = open_with(&config("http://hook.test/x"), lookup.clone()).expect("channels")["c"].clone();
    assert!(open(&config("https://10.0.0.1/")).is_err());
    send(&*channel, &approval(), "").unwrap();
    assert_eq!(proxy.next()["path"], "http://hook.test/x");
    assert_eq!(lookup.lookups.load(Ordering::SeqCst), 0);
}
