//! Which server a command talks to, and which run it means.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use steprail_engine::RunId;

use super::exit;
use super::stop::Stop;
use super::waiting::quoted;
use crate::client::{self, Begin, Client, Refused};
use steprail_http::views::{Page, Run};

/// Characters at the end of a run's id that are enough to mean it.
const SHORT_ID: usize = 4;

/// Where the server is, on the command line.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Target {
    /// The data directory of the daemon; `$STEPRAIL_DATA`, or steprail in the user's data directory by default
    #[arg(long, value_name = "DIR", global = true)]
    pub data: Option<PathBuf>,
    /// A server elsewhere, such as `https://steprail.example`; `$STEPRAIL_SERVER`. Its token is `$STEPRAIL_TOKEN`
    #[arg(long, value_name = "URL", global = true, conflicts_with = "data")]
    pub server: Option<String>,
}

impl Target {
    /// Reaches the server to have something done: a daemon of this machine is started if there is none.
    pub(super) async fn reach(&self) -> Result<Client, Stop> {
        self.client(Begin::Always).await
    }

    /// Reaches the server to look at something: nothing is started where there is nothing to look at.
    pub(super) async fn look(&self) -> Result<Client, Stop> {
        self.client(Begin::IfUsed).await
    }

    /// The same for a command that is told, as a shell takes it.
    pub(super) fn arguments(&self) -> String {
        let data = self.data.as_ref().map(|data| format!(" --data {}", quoted(&data.display().to_string())));
        let server = self.server.as_ref().map(|server| format!(" --server {}", quoted(server)));
        data.or(server).unwrap_or_default()
    }

    async fn client(&self, begin: Begin) -> Result<Client, Stop> {
        let at = client::at(self.data.clone(), self.server.clone()).map_err(Stop::usage)?;
        Ok(Client::reach(at, begin).await?)
    }
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unreachable(message) => Self::Told {
                message,
                hint: Some(
                    "`steprail serve` runs a daemon; `steprail doctor` looks for what is wrong".to_owned(),
                ),
                code: exit::UNREACHABLE,
            },
            Refused::Problem(problem) => {
                let code = if problem.status >= 500 { exit::STORAGE } else { exit::CANNOT_READ };
                let mut message = String::from(problem.detail);
                for found in problem.problems.iter().map(finding) {
                    message.push_str(&format!("\n{found}"));
                }
                Self::Told { message, hint: problem.hint.map(Into::into), code }
            }
        }
    }
}

/// A problem of a definition as a server tells it, in a line.
pub(super) fn finding(found: &Value) -> String {
    let word = |key: &str| found[key].as_str().unwrap_or_default();
    let place = format!("{}:{}:{}", word("file"), found["line"], found["column"]);
    let hint = found["hint"].as_str().map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{}[{}] {place}: {}{hint}", word("severity"), word("code"), word("message"))
}

/// The run that a text means: its id, or enough of the end of it among the newest ones.
pub(super) async fn find_run(client: &Client, text: &str) -> Result<RunId, Stop> {
    if let Ok(run) = text.parse() {
        return Ok(run);
    }
    let is_end = text.len() >= SHORT_ID && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let newest: Page<Run> = if is_end {
        client.find("/runs", &json!({ "limit": 1000 })).await?
    } else {
        Page { items: Vec::new(), next: None }
    };
    let mut found = newest.items.iter().filter(|run| run.run_id.to_string().ends_with(text));
    match (found.next(), found.next()) {
        (Some(run), None) => Ok(run.run_id),
        (Some(_), Some(_)) => {
            Err(Stop::usage(format!("several runs end with `{text}`")).hint("give more of the id"))
        }
        (None, _) => {
            let hint =
                "give a run's id, or at least the last four characters of it; `steprail runs` lists them";
            Err(Stop::usage(format!("there is no run `{text}`")).hint(hint))
        }
    }
}
