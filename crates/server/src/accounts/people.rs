//! Users and groups: what is kept about each, and what they may do.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_engine::{Grants, Right};

/// Characters of an id.
const ID_CHARS: usize = 128;
/// Characters of any other text.
const TEXT_CHARS: usize = 256;
/// Tools or groups of one user or group.
const ENTRIES: usize = 100;

/// Rights under one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Everything, users and every tool included.
    Admin,
    /// Runs, sees, decides and stops everything, with every tool.
    Operator,
    /// Defines and runs workflows, with the tools that are granted beside it.
    Author,
    /// Sees everything and decides at gates.
    Approver,
    /// Sees everything.
    Viewer,
}

impl Role {
    fn grant(self, grants: &mut Grants) {
        let rights: &[Right] = match self {
            Self::Admin => &Right::ALL,
            Self::Operator => &[Right::Workflow, Right::Approve, Right::View, Right::Administer],
            Self::Author => &[Right::Workflow],
            Self::Approver => &[Right::Approve, Right::View],
            Self::Viewer => &[Right::View],
        };
        grants.may.extend(rights);
        if matches!(self, Self::Admin | Self::Operator) {
            grants.tools.push("*".to_owned());
        }
    }
}

/// A user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Person {
    /// The user's name, for people.
    #[schemars(length(max = 256))]
    pub name: String,
    /// The user's mail address.
    #[schemars(length(max = 256))]
    pub email: String,
    /// Groups whose grants are the user's, too.
    #[schemars(with = "Vec<String>", length(max = 100), inner(length(max = 256)))]
    pub groups: BTreeSet<String>,
    /// Roles.
    #[schemars(with = "Vec<Role>")]
    pub roles: BTreeSet<Role>,
    /// Tools that the user may call, as patterns: `crm__read_*`, `git__*`, `*`.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    pub tools: Vec<String>,
    /// Whether the user may do nothing at all for now.
    pub disabled: bool,
}

/// A group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Group {
    /// Roles of everybody in it.
    #[schemars(with = "Vec<Role>")]
    pub roles: BTreeSet<Role>,
    /// Tools that everybody in it may call, as patterns.
    #[schemars(length(max = 100), inner(length(max = 256)))]
    pub tools: Vec<String>,
}

impl Person {
    pub(super) fn check(&self) -> Result<(), String> {
        check([&self.name, &self.email].into_iter().chain(&self.tools).chain(&self.groups))?;
        count(self.tools.len().max(self.groups.len()))
    }

    pub(super) fn grant(&self, grants: &mut Grants) {
        self.roles.iter().for_each(|role| role.grant(grants));
        grants.tools.extend(self.tools.iter().cloned());
    }
}

impl Group {
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
        return Err(format!("a text has at most {TEXT_CHARS} characters, none of which control anything"));
    }
    Ok(())
}

fn count(entries: usize) -> Result<(), String> {
    if entries > ENTRIES {
        return Err(format!("a list has at most {ENTRIES} entries here"));
    }
    Ok(())
}

/// Whether something can be the id of a user or a group: it stands in addresses and in definitions.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._@+-".contains(c);
    (1..=ID_CHARS).contains(&text.len())
        && text.chars().all(plain)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}
