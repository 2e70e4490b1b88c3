//! Microsoft Teams: webhooks of workflows, which post an adaptive card.
//!
//! <https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors/how-to/add-incoming-webhook>. A webhook
//! cannot change its messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::service_url;
use crate::channel::{BoxFuture, Channel, Delivery, Receipt, SendError};
use crate::config::{ConfigError, Resolver};
use crate::limits;
use crate::message::Message;
use crate::outbound::{Outbound, Request};
use crate::render::TextForm;
use crate::secret::{Secret, SecretRef};
use crate::template::Templates;

/// The configuration of a channel of type `teams`. It has one receiver: the conversation of the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeamsConfig<S = SecretRef> {
    /// The URL of the webhook.
    pub url: S,
    /// Template of the title.
    #[serde(default)]
    pub title: Option<String>,
    /// Template of the text.
    #[serde(default)]
    pub body: Option<String>,
}

impl TeamsConfig<SecretRef> {
    pub(crate) fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<TeamsConfig<Secret>, E> {
        Ok(TeamsConfig { url: secret(self.url)?, title: self.title, body: self.body })
    }
}

/// The channel.
pub struct Teams {
    outbound: Arc<Outbound>,
    url: Url,
    templates: Templates,
}

impl Teams {
    /// Opens the channel.
    pub fn open(config: &TeamsConfig<Secret>, outbound: &Arc<Outbound>) -> Result<Self, ConfigError> {
        Ok(Self {
            outbound: outbound.clone(),
            url: service_url(config.url.reveal(), outbound)?,
            templates: Templates::compile(config.title.as_deref(), config.body.as_deref())?,
        })
    }

    fn body(&self, message: &Message) -> Value {
        let text = self.templates.text(message, TextForm { chars: limits::TEAMS_CHARS, link: false });
        let mut blocks = vec![block(&self.templates.title(message), true)];
        blocks.extend(text.lines().take(limits::TEAMS_LINES).map(|line| block(line, false)));
        let link = message.usable_link();
        let actions = link.map(|link| json!({ "type": "Action.OpenUrl", "title": "Open", "url": link }));
        let actions: Vec<Value> = actions.into_iter().collect();
        json!({
            "type": "message",
            "attachments": [{
                "contentType": "application/vnd.microsoft.card.adaptive",
                "contentUrl": null,
                "content": {
                    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                    "type": "AdaptiveCard",
                    "version": "1.4",
                    "msteams": { "width": "Full" },
                    "body": blocks,
                    "actions": actions,
                },
            }],
        })
    }
}

/// One line. Text runs have no Markdown, so that untrusted text cannot contain links.
fn block(line: &str, is_title: bool) -> Value {
    let line = if line.is_empty() { " " } else { line };
    let run = if is_title {
        json!({ "type": "TextRun", "text": line, "weight": "Bolder", "size": "Medium" })
    } else {
        json!({ "type": "TextRun", "text": line })
    };
    json!({ "type": "RichTextBlock", "spacing": "None", "inlines": [run] })
}

impl Channel for Teams {
    fn send<'f>(&'f self, delivery: Delivery<'f>) -> BoxFuture<'f, Result<Receipt, SendError>> {
        Box::pin(async move {
            let body = self.body(delivery.message);
            self.outbound.send(Request::json(self.url.clone(), &body, delivery.now)).await?;
            Ok(Receipt::default())
        })
    }
}
