//! Protocol eras: `initialize` (revisions up to 2025-11-25) and `server/discover` (2026-07-28). Probes servers for theirs.

use rmcp::model::{ClientCapabilities, ClientConfig, ProtocolVersion, RequestMetaObject};
use rmcp::service::ClientLifecycleMode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The request id of the probe. Requests of the connection never use it.
pub(super) const PROBE_ID: i64 = 1_999_999_999;

/// An era of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Sessions that begin with `initialize`.
    Legacy,
    /// Requests without sessions, from 2026-07-28 on.
    Modern,
}

impl Era {
    /// Name of the era in output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }

    /// The era of a server by its response to the probe: a result, or an error with the supported revisions. A response
    /// without a modern revision comes from a legacy server.
    pub(super) fn of_response(response: &Value) -> Self {
        let lists = ["/result/supportedVersions", "/error/data/supported"];
        let versions = lists.iter().find_map(|list| response.pointer(list)?.as_array());
        let modern = ProtocolVersion::V_2026_07_28.as_str();
        let speaks_modern = versions.is_some_and(|all| all.iter().any(|version| version == modern));
        if speaks_modern { Self::Modern } else { Self::Legacy }
    }

    /// The handshake of the era.
    pub(super) fn lifecycle(self) -> ClientLifecycleMode {
        match self {
            Self::Legacy => ClientLifecycleMode::Initialize,
            Self::Modern => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
        }
    }
}

/// The probe request.
pub(super) fn discover(client: &ClientConfig) -> Value {
    let (info, capabilities) = (client.client_info.clone(), ClientCapabilities::clone(&client.capabilities));
    let meta = RequestMetaObject::with_client_context(ProtocolVersion::V_2026_07_28, info, capabilities);
    json!({ "jsonrpc": "2.0", "id": PROBE_ID, "method": "server/discover", "params": { "_meta": meta } })
}

/// Whether a message is the response to the probe. An error without an id counts until the probe is answered.
pub(super) fn answers_probe(message: &Value, answered: bool) -> bool {
    if message.get("method").is_some() {
        return false;
    }
    match message.get("id") {
        Some(Value::Number(id)) => id.as_i64() == Some(PROBE_ID),
        Some(Value::String(id)) => id.parse() == Ok(PROBE_ID),
        Some(Value::Null) | None => !answered,
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_the_era_by_the_supported_revisions() {
        let modern =
            json!({ "id": PROBE_ID, "result": { "supportedVersions": ["2025-11-25", "2026-07-28"] } });
        assert_eq!(Era::of_response(&modern), Era::Modern);
        let error = json!({ "code": -32022, "message": "…", "data": { "supported": ["2026-07-28"] } });
        assert_eq!(Era::of_response(&json!({ "id": PROBE_ID, "error": error })), Era::Modern);
        for legacy in [
            json!({ "id": PROBE_ID, "result": {} }),
            json!({ "id": PROBE_ID, "result": { "supportedVersions": ["2025-11-25"] } }),
            json!({ "id": PROBE_ID, "error": { "code": -32601, "message": "Method not found" } }),
        ] {
            assert_eq!(Era::of_response(&legacy), Era::Legacy, "{legacy}");
        }
    }

    #[test]
    fn recognizes_responses_to_the_probe() {
        assert!(answers_probe(&json!({ "id": PROBE_ID, "result": {} }), false));
        assert!(answers_probe(&json!({ "id": PROBE_ID.to_string(), "error": {} }), true));
        assert!(answers_probe(&json!({ "id": null, "error": { "code": -32600 } }), false));
        assert!(answers_probe(&json!({}), false));
        assert!(!answers_probe(&json!({ "id": null, "error": {} }), true));
        assert!(!answers_probe(&json!({ "id": 0, "result": {} }), false));
        assert!(!answers_probe(&json!({ "method": "notifications/message", "params": {} }), false));
    }
}
