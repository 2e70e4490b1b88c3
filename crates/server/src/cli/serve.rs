//! `steprail serve`: the daemon.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use steprail_engine::{Durability, Engine, Options, Principal, SqliteStore};
use steprail_mcp::{Expose, Server, Settings, ToolNames};
use steprail_store::StoreError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::database::Reach;
use super::session;
use super::stop::Stop;
use super::tools_at::ToolsAt;
use crate::accounts::{DAY_MS, Known, Lasting};
use crate::daemon::{Daemon, Home, Pipes};
use crate::http::stream::Hub;
use crate::http::{App, Doors, Parts};

/// Run the daemon: one engine for every client of this machine
///
/// Runs that were under way go on by themselves. MCP clients reach it through `steprail mcp`, or over HTTP.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub settings: ServeSettings,
    /// Serve MCP over HTTP at this address of this machine, under /mcp; port 0 takes any that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
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
    #[command(flatten)]
    pub tools: ToolsAt,
    /// Which names of tools are listed; all are understood
    #[arg(long, value_name = "NAMES", default_value = "underscore")]
    tool_names: Names,
    /// Offer tools of the servers as they are, too: `git__*`, or under other names, `read_*=files__read_*`
    #[arg(long, value_name = "[NAME=]TOOL", value_parser = exposed)]
    expose: Vec<(String, Expose)>,
    /// The tool that creates missing tools, for steps with `missing_tool: create`
    #[arg(long, value_name = "TOOL")]
    provider: Option<String>,
    /// Put gates to the users of MCP clients, whose answers then count: for clients that ask a human
    #[arg(long)]
    ask_clients: bool,
    /// What a commit survives
    #[arg(long, default_value = "full")]
    durability: Reach,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Names {
    /// `workflow_start`
    Underscore,
    /// `workflows.run`, where there is such a name
    Dotted,
    /// Both
    Both,
}

impl ServeSettings {
    pub(super) fn home(&self) -> Result<Home, Stop> {
        Home::find(self.data.clone()).map_err(Stop::usage)
    }

    /// The same on the command line of a daemon.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some((option, file)) = self.tools.argument() {
            let file =
                std::path::absolute(file).map_or_else(|_| file.to_owned(), |path| path.display().to_string());
            arguments.extend([option.to_owned(), file]);
        }
        for (written, _) in &self.expose {
            arguments.extend(["--expose".to_owned(), written.clone()]);
        }
        if let Some(provider) = &self.provider {
            arguments.extend(["--provider".to_owned(), provider.clone()]);
        }
        if self.ask_clients {
            arguments.push("--ask-clients".to_owned());
        }
        let word =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let names = word(self.tool_names.to_possible_value());
        arguments.extend(names.into_iter().flat_map(|names| ["--tool-names".to_owned(), names]));
        let durability = word(self.durability.to_possible_value());
        arguments.extend(durability.into_iter().flat_map(|word| ["--durability".to_owned(), word]));
        arguments
    }

    /// Takes the database and starts the engine; in between, `ready` may open what clients come through. What the user
    /// should know is said on standard error.
    pub(super) async fn open<T>(
        &self,
        home: &Home,
        stop: &CancellationToken,
        ready: impl FnOnce() -> Result<T, Stop>,
    ) -> Result<(Daemon, T), Stop> {
        // What nobody waits for an answer to is said where a daemon's words are kept.
        let said = tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false);
        let _ = said.with_max_level(tracing::Level::WARN).without_time().try_init();
        home.create().map_err(Stop::usage)?;
        let named = self.tools.read(Some(home))?;
        let durability = match self.durability {
            Reach::Full => Durability::Full,
            Reach::Process => Durability::Process,
        };
        let store = SqliteStore::open(home.database(), &Options { durability, ..Options::default() })?;
        let ready = ready()?;
        let tools = named.open(&home.database(), self.provider.as_deref()).map_err(Stop::usage)?;
        // What is known about tools decides what becomes of calls that the last daemon left.
        let warnings = tools.connect().await;
        let mut err = anstream::stderr();
        for warning in warnings {
            writeln!(err, "warning: {warning}")?;
        }
        let owner = home.owner(&session::user());
        let owner =
            owner.map_err(|error| Stop::usage(format!("the data directory cannot be written: {error}")))?;
        let owner = Principal { alone: true, ..Principal::user(owner) };
        let none = || StoreError::Other("the database cannot be read".to_owned());
        let known = Known::read(&store.readers().ok_or_else(none)?, owner)?;
        let engine =
            Engine::builder().store(store).tools(tools.clone()).authorizer(known.access.clone()).spawn()?;
        let tool_names = match self.tool_names {
            Names::Underscore => ToolNames::Underscore,
            Names::Dotted => ToolNames::Dotted,
            Names::Both => ToolNames::Both,
        };
        let expose = self.expose.iter().map(|(_, exposed)| exposed.clone()).collect();
        let settings = Settings { tool_names, expose, ask_clients: self.ask_clients };
        let server = Server::new(engine.clone(), tools.gateway(), settings);
        let app = App::new(Parts {
            accounts: known.with(engine.clone(), Lasting { idle: DAY_MS / 2, most: 7 * DAY_MS }),
            gateway: tools.gateway(),
            tools: tools.clone(),
            hub: Hub::spawn(engine.clone(), stop.clone()),
            doors: Doors::default(),
            oidc: None,
            metrics: None,
            url: OnceLock::new(),
            body_bytes: 10 * 1024 * 1024,
            defining: Mutex::default(),
            engine: engine.clone(),
        });
        Ok((Daemon { engine, tools, server, app }, ready))
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<ExitCode, Stop> {
        if self.background {
            // Whoever ends the client's session does not end this one. It may lead one already.
            let _ = rustix::process::setsid();
        }
        session::block_on(self.serve())
    }

    async fn serve(&self) -> Result<ExitCode, Stop> {
        if let Some(address) = self.listen.filter(|address| !address.ip().is_loopback()) {
            let message =
                format!("{address} can be reached from other machines, and nobody would have to sign in");
            return Err(Stop::usage(message).hint("listen on 127.0.0.1"));
        }
        let home = self.settings.home()?;
        let cannot = |error: std::io::Error| Stop::usage(format!("cannot listen: {error}"));
        let stop = CancellationToken::new();
        let (daemon, pipes) =
            self.settings.open(&home, &stop, || self.announce(&home).map_err(cannot)).await?;
        daemon.serve_pipes(pipes, &stop);
        let mut out = anstream::stdout();
        writeln!(out, "data {}", home.path().display())?;
        if let Some(address) = self.listen {
            let url = daemon.open_port(address, false, &stop).await.map_err(cannot)?;
            writeln!(out, "mcp {url}/mcp")?;
        }
        writeln!(out, "ready")?;
        out.flush()?;
        wait_for_end().await?;
        stop.cancel();
        if let left @ 1.. = daemon.close().await {
            writeln!(
                anstream::stderr(),
                "{left} calls were still in flight; the next start deals with them"
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Lets clients come, and leaves word of who serves and how.
    fn announce(&self, home: &Home) -> std::io::Result<Pipes> {
        std::fs::write(home.process(), std::process::id().to_string())?;
        std::fs::write(home.settings(), serde_json::to_string(&self.settings.arguments())?)?;
        Pipes::open(home)
    }
}

/// Waits until somebody wants the process to end.
async fn wait_for_end() -> Result<(), Stop> {
    let cannot = |error: std::io::Error| Stop::usage(format!("cannot listen for signals: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// A pattern, as it is written and as it is meant.
fn exposed(text: &str) -> Result<(String, Expose), String> {
    text.parse().map(|exposed| (text.to_owned(), exposed))
}
