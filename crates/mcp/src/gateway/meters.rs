//! What the gateway tells a metrics recorder: how servers do. Their names are those of the config.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use steprail_engine::{Failure, Outcome};

pub(super) fn describe() {
    describe_histogram!(
        "steprail_server_call_duration_seconds",
        Unit::Seconds,
        "How long calls take at each server, by how they end"
    );
    describe_counter!(
        "steprail_server_connections_total",
        "Connections to each server, opened or failed to open"
    );
}

/// A call to a server ended.
pub(super) fn call_ended(server: &str, outcome: &Outcome, took: Duration) {
    let word = outcome.as_ref().map_or_else(Failure::word, |_| "ok");
    histogram!("steprail_server_call_duration_seconds", "server" => server.to_owned(), "outcome" => word)
        .record(took);
}

/// A connection to a server was opened, or could not be.
pub(super) fn opened(server: &str, is_open: bool) {
    let outcome = if is_open { "opened" } else { "failed" };
    counter!("steprail_server_connections_total", "server" => server.to_owned(), "outcome" => outcome)
        .increment(1);
}
