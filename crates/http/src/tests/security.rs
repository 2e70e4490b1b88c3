//! What must be refused: pages of others, other names, forged and stolen credentials, decisions that are repeated.

use serde_json::{Value, json};
use steprail_engine::Right;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{House, cookie, request, said, with};
use crate::AccessPolicy;
use crate::accounts::{DAY_MS, Role};

/// Every address that a page of another origin could try.
const PATHS: [(&str, &str); 6] = [
    ("GET", "/api/v1/runs"),
    ("POST", "/api/v1/runs"),
    ("GET", "/metrics"),
    ("GET", "/api/openapi.json"),
    ("POST", "/mcp"),
    ("GET", "/sign-in?key=x"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_is_refused_everywhere() {
    let house = House::with(AccessPolicy::default());
    for (method, path) in PATHS {
        for origin in ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost:1"] {
            let answer = house.send(with(request("", method, path, &Value::Null), "origin", origin)).await;
            assert_eq!(answer.status(), 403, "{method} {path} from {origin}");
        }
        let cross = with(request("", method, path, &Value::Null), "sec-fetch-site", "cross-site");
        assert_eq!(house.send(cross).await.status(), 403, "{method} {path} across sites");
    }
    let own = with(request("", "GET", "/api/v1/runs", &Value::Null), "origin", "http://localhost");
    assert_eq!(house.send(own).await.status(), 200, "its own pages may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_allowed_may_send_the_headers_of_mcp() {
    let origins = vec!["https://inspector.example".to_owned()];
    let house = House::with(AccessPolicy { origins, ..AccessPolicy::default() });
    let preflight = |asked: &str| {
        let request =
            with(request("", "OPTIONS", "/mcp", &Value::Null), "origin", "https://inspector.example");
        with(request, "access-control-request-headers", asked)
    };
    let answer = house.send(preflight("mcp-method, Mcp-Param-Region, x-other")).await;
    assert_eq!(answer.status(), 204);
    let allowed = answer.headers()["access-control-allow-headers"].to_str().expect("text").to_owned();
    let allowed: Vec<&str> = allowed.split(", ").collect();
    for name in ["mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "mcp-param-region"] {
        assert!(allowed.contains(&name), "{name} in {allowed:?}");
    }
    assert!(!allowed.contains(&"x-other"), "{allowed:?}");
    assert!(
        answer.headers()["access-control-expose-headers"].to_str().expect("text").contains("mcp-session-id")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn well_known_addresses_that_are_not_served_are_not_found() {
    for access_policy in
        [AccessPolicy::default(), AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() }]
    {
        let house = House::with(access_policy);
        let paths =
            ["oauth-authorization-server", "openid-configuration", "oauth-protected-resource", "a/b/c"];
        for path in paths {
            let path = format!("/.well-known/{path}");
            for method in ["GET", "POST"] {
                let answer = house.send(request("", method, &path, &Value::Null)).await;
                let is_served = method == "POST" && path.ends_with("protected-resource");
                assert_eq!(answer.status(), if is_served { 405 } else { 404 }, "{method} {path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_bound_anew_is_refused_everywhere() {
    let hosts = vec!["steps.example".to_owned(), "flows.example:8443".to_owned()];
    let house = House::with(AccessPolicy { hosts, ..AccessPolicy::default() });
    for (method, path) in PATHS {
        for host in [
            "evil.example",
            "evil.example:8462",
            "127.0.0.1.evil.example",
            "",
            "localhost@evil.example",
            "flows.example",
        ] {
            let answer = house.send(with(request("", method, path, &Value::Null), "host", host)).await;
            assert_eq!(answer.status(), 421, "{method} {path} as {host}");
        }
    }
    let probe = house.send(with(request("", "GET", "/healthz", &Value::Null), "host", "10.0.0.7:8462")).await;
    assert_eq!(probe.status(), 200, "whoever watches over the process asks under any name");
    for host in [
        "localhost:8462",
        "127.0.0.1",
        "[::1]:8462",
        "steps.example",
        "Steps.example:80",
        "flows.example:8443",
    ] {
        let answer =
            house.send(with(request("", "GET", "/api/openapi.json", &Value::Null), "host", host)).await;
        assert_eq!(answer.status(), 200, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_alone_changes_nothing() {
    let house = House::new();
    let token = house.user("ann", Role::Author).await;
    let answer = house.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await;
    assert_eq!(answer.status(), 201);
    let cookie = cookie(answer.headers());
    let me = house.send(with(request("", "GET", "/api/v1/me", &Value::Null), "cookie", &cookie)).await;
    let csrf = said(me).await["csrf"].as_str().expect("a word").to_owned();
    let start =
        || with(request("", "POST", "/api/v1/runs", &json!({ "text": super::GATED })), "cookie", &cookie);
    for forged in
        [start(), with(start(), "x-steprail-csrf", ""), with(start(), "x-steprail-csrf", &"0".repeat(32))]
    {
        let answer = house.send(forged).await;
        assert_eq!(answer.status(), 403);
        assert_eq!(said(answer).await["code"], "bad_csrf");
    }
    assert_eq!(house.send(with(start(), "x-steprail-csrf", &csrf)).await.status(), 201, "its own page may");
    let out = with(request("", "DELETE", "/api/v1/session", &Value::Null), "cookie", &cookie);
    assert_eq!(house.send(with(out, "x-steprail-csrf", &csrf)).await.status(), 204);
    assert_eq!(house.send(with(start(), "x-steprail-csrf", &csrf)).await.status(), 401, "it has signed out");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookie_is_for_this_site_and_no_script() {
    let house = House::new();
    let token = house.user("ann", Role::Author).await;
    let set = |answer: &axum::http::Response<_>| -> String {
        answer
            .headers()
            .get("set-cookie")
            .and_then(|cookie| cookie.to_str().ok())
            .expect("a cookie")
            .to_owned()
    };
    let here = set(&house.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await);
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=604800"] {
        assert!(here.contains(part), "{here}");
    }
    let ask = with(request(&token, "POST", "/api/v1/session", &Value::Null), "host", "localhost:8463");
    let beside = set(&house.send(ask).await);
    assert!(
        here.starts_with("steprail_session=") && beside.starts_with("steprail_session_8463="),
        "{beside}"
    );
    let scoped = house.scoped("ann", Right::Workflow).await;
    let agents = house.token("ann", true, None).await;
    for token in [scoped, agents] {
        let answer = house.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await;
        assert_eq!(answer.status(), 403, "less than a person gets no cookie");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_when_its_time_is_up_when_it_is_revoked_and_with_its_user() {
    let house = House::new();
    let admin = house.user("adam", Role::Admin).await;
    let stolen = house.user("ann", Role::Author).await;
    let (id, revoked) = (stolen[3..19].to_owned(), house.token("ann", false, None).await);
    let me = |token: String| {
        let house = &house;
        async move { house.ask(&token, "GET", "/api/v1/me", &Value::Null).await }
    };
    assert_eq!(me(stolen.clone()).await.0, 200);
    house.done(&admin, "DELETE", &format!("/api/v1/tokens/{}", &revoked[3..19]), &Value::Null).await;
    assert_eq!(me(revoked).await.0, 401, "revoked");
    let listed = house.done(&admin, "GET", "/api/v1/tokens", &Value::Null).await.to_string();
    assert!(listed.contains(&id) && !listed.contains(&stolen[20..]), "the secret is shown once: {listed}");
    house.clock.advance(31 * DAY_MS);
    let (status, said) = me(stolen).await;
    assert_eq!((status, said["code"].as_str()), (401, Some("expired")));
    let fresh = house.token("ann", false, None).await;
    assert_eq!(me(fresh.clone()).await.0, 200);
    let admin = house.token("adam", false, None).await;
    house.done(&admin, "PUT", "/api/v1/users/ann", &json!({ "roles": ["author"], "disabled": true })).await;
    assert_eq!(me(fresh.clone()).await.0, 401, "disabled");
    house.done(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    assert_eq!(me(fresh).await.0, 401, "gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sign_in_ends_when_it_is_not_used_and_in_the_end() {
    let house = House::new();
    let token = house.user("ann", Role::Author).await;
    let cookie = cookie(house.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await.headers());
    let me = || with(request("", "GET", "/api/v1/me", &Value::Null), "cookie", &cookie);
    for _ in 0..15 {
        house.clock.advance(DAY_MS / 2 - 1);
        let status = house.send(me()).await.status();
        if status == 401 {
            return;
        }
        assert_eq!(status, 200);
    }
    panic!("it lasts for more than a week");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_that_is_sent_again_decides_nothing() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let paul = house.user("paul", Role::Approver).await;
    let (run, digest) = house.gated_run(&ann).await;
    let approve = format!("/api/v1/runs/{run}/approve");
    let decision = json!({ "step": "ask", "digest": digest });
    let stale = json!({ "step": "ask", "digest": "0".repeat(64) });
    assert_eq!(house.ask(&paul, "POST", &approve, &stale).await.0, 409, "what was shown is what counts");
    assert_eq!(house.ask(&paul, "POST", &approve, &json!({ "step": "ask" })).await.0, 400, "blindly");
    assert_eq!(house.ask(&ann, "POST", &approve, &decision).await.0, 403, "not the one who started it");
    assert_eq!(house.ask(&paul, "POST", &approve, &decision).await.0, 200);
    let (status, said) = house.ask(&paul, "POST", &approve, &decision).await;
    assert_eq!(status, 409, "{said}");
    assert!(said["detail"].as_str().is_some_and(|detail| detail.contains("paul")), "who decided: {said}");
    let deny = format!("/api/v1/runs/{run}/deny");
    assert_eq!(house.ask(&paul, "POST", &deny, &decision).await.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_guesses_has_to_wait() {
    let house = House::new();
    let forged = "sr_0123456789abcdef_".to_owned() + &"0".repeat(64);
    for _ in 0..9 {
        assert_eq!(house.ask(&forged, "GET", "/api/v1/me", &Value::Null).await.0, 401);
    }
    house.ask(&forged, "GET", "/api/v1/me", &Value::Null).await;
    let answer = house.send(request(&forged, "GET", "/api/v1/me", &Value::Null)).await;
    assert_eq!(answer.status(), 429);
    assert!(answer.headers().contains_key("retry-after"));
    let ann = house.user("ann", Role::Author).await;
    assert_eq!(house.ask(&ann, "GET", "/api/v1/me", &Value::Null).await.0, 200, "who is right need not wait");
    house.clock.advance(60_000);
    assert_eq!(house.ask(&forged, "GET", "/api/v1/me", &Value::Null).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_signs_the_owner_in_once() {
    let house = House::with(AccessPolicy::default());
    let link = house.app.accounts.create_link().expect("a link");
    let path = format!("/sign-in?key={link}");
    let answer = house.send(request("", "GET", &path, &Value::Null)).await;
    assert_eq!(answer.status(), 303);
    let cookie = cookie(answer.headers());
    let me =
        said(house.send(with(request("", "GET", "/api/v1/me", &Value::Null), "cookie", &cookie)).await).await;
    assert_eq!((&me["id"], &me["agent"]), (&json!("owner"), &json!(false)));
    assert_eq!(house.send(request("", "GET", &path, &Value::Null)).await.status(), 401, "it was used");
    let late = house.app.accounts.create_link().expect("a link");
    house.clock.advance(11 * 60_000);
    let path = format!("/sign-in?key={late}");
    assert_eq!(house.send(request("", "GET", &path, &Value::Null)).await.status(), 401, "it is too old");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sign_in_whoever_comes_is_an_agent_and_cannot_decide() {
    let house = House::with(AccessPolicy::default());
    let (run, digest) = house.gated_run("").await;
    let decision = json!({ "step": "ask", "digest": digest });
    let (status, said) = house.ask("", "POST", &format!("/api/v1/runs/{run}/approve"), &decision).await;
    assert_eq!(status, 403, "{said}");
    assert_eq!(house.ask("", "POST", "/api/v1/links", &Value::Null).await.0, 403);
    assert_eq!(house.ask("", "POST", "/api/v1/tokens", &json!({ "name": "t", "agent": false })).await.0, 403);
    assert_eq!(house.ask("", "PUT", "/api/v1/users/eve", &json!({ "roles": ["admin"] })).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_of_the_machine_has_to_sign_in() {
    let mut house = House::with(AccessPolicy::default());
    house.is_own = false;
    for (method, path) in
        [("GET", "/api/v1/runs"), ("POST", "/api/v1/runs"), ("POST", "/mcp"), ("GET", "/metrics")]
    {
        assert_eq!(house.ask("", method, path, &Value::Null).await.0, 401, "{method} {path}");
    }
    let ann = house.user("ann", Role::Author).await;
    assert_eq!(house.ask(&ann, "GET", "/api/v1/me", &Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_held_to_its_tools_also_in_a_workflow() {
    let house = House::new();
    house.user("ann", Role::Author).await;
    let scope = steprail_engine::TokenScope { may: None, tools: Some(vec!["crm__read".to_owned()]) };
    let token = house.token("ann", true, Some(scope)).await;
    let run = |tool: &str| json!({ "text": format!("name: one\nsteps: [{{ id: r, tool: {tool} }}]"), "wait_s": 10 });
    assert_eq!(house.done(&token, "POST", "/api/v1/runs", &run("crm__read")).await["status"], "completed");
    let refused = house.done(&token, "POST", "/api/v1/runs", &run("crm__write")).await;
    assert_eq!(
        (&refused["status"], &refused["error"]["kind"]),
        (&json!("failed"), &json!("permission")),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn less_than_a_person_gets_nothing_more_from_what_it_has() {
    let house = House::new();
    let ann = house.user("ann", Role::Operator).await;
    let (view, agent) = (house.scoped("ann", Right::View).await, house.token("ann", true, None).await);
    let owners = house.scoped("owner", Right::View).await;
    assert_eq!(
        house.ask(&owners, "POST", "/api/v1/links", &Value::Null).await.0,
        403,
        "a link is for a person"
    );
    let (run, digest) = house.gated_run(&ann).await;
    let of_run = |action: &str| format!("/api/v1/runs/{run}/{action}");
    for action in ["cancel", "pause"] {
        assert_eq!(house.ask(&view, "POST", &of_run(action), &Value::Null).await.0, 403, "{action}");
    }
    for token in [&view, &agent] {
        let own = format!("/api/v1/tokens/{}", &ann[3..19]);
        assert_eq!(house.ask(token, "DELETE", &own, &Value::Null).await.0, 403, "to revoke is for a person");
    }
    // What her agent starts is hers.
    let (by_agent, asked) = house.gated_run(&agent).await;
    let decision = json!({ "step": "ask", "digest": asked });
    let decided = house.ask(&ann, "POST", &format!("/api/v1/runs/{by_agent}/approve"), &decision).await;
    assert_eq!(decided.0, 403, "{}", decided.1);
    // Who decides does not thereby change what others run.
    let paul = house.user("paul", Role::Approver).await;
    let change = json!({ "action": "set_arguments", "step": "act", "value": { "n": 2 } });
    assert_eq!(house.ask(&paul, "POST", &of_run("intervene"), &change).await.0, 403);
    assert_eq!(
        house.ask(&paul, "POST", &of_run("approve"), &json!({ "step": "ask", "digest": digest })).await.0,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_some_tools_does_not_change_what_others_start() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let scope = steprail_engine::TokenScope { may: None, tools: Some(vec!["crm__read".to_owned()]) };
    let less = house.token("ann", true, Some(scope)).await;
    let text = |name: &str, tool: &str| json!({ "text": format!("name: {name}\nsteps: [{{ id: r, tool: {tool} }}]") });
    house.done(&ann, "POST", "/api/v1/definitions", &text("nightly", "crm__read")).await;
    assert_eq!(house.ask(&less, "POST", "/api/v1/definitions", &text("nightly", "crm__write")).await.0, 403);
    assert_eq!(house.ask(&less, "POST", "/api/v1/definitions", &text("own", "crm__read")).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_say_what_it_wants_is_let_go() {
    let house = House::new();
    let mut client = tokio::net::TcpStream::connect(house.port().await).await.expect("a connection");
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.expect("half of a head");
    let mut said = Vec::new();
    client.read_to_end(&mut said).await.expect("an end");
    assert_eq!(String::from_utf8_lossy(&said), "");
}
