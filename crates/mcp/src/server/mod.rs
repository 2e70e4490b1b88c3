//! The MCP server: agents define, run and observe workflows.

mod content;
mod error;
mod expose;
mod federated;
mod findings;
mod gates;
mod http;
mod input_requests;
mod notifications;
mod output;
mod progress;
mod prompts;
mod published;
mod relayed;
mod request;
mod resources;
mod sessions;
mod snapshot;
mod subscriptions;
mod tasks;
mod tools;
mod values;
mod view;
mod waiting;

use std::sync::Arc;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams,
    CompleteResult, CustomNotification, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams,
    GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams, UpdateTaskParams,
};
#[expect(deprecated, reason = "log messages are relayed as long as servers send them")]
use rmcp::model::{SetLevelRequestMethod, SetLevelRequestParams};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use steprail_engine::{Engine, Principal, User};

pub use expose::Expose;
pub use http::{Hosts, Identify, router};
pub use tools::{ToolNames, offered};

use crate::Gateway;
use crate::limits::{LIST_TTL_MS, TOOLS_PAGE};
use federated::RequestStates;
use published::PublishedTools;
use request::ToolRequest;
use sessions::session_of;
use subscriptions::{ChangeReceivers, Subscriptions};

const INSTRUCTIONS: &str = "\
Durable workflows of tool calls. To write one: workflow_guide describes the language, workflow_tools finds the tools that \
steps can call, workflow_check reports problems, workflow_define stores it, workflow_start runs it. A run continues by \
itself, also when this conversation ends: workflow_status with wait_s=30 waits for a change, so never poll faster. A run \
that is `paused` waits for a human: only a human can decide, in their terminal or browser, not you. If a run \
failed, workflow_explain states the reason and what to do.";

/// Settings of a server.
#[derive(Clone, Default)]
pub struct Settings {
    /// Which names of tools are listed. Calls may use any of them.
    pub tool_names: ToolNames,
    /// Tools of the servers behind the gateway that are offered to clients.
    pub expose: Vec<Expose>,
    /// Servers behind the gateway whose resources, prompts and completions are offered.
    pub federate: Vec<String>,
    /// Whether approvals are requested from the users of clients. Their answers count as decisions in person.
    pub ask_clients: bool,
}

/// The MCP server, for one user or for many. Clones share their state.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
    /// The user of a transport without authentication; `None` if each request identifies its user.
    user: Option<Principal>,
    subscriptions: Subscriptions,
}

struct Shared {
    engine: Engine,
    gateway: Option<Gateway>,
    settings: Settings,
    published: PublishedTools,
    request_states: RequestStates,
}

impl Server {
    /// Creates a server for an engine. `gateway` is the one that makes the calls of the engine.
    pub fn new(engine: Engine, gateway: Option<Gateway>, settings: Settings) -> Self {
        let (published, request_states) = (PublishedTools::default(), RequestStates::default());
        let shared = Shared { engine, gateway, settings, published, request_states };
        Self { shared: Arc::new(shared), user: None, subscriptions: Subscriptions::default() }
    }

    /// The same server for a client of one user.
    #[must_use]
    pub fn for_user(&self, user: Principal) -> Self {
        Self { user: Some(user), ..self.for_client() }
    }

    /// The same server for another client.
    fn for_client(&self) -> Self {
        Self { shared: self.shared.clone(), user: self.user.clone(), subscriptions: Subscriptions::default() }
    }

    /// Serves one client over a pair of streams until it disconnects.
    pub async fn serve<R, W>(self, read: R, write: W) -> Result<(), String>
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        // The future holds the first request, which makes it large.
        let served = Box::pin(rmcp::serve_server(self, (read, write))).await;
        let running = match served {
            Ok(running) => running,
            // The client disconnected before its first request.
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        running.waiting().await.map(drop).map_err(|error| error.to_string())
    }

    /// The engine with the rights of the user who sent a request.
    fn user(&self, extensions: &rmcp::model::Extensions) -> Result<User, ErrorData> {
        let parts = extensions.get::<::http::request::Parts>();
        let of_request = parts.and_then(|parts| parts.extensions.get::<Principal>());
        match of_request.or(self.user.as_ref()) {
            Some(principal) => Ok(self.shared.engine.as_user(principal.clone())),
            None => Err(ErrorData::invalid_request("the request is not authenticated", None)),
        }
    }
}

/// Whether a request uses a revision of the protocol without sessions.
fn is_sessionless(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= rmcp::model::ProtocolVersion::V_2026_07_28.as_str())
}

/// One page of a list, and the cursor of the next page: the key of its first item.
fn page<T>(
    items: Vec<T>,
    request: Option<PaginatedRequestParams>,
    key: impl Fn(&T) -> &str,
) -> Result<(Vec<T>, Option<String>), ErrorData> {
    let from = match request.and_then(|request| request.cursor) {
        None => 0,
        Some(cursor) => {
            let invalid = || ErrorData::invalid_params("invalid cursor; list again without one", None);
            items.iter().position(|item| key(item) == cursor).ok_or_else(invalid)?
        }
    };
    let next = items.get(from + TOOLS_PAGE).map(|item| key(item).to_owned());
    Ok((items.into_iter().skip(from).take(TOOLS_PAGE).collect(), next))
}

/// The result of a list request: one page, cached by one user for a short time.
macro_rules! list_result {
    ($result:ident, $items:expr, $request:expr, $key:expr) => {{
        let (items, next) = page($items, $request, $key)?;
        let mut result = $result::with_all_items(items);
        result.next_cursor = next;
        (result.ttl_ms, result.cache_scope) = (Some(LIST_TTL_MS), Some(CacheScope::Private));
        Ok(result)
    }};
}

/// The trace that a request belongs to: from its `_meta`, otherwise from its HTTP header.
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
        // Only the lists of federated servers change.
        let federates = (!self.shared.settings.federate.is_empty()).then_some(true);
        if let Some(resources) = &mut capabilities.resources {
            resources.list_changed = federates;
        }
        if let Some(prompts) = &mut capabilities.prompts {
            prompts.list_changed = federates;
        }
        // Only exposed tools send log messages.
        capabilities.logging = (!self.shared.settings.expose.is_empty()).then(Default::default);
        let implementation =
            Implementation::new("steprail", env!("CARGO_PKG_VERSION")).with_title("Steprail");
        ServerConfig::new(capabilities).with_server_info(implementation).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let all = tools::list(&self.shared, &user).await?;
        list_result!(ListToolsResult, all, request, |tool| &tool.name)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::definition(&self.shared, name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let user = self.user(&context.extensions)?.traced(traceparent(&context));
        let (shared, subscriptions) = (self.shared.clone(), self.subscriptions.clone());
        tools::call(ToolRequest { shared, user, params: request, context, subscriptions }).await
    }

    #[expect(deprecated, reason = "log messages are relayed as long as servers send them")]
    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if self.shared.settings.expose.is_empty() {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        self.subscriptions.set_log_level(request.level);
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
        list_result!(ListResourcesResult, all, request, |resource| &resource.uri)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let user = self.user(&context.extensions)?;
        let mut all = resources::templates();
        all.extend(federated::templates(&self.shared, &user).await);
        list_result!(ListResourceTemplatesResult, all, request, |template| &template.uri_template)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let user = self.user(&context.extensions)?;
        if resources::is_own(&request.uri) {
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
        list_result!(ListPromptsResult, all, request, |prompt| &prompt.name)
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
        notifications::start_session(self, context);
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let user = self.user(&context.extensions)?;
        if resources::is_own(&request.uri) {
            resources::check(&user, &request.uri).await?;
        }
        self.subscriptions.add(self, &user, request.uri).await?;
        self.subscriptions.save(self, session_of(&context.extensions)).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscriptions.remove(&request.uri);
        self.subscriptions.save(self, session_of(&context.extensions)).await
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // Changes between the acknowledgement and `listen` must not be lost.
        self.subscriptions.prepare(ChangeReceivers::new(&self.shared));
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        notifications::listen(self, context).await
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        context: NotificationContext<RoleServer>,
    ) {
        gates::on_approve_response(self, notification, context).await;
    }
}
