//! `steprail approvals`: lists open approvals, and issues codes for decisions over MCP.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use steprail_http::views::{Approval, DecisionCode, Page, Run};

use super::shared::decision::{answer, require_confirmation, select};
use super::shared::error::CliError;
use super::shared::presence::Deciding;
use super::shared::server_args::{RequestArgs, find_run};
use super::shared::values;
use super::terminal::prompt::print_approval;
use super::terminal::text::{format_age, sanitize};

/// List open approvals, oldest first
#[derive(Debug, Args)]
pub(super) struct Approvals {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show an approval, and print a single-use code with which your MCP client decides it
    Code(CodeArgs),
}

#[derive(Debug, Args)]
struct CodeArgs {
    /// Id of the run, or its last characters
    run: String,
    /// Path of the step that waits; optional if only one does
    step: Option<String>,
    /// The code denies instead of approving
    #[arg(long)]
    deny: bool,
    /// Reason, for the log
    #[arg(long)]
    reason: Option<String>,
    /// Answer to the input request of a tool, as a JSON map
    #[arg(long, value_name = "JSON", value_parser = values::json_map)]
    answer: Option<Map<String, Value>>,
    /// Do not prompt for confirmation
    #[arg(long)]
    yes: bool,
}

impl Approvals {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        match &self.action {
            Some(Action::Code(args)) => self.issue_code(args).await,
            None => self.list().await,
        }
    }

    async fn list(&self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        let page: Page<Approval> = client.get("/approvals").await?;
        let columns = ["RUN", "STEP", "TOOL", "STARTED BY", "PROMPT", "ASKED"];
        self.request.print_table(&page.items, &columns, row, "no open approvals")
    }

    async fn issue_code(&self, args: &CodeArgs) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let id = find_run(&client, &args.run).await?;
        let run: Run = client.get(&format!("/runs/{id}")).await?;
        let approval = select(&run, args.step.as_deref())?;
        print_approval(approval)?;
        if !args.yes {
            let question =
                if args.deny { "Issue a code that denies?" } else { "Issue a code that approves?" };
            require_confirmation(question)?;
        }
        let body = json!({
            "step": approval.step, "digest": approval.digest, "reason": args.reason,
            "answer": answer(approval, !args.deny, args.answer.as_ref()),
            "decision": if args.deny { "deny" } else { "approve" },
        });
        let path = format!("/runs/{}/codes", approval.run_id);
        let proof = Deciding { approval, path: &path, body: &body }.proof(&client).await?;
        let code: DecisionCode = client.post_with_proof(&path, &body, proof).await?;
        self.request.print(&code, |code| {
            format!("{}\nvalid once, until {}, for this decision only", code.code, code.expires_at)
        })
    }
}

fn row(open: &Approval) -> Vec<String> {
    let starter =
        if open.by_agent { format!("{} (agent)", open.created_by) } else { open.created_by.clone() };
    vec![
        open.run_id.to_string(),
        sanitize(&open.step),
        sanitize(open.tool.as_deref().unwrap_or("-")),
        sanitize(&starter),
        format!("\"{}\"", sanitize(&open.prompt)),
        format_age(&open.requested_at),
    ]
}
