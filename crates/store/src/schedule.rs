//! Cron schedules.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use steprail_core::run::Millis;

use crate::{Principal, RunId, VersionPin};

/// A schedule: the engine starts a definition at the times of a cron expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// The name of the definition.
    pub definition: String,
    /// The version that is started. `None`: the newest one now, which the engine keeps.
    pub version: Option<ScheduledVersion>,
    /// The cron expression.
    pub cron: String,
    /// The time zone of the cron expression.
    pub zone: String,
    /// The inputs of each run.
    pub inputs: Value,
    /// The principal of each run.
    pub principal: Principal,
    /// What to do if the previous run has not ended.
    pub overlap: Overlap,
    /// When the next run is due, computed by the engine; `None` if the schedule is paused.
    pub due: Option<Millis>,
    /// The outcome of the last time.
    pub last: Option<Fired>,
}

impl Schedule {
    /// A schedule in UTC without inputs, which skips a time if the previous run has not ended.
    pub fn new(name: &str, definition: &str, cron: &str, principal: Principal) -> Self {
        Self {
            name: name.to_owned(),
            definition: definition.to_owned(),
            version: None,
            cron: cron.to_owned(),
            zone: "UTC".to_owned(),
            inputs: Value::Object(serde_json::Map::new()),
            principal,
            overlap: Overlap::default(),
            due: Some(0),
            last: None,
        }
    }
}

/// The version that a schedule starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduledVersion {
    /// The newest one at each time. The owner of the schedule must own the definition.
    Latest,
    /// A number, for which the engine looks up the hash.
    Number(u32),
    /// This one.
    Pinned(VersionPin),
}

/// The outcome of one time of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// The time at which the run was due.
    pub at: Millis,
    /// The run that was started.
    pub run: Option<RunId>,
    /// Why no run was started.
    pub error: Option<String>,
}

/// What to do at a time at which the previous run has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Skip this time.
    #[default]
    Skip,
    /// Start another run.
    Allow,
}

impl Overlap {
    /// The name of the policy in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Allow => "allow",
        }
    }

    /// The policy with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Skip, Self::Allow].into_iter().find(|overlap| overlap.name() == name)
    }
}
