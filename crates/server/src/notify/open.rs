//! Opening the courier: secrets are read and channels opened once, when the daemon starts.

use std::sync::{Arc, Mutex};

use steprail_engine::{Access, Error, Principal, WeakEngine};
use steprail_mcp::{SecretScope, SecretStore};
use steprail_notify::config::{Channels, ToolConfig};
use steprail_notify::outbound::SystemLookup;
use steprail_notify::routing::Directory;
use steprail_notify::{Channel, ConfigError, NotifyConfig};
use tokio::sync::watch;

use super::recipients::People;
use super::{Bursts, NotifyCourier};
use crate::config::Notify;

/// Attaches the engine to the courier.
pub(crate) type AttachEngine = watch::Sender<Option<WeakEngine>>;

/// Opens the channels of the configuration; `None` if it has none. Every problem is reported.
pub(crate) fn open(
    settings: &Notify,
    secrets: &dyn SecretStore,
    access: Access,
    owner: Principal,
) -> Result<Option<(NotifyCourier, AttachEngine)>, Error> {
    let config = settings.config();
    if config.channels.is_empty() {
        return Ok(None);
    }
    let directory = Directory::compile(&config).map_err(|problems| invalid(&problems))?;
    let (users, groups) = (config.users.clone(), config.groups.clone());
    let people = People { directory, users, groups, access, owner };
    let channels = channels(config, secrets).map_err(|problems| invalid(&problems))?;
    let (attach, engine) = watch::channel(None);
    let courier = NotifyCourier { channels, people, bursts: Mutex::new(Bursts::default()), engine };
    Ok(Some((courier, attach)))
}

/// The channels of a configuration, with the values of their secrets.
pub(crate) fn channels(
    config: NotifyConfig,
    secrets: &dyn SecretStore,
) -> Result<Channels, Vec<ConfigError>> {
    let config = config.resolve(|name| secret(secrets, name)).map_err(|problem| vec![problem])?;
    config.open(Arc::new(SystemLookup), &no_tools)
}

fn secret(secrets: &dyn SecretStore, name: &str) -> Result<String, ConfigError> {
    let missing = || {
        let hint =
            format!("set it with `steprail secret set {name} --shared`, or name its source in [store]");
        ConfigError::new(format!("there is no shared secret `{name}`")).hint(hint)
    };
    let found =
        secrets.get(&SecretScope::Shared, name).map_err(|error| ConfigError::new(error.to_string()))?;
    found.map(|secret| secret.expose().to_owned()).ok_or_else(missing)
}

fn no_tools(_: &ToolConfig) -> Result<Arc<dyn Channel>, ConfigError> {
    Err(ConfigError::new("channels of type `tool` are not supported yet"))
}

fn invalid(problems: &[ConfigError]) -> Error {
    let lines: Vec<String> = problems.iter().map(|problem| format!("[notify] {problem}")).collect();
    Error::BadInput(format!("cannot deliver notifications: {}", lines.join("; ")))
}
