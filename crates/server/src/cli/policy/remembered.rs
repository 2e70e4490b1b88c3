//! `steprail policy remembered`: lists and revokes remembered approvals.

use std::process::ExitCode;

use clap::Args;
use steprail_http::views::{Page, RememberedApproval};

use super::super::shared::error::CliError;
use super::super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// List or revoke approvals that also cover later calls
#[derive(Debug, Args)]
pub(super) struct Remembered {
    /// Revoke the approval with this id
    #[arg(long, value_name = "ID")]
    revoke: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

impl Remembered {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        if let Some(id) = &self.revoke {
            client.delete(&format!("/policy/remembered/{}", percent_encode(id))).await?;
            return self.request.confirm(&format!("revoked {id}"));
        }
        let items = client.get::<Page<RememberedApproval>>("/policy/remembered").await?.items;
        let columns = ["ID", "RULE", "USER", "TOOL", "SCOPE", "BY", "UNTIL"];
        self.request.print_table(&items, &columns, row, "no remembered approvals")
    }
}

fn row(approval: &RememberedApproval) -> Vec<String> {
    let RememberedApproval { id, rule, user, tool, scope, by, until } = approval.clone();
    vec![id, rule, user, tool, scope, by, until]
}
