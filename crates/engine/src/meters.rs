//! What an engine tells a metrics recorder, if the program around it has one. Every label has a small, fixed set of
//! values: never an id, a path or a name that a user chose.

use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use steprail_core::run::{AttemptOutcome, Failure, FailureKind, Payload};

use crate::kernel::Tally;
use crate::kernel::tally::{DECISIONS, ENDS, KINDS, TIMERS};

/// Handles, registered once: a count costs a few nanoseconds, and next to nothing without a recorder.
pub(crate) struct Meters {
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
    call_ok: Histogram,
    call_asked: Histogram,
    /// In the order of [`FailureKind::WORDS`].
    call_failed: Vec<Histogram>,
}

impl Meters {
    /// Registers everything with the recorder that the program has at this moment.
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
            call_ok: call("ok"),
            call_asked: call("asked"),
            call_failed: FailureKind::WORDS.iter().map(|word| call(word)).collect(),
        }
    }

    /// A batch was decided and committed.
    pub(crate) fn committed(&self, tally: &Tally, requests: usize, took: Duration, queue: usize) {
        self.commit_duration.record(took);
        self.commit_batch.record(number(requests));
        self.queue.set(number(queue));
        if tally.events > 0 {
            self.events.increment(tally.events.into());
            count_one(&self.runs_started, tally.runs_started);
            count_one(&self.approvals_requested, tally.approvals_requested);
            count(&self.runs_ended, &tally.runs_ended);
            count(&self.approvals_decided, &tally.approvals_decided);
            self.attempts.iter().zip(&tally.attempts).for_each(|(meters, counts)| count(meters, counts));
        }
        count(&self.timers, &tally.timers);
    }

    /// A call ended.
    pub(crate) fn call_ended(&self, outcome: &Result<Payload, Failure>, took: Duration) {
        let meter = match outcome {
            Ok(_) => Some(&self.call_ok),
            Err(failure) if failure.request.is_some() => Some(&self.call_asked),
            // The variants stand in the order of their words.
            Err(failure) => self.call_failed.get(failure.kind as usize),
        };
        if let Some(meter) = meter {
            meter.record(took);
        }
    }

    pub(crate) fn calls_in_flight(&self, calls: usize) {
        self.in_flight.set(number(calls));
    }
}

/// The store did not do what it was asked. That is rare: no handle is kept for it.
pub(crate) fn storage_fault(code: &'static str) {
    counter!("steprail_storage_faults_total", "code" => code).increment(1);
}

fn count(meters: &[Counter], counts: &[u32]) {
    meters.iter().zip(counts).for_each(|(meter, count)| count_one(meter, *count));
}

fn count_one(meter: &Counter, count: u32) {
    if count > 0 {
        meter.increment(count.into());
    }
}

/// As recorders take numbers.
fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn describe() {
    describe_counter!("steprail_events_committed_total", "Events written to the log");
    describe_counter!("steprail_runs_started_total", "Runs that began");
    describe_counter!("steprail_runs_ended_total", "Runs that ended, by how");
    describe_counter!(
        "steprail_step_attempts_total",
        "Attempts of steps, by the kind of step and what became of it"
    );
    describe_counter!("steprail_approvals_requested_total", "Questions put to humans");
    describe_counter!("steprail_approvals_decided_total", "Questions to humans that ended, by the decision");
    describe_counter!("steprail_timers_fired_total", "Timers of steps that fired, by kind");
    describe_counter!("steprail_storage_faults_total", "Times that the store failed, by the error's code");
    describe_gauge!("steprail_calls_in_flight", "Calls of tools that have not ended");
    describe_gauge!("steprail_queue_length", "Runs in a queue for a place for a call");
    describe_histogram!(
        "steprail_call_duration_seconds",
        Unit::Seconds,
        "How long calls of tools take, by how they end"
    );
    describe_histogram!(
        "steprail_commit_duration_seconds",
        Unit::Seconds,
        "How long it takes to decide about a batch of requests and to commit it"
    );
    describe_histogram!("steprail_commit_batch_size", "Requests that are committed together");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_kinds_stand_in_the_same_order() {
        for (place, word) in FailureKind::WORDS.iter().enumerate() {
            let kind = FailureKind::from_word(word).expect("a kind");
            assert_eq!(kind as usize, place, "{word}");
        }
    }
}
