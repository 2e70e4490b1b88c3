//! The spans of one run, folded from its events.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use steprail_core::run::{Changes, StepChange, StepInfo, StepRef, StepStatus};
use steprail_engine::{RunId, RunStatus, RunTrace, StoredEvent, TraceParent};

/// `error.type` of spans that were cancelled, or whose run ended without them.
const CANCELLED: &str = "cancelled";

/// The open spans of a run.
pub(super) struct RunSpans {
    id: RunId,
    trace: RunTrace,
    name: String,
    started_at: i64,
    steps: BTreeMap<u32, OpenStep>,
    has_ended: bool,
}

struct OpenStep {
    path: String,
    kind: String,
    /// The execution whose block contains the step; 0 for the root block.
    parent: u32,
    started_at: i64,
    call: Option<OpenCall>,
}

struct OpenCall {
    attempt: u32,
    tool: String,
    started_at: i64,
}

/// A span that has ended.
struct EndedSpan<'e> {
    name: String,
    context: TraceParent,
    parent: Option<[u8; 8]>,
    kind: SpanKind,
    /// Start and end, in milliseconds since 1970.
    time: (i64, i64),
    /// The failure kind. The message is omitted, because it can contain values of the run.
    error: Option<&'e str>,
    attributes: Vec<KeyValue>,
}

impl RunSpans {
    pub(super) fn new(id: RunId, trace: RunTrace, name: String, started_at: i64) -> Self {
        Self { id, trace, name, started_at, steps: BTreeMap::new(), has_ended: false }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Applies an event. Spans that end with it are added to `ended`.
    pub(super) fn apply(&mut self, stored: &StoredEvent, ended: &mut Vec<SpanData>) {
        let Changes { run, step, value: _ } = stored.event.changes();
        if let Some(step) = &step {
            self.apply_step(step, stored.at, ended);
        }
        if let Some(status) = run.status.filter(|status| status.is_terminal()) {
            let cancelled = (status == RunStatus::Cancelled).then_some(CANCELLED);
            self.end_run(stored.at, run.error.map(|error| error.kind.name()).or(cancelled), ended);
        }
    }

    fn apply_step(&mut self, change: &StepChange<'_>, at: i64, ended: &mut Vec<SpanData>) {
        let step = change.step;
        if let Some(info) = change.info {
            self.start_step(step, info, at);
        }
        if let Some(tool) = change.tool {
            self.start_call(step, tool, at, ended);
        }
        let error = change.error.map(|error| error.kind.name());
        if change.ends() {
            let cancelled = (change.status == Some(StepStatus::Cancelled)).then_some(CANCELLED);
            self.end_step(step.n, at, error.or(cancelled), ended);
        } else if error.is_some() {
            // The attempt failed or has an unknown outcome, or its server did not accept the call. The step continues.
            self.end_call(step.n, at, error, ended);
        }
    }

    fn start_step(&mut self, step: &StepRef, info: &StepInfo, at: i64) {
        self.steps.entry(step.n).or_insert_with(|| OpenStep {
            path: step.path.to_string(),
            kind: info.kind.to_string(),
            parent: info.scope.n,
            started_at: at,
            call: None,
        });
    }

    /// Starts the span of a call. A call that resumes after an input request has the same attempt and the same span.
    fn start_call(&mut self, step: &StepRef, tool: &str, at: i64, ended: &mut Vec<SpanData>) {
        let open = self.steps.get(&step.n).and_then(|open| open.call.as_ref());
        if open.is_some_and(|call| call.attempt == step.attempt) {
            return;
        }
        self.end_call(step.n, at, Some("lost"), ended);
        if let Some(open) = self.steps.get_mut(&step.n) {
            open.call = Some(OpenCall { attempt: step.attempt, tool: tool.to_owned(), started_at: at });
        }
    }

    fn end_call(&mut self, n: u32, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        let Some(call) = self.steps.get_mut(&n).and_then(|step| step.call.take()) else { return };
        let span = EndedSpan {
            name: format!("call {}", call.tool),
            context: self.trace.attempt(n, call.attempt),
            parent: Some(self.trace.step(n).span),
            kind: SpanKind::Client,
            time: (call.started_at, at),
            error,
            attributes: vec![
                KeyValue::new("steprail.tool", call.tool),
                KeyValue::new("steprail.attempt", i64::from(call.attempt)),
            ],
        };
        self.push(ended, span);
    }

    /// Ends the span of a step and of its call. A step that ends without having started has no span.
    fn end_step(&mut self, n: u32, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        self.end_call(n, at, error, ended);
        let Some(step) = self.steps.remove(&n) else { return };
        let parent = if step.parent == 0 { self.trace.run() } else { self.trace.step(step.parent) };
        let span = EndedSpan {
            name: format!("step {}", step.path),
            context: self.trace.step(n),
            parent: Some(parent.span),
            kind: SpanKind::Internal,
            time: (step.started_at, at),
            error,
            attributes: vec![
                KeyValue::new("steprail.step.path", step.path),
                KeyValue::new("steprail.step.kind", step.kind),
            ],
        };
        self.push(ended, span);
    }

    fn end_run(&mut self, at: i64, error: Option<&str>, ended: &mut Vec<SpanData>) {
        self.has_ended = true;
        for n in self.steps.keys().copied().collect::<Vec<_>>() {
            self.end_step(n, at, Some(CANCELLED), ended);
        }
        let span = EndedSpan {
            name: format!("run {}", self.name),
            context: self.trace.run(),
            parent: self.trace.parent.map(|parent| parent.span),
            kind: SpanKind::Internal,
            time: (self.started_at, at),
            error,
            attributes: vec![
                KeyValue::new("steprail.run.id", self.id.to_string()),
                KeyValue::new("steprail.workflow", self.name.clone()),
            ],
        };
        self.push(ended, span);
    }

    /// Adds a span, if its trace is sampled.
    fn push(&self, ended: &mut Vec<SpanData>, span: EndedSpan<'_>) {
        if span.context.sampled {
            let is_remote =
                span.parent.is_some_and(|id| self.trace.parent.is_some_and(|caller| caller.span == id));
            ended.push(span.into_data(is_remote));
        }
    }
}

impl EndedSpan<'_> {
    fn into_data(mut self, parent_is_remote: bool) -> SpanData {
        let (trace, span) = (TraceId::from_bytes(self.context.trace), SpanId::from_bytes(self.context.span));
        self.attributes.extend(self.error.map(|kind| KeyValue::new("error.type", kind.to_owned())));
        SpanData {
            span_context: SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE),
            parent_span_id: self.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
            parent_span_is_remote: parent_is_remote,
            span_kind: self.kind,
            name: self.name.into(),
            start_time: system_time(self.time.0),
            end_time: system_time(self.time.1.max(self.time.0)),
            attributes: self.attributes,
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

fn system_time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}
