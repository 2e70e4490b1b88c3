//! `steprail token`: secrets with which programs and people reach the server over HTTP.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use crate::client::escaped;
use steprail_http::views::Page;
use steprail_http::views::{CreatedToken, TokenInfo};

/// Make, list and revoke tokens
#[derive(Debug, Args)]
pub(super) struct Token {
    #[command(subcommand)]
    action: Action,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List them, without their texts
    List,
    /// Make one; its text is printed this once
    Create {
        /// What it is for
        name: String,
        /// Whose; yours by default
        #[arg(long)]
        user: Option<String>,
        /// For a person and not for an agent: it may decide at gates
        #[arg(long)]
        person: bool,
        /// Days that it is valid
        #[arg(long, default_value = "90")]
        days: u32,
        /// Only for this right: workflow, approve, view, administer, manage
        #[arg(long, value_name = "RIGHT")]
        may: Vec<String>,
        /// Only for tools of this pattern, such as `git__*`
        #[arg(long, value_name = "PATTERN")]
        tool: Vec<String>,
    },
    /// Revoke one: it counts for nothing from now on
    Revoke {
        /// Its id, as the list shows it
        id: String,
    },
}

impl Token {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            match self.action {
                Action::List => list(&client.get::<Page<TokenInfo>>("/tokens").await?.items, self.json)?,
                Action::Create { name, user, person, days, may, tool } => {
                    let may = (!may.is_empty()).then_some(may);
                    let tools = (!tool.is_empty()).then_some(tool);
                    let body = json!({
                        "name": name, "user": user, "agent": !person, "days": days, "may": may, "tools": tools,
                    });
                    made(&client.post("/tokens", &body).await?, self.json)?;
                }
                Action::Revoke { id } => {
                    client.delete(&format!("/tokens/{}", escaped(&id))).await?;
                    show_as::done(self.json, &format!("{id} is revoked"))?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn made(made: &CreatedToken, json: bool) -> Result<(), Stop> {
    if json {
        return show_as::json(made);
    }
    show_as::line(&made.token)?;
    let whose = if made.made.agent { "an agent of " } else { "" };
    writeln!(
        anstream::stderr(),
        "for {whose}{}, until {}; it is not shown again. Send it as `Authorization: Bearer …`",
        made.made.user,
        made.made.expires_at
    )?;
    Ok(())
}

fn list(tokens: &[TokenInfo], json: bool) -> Result<(), Stop> {
    if json {
        return show_as::json(&tokens);
    }
    let row = |token: &TokenInfo| {
        let scope =
            token.may.iter().flatten().map(ToString::to_string).chain(token.tools.iter().flatten().cloned());
        let scope: Vec<String> = scope.collect();
        let whose = if token.agent { "agent" } else { "person" };
        let scope = if scope.is_empty() { "everything".to_owned() } else { scope.join(" ") };
        vec![
            token.id.clone(),
            token.name.clone(),
            token.user.clone(),
            whose.to_owned(),
            scope,
            token.expires_at.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = tokens.iter().map(row).collect();
    show_as::table(&["ID", "NAME", "USER", "FOR", "MAY", "UNTIL"], &rows, "there are no tokens")
}
