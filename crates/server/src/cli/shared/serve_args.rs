//! Arguments of the daemon and of an embedded MCP server.

use std::path::{Path, PathBuf};

use clap::Args;
use steprail_core::plan::Hash;
use steprail_core::policy::Policy;
use steprail_engine::{AdminAction, AdminEvent, Binding, Engine, PolicyHandle, RowKind};
use steprail_http::LinkSigner;
use tokio_util::sync::CancellationToken;

use super::error::CliError;
use super::help::{CONFIG_HELP, DATA_HELP};
use super::os_user;
use super::tool_args::ToolArgs;
use crate::cli::terminal::output;
use crate::config::{self, Config};
use crate::daemon::{Daemon, DataDir, checkpoints, policy_file};
use crate::secrets::Vault;
use crate::tools::ToolSource;
use crate::{key_file, observe};

/// Settings on the command line.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    #[arg(long, value_name = "DIR", help = DATA_HELP)]
    pub data: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub tools: ToolArgs,
    /// Address of the HTTP server, or `off`; port 0 selects a free port (`http.listen`)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Authentication: `single` for one user, `users` if every user has a token (`auth.mode`)
    #[arg(long, value_name = "MODE")]
    auth: Option<String>,
    /// How tool names are listed: `underscore`, `dotted` or `both`; all are accepted (`mcp.tool_names`)
    #[arg(long, value_name = "NAMES")]
    tool_names: Option<String>,
    /// Expose tools of other servers: `git__*`, or renamed, `read_*=files__read_*` (`mcp.expose`)
    #[arg(long, value_name = "[NAME=]TOOL")]
    expose: Vec<String>,
    /// Federate the resources, prompts and completions of a server (`mcp.federate`)
    #[arg(long, value_name = "SERVER")]
    federate: Vec<String>,
    /// Tool that creates missing tools, for steps with `missing_tool: create` (`mcp.provider`)
    #[arg(long, value_name = "TOOL")]
    provider: Option<String>,
    /// Accept decisions at gates through MCP clients; only for clients that ask a human (`mcp.ask_clients`)
    #[arg(long)]
    ask_clients: bool,
    /// What a commit survives: `full` or `process` (`store.durability`)
    #[arg(long, value_name = "DURABILITY")]
    durability: Option<String>,
}

impl ServeArgs {
    pub(crate) fn home(&self) -> Result<DataDir, CliError> {
        DataDir::find(self.data.clone()).map_err(CliError::new)
    }

    /// The settings on the command line, by key.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let expose = (!self.expose.is_empty()).then(|| self.expose.join(","));
        let federate = (!self.federate.is_empty()).then(|| self.federate.join(","));
        let ask_clients = self.ask_clients.then(|| "true".to_owned());
        let settings = [
            ("http.listen", self.listen.clone()),
            ("auth.mode", self.auth.clone()),
            ("mcp.tool_names", self.tool_names.clone()),
            ("mcp.expose", expose),
            ("mcp.federate", federate),
            ("mcp.provider", self.provider.clone()),
            ("mcp.ask_clients", ask_clients),
            ("store.durability", self.durability.clone()),
        ];
        settings.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// The same settings as arguments of a daemon, with absolute paths.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let absolute =
            |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        if let Some((option, file)) = self.tools.argument() {
            arguments.extend([option.to_owned(), absolute(Path::new(file))]);
        }
        if let Some(config) = &self.config {
            arguments.extend(["--config".to_owned(), absolute(config)]);
        }
        let exposed = self.expose.iter().map(|tool| ("--expose", tool));
        let federated = self.federate.iter().map(|server| ("--federate", server));
        let others = [
            ("--listen", &self.listen),
            ("--auth", &self.auth),
            ("--tool-names", &self.tool_names),
            ("--provider", &self.provider),
            ("--durability", &self.durability),
        ];
        let others = others.into_iter().filter_map(|(option, value)| Some((option, value.as_ref()?)));
        for (option, value) in exposed.chain(federated).chain(others) {
            arguments.extend([option.to_owned(), value.clone()]);
        }
        if self.ask_clients {
            arguments.push("--ask-clients".to_owned());
        }
        arguments
    }

    /// Loads the settings of every source, and initialises logging.
    pub(crate) fn config(&self, home: &DataDir) -> Result<Config, CliError> {
        let config = Config::load(home, self.config.as_deref(), config::environment(), &self.settings())?;
        observe::install_logs(config.log.format, &config.log.level).map_err(CliError::new)?;
        Ok(config)
    }

    /// Locks the database, calls `bind` to open listeners, and starts the engine.
    pub(crate) async fn open<T>(
        &self,
        home: &DataDir,
        config: &Config,
        tools: ToolSource,
        stop: &CancellationToken,
        bind: impl FnOnce() -> Result<T, CliError>,
    ) -> Result<(Daemon, T), CliError> {
        // Before the gateway and the engine, which register metrics when they are created.
        let metrics = observe::Metrics::install().map_err(CliError::new)?;
        // A daemon without the policy that it should enforce must make no calls.
        let policy = PolicyHandle::new(load_policy(&home.policy())?);
        let store = Daemon::store(home, config)?;
        let bound = bind()?;
        let vault = Vault::of(home, config);
        let provider = config.mcp.provider.as_deref();
        let env = Some(config.definitions.env.iter().cloned().collect());
        let tools = tools.open(&home.database(), provider, Some(&vault), env).map_err(CliError::new)?;
        let warnings = tools.start();
        let vault_error = vault.check().err().map(|error| error.to_string());
        warnings.into_iter().chain(vault_error).try_for_each(|warning| output::warning(&warning))?;
        let owner = home.owner(&os_user::name());
        let owner =
            owner.map_err(|error| CliError::new(format!("cannot write to the data directory: {error}")))?;
        let links = approval_links(home, config)?;
        let daemon =
            Daemon::open(store, tools, vault, metrics, owner, config, policy.clone(), links, stop).await?;
        policy_file::record(&daemon.engine, &policy).await?;
        record_presence(&daemon.engine).await?;
        policy_file::watch(home.policy(), policy, daemon.engine.clone(), stop.clone());
        checkpoints::export(home.database(), config, stop.clone()).map_err(CliError::new)?;
        Ok((daemon, bound))
    }
}

/// Signs approval links, if `http.url` is set to a URL that can be used for them.
fn approval_links(home: &DataDir, config: &Config) -> Result<Option<LinkSigner>, CliError> {
    let Some(url) = &config.http.url else { return Ok(None) };
    let file = home.links_key();
    let key = key_file::read(&file).and_then(|key| key.map_or_else(|| key_file::create(&file), Ok));
    let links = LinkSigner::new(&key.map_err(CliError::new)?, url);
    if links.is_none() && !config.notify.config().channels.is_empty() {
        output::warning("notifications have no approval links: `http.url` is not https")?;
    }
    Ok(links)
}

/// Records in the audit log which factor decisions need, unless the log already says so.
async fn record_presence(engine: &Engine) -> Result<(), CliError> {
    let factor = engine.presence();
    let hash = (!factor.is_none()).then(|| Hash::of(factor.name().as_bytes()));
    let binding = Binding { kind: RowKind::Setting, id: "auth.presence".to_owned(), hash };
    let action = AdminAction::PresenceConfigured { factor };
    Ok(engine.registry().record(vec![AdminEvent { action, by: None, rows: vec![binding] }]).await?)
}

/// Loads a policy file. An invalid file is an error with all its problems.
pub(crate) fn load_policy(path: &Path) -> Result<Option<Policy>, CliError> {
    policy_file::load(path).map_err(|error| {
        CliError::new(format!("the policy is invalid:\n{}", error.render()))
            .hint("correct it; `steprail policy check` shows every problem")
    })
}
