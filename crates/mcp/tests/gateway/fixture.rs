//! A server to test with: it answers, fails, is slow, talks too much or dies, as it is asked to.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

#[derive(Clone)]
struct Fixture;

fn schema(value: &Value) -> Arc<rmcp::model::JsonObject> {
    Arc::new(value.as_object().cloned().expect("a map"))
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let any = schema(&json!({ "type": "object" }));
        let text = schema(&json!({
            "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"]
        }));
        let mut tools: Vec<Tool> = ["fail", "die", "big", "meta", "nest", "wait"]
            .into_iter()
            .map(|name| Tool::new(name, "as it says", any.clone()))
            .collect();
        let reads = ToolAnnotations::new().read_only(true);
        tools.push(Tool::new("echo.text", "gives its text back", text).annotate(reads));
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = request.arguments.unwrap_or_default();
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        Ok(CallToolResponse::Complete(match &*request.name {
            "echo.text" => CallToolResult::structured(json!({ "said": args["text"] })),
            "fail" => CallToolResult::error(vec![ContentBlock::text("it did not work")]),
            "meta" => CallToolResult::structured(serde_json::to_value(&context.meta).expect("JSON")),
            "big" => text("x".repeat(40 * 1024 * 1024)),
            "nest" => {
                // Nobody waits for it: it is to be left behind.
                #[expect(clippy::zombie_processes, reason = "the point of the test")]
                let child = Command::new("sleep").arg("1000").spawn().expect("a grandchild");
                text(child.id().to_string())
            }
            "wait" => {
                context.ct.cancelled().await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                text("stopped".to_owned())
            }
            _ => std::process::exit(9),
        }))
    }
}

/// Serves over HTTP, and says where.
pub(crate) async fn serve_http() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(Fixture), sessions, StreamableHttpServerConfig::default());
    let router = axum::Router::new().nest_service("/mcp", service);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/mcp")
}

/// Serves until the other side goes away.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let served = Fixture.serve(rmcp::transport::stdio()).await;
        if let Ok(service) = served {
            let _ = service.waiting().await;
        }
    });
}
