//! The configuration of channels and recipients. Secrets are references, which the embedding program resolves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use crate::channel::Channel;
#[cfg(feature = "smtp")]
use crate::channels::email;
use crate::channels::{command, desktop, ntfy, pushover, slack, teams, webhook};
use crate::limits;
use crate::message::Urgency;
use crate::outbound::{Allowed, Lookup, Outbound, OutboundOptions};
use crate::secret::{Secret, SecretRef};
use crate::subscription::SubscriptionConfig;

/// A problem of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The problem. It contains no secrets.
    pub message: String,
    /// How to fix it.
    pub hint: Option<String>,
}

impl ConfigError {
    /// A problem without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The problem with its position, such as `channels.phone`.
    #[must_use]
    pub fn at(mut self, position: &str) -> Self {
        self.message = format!("{position}: {}", self.message);
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(out, " ({hint})"))
    }
}

impl std::error::Error for ConfigError {}

/// The section `notify`. `S` is [`SecretRef`] as written, and [`Secret`] after [`NotifyConfig::resolve`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyConfig<S = SecretRef> {
    /// Networks, addresses and hosts that may be contacted although they are not public.
    pub allow: Vec<String>,
    /// Timeout of a request, in seconds.
    pub timeout: Option<f64>,
    /// URL of the proxy of all requests.
    pub proxy: Option<S>,
    /// Certificates, as PEM, that are trusted in addition to those of the system.
    pub certificates: Vec<String>,
    /// The channels by name.
    pub channels: BTreeMap<String, ChannelConfig<S>>,
    /// The channels that definitions may use with any address (`mail:ann@example.org`).
    pub direct: Vec<String>,
    /// The users by name.
    pub users: BTreeMap<String, RecipientConfig>,
    /// The groups by name.
    pub groups: BTreeMap<String, RecipientConfig>,
    /// The on-call rotations by name.
    pub on_call: BTreeMap<String, RotationConfig>,
    /// Who is told of which events.
    pub subscriptions: Vec<SubscriptionConfig>,
}

impl<S> Default for NotifyConfig<S> {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            timeout: None,
            proxy: None,
            certificates: Vec::new(),
            channels: BTreeMap::new(),
            direct: Vec::new(),
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            on_call: BTreeMap::new(),
            subscriptions: Vec::new(),
        }
    }
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChannelConfig<S = SecretRef> {
    /// Pushover.
    Pushover(pushover::PushoverConfig<S>),
    /// ntfy.
    Ntfy(ntfy::NtfyConfig<S>),
    /// An incoming webhook of Slack, or of a service that is compatible with it.
    Slack(slack::SlackConfig<S>),
    /// A workflow webhook of Teams.
    Teams(teams::TeamsConfig<S>),
    /// A signed webhook.
    Webhook(webhook::WebhookConfig<S>),
    /// E-mail over SMTP.
    #[cfg(feature = "smtp")]
    Email(email::EmailConfig<S>),
    /// The notifications of the desktop.
    Desktop(desktop::DesktopConfig),
    /// A program.
    Command(command::CommandConfig),
    /// A tool of an MCP server. The embedding program implements it.
    Tool(ToolConfig),
}

/// A channel that calls a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolConfig {
    /// Name of the tool, `server__tool`.
    pub tool: String,
    /// The arguments. Their texts are templates over the fields of the message.
    #[serde(default)]
    pub args: Map<String, Value>,
}

/// A user or a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecipientConfig {
    /// The users of a group.
    pub members: Vec<String>,
    /// The address in each channel; empty for channels with one receiver.
    pub addresses: BTreeMap<String, String>,
    /// The channels by urgency. An urgency without an entry uses the next lower entry, or else the next higher one. Without
    /// any entry, all addresses are used.
    pub channels: BTreeMap<Urgency, Vec<String>>,
    /// The time zone of quiet hours and digests, `UTC` by default.
    pub time_zone: Option<String>,
    /// When messages have to wait.
    pub quiet_hours: Vec<QuietHoursConfig>,
    /// The lowest urgency that breaks quiet hours, `high` by default. An emergency always does.
    pub break_quiet_hours: Option<Urgency>,
    /// When messages of low urgency are sent together.
    pub digest: Option<DigestConfig>,
}

/// A window of quiet hours.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuietHoursConfig {
    /// The local time at which the window starts, `22:00`.
    pub from: String,
    /// The local time at which the window ends. If it is not after `from`, the window ends on the next day.
    pub to: String,
    /// The days on which the window starts (`mon` … `sun`); every day by default.
    #[serde(default)]
    pub days: Vec<String>,
}

/// When messages are sent together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DigestConfig {
    /// The local times of the digests, `09:00`.
    pub at: Vec<String>,
    /// The highest urgency that waits for a digest, `low` by default.
    #[serde(default)]
    pub up_to: Option<Urgency>,
}

/// An on-call rotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotationConfig {
    /// The users, in their order.
    pub users: Vec<String>,
    /// The length of a shift: `12h`, `1d`, `1w`. Shifts of days and weeks change at the same local time.
    pub shift: String,
    /// The local time at which the shift of the first user starts, `2026-01-05T09:00`.
    pub start: String,
    /// The time zone, `UTC` by default.
    #[serde(default)]
    pub time_zone: Option<String>,
}

/// Creates the channels that call tools, given their names.
pub type OpenTool<'t> = &'t dyn Fn(&str, &ToolConfig) -> Result<Arc<dyn Channel>, ConfigError>;

/// The channels by name.
pub type Channels = BTreeMap<String, Arc<dyn Channel>>;

impl NotifyConfig<SecretRef> {
    /// Resolves all references to secrets by name.
    pub fn resolve<E>(
        self,
        mut find: impl FnMut(&str) -> Result<String, E>,
    ) -> Result<NotifyConfig<Secret>, E> {
        let mut secret = |reference: SecretRef| find(&reference.secret).map(Secret::new);
        let mut channels = BTreeMap::new();
        for (name, channel) in self.channels {
            channels.insert(name, channel.resolve(&mut secret)?);
        }
        Ok(NotifyConfig {
            proxy: self.proxy.map(secret).transpose()?,
            channels,
            allow: self.allow,
            timeout: self.timeout,
            certificates: self.certificates,
            direct: self.direct,
            users: self.users,
            groups: self.groups,
            on_call: self.on_call,
            subscriptions: self.subscriptions,
        })
    }
}

/// Resolves one reference.
pub(crate) type Resolver<'r, E> = &'r mut dyn FnMut(SecretRef) -> Result<Secret, E>;

impl ChannelConfig<SecretRef> {
    fn resolve<E>(self, secret: Resolver<'_, E>) -> Result<ChannelConfig<Secret>, E> {
        Ok(match self {
            Self::Pushover(config) => ChannelConfig::Pushover(config.resolve(secret)?),
            Self::Ntfy(config) => ChannelConfig::Ntfy(config.resolve(secret)?),
            Self::Slack(config) => ChannelConfig::Slack(config.resolve(secret)?),
            Self::Teams(config) => ChannelConfig::Teams(config.resolve(secret)?),
            Self::Webhook(config) => ChannelConfig::Webhook(config.resolve(secret)?),
            #[cfg(feature = "smtp")]
            Self::Email(config) => ChannelConfig::Email(config.resolve(secret)?),
            Self::Desktop(config) => ChannelConfig::Desktop(config),
            Self::Command(config) => ChannelConfig::Command(config),
            Self::Tool(config) => ChannelConfig::Tool(config),
        })
    }
}

impl<S> ChannelConfig<S> {
    /// Whether a recipient needs an address in this channel.
    pub fn needs_address(&self) -> bool {
        match self {
            Self::Pushover(_) | Self::Ntfy(_) => true,
            #[cfg(feature = "smtp")]
            Self::Email(_) => true,
            _ => false,
        }
    }
}

impl NotifyConfig<Secret> {
    /// Opens all channels, and reports every channel that cannot be opened. Nothing is sent.
    pub fn open(&self, lookup: Arc<dyn Lookup>, tool: OpenTool<'_>) -> Result<Channels, Vec<ConfigError>> {
        let outbound = self.outbound(lookup).map_err(|error| vec![error])?;
        let outbound = Arc::new(outbound);
        let (mut channels, mut problems) = (Channels::new(), Vec::new());
        for (name, channel) in &self.channels {
            let opened = self.open_channel(name, channel, &outbound, tool);
            match opened {
                Ok(channel) => drop(channels.insert(name.clone(), channel)),
                Err(error) => problems.push(error.at(&format!("channels.{name}"))),
            }
        }
        if problems.is_empty() { Ok(channels) } else { Err(problems) }
    }

    fn timeout(&self) -> Result<Duration, ConfigError> {
        let Some(secs) = self.timeout else { return Ok(Duration::from_secs(limits::REQUEST_SECS)) };
        seconds(secs)
    }

    fn outbound(&self, lookup: Arc<dyn Lookup>) -> Result<Outbound, ConfigError> {
        let proxy = match &self.proxy {
            None => None,
            Some(url) => {
                let url = Url::parse(url.reveal());
                Some(url.map_err(|_| ConfigError::new("proxy: the secret is not a URL"))?)
            }
        };
        Outbound::new(OutboundOptions {
            allowed: Allowed::parse(&self.allow)?,
            timeout: self.timeout()?,
            proxy,
            certificates: self.certificates.clone(),
            lookup,
        })
    }

    #[cfg_attr(not(feature = "smtp"), expect(clippy::unused_self, reason = "only e-mail needs it"))]
    fn open_channel(
        &self,
        name: &str,
        channel: &ChannelConfig<Secret>,
        outbound: &Arc<Outbound>,
        tool: OpenTool<'_>,
    ) -> Result<Arc<dyn Channel>, ConfigError> {
        Ok(match channel {
            ChannelConfig::Pushover(config) => Arc::new(pushover::Pushover::open(config, outbound)?),
            ChannelConfig::Ntfy(config) => Arc::new(ntfy::Ntfy::open(config, outbound)?),
            ChannelConfig::Slack(config) => Arc::new(slack::Slack::open(config, outbound)?),
            ChannelConfig::Teams(config) => Arc::new(teams::Teams::open(config, outbound)?),
            ChannelConfig::Webhook(config) => Arc::new(webhook::Webhook::open(config, outbound)?),
            #[cfg(feature = "smtp")]
            ChannelConfig::Email(config) => {
                Arc::new(email::Email::open(config, &self.certificates, self.timeout()?)?)
            }
            ChannelConfig::Desktop(config) => Arc::new(desktop::Desktop::open(config)?),
            ChannelConfig::Command(config) => Arc::new(command::Command::open(config)?),
            ChannelConfig::Tool(config) => tool(name, config)?,
        })
    }
}

/// A timeout of the configuration.
pub(crate) fn seconds(secs: f64) -> Result<Duration, ConfigError> {
    let timeout = Duration::try_from_secs_f64(secs).ok();
    let timeout =
        timeout.filter(|timeout| !timeout.is_zero() && timeout.as_secs() <= limits::MAX_TIMEOUT_SECS);
    timeout.ok_or_else(|| {
        ConfigError::new(format!("`timeout` is a number of seconds up to {}", limits::MAX_TIMEOUT_SECS))
    })
}
