//! Event streams: no gaps or repetitions, and only visible runs.

use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use steprail_engine::Cursor;

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
    async fn next(&mut self) -> Option<(String, String, Value)> {
        loop {
            if let Some((frame, rest)) =
                self.text.split_once("\n\n").map(|(frame, rest)| (frame.to_owned(), rest.to_owned()))
            {
                self.text = rest;
                let field =
                    |name: &str| frame.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
                let Some(data) = field("data:") else { continue };
                let id = field("id:").expect("an id").to_owned();
                let kind = field("event:").expect("a kind").to_owned();
                return Some((id, kind, serde_json::from_str(data).expect("JSON")));
            }
            let frame = self.body.frame().await?.expect("a frame");
            self.text.push_str(&String::from_utf8_lossy(frame.data_ref().expect("data")));
        }
    }

    async fn rest(mut self) -> Vec<(String, String, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
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
    while seen.last().is_none_or(|(_, kind, _)| kind != "run_paused") {
        seen.push(reader.next().await.expect("more"));
    }
    let approve = format!("/api/v1/runs/{run}/approve");
    server.call_ok(&paul, "POST", &approve, &json!({ "step": "ask", "digest": digest })).await;
    seen.extend(reader.rest().await);
    let numbers: Vec<u64> = seen.iter().filter_map(|(_, _, event)| event["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=seen.len() as u64).collect::<Vec<_>>(), "no gap, no repetition");
    assert!(seen.iter().all(|(id, _, event)| event["id"] == **id), "the id of a frame is that of its event");
    assert_eq!(seen.last().expect("an end").1, "run_completed");
    let cursors = ["start"].into_iter().chain(seen.iter().map(|(id, ..)| &**id));
    for (from, cursor) in cursors.enumerate().take(seen.len()) {
        let rest = Reader::open(&server, &ann, &path, Some(cursor)).await.rest().await;
        assert_eq!(rest, seen[from..], "after {cursor}");
        let list = format!("/api/v1/runs/{run}/events?after={cursor}");
        let listed = server.call_ok(&ann, "GET", &list, &Value::Null).await;
        assert_eq!(listed["items"], seen[from..].iter().map(|(.., event)| event.clone()).collect::<Value>());
    }
    let last = &seen.last().expect("an end").0;
    let over = with(request(&ann, "GET", &path, &Value::Null), "last-event-id", last);
    assert_eq!(server.send(over).await.status(), 204, "browsers must not reconnect");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_stream_resumes_after_an_event_of_another_run() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let (first, _) = server.start_gated_run(&ann).await;
    let (other, _) = server.start_gated_run(&ann).await;
    let path = format!("/api/v1/runs/{first}/stream");
    let show = async || server.call_ok(&ann, "GET", &format!("/api/v1/runs/{first}"), &Value::Null).await;
    let before = show().await["seq"].as_u64().expect("a number");
    let reader = Reader::open(&server, &ann, &path, Some(&server.cursor())).await;
    for run in [&other, &first] {
        server.call_ok(&ann, "POST", &format!("/api/v1/runs/{run}/cancel"), &json!({})).await;
    }
    let after = show().await["seq"].as_u64().expect("a number");
    let rest: Vec<Value> = reader.rest().await.into_iter().map(|(.., event)| event).collect();
    let seqs: Vec<u64> = rest.iter().filter_map(|event| event["seq"].as_u64()).collect();
    assert_eq!(seqs, (before + 1..=after).collect::<Vec<_>>(), "no gap, no repetition");
    assert!(rest.iter().all(|event| event["run_id"] == *first));
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
    let first = |event: Option<(String, String, Value)>| event.expect("an event").2["run_id"].clone();
    assert_eq!(first(own.next().await), json!(of_carl), "without the runs of ann");
    assert_eq!(first(all.next().await), json!(of_ann));
    let first_event = Reader::open(&server, &vera, "/api/v1/stream?after=start", None).await.next().await;
    let (_, kind, event) = first_event.expect("an event");
    assert_eq!((&*kind, &event["run_id"]), ("run_started", &json!(of_ann)), "from the first event");
}

#[tokio::test(flavor = "multi_thread")]
async fn lagging_reader_misses_no_events() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let mut lagging = Reader::open(&server, &ann, "/api/v1/stream?after=start", None).await;
    server.start_gated_run(&ann).await;
    let mut cursor = String::new();
    while cursor != server.cursor() {
        cursor = lagging.next().await.expect("more").0;
    }
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let items: Vec<u32> = (0..700).collect();
    let start = json!({ "text": text, "input": { "n": items }, "wait_s": 60 });
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &start).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = run["seq"].as_u64().expect("a number");
    for expected in 1..=events {
        let (.., event) = lagging.next().await.expect("more");
        assert_eq!((&event["run_id"], &event["seq"]), (&run["run_id"], &json!(expected)));
    }
}

/// Ids of the events of the stream of all runs, after a cursor up to an event.
async fn event_ids(server: &TestServer, token: &str, after: &str, last: &str) -> Vec<String> {
    let mut reader = Reader::open(server, token, &format!("/api/v1/stream?after={after}"), None).await;
    let mut seen: Vec<String> = Vec::new();
    while seen.last().is_none_or(|seen| seen != last) {
        seen.push(reader.next().await.expect("more").0);
    }
    seen
}

/// Ids of the events of the audit log, in pages.
async fn listed_ids(server: &TestServer, token: &str) -> Vec<String> {
    let mut listed = Vec::new();
    let mut next = Some("start".to_owned());
    while let Some(after) = next {
        let path = format!("/api/v1/audit?limit=1000&after={after}");
        let page = server.call_ok(token, "GET", &path, &Value::Null).await;
        let items = page["items"].as_array().expect("events");
        listed.extend(items.iter().map(|event| event["id"].as_str().expect("text").to_owned()));
        next = page["next"].as_str().map(str::to_owned);
    }
    listed
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
    let before = listed_ids(&server, &ann).await;
    server.clock.advance(DAY_MS);
    assert_eq!(server.app.engine.purge(std::time::Duration::ZERO).await.expect("a purge"), 150);
    let last = server.cursor();
    let all = event_ids(&server, &ann, "start", &last).await;
    assert!(
        all.len() > 256 && all.len() < before.len(),
        "purged events are missing: {} of {}",
        all.len(),
        before.len()
    );
    let position = |id: &String| before.iter().position(|known| known == id).expect("a known event");
    assert!(all.is_sorted_by_key(position), "no repetition");
    assert_eq!(all, listed_ids(&server, &ann).await, "no gap");
    for (at, after) in before.iter().enumerate().rev().skip(1).step_by(97) {
        let rest: Vec<&String> = all.iter().filter(|id| position(id) > at).collect();
        assert_eq!(
            event_ids(&server, &ann, after, &last).await.iter().collect::<Vec<_>>(),
            rest,
            "after {after}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cursor_of_another_database_and_garbled_cursor_are_rejected() {
    let (server, other) = (TestServer::new(), TestServer::new());
    let ann = server.user("ann", Role::Author).await;
    let (run, _) = server.start_gated_run(&ann).await;
    let at_other = other.user("ann", Role::Author).await;
    for _ in 0..2 {
        other.start_gated_run(&at_other).await;
    }
    let paths = [
        "/api/v1/stream".to_owned(),
        "/api/v1/audit".to_owned(),
        format!("/api/v1/runs/{run}/stream"),
        format!("/api/v1/runs/{run}/events"),
    ];
    let (beyond, mut garbled) = (other.cursor(), server.cursor());
    garbled.pop();
    for path in paths {
        for (cursor, expected) in [(&*beyond, 409), (&*garbled, 400), ("0", 400), ("", 400)] {
            let (status, reply) =
                server.call(&ann, "GET", &format!("{path}?after={cursor}"), &Value::Null).await;
            let code = reply["code"].as_str().expect("a code");
            assert_eq!((status, code), (expected, "invalid_cursor"), "{path} {cursor}: {reply}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_reads_lose_no_events() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Operator).await;
    let items: Vec<u32> = (0..300).collect();
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let mut follower =
        Follower::of_all(server.app.hub.clone(), server.owner(), Cursor::START).await.expect("a follower");
    let start = json!({ "text": text, "input": { "n": items } });
    let run = server.call_ok(&ann, "POST", "/api/v1/runs", &start).await;
    let mut seen: Vec<u64> = Vec::new();
    let mut is_over = false;
    for round in 0.. {
        let timeout = std::time::Duration::from_micros(round % 50 * 100);
        let page = tokio::time::timeout(timeout, follower.next()).await;
        let Ok(page) = page else { continue };
        let page = page.expect("no failure").expect("no end");
        seen.extend(page.frames().iter().map(|frame| frame.seq));
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
    let last = all["seq"].as_u64().expect("a number");
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
}
