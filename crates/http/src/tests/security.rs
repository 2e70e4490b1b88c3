//! Rejections: cross-origin requests, DNS rebinding, forged and stolen credentials, repeated decisions.

use serde_json::{Value, json};
use steprail_engine::Right;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Browser, TestServer, json_body, request, with};
use crate::AccessPolicy;
use crate::accounts::{DAY_MS, Role};

/// Routes with every kind of authentication.
const PATHS: [(&str, &str); 6] = [
    ("GET", "/api/v1/runs"),
    ("POST", "/api/v1/runs"),
    ("GET", "/metrics"),
    ("GET", "/api/openapi.json"),
    ("POST", "/mcp"),
    ("GET", "/sign-in"),
];

#[tokio::test(flavor = "multi_thread")]
async fn cross_origin_requests_are_rejected_on_every_route() {
    let server = TestServer::with(AccessPolicy::default());
    for (method, path) in PATHS {
        for origin in ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost:1"] {
            let response = server.send(with(request("", method, path, &Value::Null), "origin", origin)).await;
            assert_eq!(response.status(), 403, "{method} {path} from {origin}");
        }
        let cross = with(request("", method, path, &Value::Null), "sec-fetch-site", "cross-site");
        assert_eq!(server.send(cross).await.status(), 403, "{method} {path} across sites");
    }
    let own = with(request("", "GET", "/api/v1/runs", &Value::Null), "origin", "http://localhost");
    assert_eq!(server.send(own).await.status(), 200, "same origin");
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_origin_can_send_mcp_headers() {
    let origins = vec!["https://inspector.example".to_owned()];
    let server = TestServer::with(AccessPolicy { origins, ..AccessPolicy::default() });
    let preflight = |headers: &str| {
        let request =
            with(request("", "OPTIONS", "/mcp", &Value::Null), "origin", "https://inspector.example");
        with(request, "access-control-request-headers", headers)
    };
    let response = server.send(preflight("mcp-method, Mcp-Param-Region, x-other")).await;
    assert_eq!(response.status(), 204);
    let allowed = response.headers()["access-control-allow-headers"].to_str().expect("text").to_owned();
    let allowed: Vec<&str> = allowed.split(", ").collect();
    for name in ["mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "mcp-param-region"] {
        assert!(allowed.contains(&name), "{name} in {allowed:?}");
    }
    assert!(!allowed.contains(&"x-other"), "{allowed:?}");
    assert!(
        response.headers()["access-control-expose-headers"]
            .to_str()
            .expect("text")
            .contains("mcp-session-id")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_well_known_paths_are_not_found() {
    for access_policy in
        [AccessPolicy::default(), AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() }]
    {
        let server = TestServer::with(access_policy);
        let paths =
            ["oauth-authorization-server", "openid-configuration", "oauth-protected-resource", "a/b/c"];
        for path in paths {
            let path = format!("/.well-known/{path}");
            for method in ["GET", "POST"] {
                let response = server.send(request("", method, &path, &Value::Null)).await;
                let is_served = method == "POST" && path.ends_with("protected-resource");
                assert_eq!(response.status(), if is_served { 405 } else { 404 }, "{method} {path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_host_names_are_rejected_on_every_route() {
    let hosts = vec!["steps.example".to_owned(), "flows.example:8443".to_owned()];
    let server = TestServer::with(AccessPolicy { hosts, ..AccessPolicy::default() });
    for (method, path) in PATHS {
        for host in [
            "evil.example",
            "evil.example:8462",
            "127.0.0.1.evil.example",
            "",
            "localhost@evil.example",
            "flows.example",
        ] {
            let response = server.send(with(request("", method, path, &Value::Null), "host", host)).await;
            assert_eq!(response.status(), 421, "{method} {path} as {host}");
        }
    }
    let health_check =
        server.send(with(request("", "GET", "/healthz", &Value::Null), "host", "10.0.0.7:8462")).await;
    assert_eq!(health_check.status(), 200, "health checks use arbitrary host names");
    for host in [
        "localhost:8462",
        "127.0.0.1",
        "[::1]:8462",
        "steps.example",
        "Steps.example:80",
        "flows.example:8443",
    ] {
        let response =
            server.send(with(request("", "GET", "/api/openapi.json", &Value::Null), "host", host)).await;
        assert_eq!(response.status(), 200, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_cookie_is_same_site_http_only_and_bound_to_the_port() {
    let server = TestServer::new();
    let token = server.user("ann", Role::Author).await;
    let set = |response: &axum::http::Response<_>| -> String {
        response
            .headers()
            .get("set-cookie")
            .and_then(|cookie| cookie.to_str().ok())
            .expect("a cookie")
            .to_owned()
    };
    let first = set(&server.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await);
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=604800"] {
        assert!(first.contains(part), "{first}");
    }
    let other_port = with(request(&token, "POST", "/api/v1/session", &Value::Null), "host", "localhost:8463");
    let second = set(&server.send(other_port).await);
    assert!(
        first.starts_with("steprail_session=") && second.starts_with("steprail_session_8463="),
        "{second}"
    );
    let scoped = server.scoped_token("ann", Right::Workflow).await;
    let agent = server.token("ann", true, None).await;
    for token in [scoped, agent] {
        let response = server.send(request(&token, "POST", "/api/v1/session", &Value::Null)).await;
        assert_eq!(response.status(), 403, "a session needs an unscoped token in person");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_rejected_after_expiry_revocation_and_deletion_of_its_user() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let token = server.user("ann", Role::Author).await;
    let (id, revoked) = (token[3..19].to_owned(), server.token("ann", false, None).await);
    let me = |token: String| {
        let server = &server;
        async move { server.call(&token, "GET", "/api/v1/me", &Value::Null).await }
    };
    assert_eq!(me(token.clone()).await.0, 200);
    server.call_ok(&admin, "DELETE", &format!("/api/v1/tokens/{}", &revoked[3..19]), &Value::Null).await;
    assert_eq!(me(revoked).await.0, 401, "revoked");
    let listed = server.call_ok(&admin, "GET", "/api/v1/tokens", &Value::Null).await.to_string();
    assert!(
        listed.contains(&id) && !listed.contains(&token[20..]),
        "the list must not contain the secret: {listed}"
    );
    server.clock.advance(31 * DAY_MS);
    let (status, reply) = me(token).await;
    assert_eq!((status, reply["code"].as_str()), (401, Some("expired")));
    let fresh = server.token("ann", false, None).await;
    assert_eq!(me(fresh.clone()).await.0, 200);
    let admin = server.token("adam", false, None).await;
    server
        .call_ok(&admin, "PUT", "/api/v1/users/ann", &json!({ "roles": ["author"], "disabled": true }))
        .await;
    assert_eq!(me(fresh.clone()).await.0, 401, "disabled");
    server.call_ok(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    assert_eq!(me(fresh).await.0, 401, "deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_expires_after_its_maximum_lifetime() {
    let server = TestServer::new();
    let token = server.user("ann", Role::Author).await;
    let browser = Browser::of(&server, &token).await;
    let me = || browser.request("GET", "/api/v1/me", &Value::Null);
    for _ in 0..15 {
        server.clock.advance(DAY_MS / 2 - 1);
        let status = server.send(me()).await.status();
        if status == 401 {
            return;
        }
        assert_eq!(status, 200);
    }
    panic!("the session lasts longer than a week");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_decision_is_a_conflict() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let paul = server.user("paul", Role::Approver).await;
    let (run, digest) = server.start_gated_run(&ann).await;
    let approve = format!("/api/v1/runs/{run}/approve");
    let decision = json!({ "step": "ask", "digest": digest });
    let stale = json!({ "step": "ask", "digest": "0".repeat(64) });
    assert_eq!(server.call(&paul, "POST", &approve, &stale).await.0, 409, "stale digest");
    assert_eq!(server.call(&paul, "POST", &approve, &json!({ "step": "ask" })).await.0, 400, "no digest");
    assert_eq!(server.call(&ann, "POST", &approve, &decision).await.0, 403, "the user who started the run");
    assert_eq!(server.call(&paul, "POST", &approve, &decision).await.0, 200);
    let (status, reply) = server.call(&paul, "POST", &approve, &decision).await;
    assert_eq!(status, 409, "{reply}");
    assert!(
        reply["detail"].as_str().is_some_and(|detail| detail.contains("paul")),
        "the approver is named: {reply}"
    );
    let deny = format!("/api/v1/runs/{run}/deny");
    assert_eq!(server.call(&paul, "POST", &deny, &decision).await.0, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_authentication_has_a_rate_limit() {
    let server = TestServer::new();
    let forged = "sr_0123456789abcdef_".to_owned() + &"0".repeat(64);
    for _ in 0..9 {
        assert_eq!(server.call(&forged, "GET", "/api/v1/me", &Value::Null).await.0, 401);
    }
    server.call(&forged, "GET", "/api/v1/me", &Value::Null).await;
    let response = server.send(request(&forged, "GET", "/api/v1/me", &Value::Null)).await;
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    let ann = server.user("ann", Role::Author).await;
    assert_eq!(
        server.call(&ann, "GET", "/api/v1/me", &Value::Null).await.0,
        200,
        "valid credentials are not limited"
    );
    server.clock.advance(60_000);
    assert_eq!(server.call(&forged, "GET", "/api/v1/me", &Value::Null).await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn sign_in_link_works_once_and_expires() {
    let server = TestServer::with(AccessPolicy::default());
    let link = server.app.accounts.create_link(None).expect("a link");
    let sign_in = |key: &str| server.send(request("", "POST", "/sign-in", &json!({ "key": key })));
    for method in ["GET", "HEAD"] {
        let preview = server.send(request("", method, "/sign-in", &Value::Null)).await;
        assert_eq!(preview.status(), 200, "a link preview gets a page and uses nothing up");
        assert!(!preview.headers().contains_key("set-cookie"));
    }
    let browser = Browser::signed_in(sign_in(&link).await).await;
    let me = json_body(server.send(browser.request("GET", "/api/v1/me", &Value::Null)).await).await;
    assert_eq!((&me["id"], &me["agent"]), (&json!("owner"), &json!(false)));
    assert_eq!(sign_in(&link).await.status(), 401, "used");
    let expired = server.app.accounts.create_link(None).expect("a link");
    server.clock.advance(11 * 60_000);
    assert_eq!(sign_in(&expired).await.status(), 401, "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_local_requests_act_as_an_agent() {
    let server = TestServer::with(AccessPolicy::default());
    let (run, digest) = server.start_gated_run("").await;
    let decision = json!({ "step": "ask", "digest": digest });
    let (status, reply) = server.call("", "POST", &format!("/api/v1/runs/{run}/approve"), &decision).await;
    assert_eq!(status, 403, "{reply}");
    assert_eq!(server.call("", "POST", "/api/v1/links", &Value::Null).await.0, 403);
    assert_eq!(
        server.call("", "POST", "/api/v1/tokens", &json!({ "name": "t", "agent": false })).await.0,
        403
    );
    assert_eq!(server.call("", "PUT", "/api/v1/users/eve", &json!({ "roles": ["admin"] })).await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_local_users_need_credentials() {
    let mut server = TestServer::with(AccessPolicy::default());
    server.peer_is_owner = false;
    for (method, path) in
        [("GET", "/api/v1/runs"), ("POST", "/api/v1/runs"), ("POST", "/mcp"), ("GET", "/metrics")]
    {
        assert_eq!(server.call("", method, path, &Value::Null).await.0, 401, "{method} {path}");
    }
    let ann = server.user("ann", Role::Author).await;
    assert_eq!(server.call(&ann, "GET", "/api/v1/me", &Value::Null).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_scope_applies_to_calls_of_its_runs() {
    let server = TestServer::new();
    server.user("ann", Role::Author).await;
    let scope = steprail_engine::TokenScope { may: None, tools: Some(vec!["crm__read".to_owned()]) };
    let token = server.token("ann", true, Some(scope)).await;
    let run = |tool: &str| json!({ "text": format!("name: one\nsteps: [{{ id: r, tool: {tool} }}]"), "wait_s": 10 });
    assert_eq!(
        server.call_ok(&token, "POST", "/api/v1/runs", &run("crm__read")).await["status"],
        "completed"
    );
    let denied = server.call_ok(&token, "POST", "/api/v1/runs", &run("crm__write")).await;
    assert_eq!(
        (&denied["status"], &denied["error"]["kind"]),
        (&json!("failed"), &json!("permission")),
        "{denied}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_scoped_tokens_cannot_escalate() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let (view, agent) =
        (server.scoped_token("ann", Right::View).await, server.token("ann", true, None).await);
    let owners = server.scoped_token("owner", Right::View).await;
    assert_eq!(
        server.call(&owners, "POST", "/api/v1/links", &Value::Null).await.0,
        403,
        "a sign-in link needs the owner in person"
    );
    let (run, digest) = server.start_gated_run(&ann).await;
    let path = |action: &str| format!("/api/v1/runs/{run}/{action}");
    for action in ["cancel", "pause"] {
        assert_eq!(server.call(&view, "POST", &path(action), &Value::Null).await.0, 403, "{action}");
    }
    for token in [&view, &agent] {
        let own = format!("/api/v1/tokens/{}", &ann[3..19]);
        assert_eq!(
            server.call(token, "DELETE", &own, &Value::Null).await.0,
            403,
            "revoking needs a user in person"
        );
    }
    // A run of ann's agent counts as started by ann.
    let (by_agent, agent_digest) = server.start_gated_run(&agent).await;
    let decision = json!({ "step": "ask", "digest": agent_digest });
    let decided = server.call(&ann, "POST", &format!("/api/v1/runs/{by_agent}/approve"), &decision).await;
    assert_eq!(decided.0, 403, "{}", decided.1);
    // The right to decide does not include changing arguments.
    let paul = server.user("paul", Role::Approver).await;
    let change = json!({ "action": "set_arguments", "step": "act", "value": { "n": 2 } });
    assert_eq!(server.call(&paul, "POST", &path("intervene"), &change).await.0, 403);
    assert_eq!(
        server.call(&paul, "POST", &path("approve"), &json!({ "step": "ask", "digest": digest })).await.0,
        200
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn token_with_tool_scope_cannot_change_definitions_of_others() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let scope = steprail_engine::TokenScope { may: None, tools: Some(vec!["crm__read".to_owned()]) };
    let scoped = server.token("ann", true, Some(scope)).await;
    let text = |name: &str, tool: &str| json!({ "text": format!("name: {name}\nsteps: [{{ id: r, tool: {tool} }}]") });
    server.call_ok(&ann, "POST", "/api/v1/definitions", &text("nightly", "crm__read")).await;
    assert_eq!(
        server.call(&scoped, "POST", "/api/v1/definitions", &text("nightly", "crm__write")).await.0,
        403
    );
    assert_eq!(server.call(&scoped, "POST", "/api/v1/definitions", &text("own", "crm__read")).await.0, 201);
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_finish_its_request_is_disconnected() {
    let server = TestServer::new();
    let mut client = tokio::net::TcpStream::connect(server.listen().await).await.expect("a connection");
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.expect("half of a request");
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.expect("an end");
    assert_eq!(String::from_utf8_lossy(&received), "");
}
