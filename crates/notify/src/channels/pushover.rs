//! Pushover: push notifications to phones. Approvals repeat until they are acknowledged.
//!
//! <https://pushover.net/api> and <https://pushover.net/api/receipts>

use std::sync::Arc;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

use super::{below, delivery_key, service_url};
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError, Withdrawal, Withdrawn};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::message::{Message, Urgency};
use crate::outbound::{Outbound, Request};
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The configuration of a channel of type `pushover`. Addresses are user or group keys, `KEY` or `KEY:DEVICE`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushoverConfig<S = SecretRef> {
    /// The API token of the application.
    pub token: S,
    /// The service, `https://api.pushover.net` by default.
    #[serde(default)]
    pub url: Option<String>,
    /// Whether approvals of normal and higher urgency repeat until they are acknowledged; true by default.
    #[serde(default = "default_true")]
    pub repeat_approvals: bool,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

fn default_true() -> bool {
    true
}

impl PushoverConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<PushoverConfig<Secret>, E> {
        let Self { token, url, repeat_approvals, title, body } = self;
        Ok(PushoverConfig { token: secret(token)?, url, repeat_approvals, title, body })
    }
}

/// The channel.
pub struct Pushover {
    outbound: Arc<Outbound>,
    base: Url,
    token: Secret,
    repeat_approvals: bool,
    templates: Templates,
}

impl Pushover {
    /// Opens the channel.
    pub fn open(config: &PushoverConfig<Secret>, outbound: &Arc<Outbound>) -> Result<Self, ConfigError> {
        let url = config.url.as_deref().unwrap_or("https://api.pushover.net");
        Ok(Self {
            outbound: outbound.clone(),
            base: service_url(url, outbound)?,
            token: config.token.clone(),
            repeat_approvals: config.repeat_approvals,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    fn priority(&self, message: &Message) -> i8 {
        let repeats = self.repeat_approvals && message.kind.is_approval();
        match message.urgency {
            Urgency::Emergency => 2,
            Urgency::Normal | Urgency::High if repeats => 2,
            Urgency::High => 1,
            Urgency::Normal => 0,
            Urgency::Low => -1,
        }
    }

    fn form(&self, delivery: Delivery<'_>) -> String {
        let message = delivery.message;
        let link = message.usable_link().filter(|link| link.len() <= limits::PUSHOVER_LINK_CHARS);
        let text = TextForm { chars: limits::PUSHOVER_CHARS, link: link.is_none() };
        let (user, device) = delivery.address.split_once(':').unwrap_or((delivery.address, ""));
        let priority = self.priority(message);
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("token", self.token.reveal()).append_pair("user", user);
        if !device.is_empty() {
            form.append_pair("device", device);
        }
        form.append_pair("title", &self.templates.title(message));
        form.append_pair("message", &self.templates.text(message, text));
        form.append_pair("priority", &priority.to_string());
        if let Some(link) = link {
            form.append_pair("url", link).append_pair("url_title", "Open");
        }
        if priority == 2 {
            form.append_pair("retry", &limits::PUSHOVER_RETRY_SECS.to_string());
            form.append_pair("expire", &expire(message, delivery.now).to_string());
            // The tag under which repetitions can be cancelled if the receipt is lost in a crash.
            form.append_pair("tags", &delivery_key(message, delivery.address));
        }
        form.finish()
    }

    async fn post(&self, segments: &[&str], body: String, now: i64) -> Result<Reply, SendError> {
        let request = Request {
            method: Method::POST,
            url: below(&self.base, segments),
            headers: Vec::new(),
            bearer: None,
            content_type: "application/x-www-form-urlencoded",
            body,
            secrets: vec![&self.token],
            follows: false,
            now,
        };
        let answer = self.outbound.send(request).await?;
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    }
}

/// The seconds for which a message is repeated: until the deadline, within the limits of the service.
fn expire(message: &Message, now: i64) -> i64 {
    let left = message
        .deadline
        .map_or(limits::PUSHOVER_EXPIRE_SECS, |deadline| deadline.saturating_sub(now) / 1_000);
    left.clamp(limits::PUSHOVER_RETRY_SECS, limits::PUSHOVER_EXPIRE_SECS)
}

/// The part of an answer that matters.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    receipt: String,
}

impl Channel for Pushover {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let reply = self.post(&["1", "messages.json"], self.form(delivery), delivery.now).await?;
            Ok(Receipt::new(&reply.receipt))
        })
    }

    /// Stops the repetitions. A message that was not repeated stays as it is.
    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        Box::pin(async move {
            if self.priority(withdrawal.message) < 2 {
                return Ok(Withdrawn::Unsupported);
            }
            let token = [("token", self.token.reveal())];
            let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(token).finish();
            let tag = format!("{}.json", delivery_key(withdrawal.message, withdrawal.address));
            let segments = match withdrawal.receipt.id.as_deref() {
                Some(receipt) => ["1", "receipts", receipt, "cancel.json"],
                None => ["1", "receipts", "cancel_by_tag", &*tag],
            };
            self.post(&segments, body, withdrawal.now).await?;
            Ok(Withdrawn::Done)
        })
    }
}
