//! `steprail user` and `steprail group`: who may do what.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use crate::client::escaped;
use steprail_http::accounts::{GroupRecord, Role, UserRecord};
use steprail_http::views::AccountEntry;
use steprail_http::views::Page;

/// What is granted, on the command line.
#[derive(Debug, Args)]
struct Grants {
    /// A role: admin, operator, author, approver, viewer
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Vec<Role>,
    /// Tools that may be called, as a pattern such as `git__*`
    #[arg(long, value_name = "PATTERN")]
    tool: Vec<String>,
}

fn role(text: &str) -> Result<Role, String> {
    let unknown = |_| "the roles are admin, operator, author, approver and viewer".to_owned();
    serde_json::from_value(text.into()).map_err(unknown)
}

/// List, add and remove users
#[derive(Debug, Args)]
pub(super) struct User {
    #[command(subcommand)]
    action: Option<UserAction>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum UserAction {
    /// List them
    List,
    /// Add a user, or change what is named of one
    Add {
        /// The user's id
        id: String,
        /// The user's name
        #[arg(long)]
        name: Option<String>,
        /// The user's mail address
        #[arg(long)]
        email: Option<String>,
        /// A group that the user is in
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        #[command(flatten)]
        grants: Grants,
        /// The user may do nothing at all for now
        #[arg(long)]
        disabled: bool,
        /// The user may come in again
        #[arg(long, conflicts_with = "disabled")]
        enabled: bool,
    },
    /// Remove a user, with the user's tokens
    Remove {
        /// The user's id
        id: String,
    },
}

impl User {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            let shown = match self.action {
                None | Some(UserAction::List) => {
                    client.get::<Page<AccountEntry<UserRecord>>>("/users").await?.items
                }
                Some(UserAction::Add { id, name, email, group, grants, disabled, enabled }) => {
                    let known = client.get::<Page<AccountEntry<UserRecord>>>("/users").await?.items;
                    let before =
                        known.into_iter().find(|user| user.id == id).map(|user| user.is).unwrap_or_default();
                    let (roles, groups) = (grants.role.into_iter().collect(), group.into_iter().collect());
                    let person = UserRecord {
                        name: name.unwrap_or(before.name),
                        email: email.unwrap_or(before.email),
                        groups: or(groups, before.groups, BTreeSet::is_empty),
                        roles: or(roles, before.roles, BTreeSet::is_empty),
                        tools: or(grants.tool, before.tools, Vec::is_empty),
                        disabled: disabled || (before.disabled && !enabled),
                    };
                    vec![client.put(&format!("/users/{}", escaped(&id)), &json!(person)).await?]
                }
                Some(UserAction::Remove { id }) => {
                    client.delete(&format!("/users/{}", escaped(&id))).await?;
                    return show_as::done(self.json, &format!("{id} is gone")).map(|()| ExitCode::SUCCESS);
                }
            };
            if self.json {
                show_as::json(&shown)?;
                return Ok(ExitCode::SUCCESS);
            }
            let row = |user: &AccountEntry<UserRecord>| {
                let groups = user.is.groups.iter().cloned().collect::<Vec<_>>().join(" ");
                let state = if user.is.disabled { "disabled" } else { "" };
                let (roles, tools) = (roles(&user.is.roles), user.is.tools.join(" "));
                vec![user.id.clone(), user.is.name.clone(), roles, groups, tools, state.to_owned()]
            };
            let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
            let nothing = "there are no users but the owner, who may do everything";
            show_as::table(&["USER", "NAME", "ROLES", "GROUPS", "TOOLS", ""], &rows, nothing)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// What is named, or what was there if nothing is.
fn or<T>(named: T, before: T, is_nothing: impl Fn(&T) -> bool) -> T {
    if is_nothing(&named) { before } else { named }
}

fn roles(roles: &BTreeSet<Role>) -> String {
    let word = |role: &Role| json!(role).as_str().unwrap_or_default().to_owned();
    roles.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// List, add and remove groups of users
#[derive(Debug, Args)]
pub(super) struct Group {
    #[command(subcommand)]
    action: Option<GroupAction>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Subcommand)]
enum GroupAction {
    /// List them
    List,
    /// Add a group, or change what is granted to it
    Add {
        /// The group's name
        id: String,
        #[command(flatten)]
        grants: Grants,
    },
    /// Remove a group; its users stay
    Remove {
        /// The group's name
        id: String,
    },
}

impl Group {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.reach().await?;
            let shown = match self.action {
                None | Some(GroupAction::List) => {
                    client.get::<Page<AccountEntry<GroupRecord>>>("/groups").await?.items
                }
                Some(GroupAction::Add { id, grants }) => {
                    let group = GroupRecord { roles: grants.role.into_iter().collect(), tools: grants.tool };
                    vec![client.put(&format!("/groups/{}", escaped(&id)), &json!(group)).await?]
                }
                Some(GroupAction::Remove { id }) => {
                    client.delete(&format!("/groups/{}", escaped(&id))).await?;
                    return show_as::done(self.json, &format!("{id} is gone")).map(|()| ExitCode::SUCCESS);
                }
            };
            if self.json {
                show_as::json(&shown)?;
                return Ok(ExitCode::SUCCESS);
            }
            let row = |group: &AccountEntry<GroupRecord>| {
                vec![group.id.clone(), roles(&group.is.roles), group.is.tools.join(" ")]
            };
            let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
            show_as::table(&["GROUP", "ROLES", "TOOLS"], &rows, "there are no groups")?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
