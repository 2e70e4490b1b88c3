//! The durable state of the operator's policy: the freeze, remembered approvals and the counters of budgets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steprail_core::plan::Hash;
use steprail_core::run::Millis;

use crate::Actor;

/// Stops all calls until it is lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freeze {
    /// The user who froze the calls.
    pub by: String,
    /// The reason that the user gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When, in milliseconds since 1970.
    pub at: Millis,
}

/// An approval that also covers later calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remembered {
    /// Id to revoke it by.
    pub id: String,
    /// Name of the rule that required the approval.
    pub rule: String,
    /// Hash of who may decide by that rule. If the rule changes, the approval is void.
    #[schemars(with = "String")]
    pub terms: Hash,
    /// The user whose calls are covered.
    pub user: String,
    /// Full name of the tool.
    pub tool: String,
    /// Hash of the arguments; `None`: any arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub args: Option<Hash>,
    /// The user who approved.
    pub by: String,
    /// When the user approved, in milliseconds since 1970.
    pub at: Millis,
    /// When it ends, in milliseconds since 1970.
    pub until: Millis,
}

/// A change of the state of the policy.
#[derive(Debug, Clone)]
pub enum PolicyChange {
    /// Stops all calls.
    Freeze(Freeze),
    /// Lets calls start again.
    Unfreeze {
        /// The user who ends the freeze.
        by: Actor,
    },
    /// Stores an approval that covers later calls.
    Remember(Box<Remembered>),
    /// Deletes such an approval.
    Revoke {
        /// Its id.
        id: String,
        /// The user who revokes it.
        by: Actor,
    },
}

/// The state of the policy, except for counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// The freeze, while there is one.
    pub freeze: Option<Freeze>,
    /// Remembered approvals, by id. Some may have ended.
    pub remembered: Vec<Remembered>,
}
