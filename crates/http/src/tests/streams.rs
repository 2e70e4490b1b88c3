//! Live streams: without a gap or a repetition, for whoever may see it, as long as they may.

use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::{House, request, with};
use crate::accounts::{DAY_MS, Role};
use crate::stream::Follower;

/// Reads a stream of server-sent events.
struct Reader {
    body: Body,
    text: String,
}

impl Reader {
    async fn open(house: &House, token: &str, path: &str, last: Option<&str>) -> Self {
        let mut ask = request(token, "GET", path, &Value::Null);
        if let Some(last) = last {
            ask = with(ask, "last-event-id", last);
        }
        let answer: Response<Body> = house.send(ask).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self { body: answer.into_body(), text: String::new() }
    }

    /// The next event: its id, its kind and what it says. None at the end.
    async fn next(&mut self) -> Option<(u64, String, Value)> {
        loop {
            if let Some((frame, rest)) =
                self.text.split_once("\n\n").map(|(one, two)| (one.to_owned(), two.to_owned()))
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
async fn a_run_is_told_from_any_event_to_its_end() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let paul = house.user("paul", Role::Approver).await;
    let (run, digest) = house.gated_run(&ann).await;
    let path = format!("/api/v1/runs/{run}/stream");
    let mut reader = Reader::open(&house, &ann, &path, None).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, kind)| kind != "run_paused") {
        let (id, kind, _) = reader.next().await.expect("more");
        seen.push((id, kind));
    }
    let approve = format!("/api/v1/runs/{run}/approve");
    house.done(&paul, "POST", &approve, &json!({ "step": "ask", "digest": digest })).await;
    seen.extend(reader.rest().await);
    let numbers: Vec<u64> = seen.iter().map(|(id, _)| *id).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "no gap, no repetition");
    assert_eq!(seen.last().expect("an end").1, "run_completed");
    for from in 0..numbers.len() {
        let last = from.to_string();
        let rest = Reader::open(&house, &ann, &path, Some(&last)).await.rest().await;
        assert_eq!(rest, seen[from..], "after {from}");
    }
    let over = with(request(&ann, "GET", &path, &Value::Null), "last-event-id", &numbers.len().to_string());
    assert_eq!(house.send(over).await.status(), 204, "a browser need not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_means_what_one_may_see() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let carl = house.user("carl", Role::Author).await;
    let vera = house.user("vera", Role::Viewer).await;
    let mut own = Reader::open(&house, &carl, "/api/v1/stream", None).await;
    let mut all = Reader::open(&house, &vera, "/api/v1/stream", None).await;
    let (of_ann, _) = house.gated_run(&ann).await;
    let (of_carl, _) = house.gated_run(&carl).await;
    let first = |event: Option<(u64, String, Value)>| event.expect("an event").2["run_id"].clone();
    assert_eq!(first(own.next().await), json!(of_carl), "not ann's");
    assert_eq!(first(all.next().await), json!(of_ann));
    let again = Reader::open(&house, &vera, "/api/v1/stream?after=0", None).await.next().await;
    assert_eq!(again.expect("an event").0, 1, "from the beginning, if one likes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_was_stuck_misses_nothing() {
    let house = House::new();
    let ann = house.user("ann", Role::Operator).await;
    let mut stuck = Reader::open(&house, &ann, "/api/v1/stream?after=0", None).await;
    house.gated_run(&ann).await;
    let mut known = 0;
    while known < house.cursor() {
        known = stuck.next().await.expect("more").0;
    }
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let items: Vec<u32> = (0..700).collect();
    let start = json!({ "text": text, "input": { "n": items }, "wait_s": 60 });
    let run = house.done(&ann, "POST", "/api/v1/runs", &start).await;
    assert_eq!(run["status"], "completed", "{run}");
    let events = run["seq"].as_u64().expect("a number");
    for expected in known + 1..=known + events {
        let (id, ..) = stuck.next().await.expect("more");
        assert_eq!(id, expected);
    }
}

/// Numbers of the events of a stream of everything up to one.
async fn numbers(house: &House, token: &str, after: u64, last: u64) -> Vec<u64> {
    let mut reader = Reader::open(house, token, &format!("/api/v1/stream?after={after}"), None).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|seen| *seen < last) {
        seen.push(reader.next().await.expect("more").0);
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_with_holes_and_with_large_events_is_told_whole_from_any_event() {
    let house = House::new();
    let ann = house.user("ann", Role::Operator).await;
    let read = json!({ "text": "name: read\nsteps: [{ id: r, tool: crm__read }]", "wait_s": 10 });
    let mut large = String::new();
    for n in 0..150 {
        house.done(&ann, "POST", "/api/v1/runs", &read).await;
        if n % 7 < 4 {
            (large, _) = house.gated_run(&ann).await;
        }
    }
    let signal = json!({ "event": "never", "payload": "x".repeat(200_000) });
    for _ in 0..20 {
        house.done(&ann, "POST", &format!("/api/v1/runs/{large}/signal"), &signal).await;
    }
    house.clock.advance(DAY_MS);
    assert_eq!(house.app.engine.purge(std::time::Duration::ZERO).await.expect("a purge"), 150);
    let last = house.cursor();
    let all = numbers(&house, &ann, 0, last).await;
    assert!(
        all.len() > 256 && all.len() < usize::try_from(last).expect("a number"),
        "it has holes: {} of {last}",
        all.len()
    );
    assert!(all.is_sorted_by(|one, two| one < two), "no repetition");
    let mut listed = Vec::new();
    let mut next = Some("0".to_owned());
    while let Some(after) = next {
        let page =
            house.done(&ann, "GET", &format!("/api/v1/audit?limit=1000&after={after}"), &Value::Null).await;
        listed.extend(
            page["items"].as_array().expect("events").iter().filter_map(|event| event["id"].as_u64()),
        );
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(all, listed, "no gap");
    for after in (1..last).step_by(97) {
        let rest: Vec<u64> = all.iter().copied().filter(|number| *number > after).collect();
        assert_eq!(numbers(&house, &ann, after, last).await, rest, "after {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_the_log_has_not_reached_is_refused() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let (run, _) = house.gated_run(&ann).await;
    let paths = [
        "/api/v1/stream?after=99999".to_owned(),
        format!("/api/v1/runs/{run}/stream?after=99999"),
        format!("/api/v1/runs/{run}/stream?after={}", u64::MAX),
    ];
    for path in paths {
        let (status, said) = house.ask(&ann, "GET", &path, &Value::Null).await;
        assert_eq!(status, 409, "{path}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_awaited_to_its_end_is_not_lost() {
    let house = House::new();
    let ann = house.user("ann", Role::Operator).await;
    let items: Vec<u32> = (0..300).collect();
    let text = "name: many\nsteps: [{ id: all, kind: foreach, items: '{{inputs.n}}', steps: [{ id: r, tool: crm__read }] }]\ninputs: { n: { type: array } }";
    let mut follower = Follower::of_all(house.app.hub.clone(), house.owner(), 0).expect("a place");
    let start = json!({ "text": text, "input": { "n": items } });
    let run = house.done(&ann, "POST", "/api/v1/runs", &start).await;
    let mut seen: Vec<i64> = Vec::new();
    let mut is_over = false;
    for patience in 0.. {
        let patience = std::time::Duration::from_micros(patience % 50 * 100);
        let page = tokio::time::timeout(patience, follower.next()).await;
        let Ok(page) = page else { continue };
        let page = page.expect("no failure").expect("no end");
        seen.extend(page.frames().iter().map(|frame| frame.id));
        is_over = is_over || page.frames().iter().any(|frame| frame.kind() == "run_completed");
        if is_over {
            break;
        }
    }
    let all = house
        .done(&ann, "GET", &format!("/api/v1/runs/{}", run["run_id"].as_str().expect("an id")), &Value::Null)
        .await;
    let last = all["seq"].as_i64().expect("a number");
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
}
