//! Metrics of the engine, recorded if the embedding program has installed a recorder. Every label has a small, fixed set of
//! values and contains no ids, paths or names that users choose.

use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use steprail_core::run::{AttemptOutcome, Failure, FailureKind, Payload};

use crate::kernel::CommitStats;
use crate::kernel::stats::{DECISIONS, ENDS, KINDS, TIMERS};

/// Handles that are registered once, so that an update costs a few nanoseconds.
pub(crate) struct Metrics {
    events: Counter,
    runs_started: Counter,
    runs_ended: [Counter; ENDS.len()],
    attempts: [[Counter; AttemptOutcome::ALL.len()]; KINDS.len()],
    approvals_requested: Counter,
    approvals_decided: [Counter; DECISIONS.len()],
    timers: [Counter; TIMERS.len()],
    commit_duration: Histogram,
    commit_batch: Histogram,
    queue: Gauge,
    in_flight: Gauge,
    damaged: Gauge,
    wal: Gauge,
    call_ok: Histogram,
    call_input_required: Histogram,
    /// In the order of [`FailureKind::NAMES`].
    call_failed: Vec<Histogram>,
}

impl Metrics {
    /// Registers the metrics with the recorder that is installed now.
    pub(crate) fn new() -> Self {
        describe();
        let call = |outcome: &'static str| histogram!("steprail_call_duration_seconds", "outcome" => outcome);
        Self {
            events: counter!("steprail_events_committed_total"),
            runs_started: counter!("steprail_runs_started_total"),
            runs_ended: ENDS.map(|status| counter!("steprail_runs_ended_total", "status" => status)),
            attempts: KINDS.map(|kind| {
                AttemptOutcome::ALL.map(<&str>::from).map(
                    |outcome| counter!("steprail_step_attempts_total", "kind" => kind, "outcome" => outcome),
                )
            }),
            approvals_requested: counter!("steprail_approvals_requested_total"),
            approvals_decided: DECISIONS
                .map(|decision| counter!("steprail_approvals_decided_total", "decision" => decision)),
            timers: TIMERS.map(|kind| counter!("steprail_timers_fired_total", "kind" => kind)),
            commit_duration: histogram!("steprail_commit_duration_seconds"),
            commit_batch: histogram!("steprail_commit_batch_size"),
            queue: gauge!("steprail_queue_length"),
            in_flight: gauge!("steprail_calls_in_flight"),
            damaged: gauge!("steprail_damaged_runs"),
            wal: gauge!("steprail_wal_bytes"),
            call_ok: call("ok"),
            call_input_required: call("input_request"),
            call_failed: FailureKind::NAMES.iter().map(|word| call(word)).collect(),
        }
    }

    /// Records the commit of a batch.
    pub(crate) fn committed(&self, stats: &CommitStats, requests: usize, elapsed: Duration, queue: usize) {
        self.commit_duration.record(elapsed);
        self.commit_batch.record(number(requests));
        self.queue.set(number(queue));
        if stats.events > 0 {
            self.events.increment(stats.events.into());
            count_one(&self.runs_started, stats.runs_started);
            count_one(&self.approvals_requested, stats.approvals_requested);
            count(&self.runs_ended, &stats.runs_ended);
            count(&self.approvals_decided, &stats.approvals_decided);
            self.attempts.iter().zip(&stats.attempts).for_each(|(counters, counts)| count(counters, counts));
        }
        count(&self.timers, &stats.timers);
    }

    /// Records the end of a call.
    pub(crate) fn call_ended(&self, outcome: &Result<Payload, Failure>, elapsed: Duration) {
        let histogram = match outcome {
            Ok(_) => Some(&self.call_ok),
            Err(failure) if failure.request.is_some() => Some(&self.call_input_required),
            Err(failure) => self.call_failed.get(failure.kind as usize),
        };
        if let Some(histogram) = histogram {
            histogram.record(elapsed);
        }
    }

    pub(crate) fn damaged_runs(&self, runs: usize) {
        self.damaged.set(number(runs));
    }

    pub(crate) fn wal(&self, bytes: u64) {
        // Exact below 8 PiB.
        #[expect(clippy::cast_precision_loss, reason = "sizes of files are far below 2^53")]
        self.wal.set(bytes as f64);
    }

    pub(crate) fn calls_in_flight(&self, calls: usize) {
        self.in_flight.set(number(calls));
    }
}

/// Counts a failure of the store. Failures are rare, so there is no registered handle.
pub(crate) fn storage_fault(code: &'static str) {
    counter!("steprail_storage_faults_total", "code" => code).increment(1);
}

/// Counts a panic: of the engine thread, of the decision of one run, or of the notifier.
pub(crate) fn panicked(place: &'static str) {
    counter!("steprail_panics_total", "place" => place).increment(1);
}

/// Counts a request that a quota rejected, by the quota.
pub(crate) fn quota_exceeded(quota: &'static str) {
    counter!("steprail_quota_rejections_total", "quota" => quota).increment(1);
}

fn count(counters: &[Counter], counts: &[u32]) {
    counters.iter().zip(counts).for_each(|(counter, count)| count_one(counter, *count));
}

fn count_one(counter: &Counter, count: u32) {
    if count > 0 {
        counter.increment(count.into());
    }
}

/// Converts a count to the number type of recorders.
fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn describe() {
    describe_counter!("steprail_events_committed_total", "Events written to the log");
    describe_counter!("steprail_runs_started_total", "Runs started");
    describe_counter!("steprail_runs_ended_total", "Runs ended, by status");
    describe_counter!("steprail_step_attempts_total", "Attempts of steps, by step kind and outcome");
    describe_counter!("steprail_approvals_requested_total", "Approvals requested");
    describe_counter!("steprail_approvals_decided_total", "Approvals decided or expired, by decision");
    describe_counter!("steprail_timers_fired_total", "Timers fired, by kind");
    describe_counter!("steprail_storage_faults_total", "Failures of the store, by error code");
    describe_counter!("steprail_panics_total", "Panics, by place: engine, decision, notifier");
    describe_counter!("steprail_quota_rejections_total", "Requests rejected by a quota, by quota");
    describe_gauge!("steprail_damaged_runs", "Runs that are quarantined or damaged");
    describe_gauge!("steprail_calls_in_flight", "Tool calls in flight");
    describe_gauge!("steprail_wal_bytes", Unit::Bytes, "Size of the write-ahead log");
    describe_gauge!("steprail_queue_length", "Runs waiting for a concurrency slot");
    describe_histogram!(
        "steprail_call_duration_seconds",
        Unit::Seconds,
        "Duration of tool calls, by outcome"
    );
    describe_histogram!(
        "steprail_commit_duration_seconds",
        Unit::Seconds,
        "Duration of deciding and committing one batch of requests"
    );
    describe_histogram!("steprail_commit_batch_size", "Requests per commit");
}

#[cfg(test)]
mod tests {
    use steprail_core::spec::step::KindName;

    use super::*;

    /// A `tool_remote` step is counted as a `tool` step.
    #[test]
    fn attempts_are_counted_for_every_step_kind() {
        let kinds: Vec<&str> =
            KindName::ALL.iter().map(|kind| kind.name()).filter(|word| *word != "tool_remote").collect();
        assert_eq!(KINDS[..], kinds);
    }

    #[test]
    fn failure_kinds_are_in_the_order_of_their_words() {
        for (index, word) in FailureKind::NAMES.iter().enumerate() {
            let kind = FailureKind::from_name(word).expect("a kind");
            assert_eq!(kind as usize, index, "{word}");
        }
    }
}
