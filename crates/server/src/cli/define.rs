//! `steprail define`: stores definitions.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steprail_core::load;

use super::shared::error::CliError;
use super::shared::exit;
use super::shared::server_args::RequestArgs;
use super::shared::source_file::{self, format_finding, print_diagnostics};
use super::terminal::output;

/// Store definitions, so that they can be run by name
///
/// Unchanged content keeps its version; changed content becomes a new version. Nothing is stored if a file has errors.
#[derive(Debug, Args)]
pub(super) struct Define {
    /// Definitions in YAML or JSON; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Publish them as MCP tools, regardless of `publish` in the files
    #[arg(long)]
    publish: bool,
    #[command(flatten)]
    request: RequestArgs,
}

/// A stored version.
#[derive(Serialize, Deserialize)]
struct Defined {
    name: String,
    version: u32,
    hash: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    proposed: bool,
    warnings: Vec<Value>,
}

impl Define {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let mut sources = Vec::new();
        let mut has_errors = false;
        for file in &self.files {
            let source = source_file::read(file)?;
            has_errors |= print_diagnostics(&load(&source).diagnostics, &source)?;
            sources.push(source);
        }
        if has_errors {
            return Err(CliError::Reported(exit::INVALID));
        }
        let client = self.request.connect().await?;
        let mut stored = Vec::new();
        for source in sources {
            let publish = self.publish.then_some(true);
            let body = json!({ "text": source.text(), "source": source.name(), "publish": publish });
            let defined: Defined = client.post("/definitions", &body).await?;
            // Only the server knows the tools; the other diagnostics were printed above.
            let is_of_tools = |finding: &&Value| finding["code"].as_str().is_some_and(|code| code >= "SR5");
            for warning in defined.warnings.iter().filter(is_of_tools) {
                writeln!(anstream::stderr(), "{}", format_finding(warning))?;
            }
            if !self.request.json {
                let version = if defined.proposed {
                    "is proposed; a person has to accept it".to_owned()
                } else {
                    format!("version {}", defined.version)
                };
                output::line(&format!("{} {version}", defined.name))?;
            }
            stored.push(defined);
        }
        if self.request.json {
            output::json(&stored)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
