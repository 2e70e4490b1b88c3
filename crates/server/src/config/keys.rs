//! Every setting of a daemon, declared once.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use steprail_engine::{Durability, Limits, Presence};
use steprail_mcp::ToolNames;
use steprail_notify::config::{RecipientConfig, RotationConfig};
use steprail_notify::subscription::SubscriptionConfig;
use steprail_notify::{ChannelConfig, SecretRef};

use super::declare::{Key, Section, settings};
use super::secret::Secret;
use super::secret_source::SecretSources;
use super::setting::Setting;
use super::structured::Structured;
use super::types::{
    Amount, AuthMode, Exposed, FilePath, HostName, Listen, Location, LogFilter, LogFormat, Size, SizeLimit,
    ToolName, Url, WebOrigin,
};

settings! {
    /// The HTTP server.
    http: Http {
        /// Address and port of the HTTP server.
        listen: Listen = Listen::default();
        /// Public base URL, if it differs from the listen address. Sign-in links, approval links in notifications and the
        /// OAuth metadata for MCP clients contain it. Notifications have approval links only if it is set.
        url: Option<WebOrigin> = None;
        /// Accepted `Host` names beside those of the loopback interface, such as the name of a reverse proxy. Requests
        /// with other names are rejected.
        hosts: Vec<HostName> = Vec::new();
        /// Origins whose pages may send cross-origin requests from a browser.
        origins: Vec<WebOrigin> = Vec::new();
        /// Maximum size of a request body.
        max_body: Size = Size(10_000_000);
    }
    /// Authentication and browser sessions.
    auth: Auth {
        /// `single`: local programs of the owner need no token and act as the owner. `users`: every request needs a
        /// token or a session.
        mode: AuthMode = AuthMode::Single;
        /// Factor with which users prove that they are present when they decide at a gate or change accounts, definitions or
        /// secrets: `none`, `pin` or `totp`. Rules of the policy can require a stronger one.
        presence: Presence = Presence::None;
        /// Whether members of the group that the daemon runs as can open its sockets and act as the owner. The system service
        /// needs it, because it runs as a user of its own.
        group_sockets: bool = false;
        /// Idle timeout of browser sessions.
        session_idle: Duration = hours(12);
        /// Maximum lifetime of browser sessions.
        session_max: Duration = hours(7 * 24);
        /// Issuer of the OIDC identity provider: the exact `iss` of its tokens.
        oidc_issuer: Option<String> = None;
        /// Audience that OIDC tokens must have in `aud`.
        oidc_audience: Option<String> = None;
        /// Location of the issuer's public keys (JWKS).
        oidc_jwks: Option<Location> = None;
        /// Claim of OIDC tokens that contains the user id.
        oidc_user_claim: String = "sub".to_owned();
        /// Claim of OIDC tokens that lists the groups of the user.
        oidc_groups_claim: String = "groups".to_owned();
    }
    /// The database.
    store: Store {
        /// Durability of commits: `full` survives a power failure, `process` only a crash of the process.
        durability: Durability = Durability::default();
        /// Retention: runs that ended longer ago are deleted. Without it, all runs are kept.
        keep: Option<Duration> = None;
        /// Key file that encrypts the secrets; secrets.key in the data directory by default.
        secrets_key: Option<FilePath> = None;
        /// Sources of shared secrets, read when a secret is used, and the servers that may receive each secret in arguments
        /// of calls. A secret that is not listed is in the encrypted store, and only entries of servers can use it.
        secrets: SecretSources = SecretSources::default();
    }
    /// The audit log.
    audit: Audit {
        /// Where signed checkpoints of the hash chain are exported: a file that gets a line for each, or a URL to which each is
        /// posted.
        checkpoints: Option<Location> = None;
        /// Interval of the exports.
        checkpoint_every: Duration = hours(1);
    }
    /// Definitions.
    definitions: Definitions {
        /// Environment variables of the daemon that definitions can read as `{{env.NAME}}`.
        env: Vec<String> = Vec::new();
    }
    /// The MCP server.
    mcp: Mcp {
        /// Names under which the tools of Steprail are listed: `workflow_start` or `workflows.run`. Both are accepted in
        /// calls.
        tool_names: ToolNames = ToolNames::default();
        /// Tools of other servers that are offered to clients, optionally under other names.
        expose: Vec<Exposed> = Vec::new();
        /// Servers whose resources, prompts and completions are offered to clients. If two have the same name, the first
        /// server takes precedence.
        federate: Vec<String> = Vec::new();
        /// Tool that creates missing tools, for steps with `missing_tool: create`.
        provider: Option<ToolName> = None;
        /// Whether approvals are requested from users through their MCP clients. Enable it only for clients that ask a
        /// human.
        ask_clients: bool = false;
    }
    /// Concurrency and shutdown of the engine.
    engine: Engine {
        /// Maximum number of calls in flight.
        calls: NonZeroU32 = NonZeroU32::new(Limits::default().calls).unwrap_or(NonZeroU32::MIN);
        /// Time that calls in flight have to end at shutdown.
        shutdown: Duration = Limits::default().shutdown;
    }
    /// Quotas, so that one user or one address cannot use up the capacity that others need. `0` means no limit. They do not
    /// apply to the owner of the data directory, who is the only user while `auth.mode` is `single`.
    quota: Quota {
        /// Maximum number of unfinished runs per user. Runs of sub-workflows do not count.
        active_runs: Amount = Amount(10_000);
        /// Maximum number of runs that a user starts per minute, also through schedules. Runs of sub-workflows do not count.
        starts_per_minute: Amount = Amount(6_000);
        /// Maximum size of the stored runs and definitions of a user: their values, and 256 bytes per event.
        stored_bytes: SizeLimit = SizeLimit(10_000_000_000);
        /// Maximum number of schedules per user.
        schedules: Amount = Amount(1_000);
        /// Maximum number of open event streams per user: server-sent events, `WebSocket` subscriptions and MCP sessions.
        subscriptions: Amount = Amount(256);
        /// Maximum number of HTTP connections per address; an IPv6 network of 64 bits counts as one address. Loopback
        /// addresses are exempt. Set it to 0 if a reverse proxy on another machine forwards all requests.
        connections: Amount = Amount(1_024);
    }
    /// Notifications: the channels that deliver them and the people who get them. docs/notifications.md describes the tables.
    notify: Notify {
        /// Channels by name. Without any, nothing is delivered and nothing is recorded for delivery.
        channels: Structured<BTreeMap<String, ChannelConfig>> = Structured::default();
        /// Addresses and preferences of users, by the id of the user.
        users: Structured<BTreeMap<String, RecipientConfig>> = Structured::default();
        /// Members and addresses of groups, by name. Users whose accounts are in the group belong to it as well.
        groups: Structured<BTreeMap<String, RecipientConfig>> = Structured::default();
        /// On-call rotations by name.
        on_call: Structured<BTreeMap<String, RotationConfig>> = Structured::default();
        /// Who is told of which events, in addition to the recipients that definitions name.
        subscriptions: Structured<Vec<SubscriptionConfig>> = Structured::default();
        /// Channels that definitions may use with any address.
        direct: Vec<String> = Vec::new();
        /// Networks, addresses and hosts that channels may contact although they are not public.
        allow: Vec<String> = Vec::new();
        /// Timeout of a request to a channel.
        timeout: Duration = Duration::from_secs(steprail_notify::limits::REQUEST_SECS);
        /// The proxy of all requests to channels: a reference to a secret that contains its URL.
        proxy: Structured<Option<SecretRef>> = Structured::default();
        /// Certificates, as PEM, that channels trust in addition to those of the system.
        certificates: Vec<String> = Vec::new();
    }
    /// The log on standard error.
    log: Log {
        /// Format of log lines: `text` for people, `json` for programs.
        format: LogFormat = LogFormat::Text;
        /// Minimum level, or levels per target.
        level: LogFilter = LogFilter::default();
    }
    /// Export of traces.
    telemetry: Telemetry {
        /// Endpoint of the OpenTelemetry collector (OTLP over HTTP). Without it, no traces are exported.
        otlp: Option<Url> = None;
        /// Headers of export requests: `name=value`, separated by commas.
        otlp_headers: Option<Secret> = None;
        /// Service name in traces.
        service: String = "steprail".to_owned();
    }
}

/// Every key.
pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}
