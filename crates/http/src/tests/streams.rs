//! Event streams: no gaps or repetitions, and only visible runs.

use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::{TestServer, request, with};
use crate::accounts::{DAY_MS, Role};
use crate::stream::Follower;

/// A client of server-sent events.
struct Reader {
    body: Body,
    text: String,
}

impl Reader {
    async fn open(server: &TestServer, token: &str, path: &str, last: Option<&str>) -> Self {
        let mut request = request(token, "GET", path, &Value::Null);
        if let Some(last) = last {
            request = with(request, "last-event-id", last);
        }
        let response: Response<Body> = server.send(request).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), text: String::new() }
    }

    /// Id, type and data of the next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<(u64, String, Value)> {
        loop {
            if let Some((frame, rest)) =
                self.text.split_once("\n\n").map(|(frame, rest)| (frame.to_owned(), rest.to_owned()))
            {
                self.text = rest;
                let field =
                    |name: &str| frame.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
                let Some(data) = field("data:") else { continue };
                let id = field("id:").expect("an id").parse().expect("a number");
                let kind = field("event:").expect("a kind").to_owned();
                return Some((id, kind, serde_json::from_str(data).expect("JSON")));
            }
            let frame = self.body.frame().await?.expect("a frame");
            self.text.push_str(&String::from_utf8_lossy(frame.data_ref().expect("data")));
        }
    }

    async fn rest(mut self) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        while let Some((id, kind, _)) = self.next().await {
            all.push((id, kind));
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn run_stream_resumes_after_any_event() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let paul = server.user("paul", Role::Approver).await;
    let (run, digest) = server.start_gated_run(&ann).await;
    let path = format!("/api/v1/runs/{run}/stream");
    let mut reader = Reader::open(&server, &ann, &path, None).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, kind)| kind != "run_paused") {
        let (id, kind, _) = reader.next().await.expect("more");
        seen.push((id, kind));
    }
    let approve = format!("/api/v1/runs/{run}/approve");
    server.call_ok(&paul, "POST", &approve, &json!({ "step": "ask", "digest": digest })).await;
    seen.extend(reader.rest().await);
    let numbers: Vec<u64> = seen.iter().map(|(id, _)| *id).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "no gap, no repetition");
    assert_eq!(seen.last().expect("an end").1, "run_completed");
    for from in 0..numbers.len() {
        let last = from.to_string();
        let rest = Reader::open(&server, &ann, &path, Some(&last)).await.rest().await;
        assert_eq!(rest, seen[from..], "after {from}");
    }
    let over = with(request(&ann, "GET", &path, &Value::Null), "last-event-id", &numbers.len().to_string());
    assert_eq!(server.send(over).await.status(), 204, "browsers must not reconnect");
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_all_runs_contains_visible_runs_only() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let carl = server.user("carl", Role::Author).await;
    let vera = server.user("vera", Role::Viewer).await;
    let mut own = Reader::open(&server, &carl, "/api/v1/stream", None).await;
    let mut all = Reader::open(&server, &vera, "/api/v1/stream", None).await;
    let (of_ann, _) = server.start_gated_run(&ann).await;
    let (of_carl, _) = server.start_gated_run(&carl).await;
    let first = |event: Option<(u64, String, Value)>| event.expect("an event").2["run_id"].clone();
    assert_eq!(first(own.next().await), json!(of_carl), "without the runs of ann");
    assert_eq!(first(all.next().await), json!(of_ann));
    let first_event = Reader::open(&server, &vera, "/api/v1/stream?after=0", None).await.next().await;
    assert_eq!(first_event.expect("an event").0, 1, "from the first event");
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_reader_misses_no_events() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let mut lagging = Reader::open(&server, &ann, "/api/v1/stream?after=0", None).await;
    server.start_gated_run(&ann).await;
    let mut cursor = 0;
    while cursor < server.cursor() {
        cursor = lagging.next().await.expect("more").0;
    }
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let items: Vec<u32> = (0..700).collect();
    let start = json!({ "text": text, "input": { "n": items }, "wait_s": 60 });
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &start).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = run["seq"].as_u64().expect("a number");
    for expected in cursor + 1..=cursor + events {
        let (id, ..) = lagging.next().await.expect("more");
        assert_eq!(id, expected);
    }
}

/// Ids of the events of the stream of all runs, after a cursor up to an event.
async fn event_ids(server: &TestServer, token: &str, after: u64, last: u64) -> Vec<u64> {
    let mut reader = Reader::open(server, token, &format!("/api/v1/stream?after={after}"), None).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|seen| *seen < last) {
        seen.push(reader.next().await.expect("more").0);
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn log_with_purged_runs_and_large_events_is_streamed_completely() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let read = json!({ "text": "name: read\nsteps: [{ id: r, tool: crm__read }]", "wait_s": 10 });
    let mut large = String::new();
    for n in 0..150 {
        server.call_ok(&ann, "POST", "/api/v1/runs", &read).await;
        if n % 7 < 4 {
            (large, _) = server.start_gated_run(&ann).await;
        }
    }
    let signal = json!({ "event": "never", "payload": "x".repeat(200_000) });
    for _ in 0..20 {
        server.call_ok(&ann, "POST", &format!("/api/v1/runs/{large}/signal"), &signal).await;
    }
    server.clock.advance(DAY_MS);
    assert_eq!(server.app.engine.purge(std::time::Duration::ZERO).await.expect("a purge"), 150);
    let last = server.cursor();
    let all = event_ids(&server, &ann, 0, last).await;
    assert!(
        all.len() > 256 && all.len() < usize::try_from(last).expect("a number"),
        "purged events are missing: {} of {last}",
        all.len()
    );
    assert!(all.is_sorted_by(|left, right| left < right), "no repetition");
    let mut listed = Vec::new();
    let mut next = Some("0".to_owned());
    while let Some(after) = next {
        let page = server
            .call_ok(&ann, "GET", &format!("/api/v1/audit?limit=1000&after={after}"), &Value::Null)
            .await;
        listed.extend(
            page["items"].as_array().expect("events").iter().filter_map(|event| event["id"].as_u64()),
        );
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(all, listed, "no gap");
    for after in (1..last).step_by(97) {
        let rest: Vec<u64> = all.iter().copied().filter(|number| *number > after).collect();
        assert_eq!(event_ids(&server, &ann, after, last).await, rest, "after {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cursor_beyond_the_log_is_rejected() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let (run, _) = server.start_gated_run(&ann).await;
    let paths = [
        "/api/v1/stream?after=99999".to_owned(),
        format!("/api/v1/runs/{run}/stream?after=99999"),
        format!("/api/v1/runs/{run}/stream?after={}", u64::MAX),
    ];
    for path in paths {
        let (status, reply) = server.call(&ann, "GET", &path, &Value::Null).await;
        assert_eq!(status, 409, "{path}: {reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_reads_lose_no_events() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let items: Vec<u32> = (0..300).collect();
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let mut follower = Follower::of_all(server.app.hub.clone(), server.owner(), 0).expect("a follower");
    let start = json!({ "text": text, "input": { "n": items } });
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &start).await;
    let mut seen: Vec<i64> = Vec::new();
    let mut is_over = false;
    for round in 0.. {
        let timeout = std::time::Duration::from_micros(round % 50 * 100);
        let page = tokio::time::timeout(timeout, follower.next()).await;
        let Ok(page) = page else { continue };
        let page = page.expect("no failure").expect("no end");
        seen.extend(page.frames().iter().map(|frame| frame.id));
        is_over = is_over || page.frames().iter().any(|frame| frame.kind() == "run_completed");
        if is_over {
            break;
        }
    }
    let all = server
        .call_ok(
            &ann,
            "GET",
            &format!("/api/v1/runs/{}", run["run_id"].as_str().expect("an id")),
            &Value::Null,
        )
        .await;
    let last = all["seq"].as_i64().expect("a number");
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
}
