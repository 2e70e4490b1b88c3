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
    /// The client or tool that started the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
    /// The trace in which the run was started, as a `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The scope of the token, which restricts the rights of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
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

    /// Whether this is the id of the user or one of the user's groups.
    pub fn is_or_belongs_to(&self, name: &str) -> bool {
        self.id == name || self.groups.iter().any(|group| group == name)
    }
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
}

impl Right {
    /// Every right.
    pub const ALL: [Self; 5] = [Self::Workflow, Self::Approve, Self::View, Self::Administer, Self::Manage];

    /// The id of the right in external permission systems.
    pub fn key(self) -> u32 {
        match self {
            Self::Workflow => 130_001,
            Self::Approve => 130_002,
            Self::View => 130_003,
            Self::Administer => 130_004,
            Self::Manage => 130_005,
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
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(out)
    }
}
