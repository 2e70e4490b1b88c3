//! Subscriptions of operators: who is told of which events, in addition to the recipients that a definition names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use steprail_core::pattern;

use crate::message::{Kind, Message};

/// A subscription. A condition that is not set matches every message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionConfig {
    /// The recipients.
    pub to: Vec<String>,
    /// The kinds of messages.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// Pattern of the name of the definition, `billing*`.
    #[serde(default)]
    pub definition: Option<String>,
    /// Labels of the definition, with patterns of their values.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The kinds of failures, such as `timeout`.
    #[serde(default)]
    pub failures: Vec<String>,
}

impl SubscriptionConfig {
    /// Whether a message meets all conditions.
    pub fn matches(&self, message: &Message) -> bool {
        let definition = message.definition.as_ref().map(|definition| &*definition.name);
        let is_label = |(name, value): (&String, &String)| {
            message.labels.get(name).is_some_and(|label| pattern::matches(value, label))
        };
        let is_failure = |failure: &String| message.failure.as_ref() == Some(failure);
        (self.kinds.is_empty() || self.kinds.contains(&message.kind))
            && self
                .definition
                .as_ref()
                .is_none_or(|wanted| definition.is_some_and(|name| pattern::matches(wanted, name)))
            && self.labels.iter().all(is_label)
            && (self.failures.is_empty() || self.failures.iter().any(is_failure))
    }
}
