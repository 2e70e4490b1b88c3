//! Cron schedules.

use serde_json::Value;
use steprail_core::run::Millis;

use crate::{Principal, RunId};

/// A definition that is started at times that a pattern says.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// The definition, in its newest version.
    pub definition: String,
    /// When: a cron expression.
    pub cron: String,
    /// The time zone of the pattern.
    pub zone: String,
    /// The inputs of each run.
    pub inputs: Value,
    /// Whom each run acts as.
    pub principal: Principal,
    /// What happens if the last run has not ended.
    pub overlap: Overlap,
    /// When the next run is due, which the engine reckons; nothing if it is paused.
    pub due: Option<Millis>,
    /// What became of the last time.
    pub last: Option<Fired>,
}

impl Schedule {
    /// A schedule in UTC without inputs, which leaves a time out if its last run has not ended.
    pub fn new(name: &str, definition: &str, cron: &str, principal: Principal) -> Self {
        Self {
            name: name.to_owned(),
            definition: definition.to_owned(),
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

/// What became of a time at which a run was due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// When.
    pub at: Millis,
    /// The run that was started.
    pub run: Option<RunId>,
    /// Why none was.
    pub error: Option<String>,
}

/// What happens at a time at which the last run has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Nothing: the time is left out.
    #[default]
    Skip,
    /// Another run is started.
    Allow,
}

impl Overlap {
    /// Its word in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Allow => "allow",
        }
    }

    /// The one that a word stands for.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Skip, Self::Allow].into_iter().find(|overlap| overlap.name() == name)
    }
}
