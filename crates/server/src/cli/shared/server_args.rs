//! Arguments of commands that send requests to a server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use steprail_engine::RunId;
use steprail_http::views::{Page, Run};

use super::error::CliError;
use super::help::{DATA_HELP, SERVER_HELP};
use crate::cli::terminal::output;
use crate::cli::terminal::text::shell_quote;
use crate::client::{Autostart, Client, ServerAddress};

/// Minimum length of an abbreviated run id.
const SHORT_ID: usize = 4;

/// Selects the server.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArgs {
    #[arg(long, value_name = "DIR", help = DATA_HELP, global = true)]
    pub data: Option<PathBuf>,
    #[arg(long, value_name = "URL", help = SERVER_HELP, global = true, conflicts_with = "data")]
    pub server: Option<String>,
}

impl ServerArgs {
    /// Connects to the server. Starts the daemon of the data directory if none is running.
    pub(crate) async fn connect(&self) -> Result<Client, CliError> {
        self.client(Autostart::Always).await
    }

    /// Connects in order to read. Starts a daemon only if the data directory has a database.
    pub(crate) async fn connect_to_read(&self) -> Result<Client, CliError> {
        self.client(Autostart::IfDatabaseExists).await
    }

    /// The same arguments, quoted for a shell, with a leading space.
    pub(crate) fn to_shell(&self) -> String {
        let data =
            self.data.as_ref().map(|data| format!(" --data {}", shell_quote(&data.display().to_string())));
        let server = self.server.as_ref().map(|server| format!(" --server {}", shell_quote(server)));
        data.or(server).unwrap_or_default()
    }

    async fn client(&self, autostart: Autostart) -> Result<Client, CliError> {
        let address =
            ServerAddress::resolve(self.data.clone(), self.server.clone()).map_err(CliError::new)?;
        Ok(Client::connect(address, autostart).await?)
    }
}

/// Arguments of commands that send a request and print the response.
#[derive(Debug, Args)]
pub(crate) struct RequestArgs {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

impl RequestArgs {
    /// Connects to the server. Starts the daemon of the data directory if none is running.
    pub(crate) async fn connect(&self) -> Result<Client, CliError> {
        self.server.connect().await
    }

    /// Connects in order to read. Starts a daemon only if the data directory has a database.
    pub(crate) async fn connect_to_read(&self) -> Result<Client, CliError> {
        self.server.connect_to_read().await
    }

    /// Prints a value as JSON, or as text.
    pub(crate) fn print<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, CliError> {
        if self.json {
            output::json(value)?;
        } else {
            output::line(&text(value))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints items as a JSON array, or as a table. `empty` replaces a table without rows.
    pub(crate) fn print_table<T: Serialize>(
        &self,
        items: &[T],
        columns: &[&str],
        row: impl Fn(&T) -> Vec<String>,
        empty: &str,
    ) -> Result<ExitCode, CliError> {
        if self.json {
            output::json(&items)?;
        } else {
            output::table(columns, items.iter().map(row), empty)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Confirms a change: prints the text, or `{}` as JSON.
    pub(crate) fn confirm(&self, text: &str) -> Result<ExitCode, CliError> {
        self.print(&json!({}), |_| text.to_owned())
    }
}

/// `find_run` for an optional argument.
pub(crate) async fn find_optional_run(
    client: &Client,
    text: Option<&str>,
) -> Result<Option<RunId>, CliError> {
    match text {
        Some(text) => find_run(client, text).await.map(Some),
        None => Ok(None),
    }
}

/// Resolves a run id, or its last characters among the 1,000 newest runs.
pub(crate) async fn find_run(client: &Client, text: &str) -> Result<RunId, CliError> {
    if let Ok(run) = text.parse() {
        return Ok(run);
    }
    let is_suffix = text.len() >= SHORT_ID && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let newest: Vec<Run> = if is_suffix {
        client.query::<Page<Run>>("/runs", &json!({ "limit": 1000 })).await?.items
    } else {
        Vec::new()
    };
    let mut matches = newest.iter().filter(|run| run.run_id.to_string().ends_with(text));
    match (matches.next(), matches.next()) {
        (Some(run), None) => Ok(run.run_id),
        (Some(_), Some(_)) => {
            Err(CliError::new(format!("several runs end with `{text}`"))
                .hint("use more characters of the id"))
        }
        (None, _) => {
            let hint =
                "use the id of a run, or at least its last four characters; `steprail runs` lists the runs";
            Err(CliError::new(format!("there is no run `{text}`")).hint(hint))
        }
    }
}
