//! Metrics of servers, labelled with their names in the config.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use steprail_engine::{Failure, Outcome};

pub(super) fn describe() {
    describe_histogram!(
        "steprail_server_call_duration_seconds",
        Unit::Seconds,
        "Duration of calls to each server, by outcome"
    );
    describe_counter!("steprail_server_connections_total", "Connection attempts to each server, by outcome");
}

pub(super) fn call_ended(server: &str, outcome: &Outcome, duration: Duration) {
    let label = outcome.as_ref().map_or_else(Failure::label, |_| "ok");
    histogram!("steprail_server_call_duration_seconds", "server" => server.to_owned(), "outcome" => label)
        .record(duration);
}

pub(super) fn connection_attempted(server: &str, succeeded: bool) {
    let outcome = if succeeded { "opened" } else { "failed" };
    counter!("steprail_server_connections_total", "server" => server.to_owned(), "outcome" => outcome)
        .increment(1);
}
