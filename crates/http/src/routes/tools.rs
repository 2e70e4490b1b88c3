//! Tools that steps can call.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::App;
use crate::api::{Api, get};
use crate::extract::Caller;
use crate::page::Page;
use crate::problem::Problem;

pub(super) fn routes(api: Api) -> Api {
    let all =
        get("/api/v1/tools", "List tools").returns::<Page<Tool>>(200, "Tools that you may call, by name.");
    api.route("tools", all, list)
}

/// A tool that steps can call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Qualified name: `server__tool`.
    pub name: String,
    /// Description by its server.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
    /// Whether it changes nothing.
    pub read_only: bool,
    /// Whether it may destroy something.
    pub destructive: bool,
    /// Whether a repeated call has no further effect.
    pub idempotent: bool,
}

async fn list(State(app): State<App>, Caller(user): Caller) -> Result<Json<Page<Tool>>, Problem> {
    let mut items = Vec::new();
    for tool in (app.tools)() {
        if user.may_call(&tool.name).await {
            items.push(tool);
        }
    }
    items.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(Json(Page::single(items)))
}
