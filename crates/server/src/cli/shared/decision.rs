//! The decision at a gate, for `steprail approve` and `steprail deny`.

use std::process::ExitCode;

use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use steprail_http::views::{Approval, Run};

use super::error::CliError;
use super::presence::Deciding;
use super::server_args::{RequestArgs, find_run};
use super::values;
use crate::cli::terminal::prompt::{confirm, print_approval, print_edited};

/// Selects the gate.
#[derive(Debug, Args)]
pub(crate) struct Decision {
    /// Id of the run, or its last characters
    run: String,
    /// Path of the step that waits; optional if only one does
    step: Option<String>,
    /// Reason, for the log
    #[arg(long)]
    reason: Option<String>,
    /// Answer to the input request of a tool, as a JSON map
    #[arg(long, value_name = "JSON", value_parser = values::json_map)]
    answer: Option<Map<String, Value>>,
    /// Let an approval that the policy requires also cover later calls for this time, such as `1h`
    #[arg(long, value_name = "TIME")]
    remember: Option<String>,
    /// The later calls: with the same `arguments`, or all calls of the `tool`
    #[arg(long, value_name = "SCOPE", default_value = "arguments", requires = "remember", value_parser = ["arguments", "tool"])]
    remember_scope: String,
    /// Do not prompt for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    request: RequestArgs,
}

impl Decision {
    /// Shows the approval with its edited arguments, asks for confirmation and sends the decision.
    pub(crate) async fn send(
        &self,
        approved: bool,
        edited: Option<&Map<String, Value>>,
    ) -> Result<ExitCode, CliError> {
        let client = self.request.connect().await?;
        let id = find_run(&client, &self.run).await?;
        let run: Run = client.get(&format!("/runs/{id}")).await?;
        let approval = select(&run, self.step.as_deref())?;
        print_approval(approval)?;
        if let Some(edited) = edited {
            print_edited(edited)?;
        }
        if !self.yes {
            require_confirmation(if approved { "Approve?" } else { "Deny?" })?;
        }
        let body = json!({
            "step": approval.step, "digest": approval.digest, "reason": self.reason,
            "answer": answer(approval, approved, self.answer.as_ref()),
            "args": edited,
            "remember": self.remember.as_ref().map(|time| json!({ "scope": self.remember_scope, "for": time })),
        });
        let action = if approved { "approve" } else { "deny" };
        let path = format!("/runs/{}/{action}", approval.run_id);
        let proof = Deciding { approval, path: &path, body: &body }.proof(&client).await?;
        let decision: Value = client.post_with_proof(&path, &body, proof).await?;
        self.request.print(&decision, |decision| {
            let text = |key: &str| decision[key].as_str().unwrap_or_default();
            format!("`{}` was {} by {}", text("step"), text("decision"), text("by"))
        })
    }
}

/// Whether a form asks for values. The form of a confirmation, such as that of a changed tool, is empty.
pub(crate) fn has_fields(form: Option<&RawValue>) -> bool {
    let form = form.and_then(|form| serde_json::from_str::<Value>(form.get()).ok());
    form.is_some_and(|form| !form["properties"].as_object().is_some_and(Map::is_empty))
}

/// The answer of a decision: an approval fills in an empty form by itself.
pub(crate) fn answer(
    approval: &Approval,
    approved: bool,
    given: Option<&Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let is_empty = approval.form.is_some() && !has_fields(approval.form.as_deref());
    given.cloned().or_else(|| (approved && is_empty).then(Map::new))
}

/// The open approval of a step, or the only one of a run.
pub(crate) fn select<'r>(run: &'r Run, step: Option<&str>) -> Result<&'r Approval, CliError> {
    let open = run.approvals.as_deref().unwrap_or_default();
    let steps = || open.iter().map(|open| &*open.step).collect::<Vec<_>>().join(", ");
    match (step, open) {
        (Some(step), _) => open.iter().find(|open| open.step == *step).ok_or_else(|| {
            let error = CliError::new(format!("step `{step}` of run {} has no open approval", run.run_id));
            if open.is_empty() { error } else { error.hint(format!("open approvals: {}", steps())) }
        }),
        (None, [approval]) => Ok(approval),
        (None, []) => {
            let status = run.status.name();
            Err(CliError::new(format!("{} is {status} and has no open approval", run.name)))
        }
        (None, _) => Err(CliError::new("several steps have an open approval")
            .hint(format!("name one of them: {}", steps()))),
    }
}

/// Asks for confirmation. An error if it is not given, or if nobody can be asked.
pub(crate) fn require_confirmation(question: &str) -> Result<(), CliError> {
    match confirm(question)? {
        Some(true) => Ok(()),
        Some(false) => Err(CliError::new("nothing was decided")),
        None => Err(CliError::new("nothing was decided: standard input is not a terminal")
            .hint("pass --yes to decide without a prompt")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::has_fields;

    #[test]
    fn empty_form_asks_for_no_values() {
        let has = |form: &str| has_fields(Some(&*RawValue::from_string(form.to_owned()).expect("JSON")));
        assert!(!has(r#"{"type":"object","properties":{}}"#), "the confirmation of a changed tool");
        assert!(has(r#"{"type":"object","properties":{"name":{"type":"string"}}}"#));
        assert!(has(r#"{"type":"object"}"#), "a form that allows any values");
        assert!(!has_fields(None));
    }
}
