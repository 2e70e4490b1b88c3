//! Keys that come and go, in a file and behind a URL.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::routing::get;
use tokio::sync::watch;

use super::super::{Oidc, TokenError};
use super::issuer::{Clock, Key, KeyFile, open_at, set, with};

/// An issuer on the web that counts how often it is asked for its keys.
#[derive(Clone)]
struct Web {
    answer: Arc<Mutex<(StatusCode, String)>>,
    asked: watch::Sender<usize>,
    /// Whether it answers, or lets everybody wait.
    answers: watch::Sender<bool>,
}

impl Web {
    async fn start(text: String) -> (Self, String) {
        let web = Self {
            answer: Arc::new(Mutex::new((StatusCode::OK, text))),
            asked: watch::Sender::new(0),
            answers: watch::Sender::new(true),
        };
        let (serving, moved) = (web.clone(), web.clone());
        let app = Router::new()
            .route("/keys", get(move || serving.clone().serve()))
            .route("/moved", get(move || async move { moved.answer.lock().expect("an answer").1.clone() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (web, url)
    }

    async fn serve(self) -> (StatusCode, [(axum::http::HeaderName, &'static str); 1], String) {
        self.asked.send_modify(|asked| *asked += 1);
        let _ = self.answers.subscribe().wait_for(|answers| *answers).await;
        let (status, text) = self.answer.lock().expect("an answer").clone();
        (status, [(LOCATION, "/moved")], text)
    }

    fn publish(&self, status: StatusCode, text: String) {
        *self.answer.lock().expect("an answer") = (status, text);
    }

    fn asked(&self) -> usize {
        *self.asked.borrow()
    }
}

/// An issuer with an old key and what trusts it; the new key is not published yet.
struct Scene {
    web: Web,
    oidc: Arc<Oidc>,
    clock: Clock,
    old: Key,
    new: Key,
}

impl Scene {
    async fn start() -> Self {
        let (old, new, clock) = (Key::ec("old"), Key::ec("new"), Clock::new());
        let (web, url) = Web::start(set([old.public()])).await;
        let oidc = Arc::new(open_at(&url, &clock).await.expect("keys"));
        Self { web, oidc, clock, old, new }
    }

    async fn accepts(&self, key: &Key) -> bool {
        accepts(&self.oidc, key).await
    }
}

/// Whether a token of this key, good for ever, is accepted.
async fn accepts(oidc: &Oidc, key: &Key) -> bool {
    match oidc.validate(&lasting(key)).await {
        Ok(_) => true,
        Err(TokenError::UnknownKey(id)) if id == key.id => false,
        Err(refused) => panic!("{refused}"),
    }
}

fn lasting(key: &Key) -> String {
    key.sign(&with("exp", 2_000_000_000))
}

#[tokio::test]
async fn a_file_is_read_again_when_it_has_changed() {
    let (old, new, clock) = (Key::ec("old"), Key::ec("new"), Clock::new());
    let file = KeyFile::new(&set([old.public()]));
    let oidc = open_at(file.path(), &clock).await.expect("keys");
    file.write(&set([new.public()]), 1);
    assert!(accepts(&oidc, &old).await, "it was looked at within this second");
    assert!(!accepts(&oidc, &new).await);
    clock.advance(1);
    assert!(accepts(&oidc, &new).await);
    assert!(!accepts(&oidc, &old).await, "the file no longer has it");
}

#[tokio::test]
async fn a_file_that_cannot_be_read_leaves_the_keys_as_they_are() {
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
async fn keys_are_fetched_for_an_unknown_key_at_most_once_a_minute() {
    let scene = Scene::start().await;
    assert!(scene.accepts(&scene.old).await);
    scene.web.publish(StatusCode::OK, set([scene.old.public(), scene.new.public()]));
    scene.clock.advance(59);
    assert!(!scene.accepts(&scene.new).await);
    assert_eq!(scene.web.asked(), 1, "the minute is not over");
    scene.clock.advance(1);
    assert!(scene.accepts(&scene.new).await);
    assert!(scene.accepts(&scene.old).await);
    let nobody = Key::ec("nobody");
    assert!(!scene.accepts(&nobody).await);
    assert_eq!(scene.web.asked(), 2);
    scene.clock.advance(60);
    assert!(!scene.accepts(&nobody).await);
    assert!(!scene.accepts(&nobody).await);
    assert_eq!(scene.web.asked(), 3);
}

#[tokio::test]
async fn keys_are_fetched_every_hour() {
    let scene = Scene::start().await;
    scene.web.publish(StatusCode::OK, set([scene.new.public()]));
    scene.clock.advance(3599);
    assert!(scene.accepts(&scene.old).await);
    assert_eq!(scene.web.asked(), 1);
    scene.clock.advance(1);
    assert!(!scene.accepts(&scene.old).await, "it was withdrawn");
    assert_eq!(scene.web.asked(), 2);
}

#[tokio::test]
async fn a_clock_that_is_set_back_does_not_keep_keys() {
    let scene = Scene::start().await;
    scene.web.publish(StatusCode::OK, set([scene.new.public()]));
    scene.clock.advance(-30);
    assert!(!scene.accepts(&scene.old).await);
}

#[tokio::test]
async fn a_fetch_that_fails_leaves_the_keys_and_is_repeated_after_a_minute() {
    let scene = Scene::start().await;
    scene.web.publish(StatusCode::INTERNAL_SERVER_ERROR, set([scene.new.public()]));
    scene.clock.advance(3600);
    assert!(scene.accepts(&scene.old).await);
    assert_eq!(scene.web.asked(), 2);
    scene.web.publish(StatusCode::OK, "<html>".to_owned());
    scene.clock.advance(59);
    assert!(scene.accepts(&scene.old).await);
    assert_eq!(scene.web.asked(), 2);
    scene.clock.advance(1);
    assert!(scene.accepts(&scene.old).await);
    assert_eq!(scene.web.asked(), 3);
    scene.web.publish(StatusCode::OK, set([scene.new.public()]));
    scene.clock.advance(60);
    assert!(!scene.accepts(&scene.old).await);
    assert!(scene.accepts(&scene.new).await);
}

#[tokio::test]
async fn requests_that_come_together_share_one_fetch() {
    let scene = Scene::start().await;
    scene.web.publish(StatusCode::OK, set([scene.new.public()]));
    scene.web.answers.send_replace(false);
    scene.clock.advance(60);
    let token = lasting(&scene.new);
    let together: Vec<_> = (0..8)
        .map(|_| {
            let (oidc, token) = (scene.oidc.clone(), token.clone());
            tokio::spawn(async move { oidc.validate(&token).await })
        })
        .collect();
    scene.web.asked.subscribe().wait_for(|asked| *asked >= 2).await.expect("a fetch");
    scene.web.answers.send_replace(true);
    for one in together {
        assert_eq!(one.await.expect("an answer").expect("a good token").user, "ann");
    }
    assert_eq!(scene.web.asked(), 2);
}

#[tokio::test]
async fn a_client_that_goes_away_does_not_stop_the_fetch() {
    let scene = Scene::start().await;
    scene.web.publish(StatusCode::OK, set([scene.new.public()]));
    scene.web.answers.send_replace(false);
    scene.clock.advance(60);
    let (oidc, token) = (scene.oidc.clone(), lasting(&scene.new));
    let gone = tokio::spawn(async move { oidc.validate(&token).await.map(|_| ()) });
    scene.web.asked.subscribe().wait_for(|asked| *asked == 2).await.expect("a fetch");
    gone.abort();
    assert!(gone.await.expect_err("it is gone").is_cancelled());
    scene.web.answers.send_replace(true);
    assert!(scene.accepts(&scene.new).await);
    assert_eq!(scene.web.asked(), 2, "the answer was for everybody");
}

#[tokio::test]
async fn a_place_without_keys_is_refused_at_once() {
    let (key, clock) = (Key::ec("a"), Clock::new());
    let (web, url) = Web::start(set([key.public()])).await;
    let told = async |jwks: &str| match open_at(jwks, &clock).await {
        Ok(_) => "opened\n".to_owned(),
        Err(error) => format!("{error}\n").replace(&url, "URL"),
    };
    let mut lines = told(&url).await;
    web.publish(StatusCode::FOUND, set([key.public()]));
    lines += &told(&url).await;
    web.publish(StatusCode::OK, format!("{}{}", set([key.public()]), " ".repeat(1024 * 1024)));
    lines += &told(&url).await;
    web.publish(StatusCode::OK, set([]));
    lines += &told(&url).await;
    lines += &told("http://id.example/keys").await;
    lines += &told("http://127.0.0.1.id.example/keys").await;
    lines += &told("https://[/keys").await;
    lines += &told("/nowhere/keys.json").await;
    insta::assert_snapshot!(lines, @r#"
    opened
    cannot read the issuer's keys from URL: the answer is 302 Found; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from URL: there are more than 1048576 bytes; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from URL: none of them can verify tokens; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from http://id.example/keys: over `http` anybody on the way could change them; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from http://127.0.0.1.id.example/keys: over `http` anybody on the way could change them; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from https://[/keys: invalid IPv6 address; name a file, or the issuer's `jwks_uri` with `https`
    cannot read the issuer's keys from /nowhere/keys.json: No such file or directory (os error 2); name a file, or the issuer's `jwks_uri` with `https`
    "#);
}

#[tokio::test]
async fn empty_settings_are_refused() {
    let file = KeyFile::new(&set([Key::ec("a").public()]));
    let oidc = open_at(file.path(), &Clock::new()).await.expect("keys");
    let mut settings = oidc.settings().clone();
    settings.audience.clear();
    let refused = Oidc::open(settings, || 0).await.err().expect("a refusal");
    assert_eq!(refused, "OIDC needs the audience of the tokens; it is empty");
}
