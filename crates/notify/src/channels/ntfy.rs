//! ntfy: push notifications through topics, from ntfy.sh or an own server.
//!
//! <https://docs.ntfy.sh/publish/>. Servers before version 2.16 have no `sequence_id`: they show a repeated message twice,
//! and cannot delete it.

use std::sync::Arc;

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::{below, delivery_key, service_url};
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, Retry, SendError, Withdrawal, Withdrawn};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::message::{Kind, Message, Urgency};
use crate::outbound::{Outbound, Request};
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The configuration of a channel of type `ntfy`. Addresses are topics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NtfyConfig<S = SecretRef> {
    /// The server, `https://ntfy.sh` by default.
    #[serde(default)]
    pub url: Option<String>,
    /// The access token.
    #[serde(default = "Option::default")]
    pub token: Option<S>,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

impl NtfyConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<NtfyConfig<Secret>, E> {
        let Self { url, token, title, body } = self;
        Ok(NtfyConfig { url, token: token.map(secret).transpose()?, title, body })
    }
}

/// The channel.
pub struct Ntfy {
    outbound: Arc<Outbound>,
    base: Url,
    token: Option<Secret>,
    templates: Templates,
}

impl Ntfy {
    /// Opens the channel.
    pub fn open(config: &NtfyConfig<Secret>, outbound: &Arc<Outbound>) -> Result<Self, ConfigError> {
        let url = config.url.as_deref().unwrap_or("https://ntfy.sh");
        Ok(Self {
            outbound: outbound.clone(),
            base: service_url(url, outbound)?,
            token: config.token.clone(),
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    fn body(&self, delivery: Delivery<'_>) -> Value {
        let message = delivery.message;
        let mut body = json!({
            "topic": delivery.address,
            "title": self.templates.title(message),
            "message": self.text(message),
            "priority": priority(message.urgency),
            "tags": [tag(message.kind)],
            // A repeated delivery replaces the message.
            "sequence_id": delivery_key(message, delivery.address),
        });
        if let (Some(link), Value::Object(body)) = (message.usable_link(), &mut body) {
            body.insert("click".to_owned(), json!(link));
            body.insert("actions".to_owned(), json!([{ "action": "view", "label": "Open", "url": link }]));
        }
        body
    }

    /// The text within the limit of the service, which counts bytes.
    fn text(&self, message: &Message) -> String {
        let mut chars = limits::NTFY_BYTES;
        loop {
            let text = self.templates.text(message, TextForm { chars, link: false });
            if text.len() <= limits::NTFY_BYTES || chars < 100 {
                return text;
            }
            chars = chars * 3 / 4;
        }
    }
}

fn priority(urgency: Urgency) -> u8 {
    match urgency {
        Urgency::Low => 2,
        Urgency::Normal => 3,
        Urgency::High => 4,
        Urgency::Emergency => 5,
    }
}

/// A tag that the service shows as an emoji.
fn tag(kind: Kind) -> &'static str {
    match kind {
        Kind::ApprovalRequested | Kind::Reminder | Kind::Uncertain | Kind::ProposalWaiting => "raised_hand",
        Kind::Escalation | Kind::AuditFailure => "rotating_light",
        Kind::Decided => "heavy_check_mark",
        Kind::Denied | Kind::RunCancelled => "no_entry_sign",
        Kind::RunFailed | Kind::ServerUnavailable | Kind::ScheduleMissed => "warning",
        Kind::LoginExpired => "key",
        Kind::Digest | Kind::Test => "bell",
    }
}

impl Channel for Ntfy {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let request = Request::json(self.base.clone(), &self.body(delivery), delivery.now);
            self.outbound.send(request.bearer(self.token.as_ref())).await?;
            Ok(Receipt::new(&delivery_key(delivery.message, delivery.address)))
        })
    }

    /// Deletes the message.
    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        Box::pin(async move {
            let sequence = delivery_key(withdrawal.message, withdrawal.address);
            let request = Request {
                method: Method::DELETE,
                url: below(&self.base, &[withdrawal.address, &sequence]),
                headers: Vec::new(),
                bearer: self.token.as_ref(),
                content_type: "application/json",
                body: String::new(),
                secrets: Vec::new(),
                follows: true,
                now: withdrawal.now,
            };
            match self.outbound.send(request).await {
                Ok(_) => Ok(Withdrawn::Done),
                // An older server does not know the route.
                Err(error) if error.retry == Retry::Never => Ok(Withdrawn::Unsupported),
                Err(error) => Err(error),
            }
        })
    }
}
