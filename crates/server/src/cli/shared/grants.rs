//! Arguments that grant roles and tools to users and groups.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::json;
use steprail_http::accounts::Role;

/// Roles and tools to grant.
#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// Role: admin, operator, author, publisher, approver, viewer
    #[arg(long, value_name = "ROLE", value_parser = parse_role)]
    pub role: Vec<Role>,
    /// Pattern of tools that may be called, such as `git__*`
    #[arg(long, value_name = "PATTERN")]
    pub tool: Vec<String>,
}

fn parse_role(text: &str) -> Result<Role, String> {
    let unknown = |_| "the roles are admin, operator, author, publisher, approver and viewer".to_owned();
    serde_json::from_value(text.into()).map_err(unknown)
}

pub(crate) fn format_roles(roles: &BTreeSet<Role>) -> String {
    let name = |role: &Role| json!(role).as_str().unwrap_or_default().to_owned();
    roles.iter().map(name).collect::<Vec<_>>().join(" ")
}
