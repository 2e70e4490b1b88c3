//! Tools of other servers: search, checks and results.

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

use super::support::{Fixture, call, fields, outcome};

/// A server with thirty tools: `read_00` to `read_28`, which are read-only, and `write`, which is destructive.
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
        let read_tool = |n: usize| {
            let description = format!("Reads part {n} of an order. It is fast.");
            let tool = Tool::new(format!("read_{n:02}"), description, schema.clone());
            tool.annotate(ToolAnnotations::new().read_only(true))
        };
        let mut tools: Vec<Tool> = (0..29).map(read_tool).collect();
        let destructive = ToolAnnotations::new().destructive(true);
        tools.push(Tool::new("write", "Writes an invoice", schema.clone()).annotate(destructive));
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

async fn fixture() -> (Fixture, Gateway) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(Shop), sessions, StreamableHttpServerConfig::default());
    let app = axum::Router::new().nest_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let config = json!({ "mcpServers": { "shop": { "url": url }, "gone": { "command": "false" } } });
    let servers = steprail_mcp::config::Servers::read(&config.to_string()).expect("a config");
    let gateway = Gateway::new(servers, steprail_mcp::Options::default()).expect("a gateway");
    (Fixture::with_gateway(&gateway), gateway)
}

#[tokio::test]
async fn search_finds_tools_by_words_in_pages() {
    let (fixture, gateway) = fixture().await;
    let client = fixture.client("starter").await;
    let found = fields(&call(&client, "workflow_tools", json!({ "query": "writes invoice" })).await);
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
        let page_fields = fields(&page);
        let tools = page_fields["tools"].as_array().cloned().expect("tools");
        assert!(
            tools.iter().all(|tool| tool.get("input_schema").is_none()),
            "many matches are listed in brief"
        );
        assert_eq!(tools[0]["description"], format!("Reads part {} of an order", names.len()));
        names.extend(tools.iter().map(|tool| tool["name"].to_string()));
        cursor = page_fields["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
        let text = serde_json::to_string(&page.content).expect("JSON");
        assert!(text.contains(cursor.as_str().expect("text")), "the text contains the cursor: {text}");
    }
    names.dedup();
    assert_eq!(names.len(), 29);
    let wrong = call(&client, "workflow_tools", json!({ "cursor": "nonsense" })).await;
    assert_eq!(outcome(&wrong), "invalid_cursor");
    let elsewhere = call(&client, "workflow_tools", json!({ "server": "shopp" })).await;
    assert!(fields(&elsewhere)["error"]["hint"].to_string().contains("`shop`"), "{elsewhere:?}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn definition_with_errors_is_compared_with_the_tools() {
    let (fixture, gateway) = fixture().await;
    let client = fixture.client("starter").await;
    let spec = "name: draft\nsteps:\n  - { id: a, tool: shop__writ, timout: 3 }\n  - { id: b, tool: shop__write, args: { mode: fast } }\n";
    let checked = fields(&call(&client, "workflow_check", json!({ "spec_yaml": spec })).await);
    let codes = checked["problems"].as_array().expect("problems").iter().map(|problem| &problem["code"]);
    assert_eq!(codes.collect::<Vec<_>>(), ["SR003", "SR501", "SR502"], "{checked}");
    assert_eq!(checked["problems"][2]["step"], "b", "{checked}");
    let rejected = fields(&call(&client, "workflow_define", json!({ "spec_yaml": spec })).await);
    assert_eq!(rejected["error"]["problems"], checked["problems"], "{rejected}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn search_excludes_tools_that_the_user_may_not_call() {
    let (fixture, gateway) = fixture().await;
    let client = fixture.client("reader").await;
    let found = fields(&call(&client, "workflow_tools", json!({ "query": "write" })).await);
    assert_eq!(found["total"], 0, "{found}");
    let spec = "name: denied\nsteps: [{ id: w, tool: shop__write, args: { order: o-1, mode: fast } }]";
    let checked = fields(&call(&client, "workflow_check", json!({ "spec_yaml": spec })).await);
    assert_eq!((&checked["valid"], &checked["runnable"]), (&json!(true), &json!(false)), "{checked}");
    assert!(checked["problems"].to_string().contains("SR509"), "{checked}");
    gateway.shutdown().await;
}

#[tokio::test]
async fn start_returns_warnings_and_binaries_as_blocks() {
    let (fixture, gateway) = fixture().await;
    let client = fixture.client("starter").await;
    call(&client, "workflow_tools", json!({})).await;
    let spec = "name: picture\nsteps: [{ id: draw, tool: shop__read_00, args: { order: o-1, mode: fast, size: 3 } }]";
    let ran = call(&client, "workflow_start", json!({ "spec_yaml": spec })).await;
    let started = fields(&ran);
    assert_eq!(
        (&started["status"], &started["warnings"][0]["code"]),
        (&json!("completed"), &json!("SR506")),
        "{started}"
    );
    let content = serde_json::to_value(&ran.content).expect("JSON");
    assert_eq!(content[1], json!({ "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" }));
    let text = content[0]["text"].as_str().expect("text");
    assert!(text.contains("SR506") && text.contains("content_block") && !text.contains("aGVsbG8="), "{text}");
    assert!(!started.to_string().contains("aGVsbG8="), "{started}");
    gateway.shutdown().await;
}

/// Defines a published workflow of one step. Returns the hints of its tool: read-only, destructive, open world.
async fn hints(client: &super::support::Client, name: &str, step: &str) -> [Option<bool>; 3] {
    let spec = format!("name: {name}\npublish: true\nsteps: [{{ id: one, {step} }}]");
    let defined = call(client, "workflow_define", json!({ "spec_yaml": spec })).await;
    assert_eq!(outcome(&defined), "ok", "{defined:?}");
    loop {
        // The client caches the list until it receives `list_changed`.
        let tools = client.list_all_tools().await.expect("tools");
        if let Some(tool) = tools.iter().find(|tool| tool.name == format!("wf_{name}")) {
            let hints = tool.annotations.clone().expect("annotations");
            return [hints.read_only_hint, hints.destructive_hint, hints.open_world_hint];
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn hints_of_published_workflows_are_never_better_than_those_of_their_tools() {
    let (fixture, gateway) = fixture().await;
    gateway.connect().await;
    let client = fixture.client("admin").await;
    let reads = [Some(true), Some(false), Some(true)];
    let worst = [Some(false), Some(true), Some(true)];
    let args = "args: { order: o-1, mode: fast }";
    assert_eq!(hints(&client, "reads", &format!("tool: shop__read_00, {args}")).await, reads);
    let lie = format!("tool: shop__write, effects: read, {args}");
    assert_eq!(hints(&client, "lies", &lie).await, worst, "`effects` improves nothing");
    assert_eq!(hints(&client, "unknown", "tool: shop__none").await, worst);
    assert_eq!(hints(&client, "outer_reads", "kind: workflow, name: reads").await, reads);
    assert_eq!(hints(&client, "outer_lies", "kind: workflow, name: lies").await, worst);
    assert_eq!(hints(&client, "outermost", "kind: workflow, name: outer_lies").await, worst);
    assert_eq!(hints(&client, "dangling", "kind: workflow, name: none").await, worst);
    let verified = format!(
        "tool: shop__read_00, {args}, verify: {{ tool: shop__write, {args}, when: 'result == true' }}"
    );
    assert_eq!(hints(&client, "verified", &verified).await, worst, "`verify` calls a tool, too");
}
