//! Observability: logs, metrics and traces.

mod logs;
mod metrics;
mod traces;

pub(crate) use logs::install_logs;
pub(crate) use metrics::Metrics;
pub(crate) use traces::export_traces;
