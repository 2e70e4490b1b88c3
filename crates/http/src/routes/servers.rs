//! MCP servers whose tools are called: their state, and restarting one.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::Right;
use steprail_mcp::{Gateway, ServerStatus};

use crate::api::{Api, get, post};
use crate::extract::{Caller, NameParam};
use crate::page::Page;
use crate::problem::Problem;
use crate::{App, timestamp};

const TAG: &str = "servers";

pub(super) fn routes(api: Api) -> Api {
    api.route(TAG, get("/api/v1/servers", "List servers").returns::<Page<Server>>(200, "By name."), list)
        .route(
            TAG,
            post("/api/v1/servers/{name}/restart", "Restart a server")
                .details("Calls in flight to it are lost.")
                .returns_empty(204, "The next call connects again."),
            restart,
        )
}

/// An MCP server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Server {
    /// Name of its config entry.
    pub name: String,
    /// The user of the connection, where each user has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `idle`, `starting`, `up`, `busy` or `down`.
    pub health: String,
    /// When that state began.
    pub since: String,
    /// Protocol era: `legacy` (`initialize`) or `modern` (`server/discover`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub era: Option<String>,
    /// Why the last connection attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds until the next connection attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_secs: Option<u64>,
    /// What an operator can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Last lines of its standard error; for operators only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// The login that it needs, and how to log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Names of its tools, as last listed.
    pub tools: Vec<String>,
    /// Problems with some of its tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Server {
    fn new(status: ServerStatus, for_operator: bool, login: Option<String>) -> Self {
        Self {
            next: status.next_action(),
            name: status.name,
            user: status.user,
            health: status.health.name().to_owned(),
            since: timestamp::format(status.since),
            era: status.era.map(|era| era.name().to_owned()),
            reason: status.error,
            retry_in_secs: status.retry_in.map(|left| left.as_secs()),
            // Standard error may contain anything, secrets included.
            stderr: if for_operator { status.stderr } else { Vec::new() },
            login,
            tools: status.tools.iter().map(|tool| tool.name.clone()).collect(),
            warnings: status.warnings,
        }
    }
}

async fn list(State(app): State<App>, Caller(user): Caller) -> Result<Json<Page<Server>>, Problem> {
    user.require(Right::Workflow).or_else(|error| user.require(Right::View).map_err(|_| error))?;
    let for_operator = user.may(Right::Administer);
    // Connections of other users are visible to operators only.
    let is_visible = |server: &ServerStatus| {
        for_operator || server.user.as_deref().is_none_or(|id| id == user.principal().id)
    };
    let view = |status: ServerStatus| {
        let login =
            app.logins.as_ref().and_then(|logins| logins.needed(&status.name, status.user.as_deref()));
        Server::new(status, for_operator, login.map(|login| login.to_string()))
    };
    let servers = app.gateway.as_ref().map(Gateway::status).unwrap_or_default();
    Ok(Json(Page::single(servers.into_iter().filter(is_visible).map(view).collect())))
}

async fn restart(
    State(app): State<App>,
    Caller(user): Caller,
    NameParam(name): NameParam,
) -> Result<StatusCode, Problem> {
    user.require(Right::Administer)?;
    let unknown = || Problem::not_found(format!("there is no server `{name}`"));
    let gateway = app.gateway.as_ref().ok_or_else(unknown)?;
    if !gateway.status().iter().any(|server| server.name == name) {
        return Err(unknown());
    }
    gateway.restart(&name).await;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use steprail_mcp::{Health, ServerStatus};

    use super::Server;

    #[test]
    fn stderr_is_visible_to_operators_only() {
        let down = || ServerStatus {
            name: "crm".to_owned(),
            user: None,
            health: Health::Down,
            since: 0,
            era: None,
            tools: Vec::new(),
            warnings: Vec::new(),
            error: Some("its process ended with exit code 1".to_owned()),
            retry_in: None,
            stderr: vec!["token=s3cret".to_owned()],
        };
        assert_eq!(Server::new(down(), true, None).stderr, ["token=s3cret"]);
        let json = serde_json::to_string(&Server::new(down(), false, None)).expect("JSON");
        assert!(!json.contains("s3cret") && json.contains("exit code 1"), "{json}");
    }
}
