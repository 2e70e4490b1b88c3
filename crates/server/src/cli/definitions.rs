//! `steprail definitions`: lists, shows and deletes stored definitions.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_http::views::{Definition, Page};

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::output;
use crate::client::percent_encode;

/// List definitions, show one, or delete one
#[derive(Debug, Args)]
pub(super) struct Definitions {
    /// Show this definition, as JSON
    name: Option<String>,
    /// Delete the definition; runs in progress continue
    #[arg(long, requires = "name")]
    delete: bool,
    #[command(flatten)]
    request: RequestArgs,
}

impl Definitions {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let client = self.request.connect_to_read().await?;
        if let Some(name) = &self.name {
            let path = format!("/definitions/{}", percent_encode(name));
            if self.delete {
                client.delete(&path).await?;
                return self.request.confirm(&format!("deleted {name}"));
            }
            let definition: Definition = client.get(&path).await?;
            output::line(&format!("{:#}", json!(definition)))?;
            return Ok(ExitCode::SUCCESS);
        }
        let page: Page<Definition> = client.get("/definitions?limit=1000").await?;
        let columns = ["NAME", "VERSION", "INPUTS", "TOOL", "DESCRIPTION"];
        self.request.print_table(
            &page.items,
            &columns,
            row,
            "no definitions; store one with `steprail define FILE`",
        )
    }
}

fn row(definition: &Definition) -> Vec<String> {
    let published = if definition.published { "yes" } else { "" };
    vec![
        definition.name.clone(),
        definition.version.to_string(),
        definition.inputs.join(" "),
        published.to_owned(),
        definition.description.clone().unwrap_or_default(),
    ]
}
