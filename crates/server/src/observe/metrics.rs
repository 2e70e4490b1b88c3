//! Metrics of the library crates in the Prometheus text format.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Histogram buckets of durations: from a commit in memory to a call of several minutes.
const SECONDS: [f64; 14] =
    [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0];
/// Histogram buckets of the number of requests per commit.
const BATCH_SIZES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 32.0, 128.0, 256.0, 512.0];
/// Interval at which samples are moved into buckets. Without it they accumulate until the next scrape.
const UPKEEP: Duration = Duration::from_secs(5);

/// A handle to the metrics of this process.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder. Engines and gateways that were created before it are not counted.
    pub(crate) fn install() -> Result<Self, String> {
        let (recorder, metrics) = Self::recorder()?;
        metrics::set_global_recorder(recorder)
            .map_err(|_| "a metrics recorder is already installed".to_owned())?;
        steprail_http::describe_metrics();
        let handle = metrics.0.clone();
        let upkeep = move || loop {
            std::thread::sleep(UPKEEP);
            handle.run_upkeep();
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(upkeep)
            .map_err(|error| format!("cannot start the metrics thread: {error}"))?;
        Ok(metrics)
    }

    fn recorder() -> Result<(PrometheusRecorder, Self), String> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Suffix("_batch_size".to_owned()), &BATCH_SIZES)
            });
        let recorder = builder.map_err(|error| error.to_string())?.build_recorder();
        let handle = recorder.handle();
        Ok((recorder, Self(handle)))
    }

    /// All metrics in the text format of Prometheus (`text/plain; version=0.0.4`).
    pub(crate) fn render(&self) -> String {
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use steprail_engine::{
        Engine, Failure, FailureKind, Options, Principal, RunStatus, SqliteStore, Start, Tools,
    };

    use super::*;

    /// The counters that are not 0 and do not depend on timing.
    fn counts(metrics: &Metrics) -> String {
        let text = metrics.render();
        let is_count = |line: &&str| {
            line.starts_with("steprail")
                && !line.ends_with(" 0")
                && !["_seconds_sum", "_bucket", "_commit_", "_events_", "_wal_"]
                    .iter()
                    .any(|part| line.contains(part))
        };
        let mut lines: Vec<&str> = text.lines().filter(is_count).collect();
        lines.sort_unstable();
        lines.join("\n")
    }

    const WORK: &str = "
name: work
steps:
  - { id: ask, kind: approve, prompt: 'Go on?' }
  - { id: each, kind: foreach, items: [1, 2], steps: [{ id: read, tool: demo__read }] }
  - { id: flaky, tool: demo__flaky, retry: { max_attempts: 2, initial_delay_ms: 1 }, on_error: continue }
";

    #[tokio::test]
    async fn events_of_a_run_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            SqliteStore::open(folder.path().join("test.db"), &Options::default()).expect("a database");
        let tools =
            Tools::new().tool("demo__read", |_| async { Ok(json!("read")) }).tool("demo__flaky", |_| async {
                Err(Failure::new(FailureKind::ToolError, "not now").transient())
            });
        let (recorder, metrics) = Metrics::recorder().expect("a recorder");
        let spawn = || Engine::builder().store(store).tools(tools).spawn();
        let engine = metrics::with_local_recorder(&recorder, spawn).expect("an engine");
        let mut subscription = engine.subscribe(None, engine.cursor());
        let run = engine.start(Start::inline(WORK, Principal::user("ann"))).await.expect("a run");
        while subscription.next().await.expect("an event").expect("an event").event.name()
            != "approval_requested"
        {}
        engine.approve(run.id(), "ask", &Principal::user("bob"), None, None).await.expect("approved");
        assert_eq!(run.wait().await.expect("a run").run.status, RunStatus::Completed);
        engine.shutdown().await.expect("an end");
        insta::assert_snapshot!(counts(&metrics), @r#"
        steprail_approvals_decided_total{decision="approved"} 1
        steprail_approvals_requested_total 1
        steprail_call_duration_seconds_count{outcome="ok"} 2
        steprail_call_duration_seconds_count{outcome="tool_error"} 2
        steprail_runs_ended_total{status="completed"} 1
        steprail_runs_started_total 1
        steprail_step_attempts_total{kind="approve",outcome="completed"} 1
        steprail_step_attempts_total{kind="foreach",outcome="completed"} 1
        steprail_step_attempts_total{kind="tool",outcome="completed"} 2
        steprail_step_attempts_total{kind="tool",outcome="failed"} 1
        steprail_step_attempts_total{kind="tool",outcome="retried"} 1
        steprail_timers_fired_total{kind="retry"} 1
        "#);
        let text = metrics.render();
        for described in [
            "# HELP steprail_call_duration_seconds ",
            "# TYPE steprail_commit_batch_size histogram",
            "\nsteprail_wal_bytes ",
        ] {
            assert!(text.contains(described), "{described}\n{text}");
        }
        assert!(!text.contains(&run.id().to_string()), "run ids must not be labels");
    }
}
