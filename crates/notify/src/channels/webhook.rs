//! Generic webhook: the message as JSON, signed and with a timestamp.
//!
//! The receiver computes HMAC-SHA256 over `TIMESTAMP.BODY` with the shared key and compares it with the signature. It rejects
//! old timestamps, so that a recorded request cannot be repeated later.

use std::sync::Arc;

use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steprail_core::run::Millis;
use url::Url;

use super::{delivery_key, service_url};
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError, Withdrawal, Withdrawn};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::outbound::{Outbound, Request};
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The minimum size of the key, in bytes.
const KEY_BYTES: usize = 16;

/// The configuration of a channel of type `webhook`. Addresses are passed to the receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig<S = SecretRef> {
    /// The URL of the receiver.
    pub url: S,
    /// The key of the signature, at least 16 bytes.
    pub key: S,
    /// The token of the header `Authorization`.
    #[serde(default = "Option::default")]
    pub bearer: Option<S>,
    /// Whether the receiver is told that a message is no longer current.
    #[serde(default)]
    pub withdraw: bool,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

impl WebhookConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<WebhookConfig<Secret>, E> {
        let Self { url, key, bearer, withdraw, title, body } = self;
        let bearer = bearer.map(&mut *secret).transpose()?;
        Ok(WebhookConfig { url: secret(url)?, key: secret(key)?, bearer, withdraw, title, body })
    }
}

/// The channel.
pub struct Webhook {
    outbound: Arc<Outbound>,
    url: Url,
    key: Secret,
    bearer: Option<Secret>,
    withdraws: bool,
    templates: Templates,
}

impl Webhook {
    /// Opens the channel.
    pub fn open(config: &WebhookConfig<Secret>, outbound: &Arc<Outbound>) -> Result<Self, ConfigError> {
        if config.key.reveal().len() < KEY_BYTES {
            return Err(ConfigError::new(format!("`key` has less than {KEY_BYTES} bytes")));
        }
        Ok(Self {
            outbound: outbound.clone(),
            url: service_url(config.url.reveal(), outbound)?,
            key: config.key.clone(),
            bearer: config.bearer.clone(),
            withdraws: config.withdraw,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    async fn post(&self, body: Value, idempotency_key: String, now: Millis) -> Result<(), SendError> {
        let mut request = Request::json(self.url.clone(), &body, now).bearer(self.bearer.as_ref());
        let timestamp = now.div_euclid(1_000).to_string();
        let signature = sign(&self.key, &timestamp, &request.body);
        request.secrets.push(&self.key);
        request.headers = vec![
            ("Steprail-Timestamp", timestamp),
            ("Steprail-Signature", format!("v1={signature}")),
            ("Idempotency-Key", idempotency_key),
        ];
        self.outbound.send(request).await.map(drop)
    }
}

/// HMAC-SHA256 over `TIMESTAMP.BODY`, in hexadecimal digits.
fn sign(key: &Secret, timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.reveal().as_bytes());
    let tag = hmac::sign(&key, format!("{timestamp}.{body}").as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Channel for Webhook {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let message = delivery.message;
            let form = TextForm { chars: limits::BODY_CHARS, link: true };
            let body = json!({
                "event": "notification",
                "address": delivery.address,
                "title": self.templates.title(message),
                "text": self.templates.text(message, form),
                "message": message,
            });
            self.post(body, delivery_key(message, delivery.address), delivery.now).await?;
            Ok(Receipt::default())
        })
    }

    fn withdraw<'f>(&'f self, withdrawal: Withdrawal<'f>) -> BoxFuture<'f, Result<Withdrawn, SendError>> {
        Box::pin(async move {
            if !self.withdraws {
                return Ok(Withdrawn::Unsupported);
            }
            let key = delivery_key(withdrawal.message, withdrawal.address);
            let body = json!({
                "event": "withdrawal",
                "address": withdrawal.address,
                "id": withdrawal.message.id,
                "outcome": withdrawal.outcome,
            });
            self.post(body, format!("{key}-withdrawal"), withdrawal.now).await?;
            Ok(Withdrawn::Done)
        })
    }
}
