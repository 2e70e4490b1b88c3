//! `steprail notifications`: lists notifications with their deliveries, and sends dead letters again.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use steprail_http::views::{DeliveryInfo, NotificationInfo, Page};

use super::shared::error::CliError;
use super::shared::server_args::{RequestArgs, find_optional_run};
use super::terminal::output;
use super::terminal::text::sanitize;

/// List notifications: who was told of what, over which channel, and what failed
///
/// Those of one run, oldest first, or all of them, newest first. The list of all needs the right `administer`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Notifications {
    #[command(subcommand)]
    action: Option<Action>,
    /// Id of the run, or its last characters [default: all runs]
    run: Option<String>,
    /// Only notifications that could not be delivered
    #[arg(long)]
    dead: bool,
    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send a failed delivery again
    Resend {
        /// Number of the delivery, as listed
        delivery: i64,
    },
}

impl Notifications {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        if let Some(Action::Resend { delivery }) = self.action {
            let client = self.request.connect().await?;
            let path = format!("/notifications/{delivery}/resend");
            let _: Option<()> = client.post(&path, &json!({})).await?;
            return self.request.confirm("queued; `steprail notifications` shows the result");
        }
        let client = self.request.connect_to_read().await?;
        let page: Page<NotificationInfo> = match find_optional_run(&client, self.run.as_deref()).await? {
            Some(run) => client.get(&format!("/runs/{run}/notifications?limit=1000")).await?,
            None => client.query("/notifications", &json!({ "dead": self.dead, "limit": 100 })).await?,
        };
        let mut items = page.items;
        if self.dead {
            items.retain(|item| item.deliveries.iter().any(|delivery| delivery.status.name() == "failed"));
        }
        if self.request.json {
            output::json(&items)?;
        } else {
            let rows = items.iter().flat_map(rows);
            let columns = ["ID", "KIND", "RUN", "STEP", "TO", "CHANNEL", "STATUS", "ERROR"];
            output::table(&columns, rows, "no notifications")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One row per delivery, or one without a recipient.
fn rows(item: &NotificationInfo) -> Vec<Vec<String>> {
    let run = item.run_id.map_or_else(|| "-".to_owned(), |run| run.to_string());
    let step = sanitize(item.step.as_deref().unwrap_or("-"));
    let start = |id: String| vec![id, item.kind.name().to_owned(), run.clone(), step.clone()];
    if item.deliveries.is_empty() {
        let rest = ["-", "-", "no recipient", ""].map(str::to_owned);
        return vec![start("-".to_owned()).into_iter().chain(rest).collect()];
    }
    let row = |delivery: &DeliveryInfo| {
        let rest = [
            sanitize(&delivery.recipient),
            sanitize(&delivery.channel),
            status(delivery),
            sanitize(delivery.error.as_deref().unwrap_or_default()),
        ];
        start(delivery.id.to_string()).into_iter().chain(rest).collect()
    };
    item.deliveries.iter().map(row).collect()
}

/// The status, with the time of the next attempt.
pub(super) fn status(delivery: &DeliveryInfo) -> String {
    match (&delivery.due_at, delivery.attempts) {
        (Some(due), 0) => format!("{}, due {due}", delivery.status.name()),
        (Some(due), attempts) => {
            format!("{}, attempt {} at {due}", delivery.status.name(), attempts.saturating_add(1))
        }
        (None, _) => delivery.status.name().to_owned(),
    }
}
