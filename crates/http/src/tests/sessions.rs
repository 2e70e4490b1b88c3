//! Attacks on browser sessions: cookies that are sent to other ports and to other users of the machine, and tickets.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::{Browser, TestServer, json_body, request, with};
use crate::AccessPolicy;
use crate::accounts::Role;

/// The security events of the current thread, as text.
#[derive(Clone, Default)]
struct AuditLog(Arc<Mutex<String>>);

impl AuditLog {
    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl tracing::Subscriber for AuditLog {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == crate::audit::TARGET
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut add = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text.push_str(&format!("{field}={value:?} "));
        };
        event.record(&mut add);
        text.push('\n');
    }
}

#[tokio::test]
async fn cookie_replayed_from_another_port_authenticates_nothing() {
    let log = AuditLog::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let browser = Browser::of(&server, &ann).await;
    let (run, _) = server.start_gated_run(&ann).await;
    let stream = format!("/api/v1/runs/{run}/stream");
    let paths = [
        ("GET", "/api/v1/me"),
        ("GET", "/api/v1/runs"),
        ("GET", "/api/v1/stream"),
        ("GET", &stream),
        ("GET", "/metrics"),
        ("POST", "/api/v1/runs"),
        ("POST", "/api/v1/tickets"),
        ("POST", "/mcp"),
        ("DELETE", "/api/v1/session"),
    ];
    for (method, path) in paths {
        server.clock.advance(60_000);
        let response = server.send(browser.cookie_only(method, path, &Value::Null)).await;
        assert_eq!(response.status(), 401, "{method} {path}");
        assert_eq!(json_body(response).await["code"], "page_secret_required", "{method} {path}");
    }
    let guesses = ["", "x", &browser.cookie, &"0".repeat(84), &Browser::of(&server, &ann).await.page_secret];
    for guess in guesses {
        server.clock.advance(60_000);
        let forged = with(browser.cookie_only("GET", "/api/v1/me", &Value::Null), "x-steprail-page", guess);
        assert_eq!(server.send(forged).await.status(), 401, "{guess}");
    }
    let text = log.text();
    assert_eq!(text.lines().count(), paths.len() + guesses.len(), "each is logged: {text}");
    assert!(text.contains("action=\"session_cookie_rejected\"") && text.contains("user=\"ann\""), "{text}");
    for secret in [&browser.cookie[30..], &browser.page_secret] {
        assert!(!text.contains(secret), "no secret in the log");
    }
    let me = json_body(server.send(browser.request("GET", "/api/v1/me", &Value::Null)).await).await;
    assert_eq!(me["id"], "ann", "the page itself");
    assert!(!me.to_string().contains(&browser.page_secret), "the secret is returned once");
}

#[tokio::test]
async fn session_is_useless_for_another_user_of_the_operating_system() {
    let log = AuditLog::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let mut server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let browser = Browser::of(&server, &ann).await;
    for other in [Some(1_001), Some(0), None] {
        server.os_user = other;
        let response = server.send(browser.request("GET", "/api/v1/me", &Value::Null)).await;
        assert_eq!(response.status(), 401, "{other:?}");
    }
    assert_eq!(log.text().matches("another user of the operating system").count(), 6, "{}", log.text());
    server.os_user = Some(1_000);
    assert_eq!(server.send(browser.request("GET", "/api/v1/me", &Value::Null)).await.status(), 200);
}

#[tokio::test]
async fn sign_in_link_is_useless_for_another_user_of_the_operating_system() {
    let log = AuditLog::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let mut server = TestServer::with(AccessPolicy::default());
    let link = server.app.accounts.create_link(Some(1_000)).expect("a link");
    let sign_in = || request("", "POST", "/sign-in", &json!({ "key": link }));
    server.os_user = Some(1_001);
    assert_eq!(server.send(sign_in()).await.status(), 401);
    assert!(log.text().contains("sign_in_link_rejected"), "{}", log.text());
    server.os_user = Some(1_000);
    assert_eq!(server.send(sign_in()).await.status(), 201, "the attempt did not use the link up");
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_opens_one_stream() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let browser = Browser::of(&server, &ann).await;
    let open = async |browser: &Browser, path: &str, ticket: &str| {
        let path = format!("{path}?ticket={ticket}");
        server.send(browser.cookie_only("GET", &path, &Value::Null)).await.status().as_u16()
    };
    let ticket = browser.ticket(&server).await;
    assert_eq!(open(&browser, "/api/v1/stream", &ticket).await, 200);
    assert_eq!(open(&browser, "/api/v1/stream", &ticket).await, 401, "used");
    let ticket = browser.ticket(&server).await;
    assert_eq!(open(&browser, "/api/v1/runs", &ticket).await, 401, "only streams accept tickets");
    let other = Browser::of(&server, &ann).await;
    assert_eq!(open(&other, "/api/v1/stream", &ticket).await, 401, "the ticket of another session");
    let without_cookie = format!("/api/v1/stream?ticket={ticket}");
    assert_eq!(server.call("", "GET", &without_cookie, &Value::Null).await.0, 401, "no cookie");
    server.clock.advance(30_000);
    assert_eq!(open(&browser, "/api/v1/stream", &ticket).await, 401, "expired");
    assert_eq!(server.call(&ann, "POST", "/api/v1/tickets", &Value::Null).await.0, 400, "a token needs none");
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_of_a_browser_needs_an_unused_ticket() {
    let mut server = TestServer::new();
    let address = server.listen().await;
    // The port sees the user who runs the tests.
    server.os_user = Some(rustix::process::geteuid().as_raw());
    let ann = server.user("ann", Role::Operator).await;
    let browser = Browser::of(&server, &ann).await;
    let cookie =
        browser.cookie.replacen("steprail_session", &format!("steprail_session_{}", address.port()), 1);
    let open = async |query: &str| {
        let mut request =
            format!("ws://{address}/api/v1/socket{query}").into_client_request().expect("a request");
        request.headers_mut().insert("cookie", cookie.parse().expect("a header"));
        match connect_async(request).await {
            Ok(_) => StatusCode::SWITCHING_PROTOCOLS.as_u16(),
            Err(Error::Http(response)) => response.status().as_u16(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(open("").await, 401, "without a ticket");
    let ticket = browser.ticket(&server).await;
    assert_eq!(open(&format!("?ticket={ticket}")).await, 101);
    assert_eq!(open(&format!("?ticket={ticket}")).await, 401, "the ticket was used");
}
