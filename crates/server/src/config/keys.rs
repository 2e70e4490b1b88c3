//! Every setting of a daemon, declared once.

use std::num::NonZeroU32;
use std::time::Duration;

use steprail_engine::{Durability, Limits};
use steprail_mcp::ToolNames;

use super::declare::{Key, Section, settings};
use super::secret::Secret;
use super::setting::Setting;
use super::types::{
    AuthMode, Exposed, FilePath, HostName, Listen, Location, LogFilter, LogFormat, Size, ToolName, Url,
    WebOrigin,
};

settings! {
    /// How it is reached over HTTP.
    http: Http {
        /// Where it serves HTTP.
        listen: Listen = Listen::default();
        /// How others reach it, where that is not where it listens: links, and what MCP clients are told about signing
        /// in, name this.
        url: Option<WebOrigin> = None;
        /// Further names under which it is reached, such as that of a proxy before it; requests for other hosts
        /// are refused.
        hosts: Vec<HostName> = Vec::new();
        /// Pages of other origins that may call it from a browser.
        origins: Vec<WebOrigin> = Vec::new();
        /// The largest request that it reads.
        max_body: Size = Size(10_000_000);
    }
    /// Who may use it.
    auth: Auth {
        /// With `single`, whoever reaches it on this machine is the owner; with `users`, everybody signs in with a
        /// token.
        mode: AuthMode = AuthMode::Single;
        /// A session that is not used for so long ends.
        session_idle: Duration = hours(12);
        /// A session ends after this time, used or not.
        session_max: Duration = hours(7 * 24);
        /// The issuer whose tokens it takes, as they name it.
        oidc_issuer: Option<String> = None;
        /// What the issuer's tokens must be made for.
        oidc_audience: Option<String> = None;
        /// The issuer's keys.
        oidc_jwks: Option<Location> = None;
        /// The claim of a token that names the user.
        oidc_user_claim: String = "sub".to_owned();
        /// The claim of a token that lists the user's groups.
        oidc_groups_claim: String = "groups".to_owned();
    }
    /// How runs are kept.
    store: Store {
        /// What a commit survives: `full` a power cut, `process` only the end of the process.
        durability: Durability = Durability::default();
        /// Runs that ended longer ago than this are deleted; without it, all are kept.
        keep: Option<Duration> = None;
        /// The file with the key that secrets are encrypted with; secrets.key in the data directory by default.
        secrets_key: Option<FilePath> = None;
    }
    /// What MCP clients get.
    mcp: Mcp {
        /// Which names of its own tools are listed, `workflow_start` or `workflows.run`; all are understood.
        tool_names: ToolNames = ToolNames::default();
        /// Tools of the servers that are offered as they are, too, perhaps under other names.
        expose: Vec<Exposed> = Vec::new();
        /// Servers whose resources, prompts and completions are offered, too. Where two have the same name, the first
        /// keeps it.
        federate: Vec<String> = Vec::new();
        /// The tool that creates missing tools, for steps with `missing_tool: create`.
        provider: Option<ToolName> = None;
        /// Whether gates are put to the users of MCP clients, whose answers then count: for clients that ask a human.
        ask_clients: bool = false;
    }
    /// How much it does at the same time, and how it stops.
    engine: Engine {
        /// Calls of tools in flight at once.
        calls: NonZeroU32 = NonZeroU32::new(Limits::default().calls).unwrap_or(NonZeroU32::MIN);
        /// How long calls in flight may take to end when it stops.
        shutdown: Duration = Limits::default().shutdown;
    }
    /// What it says about itself.
    log: Log {
        /// How a line of the log is written.
        format: LogFormat = LogFormat::Text;
        /// What is worth a line.
        level: LogFilter = LogFilter::default();
    }
    /// Where traces go.
    telemetry: Telemetry {
        /// Where OpenTelemetry traces are sent, as OTLP over HTTP; without it, nowhere.
        otlp: Option<Url> = None;
        /// Headers that are sent with them, as `name=value` with commas between.
        otlp_headers: Option<Secret> = None;
        /// What it is called there.
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
