//! An upstream MCP server for the gateway, over HTTP on loopback.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    InputRequest, InputRequests, InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, MetaObject, PaginatedRequestParams, Prompt, PromptMessage,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource, ResourceContents,
    ResourceTemplate, ResourceUpdatedNotificationParam, Role, ServerCapabilities, ServerConfig,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{Peer, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// The server.
#[derive(Clone)]
pub(crate) struct UpstreamServer {
    /// Part of every result, to identify the server.
    pub name: &'static str,
    /// The URIs of its resources.
    pub resources: Arc<Vec<String>>,
    /// The names of its prompts.
    pub prompts: Vec<&'static str>,
    changes: broadcast::Sender<()>,
}

const TOOLS: [&str; 6] = ["blocks", "fails", "rejects", "elicits", "huge", "change"];

impl UpstreamServer {
    pub(crate) fn new(name: &'static str) -> Self {
        let resources = Arc::new(vec!["test://one".to_owned()]);
        Self { name, resources, prompts: vec!["hello"], changes: broadcast::channel(16).0 }
    }

    /// Serves over HTTP and returns the URL.
    pub(crate) async fn serve(self) -> String {
        let sessions = Arc::new(LocalSessionManager::default());
        let config = StreamableHttpServerConfig::default();
        let service = StreamableHttpService::new(move || Ok(self.clone()), sessions, config);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = axum::Router::new().nest_service("/mcp", service);
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/mcp")
    }

    async fn elicit(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let form: ElicitRequestParams = serde_json::from_value(form()).expect("a form");
        let is_modern = context.protocol_version().is_some_and(|version| version.as_str() >= "2026-07-28");
        let response = if !is_modern {
            json!(context.peer.create_elicitation(form).await.expect("a response"))
        } else if let Some(responses) = &request.input_responses {
            assert_eq!(request.request_state.as_deref(), Some("its state"));
            responses["region"].clone()
        } else {
            let request = InputRequest::Elicitation(ElicitRequest::new(form));
            let requests = InputRequests::from([("region".to_owned(), request)]);
            return Ok(InputRequiredResult::new(Some(requests), Some("its state".to_owned())).into());
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(response["content"].to_string())]).into())
    }

    async fn change(&self, peer: &Peer<RoleServer>) {
        let _ = self.changes.send(());
        // Legacy notifications to the session.
        let _ = peer.notify_tool_list_changed().await;
        let _ = peer.notify_prompt_list_changed().await;
        let _ = peer.notify_resource_list_changed().await;
        let _ = peer.notify_resource_updated(ResourceUpdatedNotificationParam::new("test://one")).await;
    }
}

/// The elicitation of the tool `elicits`.
pub(crate) fn form() -> Value {
    json!({
        "mode": "form",
        "message": "Which region?",
        "requestedSchema": {
            "type": "object",
            "properties": { "region": { "type": "string", "enum": ["eu", "us"], "default": "eu" } },
            "required": ["region"],
        },
    })
}

/// The result of the tool `blocks`.
pub(crate) fn blocks() -> Value {
    json!({
        "content": [
            { "type": "text", "text": "{\"a\": 1}" },
            { "type": "text", "text": "two", "annotations": { "audience": ["user"] } },
            { "type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": { "example.com/n": 1 } },
        ],
        "structuredContent": { "a": [1, null] },
        "_meta": { "example.com/cost": 3 },
    })
}

impl ServerHandler for UpstreamServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .build();
        ServerConfig::new(capabilities)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({ "type": "object" }).as_object().cloned().expect("a map");
        let tools = TOOLS.map(|name| Tool::new(name, "A tool.", Arc::new(schema.clone())));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let result: CallToolResult = match &*request.name {
            "blocks" => serde_json::from_value(blocks()).expect("a result"),
            "fails" => {
                let mut result =
                    CallToolResult::error(vec![ContentBlock::text("a"), ContentBlock::text("b")]);
                result.meta = Some(MetaObject::from(json!({ "n": 1 }).as_object().cloned().expect("a map")));
                result
            }
            "rejects" => {
                let data = Some(json!({ "requiredCapabilities": { "sampling": {} } }));
                return Err(ErrorData::new(ErrorCode(-32021), "not like this", data));
            }
            "huge" => CallToolResult::success(vec![ContentBlock::text("x".repeat(17 << 20))]),
            "change" => {
                self.change(&context.peer).await;
                CallToolResult::success(Vec::new())
            }
            _ => return self.elicit(request, context).await,
        };
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = self.resources.iter().map(|uri| Resource::new(uri, self.name)).collect();
        Ok(ListResourcesResult::with_all_items(resources))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = ResourceTemplate::new(format!("{}://{{id}}", self.name), self.name);
        Ok(ListResourceTemplatesResult::with_all_items(vec![template]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let text = format!("{} of {}", request.uri, self.name);
        Ok(ReadResourceResult::new(vec![ResourceContents::text(text, request.uri)]).into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = self.prompts.iter().map(|name| Prompt::new(*name, Some(self.name), None));
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let text = format!("{} of {}", request.name, self.name);
        Ok(GetPromptResult::new(vec![PromptMessage::new_text(Role::User, text)]).into())
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        let filter = context.accepted().clone();
        while changes.recv().await.is_ok() {
            let sink = context.sink();
            if filter.tools_list_changed == Some(true) {
                let _ = sink.notify_tool_list_changed().await;
                let _ = sink.notify_prompt_list_changed().await;
                let _ = sink.notify_resource_list_changed().await;
            }
            for uri in filter.resource_subscriptions.clone().unwrap_or_default() {
                let _ = sink.notify_resource_updated(uri).await;
            }
        }
        Ok(())
    }
}
