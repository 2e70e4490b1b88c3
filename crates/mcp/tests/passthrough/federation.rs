//! Resources, prompts and changes of federated servers.

use std::sync::Arc;

use rmcp::ServiceError;
use rmcp::model::{
    GetPromptRequestParams, ReadResourceRequestParams, SubscribeRequestParams, SubscriptionFilter,
};
use serde_json::json;

use super::support::{Client, ERAS, LEGACY, MODERN, TestServer, call};
use super::upstream::UpstreamServer;

async fn read(client: &Client, uri: &str) -> Result<String, ServiceError> {
    let read = client.read_resource(ReadResourceRequestParams::new(uri)).await?;
    let read = serde_json::to_value(read).expect("JSON");
    Ok(read["contents"][0]["text"].as_str().unwrap_or_default().to_owned())
}

async fn prompt(client: &Client, name: &str) -> Result<String, ServiceError> {
    let got = client.get_prompt(GetPromptRequestParams::new(name)).await?;
    let got = serde_json::to_value(got).expect("JSON");
    Ok(got["messages"][0]["content"]["text"].as_str().unwrap_or_default().to_owned())
}

/// Two upstream servers with conflicting resources and prompts, some of which also conflict with Steprail's own.
async fn two_servers() -> TestServer {
    let mut a = UpstreamServer::new("a");
    a.prompts = vec!["hello", "author_workflow"];
    let mut b = UpstreamServer::new("b");
    let uris = ["test://one", "workflow://approvals", "a+test://one", "test://two"];
    b.resources = Arc::new(uris.map(str::to_owned).to_vec());
    TestServer::new(&[("a", a.serve().await), ("b", b.serve().await)], MODERN).await
}

#[tokio::test]
async fn conflicting_names_get_the_alias_of_their_server() {
    let server = two_servers().await;
    for era in ERAS {
        let (client, _messages) = server.client("ann", era).await;
        let resources = client.list_all_resources().await.expect("a list");
        let uris: Vec<&str> = resources.iter().map(|resource| &*resource.uri).collect();
        let foreign: Vec<&&str> = uris.iter().filter(|uri| !uri.starts_with("workflow:")).collect();
        assert_eq!(foreign, [&"test://one", &"b+test://one", &"b+a+test://one", &"test://two"]);
        assert_eq!(uris.iter().filter(|uri| **uri == "workflow://approvals").count(), 1, "ours");
        assert_eq!(read(&client, "test://one").await.expect("a text"), "test://one of a");
        assert_eq!(read(&client, "b+test://one").await.expect("a text"), "test://one of b");
        assert_eq!(read(&client, "test://two").await.expect("a text"), "test://two of b");
        assert_eq!(read(&client, "b://7").await.expect("a text"), "b://7 of b", "by its template");
        assert!(
            read(&client, "b+workflow://approvals").await.is_err(),
            "our own resources are not forwarded"
        );
        assert!(read(&client, "other://x").await.is_err(), "no server lists it");

        let prompts = client.list_all_prompts().await.expect("a list");
        let names: Vec<&str> = prompts.iter().map(|prompt| &*prompt.name).collect();
        assert_eq!(names, ["author_workflow", "explain_run", "hello", "a__author_workflow", "b__hello"]);
        assert_eq!(prompt(&client, "hello").await.expect("a prompt"), "hello of a");
        assert_eq!(prompt(&client, "b__hello").await.expect("a prompt"), "hello of b");
        assert_eq!(prompt(&client, "a__author_workflow").await.expect("a prompt"), "author_workflow of a");
    }
}

#[tokio::test]
async fn user_without_access_sees_nothing_of_a_server() {
    let server = two_servers().await;
    let (bob, _messages) = server.client("bob", LEGACY).await;
    let resources = bob.list_all_resources().await.expect("a list");
    assert!(resources.iter().all(|resource| resource.uri.starts_with("workflow:")), "{resources:?}");
    assert_eq!(bob.list_all_prompts().await.expect("a list").len(), 2);
    for uri in ["test://one", "a+test://one", "b+test://one", "b://7"] {
        assert!(read(&bob, uri).await.is_err(), "{uri}");
        #[expect(deprecated, reason = "older clients use it")]
        let subscribed = bob.subscribe(SubscribeRequestParams::new(uri)).await;
        assert!(subscribed.is_err(), "{uri}");
    }
    assert!(prompt(&bob, "hello").await.is_err());
}

#[tokio::test]
async fn long_list_is_truncated_and_paged() {
    let mut many = UpstreamServer::new("a");
    many.resources = Arc::new((0..100_000).map(|n| format!("test://{n}")).collect());
    let server = TestServer::new(&[("a", many.serve().await)], MODERN).await;
    let (client, _messages) = server.client("ann", MODERN).await;
    let first = client.list_resources(None).await.expect("a page");
    assert_eq!(first.resources.len(), steprail_mcp::limits::TOOLS_PAGE);
    let all = client.list_all_resources().await.expect("a list");
    let foreign = all.iter().filter(|resource| resource.uri.starts_with("test:")).count();
    assert_eq!(foreign, steprail_mcp::limits::FEDERATED);
}

#[tokio::test]
#[expect(deprecated, reason = "older clients use it")]
async fn relays_changes_to_a_client_with_a_session() {
    for behind in ERAS {
        let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], behind).await;
        let (client, mut messages) = server.client("ann", LEGACY).await;
        client.subscribe(SubscribeRequestParams::new("test://one")).await.expect("subscribed");
        let mut expected = vec![json!("prompts"), json!("resources"), json!("test://one"), json!("tools")];
        while !expected.is_empty() {
            // The subscription at the upstream server may not be active yet.
            client.call_tool(call("a__change")).await.expect("a result");
            while let Ok(Some(message)) = tokio::time::timeout(NOTIFICATION_TIMEOUT, messages.recv()).await {
                expected.retain(|expected| *expected != message);
            }
        }
    }
}

#[tokio::test]
async fn relays_changes_to_a_client_with_a_subscription() {
    for behind in ERAS {
        let server = TestServer::new(&[("a", UpstreamServer::new("a").serve().await)], behind).await;
        let (client, _messages) = server.client("ann", MODERN).await;
        let filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .prompts_list_changed()
            .resources_list_changed()
            .resource_subscription("test://one".to_owned())
            .build();
        let mut subscription = client.listen(filter).await.expect("a subscription");
        let mut expected =
            vec!["tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated"];
        while !expected.is_empty() {
            client.call_tool(call("a__change")).await.expect("a result");
            while let Ok(Ok(Some(notification))) =
                tokio::time::timeout(NOTIFICATION_TIMEOUT, subscription.next()).await
            {
                let method = serde_json::to_value(notification).expect("JSON")["method"].clone();
                expected.retain(|expected| method != format!("notifications/{expected}"));
            }
        }
    }
}

/// Time to wait for notifications before the change is repeated.
const NOTIFICATION_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(800);
