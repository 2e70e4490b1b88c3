//! Key rotation, in a file and behind a URL.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::routing::get;
use tokio::sync::watch;

use super::super::{Oidc, TokenError};
use super::issuer::{Clock, Key, KeyFile, open_at, set, with};

/// An HTTP server that publishes keys and counts requests.
#[derive(Clone)]
struct Issuer {
    response: Arc<Mutex<(StatusCode, String)>>,
    requests: watch::Sender<usize>,
    /// While false, requests are held.
    is_open: watch::Sender<bool>,
}

impl Issuer {
    async fn start(text: String) -> (Self, String) {
        let issuer = Self {
            response: Arc::new(Mutex::new((StatusCode::OK, text))),
            requests: watch::Sender::new(0),
            is_open: watch::Sender::new(true),
        };
        let (serving, moved) = (issuer.clone(), issuer.clone());
        let app = Router::new().route("/keys", get(move || serving.clone().serve())).route(
            "/moved",
            get(move || async move { moved.response.lock().expect("a response").1.clone() }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (issuer, url)
    }

    async fn serve(self) -> (StatusCode, [(axum::http::HeaderName, &'static str); 1], String) {
        self.requests.send_modify(|requests| *requests += 1);
        let _ = self.is_open.subscribe().wait_for(|is_open| *is_open).await;
        let (status, text) = self.response.lock().expect("a response").clone();
        (status, [(LOCATION, "/moved")], text)
    }

    fn publish(&self, status: StatusCode, text: String) {
        *self.response.lock().expect("a response") = (status, text);
    }

    fn requests(&self) -> usize {
        *self.requests.borrow()
    }
}

/// An issuer that publishes the old key, and a validator for it. The new key is not published yet.
struct Fixture {
    issuer: Issuer,
    oidc: Arc<Oidc>,
    clock: Clock,
    old: Key,
    new: Key,
}

impl Fixture {
    async fn start() -> Self {
        let (old, new, clock) = (Key::ec("old"), Key::ec("new"), Clock::new());
        let (issuer, url) = Issuer::start(set([old.public()])).await;
        let oidc = Arc::new(open_at(&url, &clock).await.expect("keys"));
        Self { issuer, oidc, clock, old, new }
    }

    async fn accepts(&self, key: &Key) -> bool {
        accepts(&self.oidc, key).await
    }
}

/// Whether a token signed with this key is accepted.
async fn accepts(oidc: &Oidc, key: &Key) -> bool {
    match oidc.validate(&long_lived_token(key)).await {
        Ok(_) => true,
        Err(TokenError::UnknownKey(id)) if id == key.id => false,
        Err(error) => panic!("{error}"),
    }
}

fn long_lived_token(key: &Key) -> String {
    key.sign(&with("exp", 2_000_000_000))
}

#[tokio::test]
async fn changed_file_is_read_again() {
    let (old, new, clock) = (Key::ec("old"), Key::ec("new"), Clock::new());
    let file = KeyFile::new(&set([old.public()]));
    let oidc = open_at(file.path(), &clock).await.expect("keys");
    file.write(&set([new.public()]), 1);
    assert!(accepts(&oidc, &old).await, "it was checked within this second");
    assert!(!accepts(&oidc, &new).await);
    clock.advance(1);
    assert!(accepts(&oidc, &new).await);
    assert!(!accepts(&oidc, &old).await, "the file no longer has it");
}

#[tokio::test]
async fn unreadable_file_keeps_the_cached_keys() {
    let (old, new, clock) = (Key::ec("old"), Key::ec("new"), Clock::new());
    let file = KeyFile::new(&set([old.public()]));
    let oidc = open_at(file.path(), &clock).await.expect("keys");
    file.write("{ \"keys\": [", 1);
    clock.advance(1);
    assert!(accepts(&oidc, &old).await);
    file.remove();
    clock.advance(1);
    assert!(accepts(&oidc, &old).await);
    file.write(&set([new.public()]), 1);
    clock.advance(1);
    assert!(accepts(&oidc, &new).await);
}

#[tokio::test]
async fn unknown_keys_cause_at_most_one_fetch_per_minute() {
    let fixture = Fixture::start().await;
    assert!(fixture.accepts(&fixture.old).await);
    fixture.issuer.publish(StatusCode::OK, set([fixture.old.public(), fixture.new.public()]));
    fixture.clock.advance(59);
    assert!(!fixture.accepts(&fixture.new).await);
    assert_eq!(fixture.issuer.requests(), 1, "the minute is not over");
    fixture.clock.advance(1);
    assert!(fixture.accepts(&fixture.new).await);
    assert!(fixture.accepts(&fixture.old).await);
    let unknown = Key::ec("unknown");
    assert!(!fixture.accepts(&unknown).await);
    assert_eq!(fixture.issuer.requests(), 2);
    fixture.clock.advance(60);
    assert!(!fixture.accepts(&unknown).await);
    assert!(!fixture.accepts(&unknown).await);
    assert_eq!(fixture.issuer.requests(), 3);
}

#[tokio::test]
async fn keys_are_fetched_every_hour() {
    let fixture = Fixture::start().await;
    fixture.issuer.publish(StatusCode::OK, set([fixture.new.public()]));
    fixture.clock.advance(3599);
    assert!(fixture.accepts(&fixture.old).await);
    assert_eq!(fixture.issuer.requests(), 1);
    fixture.clock.advance(1);
    assert!(!fixture.accepts(&fixture.old).await, "it was revoked");
    assert_eq!(fixture.issuer.requests(), 2);
}

#[tokio::test]
async fn clock_set_back_causes_a_fetch() {
    let fixture = Fixture::start().await;
    fixture.issuer.publish(StatusCode::OK, set([fixture.new.public()]));
    fixture.clock.advance(-30);
    assert!(!fixture.accepts(&fixture.old).await);
}

#[tokio::test]
async fn failed_fetch_keeps_the_cached_keys_and_is_retried_after_a_minute() {
    let fixture = Fixture::start().await;
    fixture.issuer.publish(StatusCode::INTERNAL_SERVER_ERROR, set([fixture.new.public()]));
    fixture.clock.advance(3600);
    assert!(fixture.accepts(&fixture.old).await);
    assert_eq!(fixture.issuer.requests(), 2);
    fixture.issuer.publish(StatusCode::OK, "<html>".to_owned());
    fixture.clock.advance(59);
    assert!(fixture.accepts(&fixture.old).await);
    assert_eq!(fixture.issuer.requests(), 2);
    fixture.clock.advance(1);
    assert!(fixture.accepts(&fixture.old).await);
    assert_eq!(fixture.issuer.requests(), 3);
    fixture.issuer.publish(StatusCode::OK, set([fixture.new.public()]));
    fixture.clock.advance(60);
    assert!(!fixture.accepts(&fixture.old).await);
    assert!(fixture.accepts(&fixture.new).await);
}

#[tokio::test]
async fn concurrent_requests_share_one_fetch() {
    let fixture = Fixture::start().await;
    fixture.issuer.publish(StatusCode::OK, set([fixture.new.public()]));
    fixture.issuer.is_open.send_replace(false);
    fixture.clock.advance(60);
    let token = long_lived_token(&fixture.new);
    let concurrent: Vec<_> = (0..8)
        .map(|_| {
            let (oidc, token) = (fixture.oidc.clone(), token.clone());
            tokio::spawn(async move { oidc.validate(&token).await })
        })
        .collect();
    fixture.issuer.requests.subscribe().wait_for(|requests| *requests >= 2).await.expect("a fetch");
    fixture.issuer.is_open.send_replace(true);
    for task in concurrent {
        assert_eq!(task.await.expect("an answer").expect("a good token").user, "ann");
    }
    assert_eq!(fixture.issuer.requests(), 2);
}

#[tokio::test]
async fn cancelled_request_does_not_cancel_the_fetch() {
    let fixture = Fixture::start().await;
    fixture.issuer.publish(StatusCode::OK, set([fixture.new.public()]));
    fixture.issuer.is_open.send_replace(false);
    fixture.clock.advance(60);
    let (oidc, token) = (fixture.oidc.clone(), long_lived_token(&fixture.new));
    let cancelled = tokio::spawn(async move { oidc.validate(&token).await.map(|_| ()) });
    fixture.issuer.requests.subscribe().wait_for(|requests| *requests == 2).await.expect("a fetch");
    cancelled.abort();
    assert!(cancelled.await.expect_err("a cancelled task").is_cancelled());
    fixture.issuer.is_open.send_replace(true);
    assert!(fixture.accepts(&fixture.new).await);
    assert_eq!(fixture.issuer.requests(), 2, "the fetch continued");
}

#[tokio::test]
async fn location_without_keys_is_rejected() {
    let (key, clock) = (Key::ec("a"), Clock::new());
    let (issuer, url) = Issuer::start(set([key.public()])).await;
    let result = async |jwks: &str| match open_at(jwks, &clock).await {
        Ok(_) => "opened\n".to_owned(),
        Err(error) => format!("{error}\n").replace(&url, "URL"),
    };
    let mut lines = result(&url).await;
    issuer.publish(StatusCode::FOUND, set([key.public()]));
    lines += &result(&url).await;
    issuer.publish(StatusCode::OK, format!("{}{}", set([key.public()]), " ".repeat(1024 * 1024)));
    lines += &result(&url).await;
    issuer.publish(StatusCode::OK, set([]));
    lines += &result(&url).await;
    lines += &result("http://id.example/keys").await;
    lines += &result("http://127.0.0.1.id.example/keys").await;
    lines += &result("https://[/keys").await;
    lines += &result("/nowhere/keys.json").await;
    insta::assert_snapshot!(lines, @r#"
    opened
    cannot read the issuer's keys from URL: the response has status 302 Found; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from URL: the key set has more than 1048576 bytes; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from URL: no key can verify tokens; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from http://id.example/keys: plain `http` is allowed on loopback only; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from http://127.0.0.1.id.example/keys: plain `http` is allowed on loopback only; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from https://[/keys: invalid IPv6 address; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from /nowhere/keys.json: No such file or directory (os error 2); name a file, or the issuer's `jwks_uri` with `https`
    "#);
}

#[tokio::test]
async fn rejects_empty_settings() {
    let file = KeyFile::new(&set([Key::ec("a").public()]));
    let oidc = open_at(file.path(), &Clock::new()).await.expect("keys");
    let mut settings = oidc.settings().clone();
    settings.audience.clear();
    let error = Oidc::open(settings, || 0).await.err().expect("an error");
    assert_eq!(error, "the OIDC audience must not be empty");
}
