//! Approval links: what a link shows, who decides with it, and every attack on it.

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::{Approval, Cursor, Presence, Quotas, RunStatus};

use super::{Browser, GATED, TestServer, request, with};
use crate::accounts::{DAY_MS, Role};
use crate::{AccessPolicy, LinkSigner};

const HOST: &str = "steprail.example";
const PIN: &str = "314159";

/// A server behind a public URL. `ann` starts runs, and `paul` decides with a PIN.
struct Fixture {
    server: TestServer,
    ann: String,
    paul: String,
}

/// A response to a browser.
struct Page {
    status: u16,
    text: String,
}

impl Fixture {
    async fn new(presence: Presence) -> Self {
        let policy =
            AccessPolicy { requires_sign_in: true, hosts: vec![HOST.to_owned()], ..AccessPolicy::default() };
        let server = TestServer::build(policy, Quotas::default(), presence);
        let ann = server.user("ann", Role::Operator).await;
        let paul = server.user("paul", Role::Approver).await;
        server.call_ok(&paul, "PUT", "/api/v1/presence/pin", &json!({ "pin": PIN })).await;
        Self { server, ann, paul }
    }

    /// Starts a run of ann that waits. Returns its approval.
    async fn start(&self, definition: &str) -> Approval {
        let body = json!({ "text": definition, "wait_s": 10 });
        let run = self.server.call_ok(&self.ann, "POST", "/api/v1/runs", &body).await;
        let run = run["run_id"].as_str().expect("an id").parse().expect("an id");
        self.approval(run).await
    }

    async fn approval(&self, run: steprail_engine::RunId) -> Approval {
        self.server.app.engine.last_approval(run, "ask").await.expect("a read").expect("an approval")
    }

    /// Path of the link to a request.
    fn link(&self, approval: &Approval, recipient: &str) -> String {
        let links = self.server.app.links.as_ref().expect("links");
        let link = links.link(approval, recipient, self.server.app.engine.now());
        link.strip_prefix("https://steprail.example").expect("a link to the public URL").to_owned()
    }

    async fn status(&self, approval: &Approval) -> RunStatus {
        self.server.app.engine.row(approval.run_id).await.expect("a run").status
    }

    async fn send(&self, request: Request<Body>) -> Page {
        let response = self.server.send(request).await;
        let status = response.status().as_u16();
        Page { status, text: text(response).await }
    }

    async fn open(&self, path: &str) -> Page {
        self.send(visit("GET", path)).await
    }

    /// Sends the form of a page.
    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Page {
        self.send(form(path, fields)).await
    }

    /// Approves with a PIN.
    async fn approve(&self, path: &str, pin: &str) -> Page {
        self.post(path, &[("decision", "approve"), ("factor", "pin"), ("proof", pin)]).await
    }

    /// Everything that a request could have changed: events of runs, administrative actions and open approvals.
    async fn state(&self) -> (String, usize, usize) {
        let engine = &self.server.app.engine;
        let actions = engine.registry().actions(Cursor::START, 1_000).await.expect("actions").events;
        (self.server.cursor(), actions.len(), engine.approvals(100).await.expect("approvals").len())
    }

    async fn session(&self, token: &str) -> Session {
        self.session_at(token, HOST).await
    }

    async fn session_at(&self, token: &str, host: &str) -> Session {
        let request = with(request(token, "POST", "/api/v1/session", &Value::Null), "host", host);
        Session(Browser::signed_in(self.server.send(request).await).await.cookie)
    }
}

/// A browser that signed in. Pages without scripts do not have the page secret.
struct Session(String);

impl Session {
    fn sign(&self, request: Request<Body>) -> Request<Body> {
        with(request, "cookie", &self.0)
    }

    /// Opens a page, and returns the hidden value of its form.
    async fn value(&self, fixture: &Fixture, path: &str) -> String {
        let page = fixture.send(self.sign(visit("GET", path))).await;
        let rest = page.text.split_once("name=\"session\" value=\"").expect("a form").1;
        rest.split('"').next().expect("a value").to_owned()
    }
}

async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    String::from_utf8(bytes.into()).expect("text")
}

fn visit(method: &str, path: &str) -> Request<Body> {
    let mut request = with(request("", method, path, &Value::Null), "host", HOST);
    request.headers_mut().remove("content-type");
    request
}

fn form(path: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request = with(visit("POST", path), "content-type", "application/x-www-form-urlencoded");
    let request = with(request, "origin", "https://steprail.example");
    request.map(|_| Body::from(body))
}

#[tokio::test(flavor = "multi_thread")]
async fn recipient_decides_with_a_pin_and_the_log_states_how() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let page = fixture.open(&link).await;
    assert_eq!(page.status, 200);
    assert!(page.text.contains("Decide as paul"), "{}", page.text);
    let page = fixture.approve(&link, PIN).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert!(page.text.contains("paul approved <code>ask</code>"), "{}", page.text);
    let path = format!("/api/v1/runs/{}/events", approval.run_id);
    let events = fixture.server.call_ok(&fixture.paul, "GET", &path, &Value::Null).await;
    let events = events["items"].as_array().cloned().unwrap_or_default();
    let granted = events.iter().find(|event| event["event"]["type"] == "approval_granted").expect("granted");
    let provenance = &granted["event"]["provenance"];
    assert_eq!((&provenance["surface"], &provenance["presence"]), (&json!("link"), &json!("pin")));
    let id = provenance["link"].as_str().expect("an id");
    assert!(id.len() == 32 && !link.contains(id), "the id reveals nothing of the link");
    assert!(!json!(events).to_string().contains(link.strip_prefix("/a/").expect("a token")));
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_changes_nothing_and_names_the_decider() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let (link, other) = (fixture.link(&approval, "paul"), fixture.link(&approval, "ann"));
    assert_eq!(fixture.approve(&link, PIN).await.status, 200);
    fixture.server.app.engine.row(approval.run_id).await.expect("a run");
    let path = format!("/api/v1/runs/{}?wait_s=10", approval.run_id);
    fixture.server.call_ok(&fixture.paul, "GET", &path, &Value::Null).await;
    let before = fixture.state().await;
    for link in [&link, &other] {
        let page = fixture.approve(link, PIN).await;
        assert_eq!(page.status, 409, "{}", page.text);
        assert!(page.text.contains("was already approved by paul, 2027-01-15 08:00 UTC"), "{}", page.text);
        let page = fixture.open(link).await;
        assert!(page.status == 200 && page.text.contains("Already decided") && !page.text.contains("<form"));
    }
    assert_eq!(fixture.state().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn tampered_tokens_are_unknown() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let before = fixture.state().await;
    let token = link.strip_prefix("/a/").expect("a token");
    for at in 0..token.len() {
        let other = if &token[at..=at] == "A" { "B" } else { "A" };
        let tampered = format!("/a/{}{other}{}", &token[..at], &token[at + 1..]);
        assert_eq!(fixture.open(&tampered).await.status, 404, "character {at}");
    }
    let other_key = LinkSigner::new(&[8; 32], "https://steprail.example").expect("links");
    let forged = other_key.link(&approval, "paul", fixture.server.app.engine.now());
    let forged = forged.strip_prefix("https://steprail.example").expect("a link");
    let long = format!("/a/{}", "A".repeat(5_000));
    let shortened = &link[..link.len() - 4];
    for bad in [forged, shortened, &long, "/a/x", "/a/AAAA", "/a/%00"] {
        assert_eq!(fixture.open(bad).await.status, 404, "{bad}");
        assert_eq!(fixture.approve(bad, PIN).await.status, 404, "{bad}");
    }
    assert_eq!(fixture.state().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_decides_only_about_its_request_run_and_recipient() {
    let fixture = Fixture::new(Presence::None).await;
    let (one, two) = (fixture.start(GATED).await, fixture.start(GATED).await);
    let before = fixture.state().await;
    let other_digest = Approval { digest: Hash([1; 32]), ..one.clone() };
    let other_time = Approval { requested_at: one.requested_at - 1, ..one.clone() };
    let other_run = Approval { run_id: two.run_id, ..one.clone() };
    for stale in [other_digest, other_time, other_run] {
        let link = fixture.link(&stale, "paul");
        let page = fixture.approve(&link, PIN).await;
        assert!(page.status == 409 && page.text.contains("The request has changed"), "{}", page.text);
        assert!(!fixture.open(&link).await.text.contains("crm__write"), "no facts of another request");
    }
    // The PIN is paul's, and the link is for ann, for a user who does not exist, or for a group.
    for (recipient, answer) in [("ann", "wrong"), ("eve", "Sign in"), ("group:ops", "Sign in")] {
        let page = fixture.approve(&fixture.link(&one, recipient), PIN).await;
        assert!(page.status == 403 && page.text.contains(answer), "{recipient}: {}", page.text);
    }
    assert_eq!(fixture.state().await.2, before.2);
    assert_eq!(fixture.approve(&fixture.link(&one, "paul"), PIN).await.status, 200);
    assert_eq!(fixture.status(&two).await, RunStatus::Paused, "the other run still waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_link_shows_nothing() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    fixture.server.clock.advance(7 * DAY_MS);
    for page in [fixture.open(&link).await, fixture.approve(&link, PIN).await] {
        assert_eq!(page.status, 410);
        assert!(!page.text.contains("crm__write") && !page.text.contains("Go on?"), "{}", page.text);
    }
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
    let timed = GATED.replace("prompt: Go on?", "prompt: Go on?, timeout: 1h");
    let approval = fixture.start(&timed).await;
    let link = fixture.link(&approval, "paul");
    assert_eq!(fixture.open(&link).await.status, 200);
    fixture.server.clock.advance(60 * 60 * 1_000);
    assert_eq!(fixture.open(&link).await.status, 410, "it expires with the request");
}

#[tokio::test(flavor = "multi_thread")]
async fn link_previews_change_nothing() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let session = fixture.session(&fixture.paul).await;
    let before = fixture.state().await;
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"] {
        let bot = with(visit(method, &link), "user-agent", "Slackbot-LinkExpanding 1.0");
        let prefetch = with(session.sign(visit(method, &link)), "sec-purpose", "prefetch");
        let query = session.sign(visit(method, &format!("{link}?decision=approve&factor=pin&proof={PIN}")));
        for request in [bot, prefetch, query] {
            let status = fixture.send(request).await.status;
            assert_eq!(status, if matches!(method, "GET" | "HEAD") { 200 } else { 405 }, "{method}");
        }
    }
    assert_eq!(fixture.state().await, before);
    assert_eq!(fixture.approve(&link, PIN).await.status, 200, "the link still works");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_request_voids_its_link() {
    let fixture = Fixture::new(Presence::None).await;
    let olga = fixture.server.user("olga", Role::Operator).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let edit = json!({ "action": "set_arguments", "step": "act", "value": { "n": 2 } });
    let path = format!("/api/v1/runs/{}/intervene", approval.run_id);
    fixture.server.call_ok(&olga, "POST", &path, &edit).await;
    let page = fixture.approve(&link, PIN).await;
    assert!(page.status == 409 && page.text.contains("The request has changed"), "{}", page.text);
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
    let renewed = fixture.approval(approval.run_id).await;
    assert_eq!((renewed.status.as_str(), renewed.digest == approval.digest), ("open", false));
    let again = fixture.approve(&link, PIN).await;
    assert!(again.status == 409 && again.text.contains("The request has changed"), "{}", again.text);
    assert_eq!(fixture.approve(&fixture.link(&renewed, "paul"), PIN).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_decided_without_a_session_or_a_factor() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let before = fixture.state().await;
    for fields in [
        &[("decision", "approve")][..],
        &[("decision", "approve"), ("factor", "none"), ("proof", "x")],
        &[("decision", "approve"), ("session", "AAAA")],
    ] {
        let page = fixture.post(&link, fields).await;
        assert_eq!(page.status, 403, "{}", page.text);
    }
    for fields in [&[][..], &[("decision", "yes"), ("factor", "pin"), ("proof", PIN)]] {
        assert_eq!(fixture.post(&link, fields).await.status, 400);
    }
    assert_eq!(fixture.state().await, before);
    let too_large = "x".repeat(70_000);
    let page = fixture.post(&link, &[("decision", "deny"), ("comment", &too_large)]).await;
    assert_eq!(page.status, 413);
    let long = "x".repeat(1_001);
    let page = fixture.post(&link, &[("decision", "deny"), ("comment", &long)]).await;
    assert_eq!(page.status, 400);
    let as_json = with(form(&link, &[("decision", "approve")]), "content-type", "application/json");
    assert_eq!(fixture.send(as_json).await.status, 403);
    assert_eq!(fixture.state().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_pins_void_the_link_and_do_not_lock_the_user_out() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    for _ in 0..3 {
        let page = fixture.approve(&link, "000000").await;
        assert!(page.status == 403 && page.text.contains("The PIN or code is wrong"), "{}", page.text);
    }
    assert_eq!(fixture.approve(&link, PIN).await.status, 429, "the right one is refused, too");
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
    // Guesses over several links lock the user out, as everywhere.
    let next = fixture.start(GATED).await;
    let link = fixture.link(&next, "paul");
    assert_eq!(fixture.approve(&link, PIN).await.status, 200, "the user is not locked out");
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_over_several_links_lock_the_factor() {
    let fixture = Fixture::new(Presence::None).await;
    let mut links = Vec::new();
    for _ in 0..3 {
        links.push(fixture.link(&fixture.start(GATED).await, "paul"));
    }
    for link in links.iter().take(2).flat_map(|link| [link; 3]).take(5) {
        assert_eq!(fixture.approve(link, "000000").await.status, 403);
    }
    let page = fixture.approve(&links[2], PIN).await;
    assert!(page.status == 403 && page.text.contains("too many wrong attempts"), "{}", page.text);
    fixture.server.clock.advance(60_000);
    assert_eq!(fixture.approve(&links[2], PIN).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_decides_with_the_value_of_its_page() {
    let fixture = Fixture::new(Presence::None).await;
    let (approval, other) = (fixture.start(GATED).await, fixture.start(GATED).await);
    let link = fixture.link(&approval, "paul");
    let (session, foreign) = (fixture.session(&fixture.paul).await, fixture.session(&fixture.paul).await);
    let value = session.value(&fixture, &link).await;
    let decide = |value: &str| session.sign(form(&link, &[("decision", "approve"), ("session", value)]));
    let stolen = [
        String::new(),
        foreign.value(&fixture, &link).await,
        session.value(&fixture, &fixture.link(&other, "paul")).await,
    ];
    for value in &stolen {
        let page = fixture.send(decide(value)).await;
        assert!(page.status == 403 && page.text.contains("not sent by this page"), "{}", page.text);
    }
    // A PIN does not replace the value: the form of another page would decide as the user of the session.
    let fields = [("decision", "approve"), ("factor", "pin"), ("proof", PIN)];
    assert_eq!(fixture.send(session.sign(form(&link, &fields))).await.status, 403);
    for origin in [
        "https://evil.example",
        "null",
        "https://steprail.example:8443",
        "https://evil.example.steprail.example",
    ] {
        assert_eq!(fixture.send(with(decide(&value), "origin", origin)).await.status, 403, "{origin}");
    }
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(fixture.send(with(decide(&value), "sec-fetch-site", site)).await.status, 403, "{site}");
    }
    let page = fixture.send(decide(&value)).await;
    assert_eq!(page.status, 200, "{}", page.text);
    assert_eq!(fixture.status(&other).await, RunStatus::Paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_on_loopback_does_not_count() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let session = fixture.session(&fixture.paul).await;
    let value = session.value(&fixture, &link).await;
    let page = fixture.send(with(session.sign(visit("GET", &link)), "host", "localhost")).await;
    assert!(page.text.contains("Prove that it is you") && !page.text.contains("name=\"session\""));
    let local = form(&link, &[("decision", "approve"), ("session", &value)]);
    let local = with(with(session.sign(local), "host", "localhost"), "origin", "http://localhost");
    assert_eq!(fixture.send(local).await.status, 403);
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
}

/// A program with a local port gets the cookie of a loopback address, and sends it with the host name that it likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_counts_only_at_its_host() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let local = fixture.session_at(&fixture.paul, "localhost").await;
    for host in [HOST, "LOCALHOST", "localhost"] {
        let page = fixture.send(with(local.sign(visit("GET", &link)), "host", host)).await;
        assert!(!page.text.contains("name=\"session\""), "{host}: {}", page.text);
    }
    let own = fixture.session(&fixture.paul).await;
    let value = own.value(&fixture, &link).await;
    let fields = [("decision", "approve"), ("session", value.as_str())];
    assert_eq!(fixture.send(local.sign(form(&link, &fields))).await.status, 403);
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_proves_the_factor_that_is_required() {
    let fixture = Fixture::new(Presence::Pin).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let session = fixture.session(&fixture.paul).await;
    let value = session.value(&fixture, &link).await;
    let fields = [("decision", "approve"), ("session", value.as_str())];
    assert_eq!(fixture.send(session.sign(form(&link, &fields))).await.status, 403);
    let fields = [&fields[..], &[("factor", "pin"), ("proof", PIN)]].concat();
    assert_eq!(fixture.send(session.sign(form(&link, &fields))).await.status, 200);
    let passkeys = Fixture::new(Presence::Passkey).await;
    let approval = passkeys.start(GATED).await;
    let link = passkeys.link(&approval, "paul");
    let page = passkeys.open(&link).await;
    let target = format!("href=\"/passkeys?run={}&amp;step=ask\"", approval.run_id);
    assert!(page.text.contains("needs a passkey") && page.text.contains(&target), "{}", page.text);
    assert!(!page.text.contains("<form"), "{}", page.text);
    assert_eq!(passkeys.approve(&link, PIN).await.status, 403, "a PIN is not enough");
    let strict = Fixture::new(Presence::Totp).await;
    let link = strict.link(&strict.start(GATED).await, "paul");
    let page = strict.approve(&link, PIN).await;
    assert!(page.status == 403 && page.text.contains("One-time code"), "a PIN is not enough: {}", page.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_decide_with_a_forwarded_link_as_themselves_if_they_may() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let vera = fixture.server.user("vera", Role::Viewer).await;
    for (token, who) in [(&vera, "vera"), (&fixture.ann, "ann")] {
        let session = fixture.session(token).await;
        let page = fixture.send(session.sign(visit("GET", &link))).await;
        assert!(page.text.contains(&format!("{who} may not decide")), "{}", page.text);
        let links = fixture.server.app.links.as_ref().expect("links");
        let read = links.read(link.strip_prefix("/a/").expect("a token")).expect("a link");
        let id = session.0.split_once("sr_").and_then(|(_, rest)| rest.split('_').next()).expect("an id");
        let value = links.form_value(id, &read);
        let page =
            fixture.send(session.sign(form(&link, &[("decision", "approve"), ("session", &value)]))).await;
        assert_eq!(page.status, 403, "{who}: {}", page.text);
    }
    let olga = fixture.server.user("olga", Role::Approver).await;
    let session = fixture.session(&olga).await;
    let value = session.value(&fixture, &link).await;
    let deny = [("decision", "deny"), ("session", value.as_str()), ("comment", "not today")];
    let page = fixture.send(session.sign(form(&link, &deny))).await;
    assert!(page.status == 200 && page.text.contains("olga denied"), "{}", page.text);
    let decided = fixture.approval(approval.run_id).await;
    assert_eq!((decided.decided_by.as_deref(), decided.reason.as_deref()), (Some("olga"), Some("not today")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_cannot_decide_over_a_link() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "paul");
    let agent = fixture.server.token("paul", true, None).await;
    for token in [&agent, &fixture.paul] {
        for fields in
            [&[("decision", "approve")][..], &[("decision", "approve"), ("factor", "pin"), ("proof", PIN)]]
        {
            let request = with(form(&link, fields), "authorization", &format!("Bearer {token}"));
            assert_eq!(fixture.send(request).await.status, 403);
        }
    }
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_the_owner_cannot_decide_without_the_factor() {
    let policy = AccessPolicy { hosts: vec![HOST.to_owned()], ..AccessPolicy::default() };
    let server = TestServer::with(policy);
    let fixture = Fixture { server, ann: String::new(), paul: String::new() };
    // In `single` mode a local program acts as an agent of the owner.
    let approval = fixture.start(GATED).await;
    let link = fixture.link(&approval, "owner");
    let local = |request| with(with(request, "host", "localhost"), "origin", "http://localhost");
    let decide = || local(form(&link, &[("decision", "approve")]));
    assert_eq!(fixture.send(decide()).await.status, 403);
    let owner = fixture.server.owner();
    fixture.server.app.accounts.set_pin(&owner, PIN.to_owned()).await.expect("set");
    assert_eq!(fixture.send(decide()).await.status, 403);
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
    let with_pin = form(&link, &[("decision", "approve"), ("factor", "pin"), ("proof", PIN)]);
    let page = fixture.send(local(with_pin)).await;
    assert!(page.status == 200 && page.text.contains("owner approved"), "{}", page.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_gives_one_signature_of_a_quorum() {
    let fixture = Fixture::new(Presence::None).await;
    let olga = fixture.server.user("olga", Role::Approver).await;
    let approval = fixture.start(&GATED.replace("prompt: Go on?", "prompt: Go on?, quorum: 2")).await;
    let link = fixture.link(&approval, "paul");
    let page = fixture.approve(&link, PIN).await;
    assert!(page.status == 200 && page.text.contains("waits for further approvers"), "{}", page.text);
    let page = fixture.approve(&link, PIN).await;
    assert_eq!(page.status, 409, "{}", page.text);
    // Another user may decide, but not with the link that was used.
    let session = fixture.session(&olga).await;
    let value = session.value(&fixture, &link).await;
    let fields = [("decision", "approve"), ("session", value.as_str())];
    let page = fixture.send(session.sign(form(&link, &fields))).await;
    assert!(page.status == 409 && page.text.contains("this link was already used"), "{}", page.text);
    assert_eq!(fixture.status(&approval).await, RunStatus::Paused);
    let own = fixture.link(&approval, "olga");
    let value = session.value(&fixture, &own).await;
    let page = fixture.send(session.sign(form(&own, &[("decision", "approve"), ("session", &value)]))).await;
    assert_eq!(page.status, 200, "{}", page.text);
}

const HOSTILE: &str = r#"
name: hostile
steps:
  - id: read
    tool: crm__read
  - id: ask
    kind: approve
    prompt: "Delete?\n</blockquote><script>alert(1)</script>\n\u202Eevil\u202C pay\u200Bpal <form action=https://evil.example>"
  - id: act
    tool: crm__write
    args: { path: "/srv/<b>\"quoted\"</b>", note: "two\nlines", flag: "true", rows: "{{read.rows}}", "on\"x": 1 }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_shown_and_not_interpreted() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(HOSTILE).await;
    let link = fixture.link(&approval, "paul");
    let page = fixture.open(&link).await;
    for markup in
        ["<script", "<img", "<b>", "<form action=https", "\u{202e}", "\u{200b}", "style=", "onclick"]
    {
        assert!(!page.text.contains(markup), "{markup} in {}", page.text);
    }
    assert_eq!(page.text.matches("<form").count(), 1);
    assert_eq!(page.text.matches("</blockquote>").count(), 1);
    let token = link.strip_prefix("/a/").expect("a token");
    let run = approval.run_id.to_string();
    let shown =
        page.text.replace(token, "TOKEN").replace(&run, "RUN").replace(&*approval.digest.half(), "DIGEST");
    insta::assert_snapshot!(shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_strict_headers() {
    let fixture = Fixture::new(Presence::None).await;
    let link = fixture.link(&fixture.start(GATED).await, "paul");
    for (request, status) in [
        (visit("GET", &link), 200),
        (visit("HEAD", &link), 200),
        (visit("GET", "/a/x"), 404),
        (form(&link, &[("decision", "approve")]), 403),
        (form(&link, &[("decision", "approve"), ("factor", "pin"), ("proof", PIN)]), 200),
    ] {
        let response = fixture.server.send(request).await;
        assert_eq!(response.status(), status);
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let policy = header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; form-action 'self'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("script"), "{policy}");
        assert_eq!(header("cache-control"), Some("no-store"));
        // `no-referrer` would make browsers send the form with `Origin: null`.
        assert_eq!(header("referrer-policy"), Some("same-origin"));
        assert_eq!(header("x-frame-options"), Some("DENY"));
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
        assert_eq!(header("set-cookie"), None);
    }
    let style = fixture.server.send(visit("GET", "/links.css")).await;
    assert_eq!(style.headers()["content-type"], "text/css; charset=utf-8");
}

const FORM: &str = "
name: survey
steps:
  - id: ask
    kind: approve
    prompt: Which?
    form:
      type: object
      properties:
        amount: { type: integer, title: Amount, default: 3 }
        share: { type: number }
        urgent: { type: boolean }
        colour: { type: string, enum: [red, green] }
        note: { type: string, description: For the log }
      required: [amount]
";

#[tokio::test(flavor = "multi_thread")]
async fn simple_forms_are_answered_on_the_page() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(FORM).await;
    let link = fixture.link(&approval, "paul");
    let page = fixture.open(&link).await;
    for control in
        ["name=\"field:amount\" value=\"3\" required", "<option value=\"green\">", "name=\"field:note\""]
    {
        assert!(page.text.contains(control), "{control}: {}", page.text);
    }
    let fields = [("decision", "approve"), ("factor", "pin"), ("proof", PIN)];
    let with_amount = |amount| [&fields[..], &[("field:amount", amount), ("field:urgent", "true")]].concat();
    let page = fixture.post(&link, &with_amount("many")).await;
    assert!(page.status == 400 && page.text.contains("must be a whole number"), "{}", page.text);
    let chosen = [&with_amount("5")[..], &[("field:colour", "blue")]].concat();
    assert_eq!(fixture.post(&link, &chosen).await.status, 400, "the engine checks the schema");
    assert_eq!(fixture.post(&link, &with_amount("5")).await.status, 200);
    let path = format!("/api/v1/runs/{}?wait_s=10", approval.run_id);
    let run = fixture.server.call_ok(&fixture.paul, "GET", &path, &Value::Null).await;
    assert!(run.to_string().contains(r#""form":{"amount":5,"urgent":true}"#), "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_forms_are_answered_in_the_terminal() {
    let fixture = Fixture::new(Presence::None).await;
    let approval = fixture.start(&FORM.replace("share: { type: number }", "tags: { type: array }")).await;
    let link = fixture.link(&approval, "paul");
    let page = fixture.open(&link).await;
    assert!(
        page.text.contains("steprail approve") && !page.text.contains("value=\"approve\""),
        "{}",
        page.text
    );
    assert_eq!(fixture.approve(&link, PIN).await.status, 400);
    let deny = [("decision", "deny"), ("factor", "pin"), ("proof", PIN)];
    assert_eq!(fixture.post(&link, &deny).await.status, 200);
}
