//! `steprail secret`: secrets that `${user:NAME}` and `${secret:NAME}` in servers.json stand for.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{hidden_input, session, show_as};
use crate::client::{Client, escaped};
use steprail_http::views::Page;
use steprail_http::views::SecretInfo;

/// Set, list and remove secrets
///
/// They are stored encrypted in the data directory of the daemon. Their values are never shown.
#[derive(Debug, Args)]
pub(super) struct Secret {
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
    /// Set one; the value is asked for, or read from standard input
    Set {
        /// Its name: `${user:NAME}` stands for your own, `${secret:NAME}` for a shared one
        name: String,
        #[command(flatten)]
        whose: Whose,
        /// Take the value from this environment variable
        #[arg(long, value_name = "VARIABLE")]
        from_env: Option<String>,
    },
    /// List their names, and when each was set
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Remove one
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        whose: Whose,
    },
}

/// Whose secrets; your own by default.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Whose {
    /// Those that all users share
    #[arg(long)]
    shared: bool,
    /// Those of another user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Whose {
    /// As a query of an address.
    fn query(&self) -> String {
        match &self.user {
            Some(user) => format!("?user={}", escaped(user)),
            None if self.shared => "?shared=true".to_owned(),
            None => String::new(),
        }
    }
}

impl Secret {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            match self.action {
                Action::Set { name, whose, from_env } => {
                    set(&client, &name, &whose, from_env.as_deref()).await?;
                    show_as::done(self.json, &format!("{name} is set"))?;
                }
                Action::List { whose } => {
                    let page: Page<SecretInfo> = client.get(&format!("/secrets{}", whose.query())).await?;
                    list(&page.items, self.json)?;
                }
                Action::Remove { name, whose } => {
                    client.delete(&format!("/secrets/{}{}", escaped(&name), whose.query())).await?;
                    show_as::done(self.json, &format!("{name} is removed"))?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn set(client: &Client, name: &str, whose: &Whose, from_env: Option<&str>) -> Result<(), Stop> {
    let value = match from_env {
        Some(variable) => std::env::var(variable)
            .map_err(|_| Stop::usage(format!("the environment variable {variable} is not set")))?,
        None => value(name).await?,
    };
    if value.is_empty() {
        return Err(Stop::usage("the value is empty; nothing was stored"));
    }
    let body = json!({ "value": value, "shared": whose.shared, "user": whose.user });
    let _: Option<()> = client.put(&format!("/secrets/{}", escaped(name)), &body).await?;
    Ok(())
}

/// The value: typed at a terminal without echo, or all of standard input without its last line end.
async fn value(name: &str) -> Result<String, Stop> {
    if std::io::stdin().is_terminal() {
        return hidden_input::read(&format!("{name}: ")).await;
    }
    let mut text = String::new();
    let most = u64::try_from(steprail_mcp::limits::SECRET_BYTES + 2).unwrap_or(u64::MAX);
    let read = std::io::stdin().take(most).read_to_string(&mut text);
    read.map_err(|error| Stop::usage(format!("cannot read the value from standard input: {error}")))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

fn list(secrets: &[SecretInfo], json: bool) -> Result<(), Stop> {
    if json {
        return show_as::json(&secrets);
    }
    let whose = |secret: &SecretInfo| secret.user.clone().unwrap_or_else(|| "all users".to_owned());
    let row = |secret: &SecretInfo| vec![secret.name.clone(), whose(secret), secret.set_at.clone()];
    let rows: Vec<Vec<String>> = secrets.iter().map(row).collect();
    show_as::table(&["NAME", "OF", "SET"], &rows, "there are no secrets")
}
