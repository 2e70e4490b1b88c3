//! Opening the courier when the daemon starts.

use std::sync::{Arc, Mutex};

use steprail_engine::{Access, Error, PolicyHandle, Principal, ToolCaller, WeakEngine};
use steprail_http::LinkSigner;
use steprail_mcp::SecretStore;
use steprail_notify::ConfigError;
use steprail_notify::routing::Directory;
use tokio::sync::watch;

use super::recipients::People;
use super::{Bursts, ChannelSet, NotifyCourier, tool};
use crate::config::Notify;

/// Attaches the engine to the courier.
pub(crate) type AttachEngine = watch::Sender<Option<WeakEngine>>;

/// Opens the channels of the configuration; `None` if it has none. Channels that cannot be opened are logged.
pub(crate) fn open(
    settings: &Notify,
    secrets: Arc<dyn SecretStore>,
    access: Access,
    owner: Principal,
    policy: &PolicyHandle,
    tools: &dyn ToolCaller,
    links: Option<LinkSigner>,
) -> Result<Option<(NotifyCourier, AttachEngine)>, Error> {
    let config = settings.config();
    if config.channels.is_empty() {
        return Ok(None);
    }
    let directory = Directory::compile(&config).map_err(|problems| invalid(&problems))?;
    let (users, groups) = (config.users.clone(), config.groups.clone());
    let refused = tool::refusals(&config, policy.current().as_deref(), tools);
    if !refused.is_empty() {
        return Err(invalid(&refused));
    }
    access.grant(tool::SERVICE, tool::grants(&config));
    let (attach, engine) = watch::channel(None);
    let (channels, problems) = ChannelSet::open(config, secrets, engine.clone());
    problems.iter().for_each(|problem| tracing::warn!("notify.{problem}"));
    let people = People { directory, users, groups, access, owner };
    let courier = NotifyCourier { channels, people, bursts: Mutex::new(Bursts::default()), links, engine };
    Ok(Some((courier, attach)))
}

pub(super) fn invalid(problems: &[ConfigError]) -> Error {
    let lines: Vec<String> = problems.iter().map(|problem| format!("notify.{problem}")).collect();
    Error::BadInput(format!("cannot deliver notifications: {}", lines.join("; ")))
}
