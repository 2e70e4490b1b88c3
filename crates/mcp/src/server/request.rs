//! One `tools/call` request of a client.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{CallToolRequestParams, ClientCapabilities};
use rmcp::service::RequestContext;
use serde::de::DeserializeOwned;
use serde_json::Value;
use steprail_engine::User;

use super::error::ToolError;
use super::subscriptions::Subscriptions;
use super::{Shared, is_sessionless, tools};

/// A request to call a tool, with the user that it acts for.
pub(super) struct ToolRequest {
    pub shared: Arc<Shared>,
    pub user: User,
    pub params: CallToolRequestParams,
    pub context: RequestContext<RoleServer>,
    /// Notifications that the client receives.
    pub subscriptions: Subscriptions,
}

impl ToolRequest {
    /// Parses the arguments of the tool.
    pub(super) fn arguments<T: DeserializeOwned>(&self) -> Result<T, ToolError> {
        let arguments = self.params.arguments.clone().unwrap_or_default();
        serde_json::from_value(Value::Object(arguments)).map_err(|error| {
            let name = &self.params.name;
            let signature = tools::find(name).map(tools::ToolDef::signature).unwrap_or_default();
            ToolError::new("bad_input", error.to_string())
                .hint(format!("the arguments are {name}({signature})"))
        })
    }

    /// Whether the client speaks a revision of the protocol without sessions.
    pub(super) fn is_sessionless(&self) -> bool {
        is_sessionless(&self.context)
    }

    /// Whether the call may return a task. Clients with a session may declare tasks, but cannot read them.
    pub(super) fn supports_tasks(&self) -> bool {
        self.is_sessionless() && self.declares(ClientCapabilities::supports_tasks)
    }

    /// Whether the client can elicit input from its user.
    pub(super) fn supports_elicitation(&self) -> bool {
        self.declares(|client| client.elicitation.is_some())
    }

    /// Whether the client can answer any kind of input request.
    pub(super) fn supports_input_requests(&self) -> bool {
        self.declares(|client| {
            client.elicitation.is_some() || client.sampling.is_some() || client.roots.is_some()
        })
    }

    fn declares(&self, capability: impl FnOnce(&ClientCapabilities) -> bool) -> bool {
        self.context.client_capabilities().is_some_and(|client| capability(&client))
    }

    /// The user, with the client recorded as the way in which a run was started.
    pub(super) fn user_via_client(&self) -> User {
        let client = self.context.client_info();
        let name = client
            .map_or_else(|| "a client".to_owned(), |client| format!("{} {}", client.name, client.version));
        self.client_user().via(format!("mcp client {name}"))
    }

    /// The user, with the name of the client for rules of the policy.
    pub(super) fn client_user(&self) -> User {
        match self.context.client_info() {
            Some(client) => self.user.with_client(format!("{} {}", client.name, client.version)),
            None => self.user.clone(),
        }
    }
}
