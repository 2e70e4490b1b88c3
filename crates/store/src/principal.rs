//! Principals: a user, or an agent for a user, with the scope of the token.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::pattern;
use steprail_core::run::Provenance;

/// Somebody who acts: a user, or an agent for a user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// The user's id: `$user_id` in a definition.
    pub id: String,
    /// The user's name: `$user_name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The user's mail address: `$user_email`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub email: String,
    /// Whether an agent acts for the user. An agent never decides at gates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    /// The tools that the user could call when the run was started, as patterns; none means all. What the user
    /// may do later does not widen a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// What the run was started through: a client, a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// Name and version of the MCP client that the run was started through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// What the run is, unless it runs a stored definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The trace that the run was started in, as a `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// What they are held to beyond what the user may do: a token may be for some things only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
    /// The MCP request that a run of one call stands for; none for every other run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay: Option<Box<Relay>>,
    /// The groups that they are in. They change, so a run does not keep them.
    #[serde(skip)]
    pub groups: Vec<String>,
    /// How they act now: the surface, the token or session, and the presence factor. A run does not keep it.
    #[serde(skip)]
    pub provenance: Provenance,
    /// Whether it is an agent in any case: nothing that it says is its user's word.
    #[serde(skip)]
    pub agent_only: bool,
    /// Whether there is no other user, so that nobody else could decide what they started.
    #[serde(skip)]
    pub alone: bool,
}

impl Principal {
    /// A user with an id and nothing else.
    pub fn user(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// The same user, through a client or a tool that is named.
    #[must_use]
    pub fn via(mut self, what: impl Into<String>) -> Self {
        self.via = Some(what.into());
        self
    }

    /// The same user, through an agent.
    #[must_use]
    pub fn through_agent(mut self) -> Self {
        self.agent = true;
        self
    }

    /// Whether they are this user or in this group.
    pub fn goes_by(&self, name: &str) -> bool {
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
}

/// A `tools/call` request that is relayed to its server unchanged, beside its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relay {
    /// The id under which the client that waits for the result is reached; it ends with the request.
    pub id: String,
    /// The capabilities that the client declared, as the protocol has them.
    #[serde(default)]
    pub capabilities: Value,
    /// The answers of the client to what the tool asked, by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub responses: Option<Value>,
    /// The `requestState` that the server wants back with the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// What a token is for: some rights and some tools of its user's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenScope {
    /// The rights; none means all that the user has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may: Option<BTreeSet<Right>>,
    /// The tools, as patterns; none means all that the user may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

impl TokenScope {
    /// Whether it is for a right.
    pub fn has(&self, right: Right) -> bool {
        self.may.as_ref().is_none_or(|may| may.contains(&right))
    }

    /// Whether it is for a tool.
    pub fn has_tool(&self, tool: &str) -> bool {
        let matches = |tools: &Vec<String>| tools.iter().any(|pattern| pattern::matches(pattern, tool));
        self.tools.as_ref().is_none_or(matches)
    }
}

/// What a user may do beside calling tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Defines and runs workflows.
    Workflow,
    /// Decides at gates, and what becomes of calls with unknown outcomes.
    Approve,
    /// Sees the runs of others.
    View,
    /// Stops and resumes the runs of others, and changes their definitions and schedules.
    Administer,
    /// Manages users, groups and the tokens of others.
    Manage,
}

impl Right {
    /// Every right.
    pub const ALL: [Self; 5] = [Self::Workflow, Self::Approve, Self::View, Self::Administer, Self::Manage];

    /// The number by which other systems know it.
    pub fn key(self) -> u32 {
        match self {
            Self::Workflow => 130_001,
            Self::Approve => 130_002,
            Self::View => 130_003,
            Self::Administer => 130_004,
            Self::Manage => 130_005,
        }
    }

    /// What it is for, in words.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Workflow => "define and run workflows",
            Self::Approve => "decide at gates",
            Self::View => "see the runs of others",
            Self::Administer => "change the runs of others",
            Self::Manage => "manage users",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}
