//! Transports: stdio, streamable HTTP, and HTTP+SSE of revision 2024-11-05.

pub(super) mod http;
pub(super) mod lines;
pub(super) mod sse;
pub(super) mod stdio;

use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde_json::{Value, json};

/// Marks a JSON-RPC error that the transport created for a response above the size limit.
const OVERSIZED: &str = "dev.steprail/oversized";

/// The error that replaces a response above the size limit.
fn oversized(id: &RequestId, limit: usize) -> Value {
    let message = format!("the response exceeds {limit} bytes");
    json!({
        "jsonrpc": "2.0", "id": id,
        "error": { "code": ErrorCode::INTERNAL_ERROR.0, "message": message, "data": { OVERSIZED: limit } }
    })
}

/// Whether an error replaces a response above the size limit.
pub(super) fn is_oversized(error: &ErrorData) -> bool {
    error.data.as_ref().is_some_and(|data| data.get(OVERSIZED).is_some())
}
