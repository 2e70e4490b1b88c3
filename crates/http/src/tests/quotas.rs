//! Quotas and deadlines over HTTP: statuses, `Retry-After`, hints, and what stays possible for the owner.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::middleware::from_fn;
use axum::routing::get;
use futures::StreamExt;
use serde_json::{Value, json};
use steprail_engine::Quotas;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{TestServer, json_body, request};
use crate::accounts::Role;
use crate::connections::health_checks_only;
use crate::{AccessPolicy, ConnectionLimits, listen};

const WAITS: &str = "name: waits\nsteps: [{ id: w, kind: wait, event: go }]";

fn server(quotas: &Quotas) -> TestServer {
    let quotas = Quotas { owner: Some("owner".to_owned()), ..quotas.clone() };
    TestServer::with_quotas(AccessPolicy { requires_sign_in: true, ..AccessPolicy::default() }, quotas)
}

fn start() -> Value {
    json!({ "text": WAITS })
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_rate_is_429_until_the_window_has_passed() {
    let server = server(&Quotas { starts_per_minute: Some(2), ..Quotas::default() });
    let ann = server.user("ann", Role::Author).await;
    for _ in 0..2 {
        server.call_ok(&ann, "POST", "/api/v1/runs", &start()).await;
    }
    let response = server.send(request(&ann, "POST", "/api/v1/runs", &start())).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "30");
    let problem = json_body(response).await;
    assert_eq!(problem["code"], "quota_exceeded");
    assert_eq!(
        problem["detail"],
        "the quota of ann is exhausted: 2 started runs per minute; try again in 30 s"
    );
    let hint = problem["hint"].as_str().expect("a hint");
    assert!(hint.contains("`quota.starts_per_minute`"), "{hint}");
    server.clock.advance(30_000);
    server.call_ok(&ann, "POST", "/api/v1/runs", &start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_amount_is_403_and_the_owner_can_still_act() {
    let server = server(&Quotas { active_runs: Some(1), subscriptions: Some(1), ..Quotas::default() });
    let ann = server.user("ann", Role::Author).await;
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &start()).await;
    let (status, problem) = server.call(&ann, "POST", "/api/v1/runs", &start()).await;
    assert_eq!((status, &problem["code"]), (403, &json!("quota_exceeded")), "{problem}");
    assert!(problem["retry_after"].is_null());
    let path = format!("/api/v1/runs/{}", run["run_id"].as_str().expect("an id"));
    let owner = server.token("owner", false, None).await;
    server.call_ok(&owner, "GET", &path, &Value::Null).await;
    server.call_ok(&owner, "POST", "/api/v1/runs", &start()).await;
    server.call_ok(&owner, "POST", &format!("{path}/cancel"), &json!({})).await;
    server.call_ok(&ann, "POST", "/api/v1/runs", &start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_quota_are_rejected_until_one_closes() {
    let server = server(&Quotas { subscriptions: Some(1), ..Quotas::default() });
    let ann = server.user("ann", Role::Author).await;
    let open = server.send(request(&ann, "GET", "/api/v1/stream", &Value::Null)).await;
    assert_eq!(open.status(), 200);
    let (status, problem) = server.call(&ann, "GET", "/api/v1/stream", &Value::Null).await;
    assert_eq!((status, &problem["code"]), (403, &json!("quota_exceeded")), "{problem}");
    drop(open);
    assert_eq!(server.send(request(&ann, "GET", "/api/v1/stream", &Value::Null)).await.status(), 200);
}

/// A body of which a byte arrives every `interval`.
fn trickle(interval: Duration, bytes: usize) -> Body {
    let frames = futures::stream::iter(0..bytes).then(move |_| async move {
        tokio::time::sleep(interval).await;
        Ok::<_, Infallible>(Bytes::from_static(b" "))
    });
    Body::from_stream(frames)
}

#[tokio::test]
async fn body_that_trickles_in_is_cut() {
    let server = server(&Quotas::default());
    let ann = server.user("ann", Role::Author).await;
    tokio::time::pause();
    for path in ["/api/v1/runs", "/mcp"] {
        let mut slow = request(&ann, "POST", path, &Value::Null);
        *slow.body_mut() = trickle(Duration::from_secs(1), 1_000_000);
        slow.headers_mut().insert("accept", "application/json, text/event-stream".parse().expect("a header"));
        let (started, response) = (tokio::time::Instant::now(), server.send(slow).await);
        assert_eq!(response.status(), 408, "{path}");
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(started.elapsed().as_secs(), 20);
        assert_eq!(json_body(response).await["code"], "request_timeout");
    }
    let mut steady = request(&ann, "POST", "/api/v1/runs", &Value::Null);
    let bytes = Bytes::from(vec![b' '; 20 * 1024]);
    let frames = futures::stream::iter(0..40).then(move |_| {
        let bytes = bytes.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(bytes)
        }
    });
    *steady.body_mut() = Body::from_stream(frames);
    assert_eq!(server.send(steady).await.status(), 400, "a body of 20 KiB/s is read to its end");
}

/// A port with these limits.
async fn listen_with(limits: ConnectionLimits) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, stop) = (listener.local_addr().expect("an address"), CancellationToken::new());
    let router = Router::new().route("/api", get(async || "content")).route("/healthz", get(async || "ok"));
    tokio::spawn(listen::serve(listener, router, limits, stop.clone()));
    (address, stop)
}

async fn get_once(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response, and the end of the connection");
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_connections_serve_the_owner_while_all_others_are_taken() {
    let (address, _stop) = listen_with(ConnectionLimits { total: 1, per_address: None }).await;
    let mut taken = TcpStream::connect(address).await.expect("a connection");
    taken.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("a request");
    taken.read_u8().await.expect("the connection is served and stays open");
    for path in ["/healthz", "/api"] {
        let response = get_once(address, path).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_connections_serve_others_only_health_checks() {
    let mut server = TestServer::new();
    server.router = server.router.clone().layer(from_fn(health_checks_only));
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/api", 503), ("/api/v1/runs", 503)] {
        let response = server.send(request("", "GET", path, &Value::Null)).await;
        assert_eq!(response.status(), status, "{path}");
        if path.starts_with("/api") {
            assert_eq!(response.headers()["connection"], "close");
            assert_eq!(json_body(response).await["code"], "too_many_connections");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_probes_the_engine_thread() {
    let server = TestServer::new();
    let ready = server.send(request("", "GET", "/readyz", &Value::Null)).await;
    assert_eq!((ready.status().as_u16(), json_body(ready).await), (200, json!("ready\n")));
    server.app.engine.shutdown().await.expect("a shutdown");
    let (status, problem) = server.call("", "GET", "/readyz", &Value::Null).await;
    assert_eq!((status, &problem["code"]), (503, &json!("stopped")), "{problem}");
    assert_eq!(server.send(request("", "GET", "/healthz", &Value::Null)).await.status(), 200);
}
