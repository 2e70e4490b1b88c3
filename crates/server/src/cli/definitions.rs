//! `steprail definitions`: what can be run by name.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use crate::client::escaped;
use steprail_http::views::{Definition, Page};

/// List definitions, show one, or delete one
#[derive(Debug, Args)]
pub(super) struct Definitions {
    /// Show this one, as JSON
    name: Option<String>,
    /// Delete it: it can no longer be started, and runs that are under way go on
    #[arg(long, requires = "name")]
    delete: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Definitions {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let client = self.target.look().await?;
            if let Some(name) = &self.name {
                let path = format!("/definitions/{}", escaped(name));
                if self.delete {
                    client.delete(&path).await?;
                    show_as::done(self.json, &format!("{name} can no longer be started"))?;
                } else {
                    let found: Definition = client.get(&path).await?;
                    show_as::line(&format!("{:#}", json!(found)))?;
                }
                return Ok(ExitCode::SUCCESS);
            }
            let page: Page<Definition> = client.get("/definitions?limit=1000").await?;
            if self.json {
                show_as::json(&page.items)?;
                return Ok(ExitCode::SUCCESS);
            }
            let row = |one: &Definition| {
                let tool = if one.published { "yes" } else { "" };
                let does = one.description.clone().unwrap_or_default();
                vec![one.name.clone(), one.version.to_string(), one.inputs.join(" "), tool.to_owned(), does]
            };
            let rows: Vec<Vec<String>> = page.items.iter().map(row).collect();
            let nothing = "there are no definitions; `steprail define FILE` stores one";
            show_as::table(&["NAME", "VERSION", "INPUTS", "TOOL", "DOES"], &rows, nothing)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
