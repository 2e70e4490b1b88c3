//! `steprail serve`: the daemon.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::stop::Stop;
use super::tools_at::ToolsAt;
use super::{exit, session};
use crate::config::types::Listen;
use crate::config::{self, Config, SettingSource};
use crate::daemon::{Daemon, DataDir, Sockets};
use crate::secrets::Vault;
use crate::tools::ToolSource;
use crate::{demo, observe};

/// How often runs that ended long ago are looked for.
const PURGE: Duration = Duration::from_hours(1);

/// Run the daemon: one engine for every client of this machine
///
/// Runs that were under way go on by themselves. It serves REST, live streams and MCP over HTTP; on this machine, MCP
/// clients reach it through `steprail mcp`, and commands through its socket. Every option has a key in steprail.toml and a
/// name in the environment: `steprail config --explain`.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub settings: ServeSettings,
    /// Show what it can do: sample tools, three definitions, a run under way and one that waits for you; in a temporary
    /// directory unless --data names one
    #[arg(long, conflicts_with_all = ["servers", "tools"])]
    demo: bool,
    /// It was started by a client: it leaves the client's session
    #[arg(long, hide = true)]
    background: bool,
}

/// What a daemon and an embedded server are told.
#[derive(Debug, Clone, Args)]
pub(super) struct ServeSettings {
    /// The data directory; `$STEPRAIL_DATA`, or steprail in the user's data directory by default
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The settings; steprail.toml in the data directory by default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub tools: ToolsAt,
    /// Serve HTTP at this address, or `off`; port 0 takes any that is free (`http.listen`)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// `single`, or `users` if everybody signs in with a token (`auth.mode`)
    #[arg(long, value_name = "MODE")]
    auth: Option<String>,
    /// Which names of tools are listed, `underscore`, `dotted` or `both`; all are understood (`mcp.tool_names`)
    #[arg(long, value_name = "NAMES")]
    tool_names: Option<String>,
    /// Offer tools of the servers as they are, too: `git__*`, or under other names, `read_*=files__read_*` (`mcp.expose`)
    #[arg(long, value_name = "[NAME=]TOOL")]
    expose: Vec<String>,
    /// Offer resources, prompts and completions of a server, too (`mcp.federate`)
    #[arg(long, value_name = "SERVER")]
    federate: Vec<String>,
    /// The tool that creates missing tools, for steps with `missing_tool: create` (`mcp.provider`)
    #[arg(long, value_name = "TOOL")]
    provider: Option<String>,
    /// Put gates to the users of MCP clients, whose answers then count: for clients that ask a human (`mcp.ask_clients`)
    #[arg(long)]
    ask_clients: bool,
    /// What a commit survives: `full` or `process` (`store.durability`)
    #[arg(long, value_name = "REACH")]
    durability: Option<String>,
}

impl ServeSettings {
    pub(super) fn home(&self) -> Result<DataDir, Stop> {
        DataDir::find(self.data.clone()).map_err(Stop::usage)
    }

    /// What the command line says, by the keys of the settings.
    fn flags(&self) -> Vec<(&'static str, String)> {
        let expose = (!self.expose.is_empty()).then(|| self.expose.join(","));
        let federate = (!self.federate.is_empty()).then(|| self.federate.join(","));
        let asks = self.ask_clients.then(|| "true".to_owned());
        let flags = [
            ("http.listen", self.listen.clone()),
            ("auth.mode", self.auth.clone()),
            ("mcp.tool_names", self.tool_names.clone()),
            ("mcp.expose", expose),
            ("mcp.federate", federate),
            ("mcp.provider", self.provider.clone()),
            ("mcp.ask_clients", asks),
            ("store.durability", self.durability.clone()),
        ];
        flags.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// The same on the command line of a daemon.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = |path: &Path| absolute(path).display().to_string();
        if let Some((option, file)) = self.tools.argument() {
            arguments.extend([option.to_owned(), text(Path::new(file))]);
        }
        if let Some(config) = &self.config {
            arguments.extend(["--config".to_owned(), text(config)]);
        }
        for exposed in &self.expose {
            arguments.extend(["--expose".to_owned(), exposed.clone()]);
        }
        for server in &self.federate {
            arguments.extend(["--federate".to_owned(), server.clone()]);
        }
        let others = [
            ("--listen", &self.listen),
            ("--auth", &self.auth),
            ("--tool-names", &self.tool_names),
            ("--provider", &self.provider),
            ("--durability", &self.durability),
        ];
        for (option, value) in others {
            arguments.extend(value.iter().flat_map(|value| [option.to_owned(), value.clone()]));
        }
        if self.ask_clients {
            arguments.push("--ask-clients".to_owned());
        }
        arguments
    }

    /// The settings from every source. Logs go where they say from now on.
    pub(super) fn config(&self, home: &DataDir) -> Result<Config, Stop> {
        let config = Config::load(home, self.config.as_deref(), config::environment(), &self.flags())?;
        observe::install_logs(config.log.format, &config.log.level).map_err(Stop::usage)?;
        Ok(config)
    }

    /// Takes the database and starts the engine; in between, `ready` may open what clients come through. What the user
    /// should know is said on standard error.
    pub(super) async fn open<T>(
        &self,
        home: &DataDir,
        config: &Config,
        tools: ToolSource,
        stop: &CancellationToken,
        ready: impl FnOnce() -> Result<T, Stop>,
    ) -> Result<(Daemon, T), Stop> {
        // Before gateways and engines, which count from their beginning.
        let observed = observe::Metrics::install().map_err(Stop::usage)?;
        let store = Daemon::store(home, config)?;
        let ready = ready()?;
        let vault = Vault::of(home, config);
        let provider = config.mcp.provider.as_deref();
        let tools = tools.open(&home.database(), provider, Some(&vault)).map_err(Stop::usage)?;
        // Servers connect in the background: nothing waits for them but the steps that call them.
        let warnings = tools.start();
        let unreadable = vault.check().err().map(|error| error.to_string());
        let mut err = anstream::stderr();
        for warning in warnings.into_iter().chain(unreadable) {
            writeln!(err, "warning: {warning}")?;
        }
        let owner = home.owner(&session::user());
        let owner =
            owner.map_err(|error| Stop::usage(format!("the data directory cannot be written: {error}")))?;
        Ok((Daemon::open(store, tools, vault, observed, owner, config, stop).await?, ready))
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        if self.background {
            // Whoever ends the client's session does not end this one. It may lead one already.
            let _ = rustix::process::setsid();
        }
        session::block_on(async {
            let (home, _temporary) = self.place()?;
            self.serve(&home).await
        })
    }

    /// The data directory. That of a demo is deleted at the end.
    fn place(&self) -> Result<(DataDir, Option<TempDir>), Stop> {
        if !self.demo || self.settings.data.is_some() {
            return Ok((self.settings.home()?, None));
        }
        let folder = tempfile::Builder::new().prefix("steprail-demo-").tempdir();
        let folder =
            folder.map_err(|error| Stop::usage(format!("cannot create a temporary directory: {error}")))?;
        Ok((DataDir::find(Some(folder.path().to_owned())).map_err(Stop::usage)?, Some(folder)))
    }

    async fn serve(&self, home: &DataDir) -> Result<ExitCode, Stop> {
        let config = self.settings.config(home)?;
        // Before the first call: a signal during the start ends it in order, too.
        let mut signals = Signals::listen()?;
        let cannot = |error: std::io::Error| Stop::usage(format!("cannot listen: {error}"));
        let stop = CancellationToken::new();
        home.create().map_err(Stop::usage)?;
        let tools = if self.demo {
            demo::tools().map_err(Stop::usage)?
        } else {
            self.settings.tools.read(Some(home))?
        };
        // Every door is there before anything goes on: a daemon that nobody could reach would make calls and end.
        let open_doors = || {
            let port = match config.http.listen {
                Listen::At(address) => {
                    let is_wish = matches!(config.source("http.listen"), SettingSource::Default);
                    let taken = Daemon::bind_http(address, is_wish);
                    Some(taken.map_err(|error| {
                        Stop::usage(format!("cannot listen on {address}: {error}"))
                            .hint("`http.listen` in steprail.toml, or --listen, names another address; `off` is none")
                    })?)
                }
                Listen::Off => None,
            };
            Ok((self.announce(home).map_err(cannot)?, port))
        };
        let (daemon, (pipes, port)) = self.settings.open(home, &config, tools, &stop, open_doors).await?;
        daemon.serve_sockets(pipes, &stop);
        let mut out = anstream::stdout();
        writeln!(out, "data {}", home.path().display())?;
        if let Some(port) = port {
            let url = daemon.serve_http(port, &stop).map_err(cannot)?;
            writeln!(out, "api {url}/api\nmcp {url}/mcp")?;
        }
        if self.demo {
            self.show(&daemon, home, &mut out).await?;
        }
        writeln!(out, "ready")?;
        out.flush()?;
        let traces =
            observe::export_traces(&daemon.engine, &config.telemetry, stop.clone()).map_err(Stop::usage)?;
        if let Some(keep) = config.store.keep {
            purge(&daemon, keep, &stop);
        }
        signals.next().await;
        let ended = tokio::select! {
            ended = end(daemon, &stop) => ended,
            // Whoever says it twice does not want to wait.
            () = signals.another() => Ok(ExitCode::from(exit::INTERRUPTED)),
        };
        let _ = std::fs::remove_file(home.pid_file());
        // What happened until now is still sent.
        if let Some(traces) = traces {
            let _ = traces.await;
        }
        ended
    }

    /// Begins the demo, and says what to look at.
    async fn show(&self, daemon: &Daemon, home: &DataDir, out: &mut impl Write) -> Result<(), Stop> {
        let user = daemon.engine.as_user(daemon.client());
        demo::begin(&user).await?;
        if let Ok(link) = daemon.app.sign_in_link() {
            writeln!(out, "page {link}")?;
        }
        let data = home.path().display();
        writeln!(out, "\nin another terminal:\n  export STEPRAIL_DATA={data}")?;
        writeln!(out, "  steprail runs\n  steprail approvals\n  steprail events --follow\n")?;
        Ok(())
    }

    /// Lets clients come, and leaves word of who serves and how.
    fn announce(&self, home: &DataDir) -> std::io::Result<Sockets> {
        std::fs::write(home.pid_file(), std::process::id().to_string())?;
        let mut arguments = self.settings.arguments();
        if self.demo {
            arguments.push("--demo".to_owned());
        }
        std::fs::write(home.serve_arguments(), serde_json::to_string(&arguments)?)?;
        Sockets::bind(home)
    }
}

/// Deletes runs that ended long ago, from time to time.
fn purge(daemon: &Daemon, keep: Duration, stop: &CancellationToken) {
    let engine = daemon.engine.clone();
    let purging = async move {
        loop {
            match engine.purge(keep).await {
                Ok(0) => {}
                Ok(runs) => tracing::info!(runs, "runs that ended long ago were deleted"),
                Err(error) => tracing::warn!(%error, "runs that ended long ago could not be deleted"),
            }
            tokio::time::sleep(PURGE).await;
        }
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(purging));
}

/// Who waits longer for the end is told for what.
const SOON: Duration = Duration::from_secs(1);

/// Stops: nothing new begins, calls in flight may end, nothing is lost.
async fn end(daemon: Daemon, stop: &CancellationToken) -> Result<ExitCode, Stop> {
    tracing::info!("stopping");
    stop.cancel();
    let mut closing = pin!(daemon.close());
    let closed = tokio::time::timeout(SOON, closing.as_mut()).await;
    let left = if let Ok(left) = closed {
        left
    } else {
        writeln!(anstream::stderr(), "calls in flight may end first; Ctrl-C again leaves them")?;
        closing.await
    };
    if left > 0 {
        let calls = if left == 1 { "call was" } else { "calls were" };
        writeln!(anstream::stderr(), "{left} {calls} still in flight; the next start deals with them")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// SIGINT and SIGTERM, both of which end the daemon in order.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Stop> {
        let cannot = |error: std::io::Error| Stop::usage(format!("cannot listen for signals: {error}"));
        let interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate()).map_err(cannot)? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// The next signal after the user was told what is waited for: some terminals send everything twice.
    async fn another(&mut self) {
        tokio::time::sleep(SOON).await;
        self.next().await;
    }
}
