//! `steprail notify`: tests the channels of a user.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::views::{DeliveryInfo, NotificationInfo};

use super::notifications::status;
use super::shared::error::CliError;
use super::shared::server_args::RequestArgs;
use super::terminal::output;
use super::terminal::text::sanitize;

/// Test the delivery of notifications
#[derive(Debug, Args)]
pub(super) struct Notify {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send a test message over every channel of a user, and print the result of each
    ///
    /// Quiet hours do not apply. A channel that fails is tried again later, like for every notification.
    Test {
        /// The user, or `group:NAME`; you by default
        user: Option<String>,
    },
}

impl Notify {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        let Action::Test { user } = &self.action;
        let client = self.request.connect().await?;
        let test: NotificationInfo = client.post("/notifications/test", &json!({ "to": user })).await?;
        if self.request.json {
            output::json(&test)?;
        } else {
            output::table(
                &["TO", "CHANNEL", "STATUS", "ERROR"],
                test.deliveries.iter().map(row),
                "no channel",
            )?;
        }
        let all_sent = test.deliveries.iter().all(|delivery| delivery.status.name() == "sent");
        Ok(if all_sent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn row(delivery: &DeliveryInfo) -> Vec<String> {
    let error = sanitize(delivery.error.as_deref().unwrap_or_default());
    vec![sanitize(&delivery.recipient), sanitize(&delivery.channel), status(delivery), error]
}
