//! Records of users and groups, and the rights that their roles grant.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Grants, Right};

/// The maximum length of an id.
const ID_CHARS: usize = 128;
/// The maximum number of characters of other texts.
const TEXT_CHARS: usize = 256;
/// The maximum number of tools or groups in one record.
const ENTRIES: usize = 100;

/// A named set of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Every right and every tool, user management included.
    Admin,
    /// Runs, views, decides and controls all runs, with every tool.
    Operator,
    /// Defines and runs workflows with the tools that are granted separately.
    Author,
    /// Publishes workflows to agents as tools.
    Publisher,
    /// Views all runs and decides at gates.
    Approver,
    /// Views all runs.
    Viewer,
}

impl Role {
    fn grant(self, grants: &mut Grants) {
        let rights: &[Right] = match self {
            Self::Admin => &Right::ALL,
            Self::Operator => {
                &[Right::Workflow, Right::Approve, Right::View, Right::Administer, Right::Publish]
            }
            Self::Author => &[Right::Workflow],
            Self::Publisher => &[Right::Publish],
            Self::Approver => &[Right::Approve, Right::View],
            Self::Viewer => &[Right::View],
        };
        grants.may.extend(rights);
        if matches!(self, Self::Admin | Self::Operator) {
            grants.tools.push("*".to_owned());
        }
    }
}

/// A user, as managers edit it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UserRecord {
    /// Display name.
    #[schemars(length(max = 256))]
    pub name: String,
    /// Email address.
    #[schemars(length(max = 256))]
    pub email: String,
    /// Groups whose roles and tools the user has, too.
    #[schemars(with = "Vec<String>", length(max = 100), inner(length(max = 256)))]
    pub groups: BTreeSet<String>,
    /// Roles of the user.
    #[schemars(with = "Vec<Role>")]
    pub roles: BTreeSet<Role>,
    /// Tools that the user may call, as patterns: `crm__read_*`, `git__*`, `*`.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    pub tools: Vec<String>,
    /// A disabled user has no rights and cannot authenticate.
    pub disabled: bool,
}

/// A group, as managers edit it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GroupRecord {
    /// Roles of all members.
    #[schemars(with = "Vec<Role>")]
    pub roles: BTreeSet<Role>,
    /// Tools that all members may call, as patterns.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    pub tools: Vec<String>,
}

impl UserRecord {
    pub(super) fn check(&self) -> Result<(), String> {
        check([&self.name, &self.email].into_iter().chain(&self.tools).chain(&self.groups))?;
        count(self.tools.len().max(self.groups.len()))
    }

    pub(super) fn grant(&self, grants: &mut Grants) {
        self.roles.iter().for_each(|role| role.grant(grants));
        grants.tools.extend(self.tools.iter().cloned());
    }
}

impl GroupRecord {
    pub(super) fn check(&self) -> Result<(), String> {
        check(self.tools.iter())?;
        count(self.tools.len())
    }

    pub(super) fn grant(&self, grants: &mut Grants) {
        self.roles.iter().for_each(|role| role.grant(grants));
        grants.tools.extend(self.tools.iter().cloned());
    }
}

fn check<'t>(mut texts: impl Iterator<Item = &'t String>) -> Result<(), String> {
    if texts.any(|text| text.chars().count() > TEXT_CHARS || text.contains(char::is_control)) {
        return Err(format!("a text has at most {TEXT_CHARS} characters and no control characters"));
    }
    Ok(())
}

fn count(entries: usize) -> Result<(), String> {
    if entries > ENTRIES {
        return Err(format!("a list has at most {ENTRIES} entries"));
    }
    Ok(())
}

/// Whether a text is a valid id of a user or group. Ids appear in URLs and in definitions.
pub(super) fn is_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
    (1..=ID_CHARS).contains(&text.len())
        && text.chars().all(plain)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}
