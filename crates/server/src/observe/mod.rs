//! What operators see of a running server: logs, metrics, traces.

mod logs;
mod metrics;
#[cfg(feature = "otel")]
mod traces;

pub(crate) use logs::{LogFormat, logs};
pub(crate) use metrics::{Metrics, http_request};
#[cfg(feature = "otel")]
pub(crate) use traces::export_traces;
