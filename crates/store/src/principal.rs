//! Principals: the identity behind a request or a call.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::pattern;
use steprail_core::run::Provenance;

/// A user, or an agent that acts for a user, and the restrictions of the token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The user's id: `$user_id` in a definition.
    pub id: String,
    /// The user's name: `$user_name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The user's email address: `$user_email`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub email: String,
    /// Whether an agent acts for the user. An agent cannot decide at gates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    /// Patterns of the tools that the user was allowed to call when the run was started; `None` allows all. Later
    /// grants do not extend the tools of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// `allowed_tools` of the workflows that enclose the run, outermost first. Each of them restricts its calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<Vec<String>>,
    /// Other users who wrote the definition of the run and those of the workflows that enclose it. Calls need their current
    /// rights as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authors: Vec<String>,
    /// The client or tool that started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Name and version of the MCP client that the run was started through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// What the run is, unless it runs a stored definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The trace in which the run was started, as a `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The scope of the token, which restricts the rights of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
    /// Id of the API token that authenticated them; none for the terminal, a browser or an identity provider. Revoking the
    /// token ends the schedules and calls that depend on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Box<str>>,
    /// The relayed MCP request, for a run that consists of one relayed call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Box<Relay>>,
    /// The groups of the user. They can change, so a run does not store them.
    #[serde(skip)]
    pub groups: Vec<String>,
    /// How the user acts now: the surface, the token or session, and the presence factor. A run does not store it.
    #[serde(skip)]
    pub provenance: Provenance,
    /// Whether the token can only be used as an agent: a client cannot state that the user acts in person.
    #[serde(skip)]
    pub agent_only: bool,
    /// Whether this is the only user. They may then decide on runs that they started.
    #[serde(skip)]
    pub sole_user: bool,
}

impl Principal {
    /// A user with this id and no other attributes.
    pub fn user(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// The same principal with the name of the client or tool that it uses.
    #[must_use]
    pub fn via(mut self, what: impl Into<String>) -> Self {
        self.via = Some(what.into());
        self
    }

    /// The same user, represented by an agent.
    #[must_use]
    pub fn through_agent(mut self) -> Self {
        self.agent = true;
        self
    }

    /// Adds the author of a definition that the run executes, or that encloses it. The rights of the user apply anyway.
    pub fn add_author(&mut self, author: &str) {
        if author != self.id && !self.authors.iter().any(|known| known == author) {
            self.authors.push(author.to_owned());
        }
    }

    /// Adds `allowed_tools` of a workflow that encloses the run.
    pub fn add_within(&mut self, tools: impl IntoIterator<Item = String>) {
        let tools = tools.into_iter().collect();
        if !self.within.contains(&tools) {
            self.within.push(tools);
        }
    }

    /// Whether this is the id of the user or one of the user's groups.
    pub fn is_or_belongs_to(&self, name: &str) -> bool {
        self.id == name || self.groups.iter().any(|group| group == name)
    }
}

/// What a run is that does not run a stored definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A direct call of a tool.
    Direct,
    /// A definition that the caller brought along, whose name anybody can choose.
    Inline,
    /// The call of a tool that delivers a notification. It opens no approval and causes no notification.
    Notification,
}

/// A `tools/call` request that is relayed to its server unchanged. The arguments are the input of its run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// Identifies the connection of the client that waits for the result. It is valid during the request.
    pub id: String,
    /// The capabilities that the client declared, in the format of MCP.
    #[serde(default)]
    pub capabilities: Value,
    /// The client's responses to input requests of the tool, by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responses: Option<Value>,
    /// The `requestState` that the server expects with the responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The scope of a token: a subset of the rights and tools of its user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenScope {
    /// The rights; `None` means all rights of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may: Option<BTreeSet<Right>>,
    /// Patterns of the tools; `None` means all tools of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

impl TokenScope {
    /// Whether the scope includes a right.
    pub fn has(&self, right: Right) -> bool {
        self.may.as_ref().is_none_or(|may| may.contains(&right))
    }

    /// Whether the scope includes a tool.
    pub fn has_tool(&self, tool: &str) -> bool {
        let matches = |tools: &Vec<String>| tools.iter().any(|pattern| pattern::matches(pattern, tool));
        self.tools.as_ref().is_none_or(matches)
    }
}

impl TokenScope {
    /// The scope that a run must be within to be read with one of these rights; `None` if any run can be read. A scope that
    /// names the right covers runs with any rights, and still only runs with its tools.
    pub fn readable(&self, rights: &[Right]) -> Option<Self> {
        let names_right = |may: &BTreeSet<Right>| rights.iter().any(|right| may.contains(right));
        let may = self.may.clone().filter(|may| !names_right(may));
        let readable = Self { may, tools: self.tools.clone() };
        (readable != Self::default()).then_some(readable)
    }

    /// Whether everything that another scope allows is allowed by this one, too.
    pub fn contains(&self, other: &Self) -> bool {
        // A pattern that matches the text of another pattern matches every name that the other one matches: the `*` of the
        // other can only be matched by a `*`.
        let has_pattern = |patterns: &[String], other: &String| {
            patterns.iter().any(|pattern| pattern::matches(pattern, other))
        };
        let has_tools = match (&self.tools, &other.tools) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(outer), Some(inner)) => inner.iter().all(|pattern| has_pattern(outer, pattern)),
        };
        let has_rights = match (&self.may, &other.may) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(outer), Some(inner)) => inner.is_subset(outer),
        };
        has_tools && has_rights
    }
}

/// Rights of a user, apart from calling tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Define and run workflows.
    Workflow,
    /// Decide at gates, and resolve calls with unknown outcomes.
    Approve,
    /// See the runs of other users.
    View,
    /// Stop and resume the runs of other users, and change their definitions and schedules.
    Administer,
    /// Manage users, groups and the tokens of other users.
    Manage,
    /// Publish workflows to agents as tools.
    Publish,
}

impl Right {
    /// Every right.
    pub const ALL: [Self; 6] =
        [Self::Workflow, Self::Approve, Self::View, Self::Administer, Self::Manage, Self::Publish];

    /// The id of the right in external permission systems.
    pub fn key(self) -> u32 {
        match self {
            Self::Workflow => 130_001,
            Self::Approve => 130_002,
            Self::View => 130_003,
            Self::Administer => 130_004,
            Self::Manage => 130_005,
            Self::Publish => 130_006,
        }
    }

    /// A description of the right.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Workflow => "define and run workflows",
            Self::Approve => "decide at gates",
            Self::View => "see the runs of others",
            Self::Administer => "change the runs of others",
            Self::Manage => "manage users",
            Self::Publish => "publish workflows as tools",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}

#[cfg(test)]
mod tests {
    use super::{Right, TokenScope};

    fn scope(tools: Option<&[&str]>, may: Option<&[Right]>) -> TokenScope {
        let tools = tools.map(|tools| tools.iter().map(ToString::to_string).collect());
        TokenScope { tools, may: may.map(|may| may.iter().copied().collect()) }
    }

    #[test]
    fn scope_contains_narrower_scopes_only() {
        let crm = scope(Some(&["crm__*", "git__log"]), None);
        assert!(crm.contains(&crm));
        for narrower in [&["crm__read"][..], &["crm__read_*", "git__log"], &[]] {
            assert!(crm.contains(&scope(Some(narrower), None)), "{narrower:?}");
        }
        for wider in [Some(&["*"][..]), Some(&["git__*"]), Some(&["crm__read", "x"]), Some(&["crm*"]), None] {
            assert!(!crm.contains(&scope(wider, None)), "{wider:?}");
        }
        let reads = scope(None, Some(&[Right::Workflow, Right::View]));
        assert!(reads.contains(&scope(Some(&["x"]), Some(&[Right::View]))));
        assert!(!reads.contains(&scope(None, Some(&[Right::Approve]))));
        assert!(!reads.contains(&TokenScope::default()), "a scope without limits allows every right");
        assert!(TokenScope::default().contains(&crm));
    }
}
