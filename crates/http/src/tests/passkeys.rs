//! Passkeys: registration, confirmation of one request, and every way in which an assertion is rejected.

use serde_json::{Value, json};
use steprail_engine::{Cursor, Presence};

use super::sockets::Page;
use super::soft_authenticator::{SoftAuthenticator, proof};
use super::{Browser, TestServer, json_body, request, with};
use crate::accounts::Role;

const HEADER: &str = "x-steprail-presence";
const CHALLENGE: &str = "/api/v1/me/presence/challenge";
const BEGIN: &str = "/api/v1/me/passkeys/begin";
const FINISH: &str = "/api/v1/me/passkeys/finish";

/// A server that needs a passkey, with a run that waits and an approver with a passkey.
struct Setup {
    server: TestServer,
    paul: String,
    key: SoftAuthenticator,
    /// The path and the body of the decision.
    path: String,
    decision: Value,
}

impl Setup {
    async fn new() -> Self {
        let server = TestServer::with_presence(Presence::Passkey);
        let ann = server.user("ann", Role::Author).await;
        let (run, digest) = server.start_gated_run(&ann).await;
        let paul = server.user("paul", Role::Approver).await;
        let mut key = SoftAuthenticator::new(1);
        register(&server, &paul, &mut key, None).await;
        let path = format!("/api/v1/runs/{run}/approve");
        Self { server, paul, key, path, decision: json!({ "step": "ask", "digest": digest }) }
    }

    /// The options of a challenge for the decision.
    async fn options(&self) -> Value {
        options(&self.server, &self.paul, "POST", &self.path, &self.decision).await
    }

    /// Approves with a proof. Returns the status, and the detail of the problem.
    async fn approve(&self, proof: &str) -> (u16, String) {
        send(&self.server, &self.paul, "POST", &self.path, &self.decision, proof).await
    }

    /// Approves with an assertion that is rejected, and checks that it is counted and recorded.
    async fn is_rejected(&self, assertion: &Value, reason: &str) {
        let before = actions(&self.server, "presence_rejected").await.len();
        let (status, detail) = self.approve(&proof(assertion)).await;
        assert_eq!((status, detail), (403, format!("the passkey is rejected: {reason}")));
        let recorded = actions(&self.server, "presence_rejected").await;
        assert_eq!((recorded.len(), &recorded[before]["factor"]), (before + 1, &json!("passkey")));
    }
}

async fn options(server: &TestServer, token: &str, method: &str, path: &str, body: &Value) -> Value {
    let challenge = json!({ "method": method, "path": path, "body": body });
    server.call_ok(token, "POST", CHALLENGE, &challenge).await["publicKey"].clone()
}

/// Sends a request with a proof. Returns the status, and the detail of the problem.
async fn send(
    server: &TestServer,
    token: &str,
    method: &str,
    path: &str,
    body: &Value,
    proof: &str,
) -> (u16, String) {
    let response = server.send(with(request(token, method, path, body), HEADER, proof)).await;
    let status = response.status().as_u16();
    (status, json_body(response).await["detail"].as_str().unwrap_or_default().to_owned())
}

/// Registers a passkey. Returns its id.
async fn register(
    server: &TestServer,
    token: &str,
    key: &mut SoftAuthenticator,
    proof: Option<&str>,
) -> String {
    let begin = request(token, "POST", BEGIN, &Value::Null);
    let begin = proof.into_iter().fold(begin, |begin, proof| with(begin, HEADER, proof));
    let options = json_body(server.send(begin).await).await;
    assert!(options["publicKey"].is_object(), "{options}");
    let body = json!({ "name": "my phone", "credential": key.create(&options["publicKey"]) });
    let passkey = server.call_ok(token, "POST", FINISH, &body).await;
    passkey["id"].as_str().expect("an id").to_owned()
}

/// The proof of a passkey for a request.
async fn confirm(
    server: &TestServer,
    token: &str,
    key: &mut SoftAuthenticator,
    method: &str,
    path: &str,
    body: &Value,
) -> String {
    proof(&key.get(&options(server, token, method, path, body).await))
}

/// The administrative actions of a type.
async fn actions(server: &TestServer, name: &str) -> Vec<Value> {
    let actions = server.app.engine.registry().actions(Cursor::START, 1_000).await.expect("actions").events;
    let actions = actions.iter().filter(|stored| stored.event.action.name() == name);
    actions.map(|stored| json!(stored.event)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn passkey_approves_and_the_log_states_it() {
    let mut setup = Setup::new().await;
    assert_eq!(actions(&setup.server, "presence_enrolled").await[0]["factor"], "passkey");
    let (status, reply) = setup.server.call(&setup.paul, "POST", &setup.path, &setup.decision).await;
    assert_eq!((status, &reply["presence"]), (403, &json!("passkey")), "{reply}");
    let options = setup.options().await;
    assert_eq!(
        (&options["rpId"], &options["userVerification"]),
        (&json!("localhost"), &json!("required")),
        "{options}"
    );
    let proof = proof(&setup.key.get(&options));
    assert_eq!(setup.approve(&proof).await.0, 200);
    let run = setup.path.split('/').nth(4).expect("a run");
    let path = format!("/api/v1/runs/{run}/events");
    let events = setup.server.call_ok(&setup.paul, "GET", &path, &Value::Null).await;
    assert!(events.to_string().contains(r#""presence":"passkey""#), "{events}");
    assert_eq!(actions(&setup.server, "presence_rejected").await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn assertion_works_once() {
    let mut setup = Setup::new().await;
    let assertion = setup.key.get(&setup.options().await);
    assert_eq!(setup.approve(&proof(&assertion)).await.0, 200);
    setup.is_rejected(&assertion, "its challenge has expired, was used already, or is unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn challenge_expires() {
    let mut setup = Setup::new().await;
    let assertion = setup.key.get(&setup.options().await);
    setup.server.clock.advance(2 * 60_000);
    setup.is_rejected(&assertion, "its challenge has expired, was used already, or is unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn challenge_that_was_not_issued_is_rejected() {
    let mut setup = Setup::new().await;
    let mut options = setup.options().await;
    options["challenge"] = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    let assertion = setup.key.get(&options);
    setup.is_rejected(&assertion, "its challenge has expired, was used already, or is unknown").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_origins_are_rejected() {
    let mut setup = Setup::new().await;
    for origin in ["http://localhost:8080", "https://localhost", "http://evil.localhost", "http://127.0.0.1"]
    {
        let options = setup.options().await;
        setup.key.origin = origin.to_owned();
        let assertion = setup.key.get(&options);
        setup.is_rejected(&assertion, "it was made for another origin").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_relying_party_is_rejected() {
    let mut setup = Setup::new().await;
    let mut options = setup.options().await;
    options["rpId"] = json!("evil.example");
    let assertion = setup.key.get(&options);
    setup.is_rejected(&assertion, "it was made for another host").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assertion_confirms_only_its_request() {
    let mut setup = Setup::new().await;
    let digest = "0".repeat(64);
    let deny = setup.path.replace("approve", "deny");
    let others = [
        ("POST", setup.path.clone(), json!({ "step": "ask", "digest": digest })),
        ("POST", deny, setup.decision.clone()),
        (
            "POST",
            setup.path.clone(),
            json!({ "step": "ask", "digest": setup.decision["digest"], "reason": "x" }),
        ),
        ("PUT", setup.path.clone(), setup.decision.clone()),
    ];
    for (method, path, body) in others {
        let options = options(&setup.server, &setup.paul, method, &path, &body).await;
        let assertion = setup.key.get(&options);
        setup.is_rejected(&assertion, "it confirms another request").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_and_challenge_of_another_user_are_rejected() {
    let mut setup = Setup::new().await;
    let petra = setup.server.user("petra", Role::Approver).await;
    let mut key = SoftAuthenticator::new(2);
    register(&setup.server, &petra, &mut key, None).await;
    let of_petra = options(&setup.server, &petra, "POST", &setup.path, &setup.decision).await;
    let assertion = key.get(&of_petra);
    setup.is_rejected(&assertion, "its challenge is that of another user").await;
    let assertion = key.get(&setup.options().await);
    setup.is_rejected(&assertion, "it is not a passkey of yours").await;
    let assertion = setup.key.get(&setup.options().await);
    assert_eq!(setup.approve(&proof(&assertion)).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn signature_of_another_key_is_rejected() {
    let setup = Setup::new().await;
    let mut forged = SoftAuthenticator::new(1);
    forged.counter = 100;
    let assertion = forged.get(&setup.options().await);
    setup.is_rejected(&assertion, "it is invalid").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counter_that_does_not_increase_is_rejected() {
    let mut setup = Setup::new().await;
    let copied = "its signature counter did not increase, so there may be a copy of the passkey";
    let (first, second) = (setup.options().await, setup.options().await);
    setup.key.counter = 20;
    let me = "/api/v1/me/passkeys/0123456789abcdef";
    let used = confirm(&setup.server, &setup.paul, &mut setup.key, "DELETE", me, &Value::Null).await;
    assert_eq!(
        send(&setup.server, &setup.paul, "DELETE", me, &Value::Null, &used).await.0,
        404,
        "counted as 21"
    );
    // The challenge was created before the counter was raised.
    setup.key.counter = 20;
    let assertion = setup.key.get(&first);
    setup.is_rejected(&assertion, copied).await;
    setup.key.counter = 0;
    let assertion = setup.key.get(&second);
    setup.is_rejected(&assertion, copied).await;
    setup.key.counter = 5;
    let assertion = setup.key.get(&setup.options().await);
    setup.is_rejected(&assertion, copied).await;
    setup.key.counter = 21;
    let assertion = setup.key.get(&setup.options().await);
    assert_eq!(setup.approve(&proof(&assertion)).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn user_has_to_be_verified() {
    let mut setup = Setup::new().await;
    setup.key.verifies_user = false;
    let assertion = setup.key.get(&setup.options().await);
    setup.is_rejected(&assertion, "the authenticator did not verify its user").await;
    let server = &setup.server;
    let petra = server.user("petra", Role::Approver).await;
    let options = server.call_ok(&petra, "POST", BEGIN, &Value::Null).await;
    let mut key = SoftAuthenticator::new(2);
    key.verifies_user = false;
    let body = json!({ "name": "key", "credential": key.create(&options["publicKey"]) });
    let (status, reply) = server.call(&petra, "POST", FINISH, &body).await;
    assert_eq!(status, 400, "{reply}");
    assert!(reply["detail"].as_str().is_some_and(|detail| detail.contains("did not verify")), "{reply}");
    assert_eq!(server.call(&petra, "POST", FINISH, &body).await.0, 409, "it ended the registration");
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_passkey_is_rejected_and_the_last_factor_stays() {
    let mut setup = Setup::new().await;
    let mut second = SoftAuthenticator::new(2);
    let begin = confirm(&setup.server, &setup.paul, &mut setup.key, "POST", BEGIN, &Value::Null).await;
    let id = register(&setup.server, &setup.paul, &mut second, Some(&begin)).await;
    let early = setup.options().await;
    let path = format!("/api/v1/me/passkeys/{id}");
    let refused = setup.server.call(&setup.paul, "DELETE", &path, &Value::Null).await;
    assert_eq!((refused.0, &refused.1["code"]), (403, &json!("presence_required")));
    let delete = confirm(&setup.server, &setup.paul, &mut setup.key, "DELETE", &path, &Value::Null).await;
    assert_eq!(send(&setup.server, &setup.paul, "DELETE", &path, &Value::Null, &delete).await.0, 204);
    assert_eq!(actions(&setup.server, "passkey_removed").await[0]["passkey"], id);
    let assertion = second.get(&early);
    setup.is_rejected(&assertion, "the passkey was removed").await;
    let listed = setup.server.call_ok(&setup.paul, "GET", "/api/v1/me/passkeys", &Value::Null).await;
    let last = listed["items"][0]["id"].as_str().expect("an id");
    let path = format!("/api/v1/me/passkeys/{last}");
    let delete = confirm(&setup.server, &setup.paul, &mut setup.key, "DELETE", &path, &Value::Null).await;
    assert_eq!(send(&setup.server, &setup.paul, "DELETE", &path, &Value::Null, &delete).await.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn weaker_factors_do_not_satisfy_a_passkey() {
    let setup = Setup::new().await;
    let petra = setup.server.user("petra", Role::Approver).await;
    setup.server.call_ok(&petra, "PUT", "/api/v1/presence/pin", &json!({ "pin": "314159" })).await;
    let decide =
        |proof: &'static str| send(&setup.server, &petra, "POST", &setup.path, &setup.decision, proof);
    let (status, detail) = decide("pin 314159").await;
    assert_eq!(status, 403);
    assert!(detail.contains("your passkey"), "{detail}");
    let (status, detail) = decide("passkey e30").await;
    assert_eq!((status, &*detail), (403, "you have not registered a passkey"));
    let challenge = json!({ "method": "POST", "path": setup.path, "body": setup.decision });
    assert_eq!(setup.server.call(&petra, "POST", CHALLENGE, &challenge).await.0, 409);
    // The PIN is needed to register the first passkey.
    let begin = setup.server.call(&petra, "POST", BEGIN, &Value::Null).await;
    assert_eq!((begin.0, &begin.1["presence"]), (403, &json!("pin")));
    register(&setup.server, &petra, &mut SoftAuthenticator::new(2), Some("pin 314159")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_assertions_lock_out_like_wrong_pins() {
    let mut setup = Setup::new().await;
    for _ in 0..5 {
        assert_eq!(setup.approve("passkey e30").await.0, 403);
    }
    let proof = proof(&setup.key.get(&setup.options().await));
    assert_eq!(setup.approve(&proof).await.0, 429);
    assert_eq!(actions(&setup.server, "presence_rejected").await[4]["locked"], true);
    let long = format!("passkey {}", "A".repeat(9_000));
    assert_eq!(setup.approve(&long).await.0, 400, "too long");
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_scoped_tokens_have_no_passkeys() {
    let setup = Setup::new().await;
    let agent = setup.server.token("paul", true, None).await;
    let challenge = json!({ "method": "POST", "path": setup.path, "body": setup.decision });
    assert_eq!(setup.server.call(&agent, "POST", CHALLENGE, &challenge).await.0, 403);
    let scoped = setup.server.scoped_token("paul", steprail_engine::Right::Approve).await;
    for token in [&agent, &scoped] {
        assert_eq!(setup.server.call(token, "POST", BEGIN, &Value::Null).await.0, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn factor_that_is_set_ends_a_registration() {
    let server = TestServer::with_presence(Presence::Pin);
    let paul = server.user("paul", Role::Approver).await;
    let options = server.call_ok(&paul, "POST", BEGIN, &Value::Null).await;
    server.call_ok(&paul, "PUT", "/api/v1/presence/pin", &json!({ "pin": "314159" })).await;
    let credential = SoftAuthenticator::new(1).create(&options["publicKey"]);
    let body = json!({ "name": "key", "credential": credential });
    assert_eq!(server.call(&paul, "POST", FINISH, &body).await.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn number_of_passkeys_is_bounded() {
    let mut setup = Setup::new().await;
    for id in 2..=10 {
        let begin = confirm(&setup.server, &setup.paul, &mut setup.key, "POST", BEGIN, &Value::Null).await;
        register(&setup.server, &setup.paul, &mut SoftAuthenticator::new(id), Some(&begin)).await;
    }
    let begin = confirm(&setup.server, &setup.paul, &mut setup.key, "POST", BEGIN, &Value::Null).await;
    let (status, detail) = send(&setup.server, &setup.paul, "POST", BEGIN, &Value::Null, &begin).await;
    assert_eq!(status, 409, "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn passkey_changes_accounts_and_issues_codes() {
    let mut setup = Setup::new().await;
    let token = json!({ "name": "t", "agent": true });
    let proof = confirm(&setup.server, &setup.paul, &mut setup.key, "POST", "/api/v1/tokens", &token).await;
    assert_eq!(send(&setup.server, &setup.paul, "POST", "/api/v1/tokens", &token, &proof).await.0, 201);
    let codes = setup.path.replace("approve", "codes");
    let proof = confirm(&setup.server, &setup.paul, &mut setup.key, "POST", &codes, &setup.decision).await;
    assert_eq!(send(&setup.server, &setup.paul, "POST", &codes, &setup.decision, &proof).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn passkey_decides_over_the_socket() {
    let mut setup = Setup::new().await;
    let mut page = Page::open(&setup.server, &setup.paul, None).await.expect("a socket");
    let run = setup.path.split('/').nth(4).expect("a run").to_owned();
    let mut params = json!({ "run_id": run, "step": "ask", "digest": setup.decision["digest"] });
    params["presence"] = proof(&setup.key.get(&setup.options().await)).into();
    params["reason"] = "not confirmed".into();
    page.send(json!({ "id": 1, "method": "approve", "params": params })).await;
    assert_eq!(page.receive(json!(1)).await["error"]["code"], "presence_rejected");
    params.as_object_mut().expect("a map").remove("reason");
    params["presence"] = proof(&setup.key.get(&setup.options().await)).into();
    page.send(json!({ "id": 2, "method": "approve", "params": params })).await;
    let decided = page.receive(json!(2)).await;
    assert_eq!(decided["result"]["decision"], "approved", "{decided}");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_shows_the_facts_and_decides_in_a_session() {
    let mut setup = Setup::new().await;
    let page = setup.server.send(request("", "GET", "/passkeys", &Value::Null)).await;
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
    let html = json_body(page).await;
    let html = html.as_str().expect("HTML");
    assert!(!html.contains("onclick") && html.matches("<script").count() == 1, "{html}");
    let script = setup.server.send(request("", "GET", "/passkeys.js", &Value::Null)).await;
    assert_eq!(script.headers()["content-type"], "text/javascript; charset=utf-8");
    let browser = Browser::of(&setup.server, &setup.paul).await;
    let run = setup.path.split('/').nth(4).expect("a run");
    let path = format!("/api/v1/approvals/{run}?step=ask");
    let shown = json_body(setup.server.send(browser.request("GET", &path, &Value::Null)).await).await;
    assert_eq!(
        (&shown["digest"], &shown["presence"], &shown["may_decide"]),
        (&setup.decision["digest"], &json!("passkey"), &json!(true)),
        "{shown}"
    );
    assert!(shown["text"].as_str().is_some_and(|text| text.contains("crm__write")), "{shown}");
    let challenge = json!({ "method": "POST", "path": setup.path, "body": setup.decision });
    let options = json_body(setup.server.send(browser.request("POST", CHALLENGE, &challenge)).await).await;
    let proof = proof(&setup.key.get(&options["publicKey"]));
    let decide = with(browser.request("POST", &setup.path, &setup.decision), HEADER, &proof);
    assert_eq!(setup.server.send(decide).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_links_lead_to_the_page_of_passkeys_only() {
    let server = TestServer::new();
    let link = |page: &str| {
        let mut link = request("", "POST", "/api/v1/links", &json!({ "page": page }));
        link.extensions_mut().insert(axum::extract::ConnectInfo(crate::peer::Peer {
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            os_user: Some(1_000),
            is_owner: true,
            pid: Some(std::process::id().cast_signed()),
        }));
        let router = crate::owner_router(&server.app);
        async move { json_body(tower::ServiceExt::oneshot(router, link).await.expect("a response")).await }
    };
    let created = link("/passkeys?run=1&step=a b").await;
    let url = created["url"].as_str().unwrap_or_default();
    assert!(url.starts_with("http://localhost/sign-in#key="), "{created}");
    assert!(url.ends_with("&next=%2Fpasskeys%3Frun%3D1%26step%3Da+b"), "{created}");
    for page in ["//evil.example", "https://evil.example", "/passkeysx", "/api"] {
        assert_eq!(link(page).await["code"], "bad_input", "{page}");
    }
}
