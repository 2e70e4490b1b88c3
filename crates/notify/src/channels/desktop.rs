//! Desktop: notifications of the freedesktop specification, shown with `notify-send` in the session of the daemon.
//!
//! <https://specifications.freedesktop.org/notification-spec/latest/>. `notify-send` is part of libnotify, which every desktop
//! has; a D-Bus library would add about 40 crates.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use steprail_core::display;

use super::command::timeout;
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError, Withdrawal, Withdrawn};
use crate::config::ConfigError;
use crate::limits;
use crate::message::Urgency;
use crate::process;
use crate::render::TextForm;
use crate::template::Templates;

/// The configuration of a channel of type `desktop`. It has one receiver: the session of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesktopConfig {
    /// The program, `notify-send` by default.
    #[serde(default)]
    pub program: Option<String>,
    /// Timeout of the program, in seconds.
    #[serde(default)]
    pub timeout: Option<f64>,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

/// The channel.
pub struct Desktop {
    program: String,
    timeout: Duration,
    templates: Templates,
}

impl Desktop {
    /// Opens the channel.
    pub fn open(config: &DesktopConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            program: config.program.clone().unwrap_or_else(|| "notify-send".to_owned()),
            timeout: timeout(config.timeout)?,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    async fn notify(&self, options: &[String], title: String, text: &str) -> Result<String, SendError> {
        let mut argv = vec![self.program.clone(), "--app-name=Steprail".to_owned()];
        argv.extend_from_slice(options);
        argv.extend(["--".to_owned(), title, escape(text)]);
        process::run(&argv, b"", self.timeout).await
    }
}

/// Bodies can have markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn urgency(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Low => "low",
        Urgency::Normal => "normal",
        Urgency::High | Urgency::Emergency => "critical",
    }
}

impl Channel for Desktop {
    /// The receipt is the id of the notification in the session.
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let message = delivery.message;
            let form = TextForm { chars: limits::DESKTOP_CHARS, link: true };
            let options = [format!("--urgency={}", urgency(message.urgency)), "--print-id".to_owned()];
            let text = self.templates.text(message, form);
            let output = self.notify(&options, self.templates.title(message), &text).await?;
            Ok(Receipt::new(output.trim()))
        })
    }

    /// Replaces the notification by the outcome.
    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        Box::pin(async move {
            let id = withdrawal.receipt.id.as_deref().and_then(|id| id.parse::<u32>().ok());
            let Some(id) = id else { return Ok(Withdrawn::Unsupported) };
            let options = ["--urgency=low".to_owned(), format!("--replace-id={id}")];
            let outcome = display::line(withdrawal.outcome);
            self.notify(&options, self.templates.title(withdrawal.message), &outcome).await?;
            Ok(Withdrawn::Done)
        })
    }
}
