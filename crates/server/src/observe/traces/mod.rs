//! Traces over OTLP: spans of runs, steps and calls, derived from committed events.
//!
//! Spans are exported when they end. The exporter stores nothing: the start of a run that it evicted from memory, or that
//! began before a restart, is read from the log again.

mod exporter;
mod spans;
#[cfg(test)]
mod tests;

use std::time::Duration;

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use steprail_engine::Engine;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Secret, Telemetry};
use exporter::Exporter;

/// Timeout of one request to the collector.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Exports the spans that end from now on to the configured OTLP collector, if any. After `stop`, the task exports the
/// spans of events that were committed before and ends.
pub(crate) fn export_traces(
    engine: &Engine,
    settings: &Telemetry,
    stop: CancellationToken,
) -> Result<Option<JoinHandle<()>>, String> {
    let Some(endpoint) = &settings.otlp else { return Ok(None) };
    let headers = settings.otlp_headers.as_ref().map(Secret::reveal).unwrap_or_default();
    export_to(engine, endpoint, headers, &settings.service, stop).map(Some)
}

/// Exports to an endpoint, with headers such as `name=value,name=value`.
fn export_to(
    engine: &Engine,
    endpoint: &str,
    headers: &str,
    service: &str,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, String> {
    let endpoint = match endpoint.trim_end_matches('/') {
        complete if complete.ends_with("/v1/traces") => complete.to_owned(),
        base => format!("{base}/v1/traces"),
    };
    let headers = headers.split(',').filter_map(|header| header.split_once('='));
    let headers = headers.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
    let builder =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_headers(headers);
    let built = builder.with_endpoint(&endpoint).with_timeout(REQUEST_TIMEOUT).build();
    let mut otlp = built.map_err(|error| {
        format!("cannot export traces to {endpoint}: {error}; use an address like http://127.0.0.1:4318")
    })?;
    otlp.set_resource(&Resource::builder().with_service_name(service.to_owned()).build());
    Ok(tokio::spawn(Exporter::new(engine.clone(), otlp).run(engine.cursor(), stop)))
}
