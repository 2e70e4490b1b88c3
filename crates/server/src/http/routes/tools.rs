//! Tools that steps can call, and the servers that have them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use steprail_engine::Right;
use steprail_mcp::ServerStatus;

use crate::http::App;
use crate::http::api::{Api, get, post};
use crate::http::extract::{Asker, Named};
use crate::http::problem::Problem;
use crate::view::{Page, Server, Tool, time};

pub(super) fn routes(api: Api) -> Api {
    api.route(
        "tools",
        get("/api/v1/tools", "List tools").gives::<Page<Tool>>(200, "Those that you may call, by name."),
        tools,
    )
    .route("servers", get("/api/v1/servers", "List servers").gives::<Page<Server>>(200, "By name."), servers)
    .route(
        "servers",
        post("/api/v1/servers/{name}/restart", "Begin anew with a server")
            .more("Calls in flight to it are lost.")
            .gives_nothing(204, "The next call connects again."),
        restart,
    )
}

async fn tools(State(app): State<App>, Asker(user): Asker) -> Result<Json<Page<Tool>>, Problem> {
    let mut items = Vec::new();
    for tool in app.tools() {
        if user.may_call(&tool.name).await {
            items.push(tool);
        }
    }
    items.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Json(Page { items, next: None }))
}

async fn servers(State(app): State<App>, Asker(user): Asker) -> Result<Json<Page<Server>>, Problem> {
    user.require(Right::Workflow).or_else(|error| user.require(Right::View).map_err(|_| error))?;
    let status = match &app.gateway {
        Some(gateway) => gateway.status(),
        None => Vec::new(),
    };
    let operates = user.may(Right::Administer);
    // A connection of somebody else is not for everybody to see.
    let own =
        |server: &ServerStatus| operates || server.user.as_deref().is_none_or(|id| id == user.principal().id);
    let shown = |status: ServerStatus| {
        let needed =
            app.logins.as_ref().and_then(|logins| logins.needed(&status.name, status.user.as_deref()));
        Server { login: needed.map(|needed| needed.to_string()), ..shown(status, operates) }
    };
    Ok(Json(Page { items: status.into_iter().filter(own).map(shown).collect(), next: None }))
}

fn shown(status: ServerStatus, operates: bool) -> Server {
    Server {
        next: status.next_action(),
        name: status.name,
        user: status.user,
        health: status.health.word().to_owned(),
        since: time(status.since),
        era: status.era.map(|era| era.word().to_owned()),
        reason: status.error,
        retry_in_secs: status.retry_in.map(|left| left.as_secs()),
        // It may hold anything, secrets too.
        stderr: if operates { status.stderr } else { Vec::new() },
        login: None,
        tools: status.tools.iter().map(|tool| tool.name.clone()).collect(),
        warnings: status.warnings,
    }
}

async fn restart(
    State(app): State<App>,
    Asker(user): Asker,
    Named(name): Named,
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

    use super::shown;

    #[test]
    fn only_operators_see_what_a_server_wrote_to_its_standard_error() {
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
        assert_eq!(shown(down(), true).stderr, ["token=s3cret"]);
        let told = serde_json::to_string(&shown(down(), false)).expect("JSON");
        assert!(!told.contains("s3cret") && told.contains("exit code 1"), "{told}");
    }
}
