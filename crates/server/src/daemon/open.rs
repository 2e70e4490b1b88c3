//! Assembly of a daemon: accounts are loaded before the engine starts, because recovery makes calls that need their rights.

use std::sync::Arc;

use steprail_core::run::Millis;
use steprail_engine::{Engine, Error, Limits, Options, PolicyHandle, Principal, Quotas, SqliteStore};
use steprail_http::accounts::oidc::{Oidc, OidcSettings};
use steprail_http::accounts::{LoadedAccounts, SessionLifetime};
use steprail_http::{AccessPolicy, App, ConnectionLimits, LinkSigner};
use steprail_mcp::{Gateway, Server, Settings};
use steprail_store::StoreError;
use tokio_util::sync::CancellationToken;

use super::{Daemon, DataDir, fd_limit};
use crate::config::Config;
use crate::config::types::{AuthMode, Location};
use crate::notify;
use crate::observe::Metrics;
use crate::secrets::Vault;
use crate::tools::Tools;

impl Daemon {
    /// Opens the database and takes its lock.
    pub(crate) fn store(data_dir: &DataDir, config: &Config) -> Result<SqliteStore, StoreError> {
        let options = Options { durability: config.store.durability, ..Options::default() };
        SqliteStore::open(data_dir.database(), &options)
    }

    /// Starts an engine on a database, for the owner of its data directory.
    #[expect(clippy::too_many_arguments, reason = "it has one caller, which names them")]
    pub(crate) async fn open(
        store: SqliteStore,
        tools: Tools,
        vault: Vault,
        metrics: Metrics,
        owner: String,
        config: &Config,
        policy: PolicyHandle,
        links: Option<LinkSigner>,
        stop: &CancellationToken,
    ) -> Result<Self, Error> {
        let requires_sign_in = config.auth.mode == AuthMode::Users;
        let owner = Principal { sole_user: !requires_sign_in, ..Principal::user(owner) };
        let no_readers = || StoreError::Other("cannot read the database".to_owned());
        let oidc = identity_provider(config).await?;
        let limits = Limits {
            calls: config.engine.calls.get(),
            shutdown: config.engine.shutdown,
            quotas: quotas(config, &owner.id),
            ..Limits::default()
        };
        let recipient = owner.clone();
        let accounts = LoadedAccounts::load(&store.readers().ok_or_else(no_readers)?, owner)?;
        let builder =
            Engine::builder().store(store).tools(tools.clone()).limits(limits).policy(policy.clone());
        let variables =
            config.definitions.env.iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
        let builder = variables.fold(builder, |builder, (name, value)| builder.env(name, value));
        let builder = builder.presence(config.auth.presence);
        let courier = notify::open(
            &config.notify,
            Arc::new(vault.clone()),
            accounts.access(),
            recipient,
            &policy,
            &tools,
            links.clone(),
        )?;
        let (builder, attach) = match courier {
            Some((courier, attach)) => (builder.courier(courier), Some(attach)),
            None => (builder, None),
        };
        let builder = builder.people(notify::KnownPeople::new(config, accounts.access())?);
        let engine = builder.authorizer(accounts.access()).spawn()?;
        attach.into_iter().for_each(|attach| drop(attach.send(Some(engine.downgrade()))));
        let settings = Settings {
            tool_names: config.mcp.tool_names,
            expose: config.mcp.expose.iter().map(|exposed| exposed.expose.clone()).collect(),
            federate: federated(config, tools.gateway().as_ref())?,
            ask_clients: config.mcp.ask_clients,
        };
        let server = Server::new(engine.clone(), tools.gateway(), settings);
        let listed_tools = tools.clone();
        let app = App::new(
            steprail_http::Options {
                engine: engine.clone(),
                accounts,
                session_lifetime: session_lifetime(config),
                gateway: tools.gateway(),
                tools: Arc::new(move || listed_tools.list()),
                logins: tools.logins(),
                secrets: Arc::new(vault),
                access_policy: access_policy(config, requires_sign_in),
                oidc,
                metrics: Some(Arc::new(move || metrics.render())),
                url: config.http.url.as_ref().map(|url| (**url).to_owned()),
                links,
                max_body_bytes: usize::try_from(config.http.max_body.0).unwrap_or(usize::MAX),
                connections: ConnectionLimits {
                    per_address: config.quota.connections.limit(),
                    ..ConnectionLimits::for_descriptors(fd_limit::raise())
                },
            },
            stop.clone(),
        );
        Ok(Self { engine, tools, server, app })
    }
}

/// The quotas of users other than the owner.
fn quotas(config: &Config, owner: &str) -> Quotas {
    let quota = &config.quota;
    Quotas {
        active_runs: quota.active_runs.limit(),
        starts_per_minute: quota.starts_per_minute.limit(),
        stored_bytes: quota.stored_bytes.limit(),
        schedules: quota.schedules.limit(),
        subscriptions: quota.subscriptions.limit(),
        owner: Some(owner.to_owned()),
    }
}

fn session_lifetime(config: &Config) -> SessionLifetime {
    let millis = |time: std::time::Duration| Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX);
    SessionLifetime { idle: millis(config.auth.session_idle), max: millis(config.auth.session_max) }
}

fn access_policy(config: &Config, requires_sign_in: bool) -> AccessPolicy {
    let http = &config.http;
    let public = http.url.as_ref().and_then(|url| url.split_once("://")).map(|(_, host)| host);
    let hosts = http.hosts.iter().map(|host| &**host).chain(public).map(str::to_owned).collect();
    let origins = http.origins.iter().map(|origin| (**origin).to_owned()).collect();
    AccessPolicy { requires_sign_in, hosts, origins }
}

/// The servers of `mcp.federate`. Each must be configured.
fn federated(config: &Config, gateway: Option<&Gateway>) -> Result<Vec<String>, Error> {
    let known: Vec<&str> = gateway.map(Gateway::servers).unwrap_or_default();
    match config.mcp.federate.iter().find(|server| !known.contains(&server.as_str())) {
        None => Ok(config.mcp.federate.clone()),
        Some(unknown) => Err(Error::BadInput(format!(
            "`mcp.federate` names the unknown server `{unknown}`; configured servers: {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ))),
    }
}

/// The identity provider, if one is configured.
async fn identity_provider(config: &Config) -> Result<Option<Oidc>, Error> {
    let auth = &config.auth;
    let (Some(issuer), Some(audience), Some(jwks)) =
        (&auth.oidc_issuer, &auth.oidc_audience, &auth.oidc_jwks)
    else {
        return Ok(None);
    };
    let jwks = match jwks {
        Location::File(path) => path.display().to_string(),
        Location::Url(url) => (**url).to_owned(),
    };
    let settings = OidcSettings {
        issuer: issuer.clone(),
        audience: audience.clone(),
        jwks,
        user_claim: auth.oidc_user_claim.clone(),
        groups_claim: auth.oidc_groups_claim.clone(),
    };
    let oidc = Oidc::open(settings, || jiff::Timestamp::now().as_second()).await;
    oidc.map(Some).map_err(|error| Error::BadInput(format!("cannot use the identity provider: {error}")))
}
