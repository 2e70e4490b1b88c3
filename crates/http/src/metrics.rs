//! Metrics of requests: a counter and a latency histogram per route.

use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

/// Methods that get a label of their own; clients can send arbitrary ones.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Describes the metrics of HTTP to the installed recorder.
pub fn describe() {
    describe_counter!("steprail_http_requests_total", "HTTP requests by route, method and status");
    describe_counter!(
        "steprail_http_connections_rejected_total",
        "HTTP connections closed because of a limit"
    );
    describe_histogram!(
        "steprail_http_request_duration_seconds",
        Unit::Seconds,
        "Duration of HTTP requests by route"
    );
}

/// Counts a connection that was closed because of a limit.
pub(crate) fn rejected_connection() {
    counter!("steprail_http_connections_rejected_total").increment(1);
}

/// Records every request.
pub(crate) async fn record_request(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let method = request.method().to_string();
    let response = next.run(request).await;
    record(route.as_deref(), &method, response.status().as_u16(), start.elapsed());
    response
}

/// Records one request. The route is the matched pattern, such as `/runs/{id}`, so the number of labels is bounded.
fn record(route: Option<&str>, method: &str, status: u16, elapsed: Duration) {
    let route = route.unwrap_or("other").to_owned();
    let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
    let status = status.to_string();
    counter!(
        "steprail_http_requests_total", "route" => route.clone(), "method" => method, "status" => status
    )
    .increment(1);
    histogram!("steprail_http_request_duration_seconds", "route" => route).record(elapsed);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::record;

    #[test]
    fn requests_are_counted_by_route() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            record(Some("/runs/{id}"), "GET", 200, Duration::from_millis(3));
            record(Some("/runs/{id}"), "GET", 200, Duration::from_millis(3));
            record(None, "BREW", 404, Duration::from_millis(1));
        });
        let text = handle.render();
        let mut lines: Vec<&str> = text.lines().filter(|line| line.contains("_total{")).collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        steprail_http_requests_total{route="/runs/{id}",method="GET",status="200"} 2
        steprail_http_requests_total{route="other",method="other",status="404"} 1
        "#);
    }
}
