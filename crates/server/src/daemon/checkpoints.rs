//! Exports signed checkpoints of the hash chain at intervals, to a file or a webhook.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use steprail_notify::ConfigError;
use steprail_notify::outbound::{Allowed, Endpoint, OutboundOptions};
use tokio_util::sync::CancellationToken;

use super::private_file;
use crate::audit::checkpoint;
use crate::config::Config;
use crate::config::types::Location;

/// Where checkpoints go.
enum Target {
    File(PathBuf),
    Webhook(Box<Endpoint>),
}

/// Exports a checkpoint at the start and then at the interval of the settings, until `stop`. A failed export is logged: the
/// next checkpoint covers the same rows.
pub(crate) fn export(database: PathBuf, config: &Config, stop: CancellationToken) -> Result<(), String> {
    let Some(target) = target(config)? else { return Ok(()) };
    let every = config.audit.checkpoint_every;
    tokio::spawn(stop.run_until_cancelled_owned(async move { run(&database, &target, every).await }));
    Ok(())
}

fn target(config: &Config) -> Result<Option<Target>, String> {
    Ok(match &config.audit.checkpoints {
        None => None,
        Some(Location::File(path)) => Some(Target::File(path.clone())),
        Some(Location::Url(url)) => {
            let invalid = |error: ConfigError| format!("`audit.checkpoints`: {error}");
            let allowed = Allowed::parse(&config.notify.allow).map_err(invalid)?;
            let options = OutboundOptions { allowed, ..OutboundOptions::default() };
            Some(Target::Webhook(Box::new(Endpoint::new(url, options).map_err(invalid)?)))
        }
    })
}

async fn run(database: &Path, target: &Target, every: Duration) {
    loop {
        if let Err(error) = export_one(database, target).await {
            tracing::error!(%error, "cannot export a checkpoint of the audit log");
        }
        tokio::time::sleep(every).await;
    }
}

async fn export_one(database: &Path, target: &Target) -> Result<(), String> {
    let database = database.to_owned();
    let signed = tokio::task::spawn_blocking(move || checkpoint(&database)).await;
    let signed = signed.map_err(|error| error.to_string())??;
    let line = json!(signed);
    match target {
        Target::File(path) => append(path, &line).map_err(|error| format!("{}: {error}", path.display())),
        Target::Webhook(endpoint) => endpoint.post(&line, signed.at).await.map_err(|error| error.reason),
    }
}

fn append(path: &Path, line: &Value) -> io::Result<()> {
    let mut file = private_file::open(path, OpenOptions::new().append(true))?;
    file.write_all(format!("{line}\n").as_bytes())?;
    file.sync_data()
}
