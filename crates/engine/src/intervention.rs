//! How a human changes a run, in the words that every surface has for it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Edit, Intervention, Payload, Resolution};
use steprail_store::RunId;

use crate::error::Error;
use crate::user::User;

/// What to change.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterventionRequest {
    /// What to do.
    pub action: InterventionAction,
    /// The step, by its path; its id for `set_output`. Not for `set_inputs`.
    pub step: Option<String>,
    /// The arguments, the output, the inputs or the result.
    pub value: Option<Value>,
    /// For a call whose outcome is unknown: the attempt, as `unknown_calls` shows it.
    pub digest: Option<String>,
}

/// What to do to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterventionAction {
    /// Sets the arguments of a step to come.
    SetArguments,
    /// Replaces what a step gave.
    SetOutput,
    /// Replaces the inputs.
    SetInputs,
    /// Leaves a step out.
    Skip,
    /// Gives the result of a step that waits or runs.
    SupplyResult,
    /// A call whose outcome is unknown succeeded, with this result.
    Happened,
    /// A call whose outcome is unknown is made again.
    Retry,
    /// A call whose outcome is unknown counts as failed.
    Fail,
}

impl User {
    /// Changes a run that is under way.
    pub async fn intervene(&self, run: RunId, request: InterventionRequest) -> Result<(), Error> {
        let InterventionRequest { action, step, value, digest } = request;
        let missing = |field: &str| Error::BadInput(format!("`{field}` is missing"));
        let step = match action {
            InterventionAction::SetInputs => String::new(),
            _ => step.filter(|step| !step.is_empty()).ok_or_else(|| missing("step"))?,
        };
        let path = || Box::<str>::from(&*step);
        let value = value.ok_or_else(|| missing("value"));
        let resolution = match action {
            InterventionAction::SetArguments => {
                return self.control(run, Intervention::SetArguments { path: path(), args: value? }).await;
            }
            InterventionAction::SetOutput => return self.set(run, Some(path()), value?).await,
            InterventionAction::SetInputs => return self.set(run, None, value?).await,
            InterventionAction::SupplyResult => {
                let output = Payload::new(value?);
                return self.control(run, Intervention::SupplyResult { path: path(), output }).await;
            }
            InterventionAction::Skip => Resolution::Skip,
            InterventionAction::Happened => Resolution::Happened(Payload::new(value?)),
            InterventionAction::Retry => Resolution::Retry,
            InterventionAction::Fail => Resolution::Fail,
        };
        let digest = match digest {
            Some(text) => Some(
                Hash::from_hex(&text)
                    .ok_or_else(|| Error::BadInput("`digest` is not a digest".to_owned()))?,
            ),
            // A step that waits or runs is left out as it is.
            None if action == InterventionAction::Skip => {
                return self.control(run, Intervention::Skip { path: path() }).await;
            }
            None => return Err(missing("digest")),
        };
        self.resolve(run, &step, resolution, digest).await
    }

    async fn set(&self, run: RunId, id: Option<Box<str>>, value: Value) -> Result<(), Error> {
        self.control(run, Intervention::SetValue(Edit { id, value })).await
    }
}
