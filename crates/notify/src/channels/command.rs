//! Command: a program of the operator gets the message as JSON on its standard input.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::delivery_key;
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError, Withdrawal, Withdrawn};
use crate::config::{ConfigError, seconds};
use crate::limits;
use crate::process;
use crate::render::TextForm;
use crate::template::Templates;

/// The configuration of a channel of type `command`. Addresses are passed to the program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandConfig {
    /// The program and its arguments. No shell is involved.
    pub argv: Vec<String>,
    /// Timeout, in seconds.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// Whether the program is run again when a message is no longer current.
    #[serde(default)]
    pub withdraw: bool,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

/// The channel.
pub struct Command {
    argv: Vec<String>,
    timeout: Duration,
    withdraws: bool,
    templates: Templates,
}

impl Command {
    /// Opens the channel.
    pub fn open(config: &CommandConfig) -> Result<Self, ConfigError> {
        if config.argv.first().is_none_or(String::is_empty) {
            return Err(ConfigError::new("`argv` is empty").hint("name the program first"));
        }
        Ok(Self {
            argv: config.argv.clone(),
            timeout: timeout(config.timeout)?,
            withdraws: config.withdraw,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    async fn run(&self, input: Value) -> Result<String, SendError> {
        process::run(&self.argv, format!("{input}\n").as_bytes(), self.timeout).await
    }
}

/// The timeout of a program, from the configuration.
pub(super) fn timeout(secs: Option<f64>) -> Result<Duration, ConfigError> {
    secs.map_or(Ok(Duration::from_secs(limits::COMMAND_SECS)), seconds)
}

impl Channel for Command {
    /// The first line of the output is the receipt.
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let message = delivery.message;
            let form = TextForm { chars: limits::BODY_CHARS, link: true };
            let input = json!({
                "event": "notification",
                "key": delivery_key(message, delivery.address),
                "address": delivery.address,
                "title": self.templates.title(message),
                "text": self.templates.text(message, form),
                "message": message,
            });
            let output = self.run(input).await?;
            Ok(Receipt::new(output.lines().next().unwrap_or_default().trim()))
        })
    }

    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        Box::pin(async move {
            if !self.withdraws {
                return Ok(Withdrawn::Unsupported);
            }
            let input = json!({
                "event": "withdrawal",
                "key": delivery_key(withdrawal.message, withdrawal.address),
                "address": withdrawal.address,
                "id": withdrawal.message.id,
                "receipt": withdrawal.receipt.id,
                "outcome": withdrawal.outcome,
            });
            self.run(input).await?;
            Ok(Withdrawn::Done)
        })
    }
}
