//! Traces over OTLP: finished spans of runs, steps and calls, made from committed events.
//!
//! A reader of the log folds what began and exports what ended. It keeps nothing that the log has not: what it
//! forgets, or what a former process began, is read again when it goes on.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use steprail_core::run::{Started, StepInfo, StepRef};
use steprail_engine::{Engine, Error, Event, RunId, RunTrace, StoredEvent, Subscription, TraceParent};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Secret, Telemetry};

/// Spans that are sent together at most.
const BATCH: usize = 512;
/// Runs whose beginnings are kept in memory.
const RUNS: usize = 10_000;
/// Events that are read at once, of a run that began before.
const PAGE: usize = 1_000;
/// How long a span waits for others.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the spans of everything that ends from now on to an OTLP collector over HTTP, if one is configured, until it is
/// told to stop; what was committed by then is still sent.
pub(crate) fn export_traces(
    engine: &Engine,
    settings: &Telemetry,
    stop: CancellationToken,
) -> Result<Option<JoinHandle<()>>, String> {
    let Some(endpoint) = &settings.otlp else { return Ok(None) };
    let headers = settings.otlp_headers.as_ref().map(Secret::reveal).unwrap_or_default();
    send_to(engine, endpoint, headers, &settings.service, stop).map(Some)
}

/// Sends spans to an address, with headers such as `name=value,name=value`.
fn send_to(
    engine: &Engine,
    endpoint: &str,
    headers: &str,
    service: &str,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, String> {
    let endpoint = match endpoint.trim_end_matches('/') {
        whole if whole.ends_with("/v1/traces") => whole.to_owned(),
        base => format!("{base}/v1/traces"),
    };
    let headers = headers.split(',').filter_map(|header| header.split_once('='));
    let headers = headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
    let exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_headers(headers);
    let exporter = exporter.with_endpoint(&endpoint).with_timeout(TIMEOUT).build();
    let mut exporter = exporter.map_err(|error| {
        format!("spans cannot be sent to {endpoint}: {error}; give an address like http://127.0.0.1:4318")
    })?;
    exporter.set_resource(&Resource::builder().with_service_name(service.to_owned()).build());
    let feed = engine.subscribe(None, engine.cursor());
    let reader =
        Reader { engine: engine.clone(), exporter, runs: BTreeMap::new(), ended: Vec::new(), fails: false };
    Ok(tokio::spawn(reader.read(feed, stop)))
}

struct Reader {
    engine: Engine,
    exporter: SpanExporter,
    /// Runs that have not ended, the oldest first, since that is how their ids sort.
    runs: BTreeMap<RunId, Run>,
    ended: Vec<SpanData>,
    /// Whether the last spans did not arrive.
    fails: bool,
}

impl Reader {
    async fn read(mut self, mut feed: Subscription, stop: CancellationToken) {
        let mut tick = tokio::time::interval(PATIENCE);
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = tick.tick() => {
                    self.send().await;
                    continue;
                }
                next = feed.next() => next,
            };
            match next {
                Ok(Some(event)) => self.take(&event).await,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "the log cannot be read for traces; it is tried again");
                    tokio::time::sleep(PATIENCE).await;
                }
            }
            if self.ended.len() >= BATCH {
                self.send().await;
            }
        }
        while feed.cursor() < self.engine.cursor() {
            let Ok(Some(event)) = feed.next().await else { break };
            self.take(&event).await;
        }
        self.send().await;
    }

    async fn take(&mut self, event: &StoredEvent) {
        if !self.runs.contains_key(&event.run) {
            match self.open(event).await {
                Ok(run) => drop(self.runs.insert(event.run, run)),
                // It was deleted meanwhile, or cannot be read.
                Err(error) => return tracing::debug!(run = %event.run, %error, "a run is left out of traces"),
            }
        }
        let Some(run) = self.runs.get_mut(&event.run) else { return };
        run.apply(event, &mut self.ended);
        if run.is_over {
            self.runs.remove(&event.run);
        } else if self.runs.len() > RUNS {
            self.runs.pop_first();
        }
    }

    /// What a run began before an event.
    async fn open(&self, event: &StoredEvent) -> Result<Run, Error> {
        let row = self.engine.row(event.run).await?;
        let mut run = Run {
            id: event.run,
            trace: RunTrace::new(event.run, row.trace.as_deref()),
            name: row.name,
            began: row.started_at,
            steps: BTreeMap::new(),
            is_over: false,
        };
        let (mut seen, mut sent_before) = (0, Vec::new());
        while seen + 1 < event.seq {
            let before = self.engine.events(event.run, seen, PAGE).await?.events;
            let Some(last) = before.last() else { break };
            seen = last.seq;
            for earlier in before.iter().filter(|earlier| earlier.seq < event.seq) {
                run.apply(earlier, &mut sent_before);
            }
            sent_before.clear();
        }
        Ok(run)
    }

    /// Sends what has ended. What a collector does not take is lost: the log has it.
    async fn send(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let spans = std::mem::take(&mut self.ended);
        let count = spans.len();
        let sent = self.exporter.export(spans).await;
        if let (Err(error), false) = (&sent, self.fails) {
            tracing::warn!(%error, count, "spans do not arrive; check the collector");
        }
        self.fails = sent.is_err();
    }
}

/// What a run has begun.
struct Run {
    id: RunId,
    trace: RunTrace,
    name: String,
    began: i64,
    steps: BTreeMap<u32, Step>,
    is_over: bool,
}

/// A step that has begun.
struct Step {
    path: String,
    kind: String,
    /// The step whose block it stands in; 0 for the run itself.
    around: u32,
    began: i64,
    call: Option<Call>,
}

/// A call that has begun.
struct Call {
    attempt: u32,
    tool: String,
    began: i64,
}

/// A span that has ended.
struct Ended<'e> {
    name: String,
    at: TraceParent,
    within: Option<[u8; 8]>,
    kind: SpanKind,
    time: (i64, i64),
    /// The kind of failure; never its message, which may have anything in it.
    error: Option<&'e str>,
    facts: Vec<KeyValue>,
}

impl Run {
    fn apply(&mut self, event: &StoredEvent, ended: &mut Vec<SpanData>) {
        let at = event.at;
        match &event.event {
            Event::StepReady { step, place } | Event::KeyAwaited { step, place, .. } => {
                self.step_began(step, place, at);
            }
            Event::ServerAwaited { step, place, error, .. } => {
                self.step_began(step, place, at);
                self.call_ended(step.n, at, Some(error.kind.word()), ended);
            }
            Event::StepStarted { step, place, what, .. } => {
                self.step_began(step, place, at);
                if let Started::Call { tool, .. } = what {
                    self.call_began(step, tool, at, ended);
                }
            }
            Event::RetryScheduled { step, error, .. } | Event::StepUncertain { step, error } => {
                self.call_ended(step.n, at, Some(error.kind.word()), ended);
            }
            Event::StepCompleted { step, .. } => self.step_ended(step.n, at, None, ended),
            Event::StepSkipped { step, .. } => self.step_ended(step.n, at, None, ended),
            Event::StepFailed { step, error } => self.step_ended(step.n, at, Some(error.kind.word()), ended),
            Event::StepCancelled { step, .. } => self.step_ended(step.n, at, Some("cancelled"), ended),
            Event::RunCompleted { .. } => self.run_ended(at, None, ended),
            Event::RunFailed { error } => self.run_ended(at, Some(error.kind.word()), ended),
            Event::RunCancelled { .. } => self.run_ended(at, Some("cancelled"), ended),
            _ => {}
        }
    }

    fn step_began(&mut self, step: &StepRef, place: &StepInfo, at: i64) {
        self.steps.entry(step.n).or_insert_with(|| Step {
            path: step.path.to_string(),
            kind: place.kind.to_string(),
            around: place.scope.n,
            began: at,
            call: None,
        });
    }

    /// A call begins; one that goes on with an answer is the same attempt, and the same call.
    fn call_began(&mut self, step: &StepRef, tool: &str, at: i64, ended: &mut Vec<SpanData>) {
        let open = self.steps.get(&step.n).and_then(|open| open.call.as_ref());
        if open.is_some_and(|call| call.attempt == step.attempt) {
            return;
        }
        self.call_ended(step.n, at, Some("lost"), ended);
        if let Some(open) = self.steps.get_mut(&step.n) {
            open.call = Some(Call { attempt: step.attempt, tool: tool.to_owned(), began: at });
        }
    }

    fn call_ended(&mut self, n: u32, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        let Some(call) = self.steps.get_mut(&n).and_then(|step| step.call.take()) else { return };
        self.push(
            ended,
            Ended {
                name: format!("call {}", call.tool),
                at: self.trace.attempt(n, call.attempt),
                within: Some(self.trace.step(n).span),
                kind: SpanKind::Client,
                time: (call.began, at),
                error,
                facts: vec![
                    KeyValue::new("steprail.tool", call.tool),
                    KeyValue::new("steprail.attempt", i64::from(call.attempt)),
                ],
            },
        );
    }

    fn step_ended(&mut self, n: u32, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        self.call_ended(n, at, error, ended);
        // A step that never began has no span.
        let Some(step) = self.steps.remove(&n) else { return };
        let around = if step.around == 0 { self.trace.run() } else { self.trace.step(step.around) };
        self.push(
            ended,
            Ended {
                name: format!("step {}", step.path),
                at: self.trace.step(n),
                within: Some(around.span),
                kind: SpanKind::Internal,
                time: (step.began, at),
                error,
                facts: vec![
                    KeyValue::new("steprail.step.path", step.path),
                    KeyValue::new("steprail.step.kind", step.kind),
                ],
            },
        );
    }

    fn run_ended(&mut self, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        self.is_over = true;
        for n in self.steps.keys().copied().collect::<Vec<_>>() {
            self.step_ended(n, at, Some("cancelled"), ended);
        }
        self.push(
            ended,
            Ended {
                name: format!("run {}", self.name),
                at: self.trace.run(),
                within: self.trace.parent.map(|parent| parent.span),
                kind: SpanKind::Internal,
                time: (self.began, at),
                error,
                facts: vec![
                    KeyValue::new("steprail.run.id", self.id.to_string()),
                    KeyValue::new("steprail.workflow", self.name.clone()),
                ],
            },
        );
    }

    /// Keeps a span to be sent, unless whoever began the trace does not want it.
    fn push(&self, ended: &mut Vec<SpanData>, span: Ended<'_>) {
        if span.at.sampled {
            let is_remote =
                span.within.is_some_and(|id| self.trace.parent.is_some_and(|from| from.span == id));
            ended.push(span.into_data(is_remote));
        }
    }
}

impl Ended<'_> {
    fn into_data(mut self, parent_is_remote: bool) -> SpanData {
        let (trace, span) = (TraceId::from_bytes(self.at.trace), SpanId::from_bytes(self.at.span));
        self.facts.extend(self.error.map(|kind| KeyValue::new("error.type", kind.to_owned())));
        SpanData {
            span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: self.within.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: parent_is_remote,
            span_kind: self.kind,
            name: self.name.into(),
            start_time: moment(self.time.0),
            end_time: moment(self.time.1.max(self.time.0)),
            attributes: self.facts,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: self.error.map_or(Status::Unset, |kind| Status::error(kind.to_owned())),
            instrumentation_scope: InstrumentationScope::builder("steprail")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }
}

fn moment(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::body::Bytes;
    use axum::routing::post;
    use serde_json::json;
    use steprail_engine::{Options, Principal, RunStatus, SqliteStore, Start, Tools};

    use super::*;

    const OUTER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const WORK: &str = "name: work\nsteps: [{ id: say, tool: demo__say }]";

    /// A collector on this machine that keeps what it is sent.
    async fn collector() -> (String, Arc<Mutex<Vec<Bytes>>>) {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let taken = kept.clone();
        let take = post(move |body: Bytes| async move { taken.lock().expect("bodies").push(body) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let app = axum::Router::new().route("/v1/traces", take);
        tokio::spawn(async move { axum::serve(listener, app).await });
        (address, kept)
    }

    fn engine(folder: &tempfile::TempDir) -> Engine {
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let tools = Tools::new().tool("demo__say", |_| async { Ok(json!("hi")) });
        Engine::builder().store(store).tools(tools).spawn().expect("an engine")
    }

    fn has(body: &[u8], part: &[u8]) -> bool {
        body.windows(part.len()).any(|window| window == part)
    }

    #[tokio::test]
    async fn spans_of_a_run_arrive() {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, kept) = collector().await;
        let (engine, stop) = (engine(&folder), CancellationToken::new());
        let sending = send_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
        let run = engine.start(Start::inline(WORK, Principal::user("ann"))).await.expect("a run");
        assert_eq!(run.wait().await.expect("a run").run.status, RunStatus::Completed);
        stop.cancel();
        sending.await.expect("it ends");
        let body = kept.lock().expect("bodies").concat();
        let trace = RunTrace::new(run.id(), None);
        for part in ["run work", "step say", "call demo__say", "steprail.run.id", "service.name"] {
            assert!(has(&body, part.as_bytes()), "{part}");
        }
        for place in [trace.run(), trace.step(1), trace.attempt(1, 1)] {
            assert!(has(&body, &place.trace) && has(&body, &place.span), "{place}");
        }
    }

    #[tokio::test]
    async fn a_run_is_sent_to_the_trace_that_it_was_started_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, kept) = collector().await;
        let (engine, stop) = (engine(&folder), CancellationToken::new());
        let sending = send_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
        let unwanted = OUTER.replace("-01", "-00");
        let ann = |trace: &str| Principal { trace: Some(trace.to_owned()), ..Principal::user("ann") };
        for trace in [OUTER, &unwanted] {
            let named = WORK.replace("work", if trace == OUTER { "wanted" } else { "unwanted" });
            engine
                .start(Start::inline(named, ann(trace)))
                .await
                .expect("a run")
                .wait()
                .await
                .expect("an end");
        }
        stop.cancel();
        sending.await.expect("it ends");
        let body = kept.lock().expect("bodies").concat();
        let outer = TraceParent::parse(OUTER).expect("a traceparent");
        assert!(has(&body, &outer.trace) && has(&body, &outer.span));
        assert!(has(&body, b"run wanted"));
        assert!(!has(&body, b"run unwanted"), "nobody records that trace");
    }

    #[tokio::test]
    async fn what_began_before_is_read_from_the_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, kept) = collector().await;
        let (engine, stop) = (engine(&folder), CancellationToken::new());
        let text =
            "name: work\nsteps: [{ id: ask, kind: approve, prompt: 'Go on?' }, { id: say, tool: demo__say }]";
        let mut feed = engine.subscribe(None, engine.cursor());
        let run = engine.start(Start::inline(text, Principal::user("ann"))).await.expect("a run");
        while feed.next().await.expect("an event").expect("an event").event.word() != "approval_requested" {}
        let sending = send_to(&engine, &address, "", "steprail", stop.clone()).expect("an exporter");
        engine.approve(run.id(), "ask", &Principal::user("bob"), None, None).await.expect("approved");
        run.wait().await.expect("an end");
        stop.cancel();
        sending.await.expect("it ends");
        let body = kept.lock().expect("bodies").concat();
        assert!(has(&body, b"step ask") && has(&body, b"step say") && has(&body, b"run work"));
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = send_to(&engine(&folder), "no address", "", "steprail", CancellationToken::new());
        assert!(refused.expect_err("a problem").contains("give an address like"));
    }
}
