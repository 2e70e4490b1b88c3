//! `steprail user`: manages users.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::accounts::{Role, UserRecord};
use steprail_http::views::{AccountEntry, Page};

use super::shared::error::CliError;
use super::shared::grants::{GrantArgs, format_roles};
use super::shared::server_args::RequestArgs;
use crate::client::percent_encode;

/// List, add and remove users
#[derive(Debug, Args)]
pub(super) struct User {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List users
    List,
    /// Add a user, or change the given fields of one
    Add {
        /// Id of the user
        id: String,
        #[command(flatten)]
        fields: UserFields,
    },
    /// Remove a user and the user's tokens
    Remove {
        /// Id of the user
        id: String,
    },
}

#[derive(Debug, Args)]
struct UserFields {
    /// Name of the user
    #[arg(long)]
    name: Option<String>,
    /// Mail address of the user
    #[arg(long)]
    email: Option<String>,
    /// Group of the user
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
    #[command(flatten)]
    grants: GrantArgs,
    /// Disable the user
    #[arg(long)]
    disabled: bool,
    /// Enable the user again
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,
}

impl UserFields {
    /// Replaces the fields that are given.
    fn apply(self, before: UserRecord) -> UserRecord {
        let groups: BTreeSet<String> = self.group.into_iter().collect();
        let roles: BTreeSet<Role> = self.grants.role.into_iter().collect();
        let tools = self.grants.tool;
        UserRecord {
            name: self.name.unwrap_or(before.name),
            email: self.email.unwrap_or(before.email),
            groups: if groups.is_empty() { before.groups } else { groups },
            roles: if roles.is_empty() { before.roles } else { roles },
            tools: if tools.is_empty() { before.tools } else { tools },
            disabled: self.disabled || (before.disabled && !self.enabled),
        }
    }
}

impl User {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let path = |id: &str| format!("/users/{}", percent_encode(id));
        let users = match self.action {
            None | Some(Action::List) => client.get::<Page<AccountEntry<UserRecord>>>("/users").await?.items,
            Some(Action::Add { id, fields }) => {
                let users = client.get::<Page<AccountEntry<UserRecord>>>("/users").await?.items;
                let before = users.into_iter().find(|user| user.id == id).map(|user| user.is);
                let user = fields.apply(before.unwrap_or_default());
                vec![client.put(&path(&id), &json!(user)).await?]
            }
            Some(Action::Remove { id }) => {
                client.delete(&path(&id)).await?;
                return self.request.confirm(&format!("removed {id}"));
            }
        };
        let columns = ["USER", "NAME", "ROLES", "GROUPS", "TOOLS", ""];
        self.request.print_table(&users, &columns, row, "no users except the owner, who has all rights")
    }
}

fn row(user: &AccountEntry<UserRecord>) -> Vec<String> {
    let UserRecord { name, groups, roles, tools, disabled, .. } = &user.is;
    vec![
        user.id.clone(),
        name.clone(),
        format_roles(roles),
        groups.iter().cloned().collect::<Vec<_>>().join(" "),
        tools.join(" "),
        if *disabled { "disabled" } else { "" }.to_owned(),
    ]
}
