//! `steprail define`: definitions are stored under their names.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steprail_core::load;

use super::stop::{Stop, show_problems};
use super::target::{Target, finding};
use super::{exit, input, session, show_as};

/// Store definitions, so that they can be started by name
///
/// The same content is the same version; other content is a new one. Nothing is stored if a file has errors.
#[derive(Debug, Args)]
pub(super) struct Define {
    /// Definitions, YAML or JSON; `-` for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<String>,
    /// Offer them to agents as tools, whatever they say themselves
    #[arg(long)]
    publish: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// A version that was stored.
#[derive(Serialize, Deserialize)]
struct Defined {
    name: String,
    version: u32,
    hash: String,
    warnings: Vec<Value>,
}

impl Define {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        let mut sources = Vec::new();
        let mut has_errors = false;
        for file in &self.files {
            let source = input::read(file)?;
            has_errors |= show_problems(&load(&source).diagnostics, &source)?;
            sources.push(source);
        }
        if has_errors {
            return Err(Stop::Silent(exit::CANNOT_READ));
        }
        session::block_on(async {
            let client = self.target.reach().await?;
            let mut stored = Vec::new();
            for source in sources {
                let publish = self.publish.then_some(true);
                let body = json!({ "text": source.text(), "source": source.name(), "publish": publish });
                let defined: Defined = client.post("/definitions", &body).await?;
                // What can be seen without tools was shown above.
                let is_of_tools = |found: &&Value| found["code"].as_str().is_some_and(|code| code >= "SR5");
                let of_tools = defined.warnings.iter().filter(is_of_tools);
                for warning in of_tools.map(finding) {
                    writeln!(anstream::stderr(), "{warning}")?;
                }
                if !self.json {
                    show_as::line(&format!("{} version {}", defined.name, defined.version))?;
                }
                stored.push(defined);
            }
            if self.json {
                show_as::json(&stored)?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
