//! The routes of the router, compared with the `OpenAPI` document.

use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use serde_json::Value;

use super::matrix::with_parameters;
use super::{TestServer, json_body, request};
use crate::accounts::Role;
use crate::openapi;

/// Routes that the document does not describe, with the reason.
const UNDOCUMENTED: [(&str, &str); 17] = [
    ("/", "redirects browsers to /api"),
    ("/api", "the document as a web page"),
    ("/api/openapi.json", "the document itself"),
    ("/api/v1/socket", "OpenAPI cannot describe WebSocket messages"),
    ("/healthz", "health check of the process, without authentication"),
    ("/readyz", "health check of the store, without authentication"),
    ("/metrics", "Prometheus text format"),
    ("/sign-in", "opened by browsers from a sign-in link"),
    ("/sign-in.js", "the script of that page"),
    ("/api/style.css", "the style sheet of /api"),
    ("/a/{token}", "opened by browsers from an approval link"),
    ("/links.css", "the style sheet of that page"),
    ("/mcp", "defined by MCP"),
    ("/mcp/", "defined by MCP"),
    ("/mcp/{*__private__axum_nest_tail_param}", "defined by MCP"),
    ("/.well-known/oauth-protected-resource", "defined by RFC 9728"),
    ("/.well-known/{*rest}", "404 instead of 401 for metadata that is not served"),
];

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "PATCH"];

/// The paths of a router. Axum has no method for them; its `Debug` output lists them.
pub(super) fn paths(router: &Router) -> BTreeSet<String> {
    let debug = format!("{router:?}");
    let (before_fallback, _) = debug.split_once("fallback_router: ").expect("the fallback after the routes");
    let (_, node) = before_fallback.split_once("node: Node { paths: {").expect("the list of paths");
    node.split("RouteId(").filter_map(|entry| entry.split('"').nth(1)).map(str::to_owned).collect()
}

/// The documented methods of each path.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let document = openapi();
    let methods =
        |item: &Value| item.as_object().expect("methods").keys().map(|key| key.to_uppercase()).collect();
    let paths = document["paths"].as_object().expect("paths");
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_router_is_described() {
    let routed = paths(&TestServer::new().router);
    let documented: BTreeSet<String> = documented().into_keys().collect();
    let undocumented: BTreeSet<String> = UNDOCUMENTED.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert!(documented.is_disjoint(&undocumented), "a documented route needs no reason");
    let missing: Vec<_> =
        routed.iter().filter(|path| !documented.contains(*path) && !undocumented.contains(*path)).collect();
    assert!(missing.is_empty(), "neither documented nor listed with a reason: {missing:?}");
    let stale: Vec<_> = documented.union(&undocumented).filter(|path| !routed.contains(*path)).collect();
    assert!(stale.is_empty(), "not in the router: {stale:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_routes_accept_exactly_the_documented_methods() {
    let server = TestServer::new();
    let admin = server.user("adam", Role::Admin).await;
    let (run, _) = server.start_gated_run(&admin).await;
    for (path, methods) in documented() {
        for method in METHODS {
            let response =
                server.send(request(&admin, method, &with_parameters(&path, &run), &Value::Null)).await;
            let status = response.status();
            assert_eq!(status != 405, methods.contains(method), "{method} {path}: {status}");
            if status == 404 {
                let problem = json_body(response).await;
                let detail = problem["detail"].as_str().unwrap_or_default();
                assert!(!detail.starts_with("there is no route"), "{method} {path}: {problem}");
            }
        }
    }
}
