//! `steprail definitions`: lists, shows, deletes and adopts stored definitions, and decides about proposals of agents.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use steprail_http::views::{Definition, Page, ProposalInfo, ShownProposal};

use super::shared::decision::require_confirmation;
use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::output;
use super::terminal::text::sanitize;
use crate::client::{Client, percent_encode};

/// List definitions, show one, delete or adopt one, or decide about proposals of agents
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Definitions {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show this definition, as JSON
    name: Option<String>,
    /// Delete the definition; runs in progress continue
    #[arg(long, requires = "name", conflicts_with = "proposal")]
    delete: bool,
    /// List the definitions of agents that wait for a person
    #[arg(long, conflicts_with = "name")]
    proposed: bool,
    /// Show the proposal for the definition, as a difference to its newest version
    #[arg(long, requires = "name")]
    proposal: bool,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Become the owner and author of a definition, so that its runs use your rights
    Adopt {
        /// Name of the definition
        name: String,
    },
    /// Accept the definition that an agent proposed; you become its owner and author
    Accept(Decide),
    /// Reject the definition that an agent proposed
    Reject(Decide),
}

#[derive(Debug, Args)]
struct Decide {
    /// Name of the definition
    name: String,
    /// Decide only if the proposal still has this digest
    #[arg(long)]
    digest: Option<String>,
    /// Do not prompt for confirmation
    #[arg(long)]
    yes: bool,
}

impl Definitions {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        match (&self.action, &self.name) {
            (Some(action), _) => self.act(&client, action).await,
            (None, Some(name)) => self.of_one(&client, name).await,
            (None, None) if self.proposed => {
                let page: Page<ProposalInfo> = client.get("/proposals").await?;
                let columns = ["NAME", "USER", "CLIENT", "PROPOSED AT"];
                self.request.print_table(&page.items, &columns, proposal_row, "no proposals")
            }
            (None, None) => {
                let page: Page<Definition> = client.get("/definitions?limit=1000").await?;
                let columns = ["NAME", "VERSION", "INPUTS", "TOOL", "DESCRIPTION"];
                let empty = "no definitions; store one with `steprail define FILE`";
                self.request.print_table(&page.items, &columns, row, empty)
            }
        }
    }

    async fn of_one(&self, client: &Client, name: &str) -> Result<ExitCode, CliError> {
        let path = format!("/definitions/{}", percent_encode(name));
        if self.delete {
            client.delete(&path).await?;
            return self.request.confirm(&format!("deleted {name}"));
        }
        if self.proposal {
            let shown: ShownProposal = client.get(&proposal_path(name)).await?;
            return self.request.print(&shown, |shown| format!("{}\ndigest {}", shown.diff, shown.digest));
        }
        let definition: Definition = client.get(&path).await?;
        output::line(&format!("{:#}", json!(definition)))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn act(&self, client: &Client, action: &Action) -> Result<ExitCode, CliError> {
        match action {
            Action::Adopt { name } => {
                let path = format!("/definitions/{}/adopt", percent_encode(name));
                let adopted: Definition = client.post(&path, &Value::Null).await?;
                self.request.print(&adopted, |adopted| {
                    format!("{} version {} belongs to {}", adopted.name, adopted.version, adopted.created_by)
                })
            }
            Action::Accept(decide) => self.decide(client, decide, true).await,
            Action::Reject(decide) => self.decide(client, decide, false).await,
        }
    }

    /// Shows the proposal and sends the decision about exactly that.
    async fn decide(&self, client: &Client, decide: &Decide, accept: bool) -> Result<ExitCode, CliError> {
        let shown: ShownProposal = client.get(&proposal_path(&decide.name)).await?;
        let mut err = anstream::stderr();
        let client_name = shown.proposal.via.as_deref().map(|via| format!(" ({})", sanitize(via)));
        let by = format!("{}{}", shown.proposal.created_by, client_name.unwrap_or_default());
        writeln!(err, "an agent of {by} proposes:\n{}", shown.diff)?;
        for (name, version) in &shown.workflows {
            writeln!(err, "runs {} version {version}", sanitize(name))?;
        }
        if !decide.yes {
            require_confirmation(if accept { "Accept?" } else { "Reject?" })?;
        }
        let body = json!({ "digest": decide.digest.as_ref().unwrap_or(&shown.digest) });
        let path = proposal_path(&decide.name);
        if !accept {
            let _: Value = client.post(&format!("{path}/reject"), &body).await?;
            return self.request.confirm(&format!("rejected the proposal for {}", decide.name));
        }
        let stored: Value = client.post(&format!("{path}/accept"), &body).await?;
        self.request.print(&stored, |stored| format!("{} version {}", decide.name, stored["version"]))
    }
}

fn proposal_path(name: &str) -> String {
    format!("/proposals/{}", percent_encode(name))
}

fn proposal_row(proposal: &ProposalInfo) -> Vec<String> {
    vec![
        proposal.name.clone(),
        proposal.created_by.clone(),
        proposal.via.clone().unwrap_or_default(),
        proposal.created_at.clone(),
    ]
}

fn row(definition: &Definition) -> Vec<String> {
    let published = if definition.published { "yes" } else { "" };
    vec![
        definition.name.clone(),
        definition.version.to_string(),
        definition.inputs.join(" "),
        published.to_owned(),
        definition.description.clone().unwrap_or_default(),
    ]
}
