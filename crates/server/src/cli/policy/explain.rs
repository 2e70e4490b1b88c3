//! `steprail policy explain`: explains the verdict about a call.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use steprail_http::views::Explanation;

use super::super::shared::error::CliError;
use super::super::shared::server_args::RequestArgs;
use super::super::shared::values;
use super::super::terminal::output;

/// Explain the verdict about a call, without making it
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// Full name of the tool
    tool: String,
    /// Arguments of the call, as a JSON map
    #[arg(long, value_name = "JSON", value_parser = values::json_map)]
    args: Option<Map<String, Value>>,
    /// The user that the call acts for [default: you]
    #[arg(long)]
    user: Option<String>,
    /// Assume that the user is in this group; can be repeated
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Assume that an agent starts the call
    #[arg(long)]
    agent: bool,
    /// Name of the MCP client
    #[arg(long)]
    client: Option<String>,
    /// Name of the workflow that makes the call [default: a direct call]
    #[arg(long)]
    workflow: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Explain {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let body = json!({
            "tool": self.tool,
            "args": self.args.unwrap_or_default(),
            "user": self.user,
            "groups": (!self.groups.is_empty()).then_some(&self.groups),
            "agent": self.agent,
            "client": self.client,
            "workflow": self.workflow,
        });
        let explanation: Explanation = client.post("/policy/explain", &body).await?;
        if self.request.json {
            output::json(&explanation)?;
            return Ok(ExitCode::SUCCESS);
        }
        for rule in &explanation.rules {
            let why = rule.mismatch.as_deref().unwrap_or("matches");
            output::line(&format!("  {}: {why}", rule.name))?;
        }
        output::line(&summary(&explanation))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn summary(explanation: &Explanation) -> String {
    let details = explanation.details.as_ref().map(|details| format!(": {details}")).unwrap_or_default();
    match (&explanation.rule, &explanation.version) {
        (Some(rule), Some(version)) => {
            format!("{} by `{rule}` of policy {version}{details}", explanation.verdict)
        }
        _ => format!("{}{details}", explanation.verdict),
    }
}
