//! What an agent finds out about the tools of other servers, before and after it uses them.

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use steprail_mcp::Gateway;

use super::support::{House, call, facts, verdict};

/// A server with thirty tools: `read_00` to `read_28`, which read, and `write`, which does not.
#[derive(Clone)]
struct Shop;

impl ServerHandler for Shop {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "order": { "type": "string", "title": "Order", "examples": ["o-1"] },
                "mode": { "enum": ["fast", "slow"] },
                "limit": { "type": "integer", "default": 5 },
            },
            "required": ["order", "mode"],
        });
        let schema = Arc::new(schema.as_object().cloned().expect("a map"));
        let reads = |n: usize| {
            let about = format!("Reads part {n} of an order. It is fast.");
            let tool = Tool::new(format!("read_{n:02}"), about, schema.clone());
            tool.annotate(ToolAnnotations::new().read_only(true))
        };
        let mut tools: Vec<Tool> = (0..29).map(reads).collect();
        let destroys = ToolAnnotations::new().destructive(true);
        tools.push(Tool::new("write", "Writes an invoice", schema.clone()).annotate(destroys));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let image = ContentBlock::image("aGVsbG8=", "image/png");
        Ok(CallToolResult::success(vec![ContentBlock::text("a picture"), image]).into())
    }
}

async fn house() -> (House, Gateway) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(Shop), sessions, StreamableHttpServerConfig::default());
    let app = axum::Router::new().nest_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let config = json!({ "mcpServers": { "shop": { "url": url }, "gone": { "command": "false" } } });
    let servers = steprail_mcp::config::Servers::read(&config.to_string()).expect("a config");
    let gateway = Gateway::new(servers, steprail_mcp::Options::default()).expect("a gateway");
    (House::over(&gateway), gateway)
}

#[tokio::test]
async fn tools_are_found_by_words_and_paged() {
    let (house, gateway) = house().await;
    let client = house.client("starter").await;
    let found = facts(&call(&client, "workflow_tools", json!({ "query": "writes invoice" })).await);
    let tool = &found["tools"][0];
    assert_eq!((&found["total"], &tool["name"]), (&json!(1), &json!("shop__write")), "{found}");
    assert_eq!(tool["example"], json!({ "mode": "fast", "order": "o-1" }));
    assert_eq!(tool["arguments"], "mode: \"fast\"|\"slow\", order: string, limit?: integer = 5");
    assert_eq!((&tool["destructive"], tool["input_schema"].get("$schema")), (&json!(true), None));
    assert_eq!(found["servers_down"][0]["name"], "gone");

    let mut names = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut search = json!({ "query": "order", "limit": 12 });
        if !cursor.is_null() {
            search["cursor"] = cursor.clone();
        }
        let page = call(&client, "workflow_tools", search).await;
        let page_facts = facts(&page);
        let tools = page_facts["tools"].as_array().cloned().expect("tools");
        assert!(tools.iter().all(|tool| tool.get("input_schema").is_none()), "many are shown in brief");
        assert_eq!(tools[0]["description"], format!("Reads part {} of an order", names.len()));
        names.extend(tools.iter().map(|tool| tool["name"].to_string()));
        cursor = page_facts["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
        let text = serde_json::to_string(&page.content).expect("JSON");
        assert!(text.contains(cursor.as_str().expect("text")), "the text has the cursor, too: {text}");
    }
    names.dedup();
    assert_eq!(names.len(), 29);
    let wrong = call(&client, "workflow_tools", json!({ "cursor": "nonsense" })).await;
    assert_eq!(verdict(&wrong), "bad_input");
    let elsewhere = call(&client, "workflow_tools", json!({ "server": "shopp" })).await;
    assert!(facts(&elsewhere)["error"]["hint"].to_string().contains("`shop`"), "{elsewhere:?}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_definition_that_does_not_compile_is_compared_with_the_tools_as_well() {
    let (house, gateway) = house().await;
    let client = house.client("starter").await;
    let spec = "name: draft\nsteps:\n  - { id: a, tool: shop__writ, timout: 3 }\n  - { id: b, tool: shop__write, args: { mode: fast } }\n";
    let checked = facts(&call(&client, "workflow_check", json!({ "spec_yaml": spec })).await);
    let codes = checked["problems"].as_array().expect("problems").iter().map(|problem| &problem["code"]);
    assert_eq!(codes.collect::<Vec<_>>(), ["SR003", "SR501", "SR502"], "{checked}");
    assert_eq!(checked["problems"][2]["step"], "b", "{checked}");
    let refused = facts(&call(&client, "workflow_define", json!({ "spec_yaml": spec })).await);
    assert_eq!(refused["error"]["problems"], checked["problems"], "{refused}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_user_finds_only_the_tools_that_they_may_call() {
    let (house, gateway) = house().await;
    let client = house.client("reader").await;
    let found = facts(&call(&client, "workflow_tools", json!({ "query": "write" })).await);
    assert_eq!(found["total"], 0, "{found}");
    let spec = "name: denied\nsteps: [{ id: w, tool: shop__write, args: { order: o-1, mode: fast } }]";
    let checked = facts(&call(&client, "workflow_check", json!({ "spec_yaml": spec })).await);
    assert_eq!((&checked["valid"], &checked["runnable"]), (&json!(true), &json!(false)), "{checked}");
    assert!(checked["problems"].to_string().contains("SR509"), "{checked}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn a_start_shows_warnings_and_binaries_as_blocks() {
    let (house, gateway) = house().await;
    let client = house.client("starter").await;
    call(&client, "workflow_tools", json!({})).await;
    let spec = "name: picture\nsteps: [{ id: draw, tool: shop__read_00, args: { order: o-1, mode: fast, size: 3 } }]";
    let ran = call(&client, "workflow_start", json!({ "spec_yaml": spec })).await;
    let told = facts(&ran);
    assert_eq!(
        (&told["status"], &told["warnings"][0]["code"]),
        (&json!("completed"), &json!("SR506")),
        "{told}"
    );
    let content = serde_json::to_value(&ran.content).expect("JSON");
    assert_eq!(content[1], json!({ "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" }));
    let text = content[0]["text"].as_str().expect("text");
    assert!(text.contains("SR506") && text.contains("content_block") && !text.contains("aGVsbG8="), "{text}");
    assert!(!told.to_string().contains("aGVsbG8="), "{told}");
    gateway.shutdown().await;
}
