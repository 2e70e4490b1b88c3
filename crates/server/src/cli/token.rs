//! `steprail token`: manages API tokens.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::views::{CreatedToken, Page, TokenInfo};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// Create, list and revoke API tokens
#[derive(Debug, Args)]
pub(super) struct Token {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List tokens, without their values
    List,
    /// Create a token; its value is printed only once
    Create {
        /// Name of the token
        name: String,
        /// User to create it for [default: you]
        #[arg(long)]
        user: Option<String>,
        /// Create it for a person instead of an agent, so that it can decide at gates
        #[arg(long)]
        person: bool,
        /// Validity in days
        #[arg(long, default_value = "90")]
        days: u32,
        /// Restrict it to this right: workflow, approve, view, administer, manage
        #[arg(long, value_name = "RIGHT")]
        may: Vec<String>,
        /// Restrict it to tools that match this pattern, such as `git__*`
        #[arg(long, value_name = "PATTERN")]
        tool: Vec<String>,
    },
    /// Revoke a token
    Revoke {
        /// Id of the token, as listed
        id: String,
    },
}

impl Token {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        match self.action {
            Action::List => {
                let page: Page<TokenInfo> = client.get("/tokens").await?;
                let columns = ["ID", "NAME", "USER", "FOR", "SCOPE", "EXPIRES"];
                self.request.print_table(&page.items, &columns, row, "no tokens")
            }
            Action::Create { name, user, person, days, may, tool } => {
                let may = (!may.is_empty()).then_some(may);
                let tools = (!tool.is_empty()).then_some(tool);
                let body = json!({
                    "name": name, "user": user, "agent": !person, "days": days, "may": may, "tools": tools,
                });
                print_created(&client.post("/tokens", &body).await?, &self.request)
            }
            Action::Revoke { id } => {
                client.delete(&format!("/tokens/{}", percent_encode(&id))).await?;
                self.request.confirm(&format!("revoked {id}"))
            }
        }
    }
}

fn print_created(created: &CreatedToken, request: &RequestArgs) -> Result<ExitCode, CliError> {
    let code = request.print(created, |created| created.token.clone())?;
    if !request.json {
        let bearer = if created.made.agent { "an agent of " } else { "" };
        writeln!(
            anstream::stderr(),
            "for {bearer}{}, valid until {}; it is not shown again. Send it as `Authorization: Bearer …`",
            created.made.user,
            created.made.expires_at
        )?;
    }
    Ok(code)
}

fn row(token: &TokenInfo) -> Vec<String> {
    let rights = token.may.iter().flatten().map(ToString::to_string);
    let scope: Vec<String> = rights.chain(token.tools.iter().flatten().cloned()).collect();
    vec![
        token.id.clone(),
        token.name.clone(),
        token.user.clone(),
        if token.agent { "agent" } else { "person" }.to_owned(),
        if scope.is_empty() { "everything".to_owned() } else { scope.join(" ") },
        token.expires_at.clone(),
    ]
}
