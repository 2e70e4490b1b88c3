//! Maps errors of calls to failures of steps. Implements the table in `docs/mcp.md`.

use std::error::Error;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::{ErrorCode, ErrorData};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use steprail_engine::{Failure, FailureKind};

use super::transport::http::HttpFailure;
use super::transport::is_oversized;
use crate::redact;

/// Failure code of calls that need a login.
pub(super) const LOGIN_NEEDED: &str = "login_needed";

/// Delay before a busy server is retried if it sends no `Retry-After`.
const BUSY_DELAY: Duration = Duration::from_secs(5);

/// The failure for a request without a result.
pub(super) fn of(server: &str, error: ServiceError) -> Failure {
    match error {
        ServiceError::McpError(error) => of_json_rpc(server, &error),
        ServiceError::TransportSend(error) => of_transport(server, &*error.error),
        ServiceError::TransportClosed => lost(server, "the connection was closed"),
        ServiceError::Timeout { timeout } => {
            let message = format!(
                "{server} sent nothing for {} s; the outcome of the call is unknown",
                timeout.as_secs()
            );
            Failure::new(FailureKind::Timeout, message)
        }
        ServiceError::Cancelled { reason } => {
            let reason = reason.unwrap_or_else(|| "no reason given".to_owned());
            Failure::new(FailureKind::Cancelled, format!("{server} cancelled the call: {reason}"))
        }
        _ => lost(server, "its response is not a tool result"),
    }
}

fn of_json_rpc(server: &str, error: &ErrorData) -> Failure {
    if is_oversized(error) {
        let message = format!("{server} executed the call, but {}", error.message);
        return Failure::new(FailureKind::Limit, message).code("response_too_large");
    }
    let kind = match error.code {
        ErrorCode::INVALID_PARAMS | ErrorCode::INVALID_REQUEST | ErrorCode::PARSE_ERROR => {
            FailureKind::Validation
        }
        ErrorCode::METHOD_NOT_FOUND => FailureKind::NotFound,
        _ => FailureKind::ToolError,
    };
    let failure = Failure::new(kind, format!("{server} rejected the call: {}", redact::text(&error.message)));
    let failure = failure.code(&format!("mcp {}", error.code.0));
    // Internal errors, closed connections and timeouts inside the server may be temporary.
    if matches!(error.code.0, -32603 | -32001 | -32000) { failure.transient() } else { failure }
}

fn of_transport(server: &str, error: &(dyn Error + Send + Sync + 'static)) -> Failure {
    if let Some(failure) = error.downcast_ref::<HttpFailure>() {
        return of_http(server, failure);
    }
    match error.downcast_ref::<StreamableHttpError<HttpFailure>>() {
        Some(StreamableHttpError::Client(failure)) => of_http(server, failure),
        Some(StreamableHttpError::SessionExpired) => not_sent(server, "its session expired"),
        Some(StreamableHttpError::ReinitializationFailed(error)) => not_sent(server, &error.message),
        Some(_) => lost(server, "the connection was closed"),
        // A partially written message is not processed by the server.
        None if error.is::<std::io::Error>() => not_sent(server, "its process does not read its input"),
        None => lost(server, "the connection was closed"),
    }
}

fn of_http(server: &str, failure: &HttpFailure) -> Failure {
    match failure {
        HttpFailure::NotSent(reason) => not_sent(server, reason),
        HttpFailure::LoginNeeded(reason) => not_sent(server, reason).code(LOGIN_NEEDED),
        HttpFailure::Busy { status, retry_after } => {
            let failure = not_sent(server, &format!("it is busy (HTTP {status})"));
            failure.retry_after(retry_after.unwrap_or(BUSY_DELAY))
        }
        HttpFailure::Rejected { status, message } => rejected(server, *status, message),
        HttpFailure::Unknown(reason) => lost(server, reason),
    }
}

/// A 4xx status: the server did not execute the call.
fn rejected(server: &str, status: u16, message: &str) -> Failure {
    let kind = match status {
        400 | 422 => FailureKind::Validation,
        403 => FailureKind::Permission,
        413 => FailureKind::Limit,
        _ => FailureKind::ToolError,
    };
    let message = if message.is_empty() { String::new() } else { format!(": {message}") };
    let failure = Failure::new(kind, format!("{server} rejected the call with HTTP {status}{message}"));
    let failure = failure.code(&format!("http {status}"));
    if matches!(status, 408 | 425) { failure.transient() } else { failure }
}

/// A call that was not sent. The step waits for the server.
pub(super) fn not_sent(server: &str, reason: &str) -> Failure {
    Failure::new(FailureKind::Transport, format!("{server} is unavailable: {reason}")).transient()
}

/// A call that was sent and whose outcome is unknown.
pub(super) fn lost(server: &str, reason: &str) -> Failure {
    let message = format!("the outcome of the call to {server} is unknown: {reason}");
    Failure::new(FailureKind::Lost, message).transient()
}

#[cfg(test)]
mod tests {
    use rmcp::transport::DynamicTransportError;

    use super::*;

    fn http(failure: HttpFailure) -> ServiceError {
        let error: Box<dyn Error + Send + Sync> = Box::new(StreamableHttpError::Client(failure));
        ServiceError::TransportSend(DynamicTransportError::from_parts(
            "test",
            std::any::TypeId::of::<()>(),
            error,
        ))
    }

    fn rpc(code: i32) -> ServiceError {
        ServiceError::McpError(ErrorData::new(ErrorCode(code), "no", None))
    }

    #[test]
    fn maps_errors_to_failures() {
        let busy = |status| HttpFailure::Busy { status, retry_after: Some(Duration::from_secs(7)) };
        let rejected = |status| HttpFailure::Rejected { status, message: "why".to_owned() };
        let all = [
            ("connection refused", http(HttpFailure::NotSent("Connection refused".to_owned()))),
            ("HTTP 429", http(busy(429))),
            ("HTTP 503 with Retry-After", http(busy(503))),
            ("HTTP 401", http(HttpFailure::LoginNeeded("it requires a login (HTTP 401)".to_owned()))),
            ("HTTP 400", http(rejected(400))),
            ("HTTP 403", http(rejected(403))),
            ("HTTP 404", http(rejected(404))),
            ("HTTP 408", http(rejected(408))),
            ("HTTP 413", http(rejected(413))),
            ("HTTP 500, 502, 503, 504", http(HttpFailure::Unknown("it answered with HTTP 500".to_owned()))),
            ("connection lost", ServiceError::TransportClosed),
            ("idle timeout", ServiceError::Timeout { timeout: Duration::from_mins(1) }),
            ("JSON-RPC -32602", rpc(-32602)),
            ("JSON-RPC -32601", rpc(-32601)),
            ("JSON-RPC -32603", rpc(-32603)),
            ("JSON-RPC -32042", rpc(-32042)),
        ];
        let table: Vec<String> = all
            .into_iter()
            .map(|(what, error)| {
                let failure = of("crm", error);
                let class = if failure.transient { " transient" } else { "" };
                let code = failure.code.as_deref().map(|code| format!(" [{code}]")).unwrap_or_default();
                format!("{what}: {}{class}{code}: {}", failure.kind.name(), failure.message)
            })
            .collect();
        insta::assert_snapshot!(table.join("\n"));
    }
}
