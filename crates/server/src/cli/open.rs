//! `steprail open`: a link that signs the owner's browser in.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::stop::Stop;
use super::target::Target;
use super::{session, show_as};
use steprail_http::views::SignInLink;

/// Print a link that opens the server's page and signs your browser in, once
#[derive(Debug, Args)]
pub(super) struct Open {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Open {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        session::block_on(async {
            let link: SignInLink = self.target.reach().await?.post("/links", &json!({})).await?;
            if self.json {
                show_as::json(&link)?;
            } else {
                show_as::line(&link.url)?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
