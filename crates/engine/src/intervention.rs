//! Interventions in a run, in the form that every surface accepts.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use steprail_core::plan::Hash;
use steprail_core::run::{Edit, Intervention, Payload, Resolution};
use steprail_store::RunId;

use crate::error::Error;
use crate::user::User;

/// A change to a run.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterventionRequest {
    /// The kind of change.
    pub action: InterventionAction,
    /// Path of the step; for `set_output` its id. Not used by `set_inputs`.
    pub step: Option<String>,
    /// The new arguments, output, inputs or result.
    pub value: Option<Value>,
    /// Digest of the attempt, from `unknown_calls`. Required to resolve a call with an unknown outcome.
    pub digest: Option<String>,
}

/// The kind of an intervention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InterventionAction {
    /// Sets the arguments of a step that has not started.
    SetArguments,
    /// Replaces the output of a step.
    SetOutput,
    /// Replaces the inputs of the run.
    SetInputs,
    /// Skips a step.
    Skip,
    /// Supplies the result of a step that waits or runs.
    SupplyResult,
    /// Resolves a call with an unknown outcome: it succeeded with this result.
    Happened,
    /// Resolves a call with an unknown outcome: it is repeated.
    Retry,
    /// Resolves a call with an unknown outcome: it failed.
    Fail,
}

impl User {
    /// Changes a run in progress.
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
            InterventionAction::SetOutput => return self.set_value(run, Some(path()), value?).await,
            InterventionAction::SetInputs => return self.set_value(run, None, value?).await,
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
                    .ok_or_else(|| Error::BadInput("`digest` is not a SHA-256 hash in hex".to_owned()))?,
            ),
            // Without a digest, `skip` applies to a step that waits or runs.
            None if action == InterventionAction::Skip => {
                return self.control(run, Intervention::Skip { path: path() }).await;
            }
            None => return Err(missing("digest")),
        };
        self.resolve(run, &step, resolution, digest).await
    }

    async fn set_value(&self, run: RunId, id: Option<Box<str>>, value: Value) -> Result<(), Error> {
        self.control(run, Intervention::SetValue(Edit { id, value })).await
    }
}
