//! Slack: incoming webhooks, also of services that accept the same requests (Mattermost, Rocket.Chat).
//!
//! <https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks/>. A webhook cannot change its messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::service_url;
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::message::{Message, cut};
use crate::outbound::{Outbound, Request};
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The maximum length of a header, in characters.
const HEADER_CHARS: usize = 150;

/// The configuration of a channel of type `slack`. It has one receiver: the conversation of the webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlackConfig<S = SecretRef> {
    /// The URL of the webhook.
    pub url: S,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

impl SlackConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<SlackConfig<Secret>, E> {
        Ok(SlackConfig { url: secret(self.url)?, title: self.title, body: self.body })
    }
}

/// The channel.
pub struct Slack {
    outbound: Arc<Outbound>,
    url: Url,
    templates: Templates,
}

impl Slack {
    /// Opens the channel.
    pub fn open(config: &SlackConfig<Secret>, outbound: &Arc<Outbound>) -> Result<Self, ConfigError> {
        Ok(Self {
            outbound: outbound.clone(),
            url: service_url(config.url.reveal(), outbound)?,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    /// The texts are `plain_text`, in which markup and mentions have no effect.
    fn body(&self, message: &Message) -> Value {
        let mut title = self.templates.title(message);
        cut(&mut title, HEADER_CHARS);
        let text = self.templates.text(message, TextForm { chars: limits::SLACK_CHARS, link: false });
        let plain = |text: &str| json!({ "type": "plain_text", "text": text, "emoji": false });
        let mut blocks = vec![json!({ "type": "header", "text": plain(&title) })];
        if !text.is_empty() {
            blocks.push(json!({ "type": "section", "text": plain(&text) }));
        }
        if let Some(link) = message.usable_link() {
            let link = format!("<{}|Open>", escape(link).replace('|', "%7C"));
            blocks.push(json!({ "type": "section", "text": { "type": "mrkdwn", "text": link } }));
        }
        json!({ "text": escape(&title), "blocks": blocks })
    }
}

/// Escapes the characters that start links and mentions.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Channel for Slack {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let body = self.body(delivery.message);
            self.outbound.send(Request::json(self.url.clone(), &body, delivery.now)).await?;
            Ok(Receipt::default())
        })
    }
}
