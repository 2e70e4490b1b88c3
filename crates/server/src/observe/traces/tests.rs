//! Spans of real runs, received by a collector on loopback.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::routing::post;
use serde_json::json;
use steprail_engine::{
    Engine, Failure, FailureKind, Options, Principal, RunStatus, RunTrace, SqliteStore, Start, Tools,
    TraceParent,
};
use tokio_util::sync::CancellationToken;

use super::export_to;
use super::spans::RunSpans;

/// The trace context of a caller.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const WORK: &str = "name: work\nsteps: [{ id: say, tool: demo__say }]";

/// A collector on loopback, and the request bodies that it received.
async fn collector() -> (String, Arc<Mutex<Vec<Bytes>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let received = bodies.clone();
    let receive = post(move |body: Bytes| async move { received.lock().expect("bodies").push(body) });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let app = axum::Router::new().route("/v1/traces", receive);
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, bodies)
}

fn engine(folder: &tempfile::TempDir) -> Engine {
    let store = SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
    let tools = Tools::new()
        .tool("demo__say", |_| async { Ok(json!("hi")) })
        .tool("demo__fail", |_| async { Err(Failure::new(FailureKind::ToolError, "not now").transient()) });
    Engine::builder().store(store).tools(tools).spawn().expect("an engine")
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn spans_of_a_run_are_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, bodies) = collector().await;
    let (engine, stop) = (engine(&folder), CancellationToken::new());
    let exporting = export_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
    let run = engine.start(Start::inline(WORK, Principal::user("ann"))).await.expect("a run");
    assert_eq!(run.wait().await.expect("a run").run.status, RunStatus::Completed);
    stop.cancel();
    exporting.await.expect("an end");
    let body = bodies.lock().expect("bodies").concat();
    let trace = RunTrace::new(run.id(), None);
    for part in ["run work", "step say", "call demo__say", "steprail.run.id", "service.name"] {
        assert!(contains(&body, part.as_bytes()), "{part}");
    }
    for context in [trace.run(), trace.step(1), trace.attempt(1, 1)] {
        assert!(contains(&body, &context.trace) && contains(&body, &context.span), "{context}");
    }
}

#[tokio::test]
async fn run_belongs_to_the_trace_of_its_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, bodies) = collector().await;
    let (engine, stop) = (engine(&folder), CancellationToken::new());
    let exporting = export_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
    let unsampled = CALLER.replace("-01", "-00");
    let ann = |trace: &str| Principal { trace: Some(trace.to_owned()), ..Principal::user("ann") };
    for trace in [CALLER, &unsampled] {
        let named = WORK.replace("work", if trace == CALLER { "sampled" } else { "unsampled" });
        engine.start(Start::inline(named, ann(trace))).await.expect("a run").wait().await.expect("an end");
    }
    stop.cancel();
    exporting.await.expect("an end");
    let body = bodies.lock().expect("bodies").concat();
    let caller = TraceParent::parse(CALLER).expect("a traceparent");
    assert!(contains(&body, &caller.trace) && contains(&body, &caller.span));
    assert!(contains(&body, b"run sampled"));
    assert!(!contains(&body, b"run unsampled"), "its trace is not sampled");
}

#[tokio::test]
async fn spans_that_started_before_the_exporter_are_read_from_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let (address, bodies) = collector().await;
    let (engine, stop) = (engine(&folder), CancellationToken::new());
    let text =
        "name: work\nsteps: [{ id: ask, kind: approve, prompt: 'Go on?' }, { id: say, tool: demo__say }]";
    let mut subscription = engine.subscribe(None, engine.cursor());
    let run = engine.start(Start::inline(text, Principal::user("ann"))).await.expect("a run");
    while subscription.next().await.expect("an event").expect("an event").event.name() != "approval_requested"
    {
    }
    let exporting = export_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
    engine.approve(run.id(), "ask", &Principal::user("bob"), None, None).await.expect("approved");
    run.wait().await.expect("an end");
    stop.cancel();
    exporting.await.expect("an end");
    let body = bodies.lock().expect("bodies").concat();
    assert!(contains(&body, b"step ask") && contains(&body, b"step say") && contains(&body, b"run work"));
}

#[tokio::test]
async fn invalid_address_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let rejected = export_to(&engine(&folder), "no address", "", "steprail", CancellationToken::new());
    assert!(rejected.expect_err("a problem").contains("use an address like"));
}

const FAILS_AND_WAITS: &str = "
name: work
steps:
  - { id: flaky, tool: demo__fail, retry: { max_attempts: 2, initial_delay_ms: 1 }, on_error: continue }
  - { id: hold, kind: wait, event: never }
";

#[tokio::test]
async fn failed_and_cancelled_spans_have_error_types() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(&folder);
    let mut subscription = engine.subscribe(None, engine.cursor());
    let run = engine.start(Start::inline(FAILS_AND_WAITS, Principal::user("ann"))).await.expect("a run");
    let mut spans = RunSpans::new(run.id(), RunTrace::new(run.id(), None), "work".to_owned(), 0);
    let mut ended = Vec::new();
    while !spans.has_ended() {
        let event = subscription.next().await.expect("an event").expect("an event");
        spans.apply(&event, &mut ended);
        if event.event.name() == "step_started" && ended.iter().any(|span| span.name == "step flaky") {
            engine.cancel(run.id(), &Principal::user("ann"), "enough").await.expect("cancelled");
        }
    }
    let error = |span: &opentelemetry_sdk::trace::SpanData| {
        let error = span.attributes.iter().find(|attribute| attribute.key.as_str() == "error.type");
        error.map(|error| error.value.to_string()).unwrap_or_default()
    };
    let lines: Vec<String> = ended.iter().map(|span| format!("{}: {}", span.name, error(span))).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    call demo__fail: tool_error
    call demo__fail: tool_error
    step flaky: tool_error
    step hold: cancelled
    run work: cancelled
    ");
}
