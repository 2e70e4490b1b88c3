//! `steprail group`: manages groups of users.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::accounts::GroupRecord;
use steprail_http::views::{AccountEntry, Page};

use super::shared::error::CliError;
use super::shared::grants::{GrantArgs, format_roles};
use super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// List, add and remove groups of users
#[derive(Debug, Args)]
pub(super) struct Group {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List groups
    List,
    /// Add a group, or replace its grants
    Add {
        /// Name of the group
        id: String,
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// Remove a group; its users remain
    Remove {
        /// Name of the group
        id: String,
    },
}

impl Group {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let path = |id: &str| format!("/groups/{}", percent_encode(id));
        let groups = match self.action {
            None | Some(Action::List) => {
                client.get::<Page<AccountEntry<GroupRecord>>>("/groups").await?.items
            }
            Some(Action::Add { id, grants }) => {
                let group = GroupRecord { roles: grants.role.into_iter().collect(), tools: grants.tool };
                vec![client.put(&path(&id), &json!(group)).await?]
            }
            Some(Action::Remove { id }) => {
                client.delete(&path(&id)).await?;
                return self.request.confirm(&format!("removed {id}"));
            }
        };
        self.request.print_table(&groups, &["GROUP", "ROLES", "TOOLS"], row, "no groups")
    }
}

fn row(group: &AccountEntry<GroupRecord>) -> Vec<String> {
    vec![group.id.clone(), format_roles(&group.is.roles), group.is.tools.join(" ")]
}
