//! What operators see of a running server: logs, metrics, traces.

mod logs;
mod metrics;
mod traces;

pub(crate) use logs::logs;
pub(crate) use metrics::Metrics;
pub(crate) use traces::export_traces;
