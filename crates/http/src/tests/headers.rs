//! Security headers of every response.

use serde_json::Value;

use super::matrix::with_parameters;
use super::routes::paths;
use super::{TestServer, request, with};
use crate::accounts::Role;

const EXPECTED: [(&str, &str); 6] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
];

fn check(response: &axum::http::Response<axum::body::Body>, what: &str) {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    for (name, value) in EXPECTED {
        assert_eq!(header(name), Some(value), "{name} of {what}: {}", response.status());
    }
    let cached = header("cache-control").expect("cache-control");
    assert!(matches!(cached, "no-store" | "no-cache"), "{what}: {cached}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_security_headers() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let (run, _) = server.start_gated_run(&admin).await;
    let forged = "sr_0123456789abcdef_".to_owned() + &"0".repeat(64);
    let paths = paths(&server.router);
    assert!(paths.len() > 50, "all routes: {paths:?}");
    // Pages of approval links have stricter headers, which their tests check.
    for path in paths.iter().filter(|path| *path != "/a/{token}") {
        let path = with_parameters(path, &run).replace("{*rest}", "x");
        let path = path.replace("{*__private__axum_nest_tail_param}", "x");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
            for token in ["", &forged, &admin] {
                let response = server.send(request(token, method, &path, &Value::Null)).await;
                check(&response, &format!("{method} {path}"));
            }
        }
    }
    check(&server.send(request(&admin, "GET", "/no/such/route", &Value::Null)).await, "an unknown route");
    let foreign = with(request(&admin, "GET", "/api/v1/me", &Value::Null), "host", "evil.example");
    check(&server.send(foreign).await, "a foreign host");
    let foreign = with(request(&admin, "GET", "/api/v1/me", &Value::Null), "origin", "https://evil.example");
    check(&server.send(foreign).await, "a foreign origin");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_no_inline_code_or_style() {
    let server = TestServer::new();
    for path in ["/api", "/sign-in"] {
        let page = super::json_body(server.send(request("", "GET", path, &Value::Null)).await).await;
        let page = page.as_str().expect("HTML");
        for inline in ["<style", "style=", "onclick", "onload", "<script>", "javascript:"] {
            assert!(!page.contains(inline), "{inline} in {path}");
        }
    }
    for (path, kind) in [("/api/style.css", "text/css"), ("/sign-in.js", "text/javascript")] {
        let response = server.send(request("", "GET", path, &Value::Null)).await;
        let found = response.headers()["content-type"].to_str().expect("text").to_owned();
        assert!(response.status() == 200 && found.starts_with(kind), "{path}: {found}");
    }
}
