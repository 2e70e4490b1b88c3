//! Which era of the protocol a server speaks: with `initialize` (up to 2025-11-25), or with `server/discover`.

use rmcp::model::{ClientCapabilities, ClientConfig, ProtocolVersion, RequestMetaObject};
use rmcp::service::ClientLifecycleMode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The id of the probe: none that the connection gives to its own requests.
pub(super) const PROBE_ID: i64 = 1_999_999_999;

/// An era of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// Sessions that begin with `initialize`.
    Legacy,
    /// Requests that carry their context, from 2026-07-28 on.
    Modern,
}

impl Era {
    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }

    /// What an answer to the probe says: a result, or an error that names the supported revisions. Whatever does not list a
    /// modern revision is an answer of a legacy server.
    pub(super) fn of_answer(answer: &Value) -> Self {
        let lists = ["/result/supportedVersions", "/error/data/supported"];
        let versions = lists.iter().find_map(|list| answer.pointer(list)?.as_array());
        let modern = ProtocolVersion::V_2026_07_28.as_str();
        let speaks_modern = versions.is_some_and(|all| all.iter().any(|version| version == modern));
        if speaks_modern { Self::Modern } else { Self::Legacy }
    }

    /// How the SDK begins a connection.
    pub(super) fn lifecycle(self) -> ClientLifecycleMode {
        match self {
            Self::Legacy => ClientLifecycleMode::Initialize,
            Self::Modern => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
        }
    }
}

/// The probe.
pub(super) fn discover(client: &ClientConfig) -> Value {
    let (info, capabilities) = (client.client_info.clone(), ClientCapabilities::clone(&client.capabilities));
    let meta = RequestMetaObject::with_client_context(ProtocolVersion::V_2026_07_28, info, capabilities);
    json!({ "jsonrpc": "2.0", "id": PROBE_ID, "method": "server/discover", "params": { "_meta": meta } })
}

/// Whether a message answers the probe. An error without an id does, as long as nothing else has.
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
    fn only_a_list_with_a_modern_revision_is_modern() {
        let modern =
            json!({ "id": PROBE_ID, "result": { "supportedVersions": ["2025-11-25", "2026-07-28"] } });
        assert_eq!(Era::of_answer(&modern), Era::Modern);
        let refusal = json!({ "code": -32022, "message": "…", "data": { "supported": ["2026-07-28"] } });
        assert_eq!(Era::of_answer(&json!({ "id": PROBE_ID, "error": refusal })), Era::Modern);
        for legacy in [
            json!({ "id": PROBE_ID, "result": {} }),
            json!({ "id": PROBE_ID, "result": { "supportedVersions": ["2025-11-25"] } }),
            json!({ "id": PROBE_ID, "error": { "code": -32601, "message": "Method not found" } }),
        ] {
            assert_eq!(Era::of_answer(&legacy), Era::Legacy, "{legacy}");
        }
    }

    #[test]
    fn answers_to_the_probe_are_told_from_others() {
        assert!(answers_probe(&json!({ "id": PROBE_ID, "result": {} }), false));
        assert!(answers_probe(&json!({ "id": PROBE_ID.to_string(), "error": {} }), true));
        assert!(answers_probe(&json!({ "id": null, "error": { "code": -32600 } }), false));
        assert!(answers_probe(&json!({}), false));
        assert!(!answers_probe(&json!({ "id": null, "error": {} }), true));
        assert!(!answers_probe(&json!({ "id": 0, "result": {} }), false));
        assert!(!answers_probe(&json!({ "method": "notifications/message", "params": {} }), false));
    }
}
