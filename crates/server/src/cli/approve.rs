//! `steprail approve`: approves at a gate.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value};

use super::shared::decision::Decision;
use super::shared::error::CliError;
use super::shared::values;

/// Approve at a gate
///
/// Shows the approval and prompts for confirmation. The decision applies only to what was shown. Without a terminal, pass
/// `--yes`.
#[derive(Debug, Args)]
pub(super) struct Approve {
    /// Arguments that replace those of the call that is approved, as a JSON map
    #[arg(long, value_name = "JSON", value_parser = values::json_map)]
    args: Option<Map<String, Value>>,
    #[command(flatten)]
    decision: Decision,
}

impl Approve {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        self.decision.send(true, self.args.as_ref()).await
    }
}
