//! The way in: workflows that agents define, run and watch over MCP.

mod answer;
mod content;
mod expose;
mod federated;
mod gates;
mod http;
mod news;
mod problems;
mod progress;
mod prompts;
mod published;
mod questions;
mod relayed;
mod resources;
mod sessions;
mod tasks;
mod tools;
mod values;
mod view;
mod waits;
mod watches;

use std::sync::Arc;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams,
    CompleteResult, CustomNotification, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams,
    GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams, UpdateTaskParams,
};
#[expect(deprecated, reason = "log messages are passed on as long as servers send them")]
use rmcp::model::{SetLevelRequestMethod, SetLevelRequestParams};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use steprail_engine::{Engine, Principal, User};

pub use expose::Expose;
pub use http::{Hosts, Identify, router};
pub use tools::{ToolNames, offered};

use crate::Gateway;
use crate::limits::{LIST_TTL_MS, TOOLS_PAGE};
use answer::Asked;
use federated::States;
use published::Published;
use sessions::session_of;
use watches::{Armed, Watches};

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
    /// Servers behind the gateway whose resources, prompts and completions are offered, too.
    pub federate: Vec<String>,
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
    /// What federated servers want back from clients.
    states: States,
}

impl Server {
    /// A server for an engine. The gateway is the one that the engine's calls go through.
    pub fn new(engine: Engine, gateway: Option<Gateway>, settings: Settings) -> Self {
        let (published, states) = (Published::default(), States::default());
        let shared = Shared { engine, gateway, settings, published, states };
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
        // In a box: it holds the first request, which may be any.
        let served = Box::pin(rmcp::serve_server(self, (read, write))).await;
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

/// Whether a request is of a revision without sessions.
fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= rmcp::model::ProtocolVersion::V_2026_07_28.as_str())
}

/// One page of a list, and the cursor of the next: the key of its first entry.
fn page<T>(
    items: Vec<T>,
    request: Option<PaginatedRequestParams>,
    key: impl Fn(&T) -> &str,
) -> Result<(Vec<T>, Option<String>), ErrorData> {
    let from = match request.and_then(|request| request.cursor) {
        None => 0,
        Some(cursor) => {
            let invalid = || ErrorData::invalid_params("invalid cursor", None);
            items.iter().position(|item| key(item) == cursor).ok_or_else(invalid)?
        }
    };
    let next = items.get(from + TOOLS_PAGE).map(|item| key(item).to_owned());
    Ok((items.into_iter().skip(from).take(TOOLS_PAGE).collect(), next))
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
        let mut capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_completions()
            .enable_tasks()
            .build();
        // Ours do not change; those of other servers may.
        let federates = (!self.shared.settings.federate.is_empty()).then_some(true);
        if let Some(resources) = &mut capabilities.resources {
            resources.list_changed = federates;
        }
        if let Some(prompts) = &mut capabilities.prompts {
            prompts.list_changed = federates;
        }
        // Log messages are those of exposed tools.
        capabilities.logging = (!self.shared.settings.expose.is_empty()).then(Default::default);
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
        tools::described(&self.shared, name)
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

    #[expect(deprecated, reason = "log messages are passed on as long as servers send them")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if self.shared.settings.expose.is_empty() {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        self.watches.set_level(request.level);
        Ok(())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let mut all = resources::list(&user).await?;
        all.extend(federated::resources(&self.shared, &user).await);
        let (items, next) = page(all, request, |resource| &resource.uri)?;
        let mut result = ListResourcesResult::with_all_items(items);
        result.next_cursor = next;
        (result.ttl_ms, result.cache_scope) = (Some(LIST_TTL_MS), Some(CacheScope::Private));
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let mut all = resources::templates();
        all.extend(federated::templates(&self.shared, &user).await);
        let (items, next) = page(all, request, |template| &template.uri_template)?;
        let mut result = ListResourceTemplatesResult::with_all_items(items);
        result.next_cursor = next;
        (result.ttl_ms, result.cache_scope) = (Some(LIST_TTL_MS), Some(CacheScope::Private));
        Ok(result)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let user = self.user(&context.extensions)?;
        if resources::is_ours(&request.uri) {
            return resources::read(&user, &request.uri).await.map(ReadResourceResponse::Complete);
        }
        federated::read(&self.shared, &user, &context, request).await
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let mut all = prompts::list();
        all.extend(federated::prompts(&self.shared, &user).await);
        let (items, next) = page(all, request, |prompt| &prompt.name)?;
        let mut result = ListPromptsResult::with_all_items(items);
        result.next_cursor = next;
        (result.ttl_ms, result.cache_scope) = (Some(LIST_TTL_MS), Some(CacheScope::Private));
        Ok(result)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let user = self.user(&context.extensions)?;
        if prompts::NAMES.contains(&&*request.name) {
            return prompts::get(&user, request).await.map(GetPromptResponse::Complete);
        }
        federated::prompt(&self.shared, &user, &context, request).await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        match federated::complete(&self.shared, &user, &context, request.clone()).await {
            Some(completed) => completed,
            None => resources::complete(&user, request).await,
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let client = context.client_capabilities();
        tasks::get(&self.shared, &self.user(&context.extensions)?, client.as_ref(), &request.task_id).await
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
        let user = self.user(&context.extensions)?;
        if resources::is_ours(&request.uri) {
            resources::check(&user, &request.uri).await?;
        }
        self.watches.add(self, &user, request.uri).await?;
        self.watches.save(self, session_of(&context.extensions)).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.watches.remove(&request.uri);
        self.watches.save(self, session_of(&context.extensions)).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        self.watches.arm(Armed::new(&self.shared));
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
