//! Calls of exposed tools.

use rmcp::ServiceError;
use serde_json::{Value, json};

use super::support::{ERAS, MODERN, TestServer, call};
use super::upstream::{UpstreamServer, blocks, form};

#[tokio::test]
async fn relays_results_unchanged() {
    let url = UpstreamServer::new("a").serve().await;
    for behind in ERAS {
        let server = TestServer::new(&[("a", url.clone())], behind).await;
        for era in ERAS {
            let (client, _messages) = server.client("ann", era).await;
            let result = client.call_tool(call("a__blocks")).await.expect("a result");
            let mut json = serde_json::to_value(result).expect("JSON");
            json.as_object_mut().expect("a map").remove("resultType");
            assert_eq!(json, blocks(), "{behind} server, {era} client");
        }
    }
}

#[tokio::test]
async fn relays_tool_errors_with_content_and_meta() {
    let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], MODERN).await;
    let (client, _messages) = server.client("ann", MODERN).await;
    let result = client.call_tool(call("a__fails")).await.expect("a result");
    let json = serde_json::to_value(result).expect("JSON");
    assert_eq!(json["isError"], true);
    assert_eq!(json["content"], json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]));
    assert_eq!(json["_meta"], json!({ "n": 1 }));
}

#[tokio::test]
async fn relays_protocol_errors_with_code_message_and_data() {
    let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], MODERN).await;
    for era in ERAS {
        let (client, _messages) = server.client("ann", era).await;
        let Err(ServiceError::McpError(error)) = client.call_tool(call("a__rejects")).await else {
            panic!("an error of the protocol");
        };
        assert_eq!((error.code.0, &*error.message), (-32021, "not like this"));
        assert_eq!(error.data, Some(json!({ "requiredCapabilities": { "sampling": {} } })));
    }
}

#[tokio::test]
async fn relays_elicitations_unchanged() {
    let url = UpstreamServer::new("a").serve().await;
    for behind in ERAS {
        let server = TestServer::new(&[("a", url.clone())], behind).await;
        for era in ERAS {
            let (client, mut messages) = server.client("ann", era).await;
            let result = client.call_tool(call("a__elicits")).await.expect("a result");
            let eras = format!("{behind} server, {era} client");
            assert_eq!(messages.recv().await, Some(form()), "{eras}");
            let json = serde_json::to_value(result).expect("JSON");
            assert_eq!(json["content"][0]["text"], json!({ "region": "us" }).to_string(), "{eras}");
        }
    }
}

#[tokio::test]
async fn request_state_is_bound_to_user_and_tool() {
    let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], MODERN).await;
    let (ann, _messages) = server.client("ann", MODERN).await;
    let required = ann.call_tool_once(call("a__elicits")).await.expect("an input request");
    let required = serde_json::to_value(rmcp::model::ServerResult::from(required)).expect("JSON");
    assert_eq!(required["inputRequests"]["region"]["params"], form(), "the key of the tool");
    let state = required["requestState"].as_str().expect("a state").to_owned();
    assert_ne!(state, "its state", "the state of the upstream server is not sent to the client");
    let again = |tool: &str, state: &str| {
        let mut again = call(tool);
        again.input_responses = Some([("region".to_owned(), json!({ "action": "accept" }))].into());
        again.request_state = Some(state.to_owned());
        again
    };
    let rejected = |response: Result<_, ServiceError>| match response {
        Err(ServiceError::McpError(error)) => error.message.to_string(),
        _ => panic!("an error of the protocol"),
    };
    let forged = format!("{state}x");
    assert_eq!(rejected(ann.call_tool_once(again("a__elicits", &forged)).await), "invalid requestState");
    assert_eq!(rejected(ann.call_tool_once(again("a__blocks", &state)).await), "invalid requestState");
    let (bob, _messages) = server.client("bob", MODERN).await;
    assert_eq!(rejected(bob.call_tool_once(again("a__elicits", &state)).await), "invalid requestState");
    ann.call_tool_once(again("a__elicits", &state)).await.expect("a result");
}

#[tokio::test]
async fn oversized_result_fails_and_the_next_call_works() {
    let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], MODERN).await;
    let (client, _messages) = server.client("ann", MODERN).await;
    let result = client.call_tool(call("a__huge")).await.expect("a result");
    assert_eq!(result.is_error, Some(true));
    let text = serde_json::to_value(&result).expect("JSON")["content"][0]["text"].to_string();
    assert!(text.len() < 1_000, "{}", text.len());
    client.call_tool(call("a__blocks")).await.expect("a result");
}

#[tokio::test]
async fn denied_tool_is_neither_listed_nor_called() {
    let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], MODERN).await;
    let (bob, _messages) = server.client("bob", MODERN).await;
    let tools = bob.list_all_tools().await.expect("a list");
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).filter(|name| name.contains("__")).collect();
    assert_eq!(names, ["a__blocks"]);
    let denied = bob.call_tool(call("a__fails")).await.expect("a result");
    assert_eq!(denied.is_error, Some(true));
    assert_ne!(denied.content, Vec::new());
    let json: Value = serde_json::to_value(denied).expect("JSON");
    assert!(json["content"][0]["text"].to_string().contains("a__fails"), "{json}");
}
