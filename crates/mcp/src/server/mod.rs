//! The way in: workflows that agents define, run and watch over MCP.

mod answer;
mod content;
mod expose;
mod gates;
mod http;
mod news;
mod problems;
mod progress;
mod prompts;
mod published;
mod resources;
mod sessions;
mod tasks;
mod tools;
mod values;
mod view;
mod waits;

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CustomNotification, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult,
    Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
    UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use steprail_engine::{Engine, Principal, User};

pub use expose::Expose;
pub use http::{Hosts, Identify, router};
pub use tools::{ToolNames, offered};

use crate::Gateway;
use answer::Asked;
use news::Watches;
use published::Published;

const INSTRUCTIONS: &str = "\
Durable workflows of tool calls. To write one: workflow_guide teaches the language, workflow_tools finds the tools that \
steps can call, workflow_check reports problems, workflow_define stores it, workflow_start runs it. A run goes on by \
itself, also when this conversation ends: workflow_status with wait_s=30 waits for news, so never poll faster. A run that \
is `paused` waits for somebody: an approval is given by a human (in the terminal: steprail approve), not by you. If a run \
failed, workflow_explain says why and what to do.";

/// What a server is told.
#[derive(Clone, Default)]
pub struct Settings {
    /// Which names of tools are listed. All are always understood.
    pub tool_names: ToolNames,
    /// Tools of the servers behind the gateway that are offered as they are.
    pub expose: Vec<Expose>,
    /// Whether gates are put to the users of clients, whose answers then count as their own.
    pub ask_clients: bool,
}

/// Workflows over MCP, for one user or for many. A clone is another handle to the same one.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    /// Whom it serves, where the transport does not say: on a pipe.
    user: Option<Principal>,
    /// What this client wants to hear of.
    watches: Watches,
}

struct Shared {
    engine: Engine,
    gateway: Option<Gateway>,
    settings: Settings,
    published: Published,
}

impl Server {
    /// A server for an engine. The gateway is the one that the engine's calls go through.
    pub fn new(engine: Engine, gateway: Option<Gateway>, settings: Settings) -> Self {
        let shared = Shared { engine, gateway, settings, published: Published::default() };
        Self { shared: Arc::new(shared), user: None, watches: Watches::default() }
    }

    /// The same for one user, and for a client of its own.
    #[must_use]
    pub fn for_user(&self, user: Principal) -> Self {
        Self { user: Some(user), ..self.for_client() }
    }

    /// The same for another client.
    fn for_client(&self) -> Self {
        Self { shared: self.shared.clone(), user: self.user.clone(), watches: Watches::default() }
    }

    /// Serves one client over a pair of streams, until it goes away.
    pub async fn serve<R, W>(self, read: R, write: W) -> Result<(), String>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let served = rmcp::serve_server(self, (read, write)).await;
        let running = match served {
            Ok(running) => running,
            // A client that goes away before it has said anything is none.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        running.waiting().await.map(drop).map_err(|error| error.to_string())
    }

    /// The engine as whoever sent a request sees it.
    fn user(&self, extensions: &rmcp::model::Extensions) -> Result<User, ErrorData> {
        let parts = extensions.get::<::http::request::Parts>();
        let of_request = parts.and_then(|parts| parts.extensions.get::<Principal>());
        match of_request.or(self.user.as_ref()) {
            Some(principal) => Ok(self.shared.engine.as_user(principal.clone())),
            None => Err(ErrorData::invalid_request("nobody is signed in", None)),
        }
    }
}

/// The trace that a request belongs to: as MCP says it, or else as HTTP does.
fn traceparent(context: &RequestContext<RoleServer>) -> Option<&str> {
    let header = || {
        let parts = context.extensions.get::<::http::request::Parts>()?;
        parts.headers.get("traceparent")?.to_str().ok()
    };
    context.meta.get_traceparent().or_else(header)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_completions()
            .enable_tasks()
            .build();
        let ourselves = Implementation::new("steprail", env!("CARGO_PKG_VERSION")).with_title("Steprail");
        ServerConfig::new(capabilities).with_server_info(ourselves).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let cursor = request.and_then(|request| request.cursor);
        tools::list(&self.shared, &user, cursor.as_deref()).await
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(tools::Entry::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let user = self.user(&context.extensions)?.traced(traceparent(&context));
        let watches = self.watches.clone();
        tools::call(&self.shared, Asked { user, request, context, watches }).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.user(&context.extensions)?).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let user = self.user(&context.extensions)?;
        resources::read(&user, &request.uri).await.map(ReadResourceResponse::Complete)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(prompts::list())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let user = self.user(&context.extensions)?;
        prompts::get(&user, request).await.map(GetPromptResponse::Complete)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        resources::complete(&self.user(&context.extensions)?, request).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        tasks::get(&self.shared, &self.user(&context.extensions)?, &request.task_id).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::update(&self.shared, &self.user(&context.extensions)?, request).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(&self.user(&context.extensions)?, &request.task_id).await
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        news::follow(self, context);
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        resources::check(&self.user(&context.extensions)?, &request.uri).await?;
        self.watches.add(request.uri)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.watches.remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.watches.arm(self.shared.engine.definition_changes());
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        news::listen(self, context).await
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        context: NotificationContext<RoleServer>,
    ) {
        gates::answered(self, notification, context).await;
    }
}
