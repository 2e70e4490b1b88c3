//! `steprail secret`: manages the secrets that `servers.json` refers to.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::views::{Page, SecretInfo};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::hidden_input;
use crate::client::{Client, percent_encode};

/// Set, list and remove secrets of MCP servers
///
/// Secrets are stored encrypted in the data directory of the daemon. Their values are never printed.
#[derive(Debug, Args)]
pub(super) struct Secret {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Set a secret; prompts for the value, or reads it from standard input
    Set {
        /// Name in servers.json: `${user:NAME}`, or `${secret:NAME}` for a shared one
        name: String,
        #[command(flatten)]
        owner: Owner,
        /// Read the value from this environment variable
        #[arg(long, value_name = "VARIABLE")]
        from_env: Option<String>,
    },
    /// List the names of secrets, and when each was set
    List {
        #[command(flatten)]
        owner: Owner,
    },
    /// Remove a secret
    Remove {
        /// Name of the secret
        name: String,
        #[command(flatten)]
        owner: Owner,
    },
}

/// Selects the owner of secrets; the caller by default.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Owner {
    /// Use the secrets that all users share
    #[arg(long)]
    shared: bool,
    /// Use the secrets of another user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Owner {
    fn query(&self) -> String {
        match &self.user {
            Some(user) => format!("?user={}", percent_encode(user)),
            None if self.shared => "?shared=true".to_owned(),
            None => String::new(),
        }
    }
}

impl Secret {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        match self.action {
            Action::Set { name, owner, from_env } => {
                set(&client, &name, &owner, from_env.as_deref()).await?;
                self.request.confirm(&format!("{name} is set"))
            }
            Action::List { owner } => {
                let page: Page<SecretInfo> = client.get(&format!("/secrets{}", owner.query())).await?;
                self.request.print_table(&page.items, &["NAME", "USER", "SET"], row, "no secrets")
            }
            Action::Remove { name, owner } => {
                client.delete(&format!("/secrets/{}{}", percent_encode(&name), owner.query())).await?;
                self.request.confirm(&format!("{name} is removed"))
            }
        }
    }
}

async fn set(client: &Client, name: &str, owner: &Owner, from_env: Option<&str>) -> Result<(), CliError> {
    let value = match from_env {
        Some(variable) => std::env::var(variable)
            .map_err(|_| CliError::new(format!("the environment variable {variable} is not set")))?,
        None => read_value(name).await?,
    };
    if value.is_empty() {
        return Err(CliError::new("the value is empty; nothing was stored"));
    }
    let body = json!({ "value": value, "shared": owner.shared, "user": owner.user });
    let _: Option<()> = client.put(&format!("/secrets/{}", percent_encode(name)), &body).await?;
    Ok(())
}

/// Prompts without echo, or reads standard input without its last line end.
async fn read_value(name: &str) -> Result<String, CliError> {
    if std::io::stdin().is_terminal() {
        return hidden_input::read(&format!("{name}: ")).await;
    }
    let mut text = String::new();
    let limit = u64::try_from(steprail_mcp::limits::SECRET_BYTES + 2).unwrap_or(u64::MAX);
    let read = std::io::stdin().take(limit).read_to_string(&mut text);
    read.map_err(|error| CliError::new(format!("cannot read the value from standard input: {error}")))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn row(secret: &SecretInfo) -> Vec<String> {
    let user = secret.user.clone().unwrap_or_else(|| "all users".to_owned());
    vec![secret.name.clone(), user, secret.set_at.clone()]
}
