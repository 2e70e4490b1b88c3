//! Calls of exposed tools.

use rmcp::ServiceError;
use serde_json::{Value, json};

use super::downstream::{Downstream, blocks, form};
use super::support::{ERAS, House, MODERN, call};

#[tokio::test]
async fn a_result_comes_back_as_the_server_sent_it() {
    let url = Downstream::new("a").serve().await;
    for behind in ERAS {
        let house = House::new(&[("a", url.clone())], behind).await;
        for era in ERAS {
            let (client, _heard) = house.client("ann", era).await;
            let result = client.call_tool(call("a__blocks")).await.expect("a result");
            let mut given = serde_json::to_value(result).expect("JSON");
            given.as_object_mut().expect("a map").remove("resultType");
            assert_eq!(given, blocks(), "{behind} server, {era} client");
        }
    }
}

#[tokio::test]
async fn a_tool_error_keeps_its_content_and_meta() {
    let house = House::new(&[("a", Downstream::new("a").serve().await)], MODERN).await;
    let (client, _heard) = house.client("ann", MODERN).await;
    let result = client.call_tool(call("a__fails")).await.expect("a result");
    let given = serde_json::to_value(result).expect("JSON");
    assert_eq!(given["isError"], true);
    assert_eq!(given["content"], json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]));
    assert_eq!(given["_meta"], json!({ "n": 1 }));
}

#[tokio::test]
async fn a_protocol_error_keeps_its_code_message_and_data() {
    let house = House::new(&[("a", Downstream::new("a").serve().await)], MODERN).await;
    for era in ERAS {
        let (client, _heard) = house.client("ann", era).await;
        let Err(ServiceError::McpError(error)) = client.call_tool(call("a__refuses")).await else {
            panic!("an error of the protocol");
        };
        assert_eq!((error.code.0, &*error.message), (-32021, "not like this"));
        assert_eq!(error.data, Some(json!({ "requiredCapabilities": { "sampling": {} } })));
    }
}

#[tokio::test]
async fn a_question_reaches_the_client_as_the_tool_asks_it() {
    let url = Downstream::new("a").serve().await;
    for behind in ERAS {
        let house = House::new(&[("a", url.clone())], behind).await;
        for era in ERAS {
            let (client, mut heard) = house.client("ann", era).await;
            let result = client.call_tool(call("a__asks")).await.expect("a result");
            let place = format!("{behind} server, {era} client");
            assert_eq!(heard.recv().await, Some(form()), "{place}");
            let given = serde_json::to_value(result).expect("JSON");
            assert_eq!(given["content"][0]["text"], json!({ "region": "us" }).to_string(), "{place}");
        }
    }
}

#[tokio::test]
async fn the_state_of_a_question_is_for_one_user_and_one_tool() {
    let house = House::new(&[("a", Downstream::new("a").serve().await)], MODERN).await;
    let (ann, _heard) = house.client("ann", MODERN).await;
    let asked = ann.call_tool_once(call("a__asks")).await.expect("a question");
    let asked = serde_json::to_value(rmcp::model::ServerResult::from(asked)).expect("JSON");
    assert_eq!(asked["inputRequests"]["region"]["params"], form(), "the key of the tool");
    let state = asked["requestState"].as_str().expect("a state").to_owned();
    assert_ne!(state, "its state", "what the server wants back stays here");
    let again = |tool: &str, state: &str| {
        let mut again = call(tool);
        again.input_responses = Some([("region".to_owned(), json!({ "action": "accept" }))].into());
        again.request_state = Some(state.to_owned());
        again
    };
    let refused = |answer: Result<_, ServiceError>| match answer {
        Err(ServiceError::McpError(error)) => error.message.to_string(),
        _ => panic!("an error of the protocol"),
    };
    let forged = format!("{state}x");
    assert_eq!(refused(ann.call_tool_once(again("a__asks", &forged)).await), "invalid requestState");
    assert_eq!(refused(ann.call_tool_once(again("a__blocks", &state)).await), "invalid requestState");
    let (bob, _heard) = house.client("bob", MODERN).await;
    assert_eq!(refused(bob.call_tool_once(again("a__asks", &state)).await), "invalid requestState");
    ann.call_tool_once(again("a__asks", &state)).await.expect("the end");
}

#[tokio::test]
async fn a_result_above_the_limit_is_refused_and_the_next_call_works() {
    let house = House::new(&[("a", Downstream::new("a").serve().await)], MODERN).await;
    let (client, _heard) = house.client("ann", MODERN).await;
    let result = client.call_tool(call("a__huge")).await.expect("a result");
    assert_eq!(result.is_error, Some(true));
    let text = serde_json::to_value(&result).expect("JSON")["content"][0]["text"].to_string();
    assert!(text.len() < 1_000, "{}", text.len());
    client.call_tool(call("a__blocks")).await.expect("a result");
}

#[tokio::test]
async fn a_tool_that_a_user_may_not_call_is_neither_listed_nor_called() {
    let house = House::new(&[("a", Downstream::new("a").serve().await)], MODERN).await;
    let (bob, _heard) = house.client("bob", MODERN).await;
    let tools = bob.list_all_tools().await.expect("a list");
    let names: Vec<&str> = tools.iter().map(|tool| &*tool.name).filter(|name| name.contains("__")).collect();
    assert_eq!(names, ["a__blocks"]);
    let refused = bob.call_tool(call("a__fails")).await.expect("a result");
    assert_eq!(refused.is_error, Some(true));
    assert_ne!(refused.content, Vec::new());
    let given: Value = serde_json::to_value(refused).expect("JSON");
    assert!(given["content"][0]["text"].to_string().contains("a__fails"), "{given}");
}
