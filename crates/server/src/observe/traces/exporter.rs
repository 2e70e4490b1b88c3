//! The reader of the log that exports spans in batches.

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use steprail_engine::{After, Cursor, Engine, Error, RunId, RunTrace, StoredEvent};
use tokio_util::sync::CancellationToken;

use super::spans::RunSpans;

/// The maximum number of spans per request.
const BATCH: usize = 512;
/// The maximum number of unfinished runs in memory; the oldest is evicted.
const RUNS: usize = 10_000;
/// Events per read, where the start of a run is read from the log.
const PAGE: usize = 1_000;
/// The maximum delay of a span that waits for its batch, and the delay before a failed read is retried.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

pub(super) struct Exporter {
    engine: Engine,
    otlp: SpanExporter,
    /// Runs that have not ended. Ids sort by time, so the first is the oldest.
    runs: BTreeMap<RunId, RunSpans>,
    /// Ended spans that wait for the next batch.
    ended: Vec<SpanData>,
    /// Whether the last export failed. Only the first failure in a row is logged.
    is_failing: bool,
}

impl Exporter {
    pub(super) fn new(engine: Engine, otlp: SpanExporter) -> Self {
        Self { engine, otlp, runs: BTreeMap::new(), ended: Vec::new(), is_failing: false }
    }

    /// Exports the spans of events after a cursor until the engine stops, or until `stop` and the end of the log.
    pub(super) async fn run(mut self, mut cursor: Cursor, stop: CancellationToken) {
        let mut subscription = self.engine.subscribe(None, cursor);
        let mut tick = tokio::time::interval(FLUSH_INTERVAL);
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = tick.tick() => {
                    self.flush().await;
                    continue;
                }
                next = subscription.next() => next,
            };
            match next {
                Ok(Some(event)) => {
                    self.record(&event).await;
                    cursor = event.cursor;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the log for traces; retrying");
                    tokio::time::sleep(FLUSH_INTERVAL).await;
                }
            }
            if self.ended.len() >= BATCH {
                self.flush().await;
            }
        }
        while cursor < self.engine.cursor() {
            let Ok(Some(event)) = subscription.next().await else { break };
            self.record(&event).await;
            cursor = event.cursor;
        }
        self.flush().await;
    }

    async fn record(&mut self, event: &StoredEvent) {
        if !self.runs.contains_key(&event.run) {
            match self.load(event).await {
                Ok(run) => drop(self.runs.insert(event.run, run)),
                // Retention may have deleted it.
                Err(error) => return tracing::debug!(run = %event.run, %error, "run omitted from traces"),
            }
        }
        let Some(run) = self.runs.get_mut(&event.run) else { return };
        run.apply(event, &mut self.ended);
        if run.has_ended() {
            self.runs.remove(&event.run);
        } else if self.runs.len() > RUNS {
            self.runs.pop_first();
        }
    }

    /// The open spans of a run before an event. Spans that ended before it were exported then.
    async fn load(&self, event: &StoredEvent) -> Result<RunSpans, Error> {
        let row = self.engine.row(event.run).await?;
        let trace = RunTrace::new(event.run, row.trace.as_deref());
        let mut run = RunSpans::new(event.run, trace, row.name, row.started_at);
        let (mut seq, mut already_exported) = (0, Vec::new());
        while seq + 1 < event.seq {
            let page = self.engine.events(event.run, After::Seq(seq), PAGE).await?.events;
            let Some(last) = page.last() else { break };
            seq = last.seq;
            for earlier in page.iter().filter(|earlier| earlier.seq < event.seq) {
                run.apply(earlier, &mut already_exported);
            }
            already_exported.clear();
        }
        Ok(run)
    }

    /// Exports the ended spans. Spans that the collector rejects are dropped; the log still has the events.
    async fn flush(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let spans = std::mem::take(&mut self.ended);
        let count = spans.len();
        let exported = self.otlp.export(spans).await;
        if let (Err(error), false) = (&exported, self.is_failing) {
            tracing::warn!(%error, count, "cannot export spans; check the collector");
        }
        self.is_failing = exported.is_err();
    }
}
