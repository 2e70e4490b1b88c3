//! The channels of the configuration. One that cannot be opened, for example because its secret is not set yet, does not
//! keep the daemon from starting: it is opened when it is used next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steprail_mcp::{SecretScope, SecretStore};
use steprail_notify::config::Channels;
use steprail_notify::outbound::SystemLookup;
use steprail_notify::{Channel, ConfigError, NotifyConfig};

use super::tool::{AttachedEngine, ToolChannel};

/// The channels, opened or not. Clones share them.
#[derive(Clone)]
pub(crate) struct ChannelSet(Arc<Inner>);

struct Inner {
    config: NotifyConfig,
    secrets: Arc<dyn SecretStore>,
    /// The engine that calls the tools of channels.
    engine: AttachedEngine,
    opened: Mutex<Channels>,
}

impl ChannelSet {
    /// Opens the channels. Returns the problems of those that cannot be opened.
    pub(crate) fn open(
        config: NotifyConfig,
        secrets: Arc<dyn SecretStore>,
        engine: AttachedEngine,
    ) -> (Self, Vec<ConfigError>) {
        let names: Vec<String> = config.channels.keys().cloned().collect();
        let channels = Self(Arc::new(Inner { config, secrets, engine, opened: Mutex::default() }));
        let problems = names.iter().filter_map(|name| channels.open_one(name).err()).collect();
        (channels, problems)
    }

    /// Whether a channel is configured.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.config.channels.contains_key(name)
    }

    /// A channel, which is opened if it is not.
    pub(super) async fn get(&self, name: &str) -> Result<Arc<dyn Channel>, ConfigError> {
        if let Some(channel) = self.opened().get(name) {
            return Ok(channel.clone());
        }
        let (channels, name) = (self.clone(), name.to_owned());
        // Secrets can come from files and programs.
        let opening = tokio::task::spawn_blocking(move || channels.open_one(&name));
        opening.await.unwrap_or_else(|_| Err(ConfigError::new("the channel cannot be opened")))
    }

    fn open_one(&self, name: &str) -> Result<Arc<dyn Channel>, ConfigError> {
        let Inner { config, secrets, engine, .. } = &*self.0;
        let unknown = || ConfigError::new("the channel is not configured");
        let channel = config.channels.get(name).ok_or_else(unknown)?.clone();
        let alone = NotifyConfig { channels: BTreeMap::from([(name.to_owned(), channel)]), ..config.clone() };
        let at = |problem: ConfigError| problem.at(&format!("channels.{name}"));
        let resolved = alone.resolve(|secret| find_secret(&**secrets, secret)).map_err(at)?;
        let opened = resolved.open(Arc::new(SystemLookup), &|name, config| {
            Ok(Arc::new(ToolChannel::open(name, config, engine.clone())?))
        });
        let opened = opened.map_err(|problems| problems.into_iter().next().unwrap_or_else(unknown))?;
        let channel = opened.get(name).ok_or_else(unknown)?.clone();
        self.opened().insert(name.to_owned(), channel.clone());
        Ok(channel)
    }

    fn opened(&self) -> MutexGuard<'_, Channels> {
        self.0.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl ChannelSet {
    /// Replaces a channel.
    pub(super) fn replace(&self, name: &str, channel: Arc<dyn Channel>) {
        self.opened().insert(name.to_owned(), channel);
    }
}

fn find_secret(secrets: &dyn SecretStore, name: &str) -> Result<String, ConfigError> {
    let missing = || {
        let hint =
            format!("set it with `steprail secret set {name} --shared`, or name its source in [store]");
        ConfigError::new(format!("there is no shared secret `{name}`")).hint(hint)
    };
    let found = secrets.get(&SecretScope::Shared, name);
    let found = found.map_err(|error| ConfigError::new(error.to_string()))?;
    found.map(|secret| secret.expose().to_owned()).ok_or_else(missing)
}
