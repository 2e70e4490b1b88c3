//! `steprail open`: prints a link that signs a browser in.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use steprail_http::views::SignInLink;

use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;

/// Print a link that signs your browser in, once
#[derive(Debug, Args)]
pub(super) struct Open {
    #[command(flatten)]
    request: RequestArgs,
}

impl Open {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let link: SignInLink = self.request.connect().await?.post("/links", &json!({})).await?;
        self.request.print(&link, |link| link.url.clone())
    }
}
