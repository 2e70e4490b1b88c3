//! `steprail serve`: runs the daemon.

use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::shared::error::CliError;
use super::shared::exit;
use super::shared::serve_args::ServeArgs;
use super::terminal::text::count;
use crate::config::types::Listen;
use crate::config::{Config, SettingSource};
use crate::daemon::{Daemon, DataDir, Sockets, private_file};
use crate::{demo, observe};

/// Interval between purges of old runs.
const PURGE_INTERVAL: Duration = Duration::from_hours(1);
/// How long a shutdown may take before it prints what it waits for.
const QUIET_SHUTDOWN: Duration = Duration::from_secs(1);

/// Run the daemon: one engine for all clients of this machine
///
/// Runs that were in progress continue. The daemon serves REST, event streams and MCP over HTTP. On this machine, MCP clients
/// reach it through `steprail mcp`, and commands through its socket. Every option is also a key of steprail.toml and an
/// environment variable; see `steprail config --explain`.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    args: ServeArgs,
    /// Serve sample tools, definitions and runs, in a temporary data directory unless --data is given
    #[arg(long, conflicts_with_all = ["servers", "tools"])]
    demo: bool,
    /// Leave the session of the client that started the daemon
    #[arg(long, hide = true)]
    background: bool,
}

impl Serve {
    pub(super) async fn run(self) -> Result<ExitCode, CliError> {
        if self.background {
            // Signals to the client's session must not reach the daemon. Fails if it is already a session leader.
            let _ = rustix::process::setsid();
        }
        let (home, _temporary) = self.data_directory()?;
        self.serve(&home).await
    }

    /// Returns the data directory. The temporary one of a demo is deleted when the `TempDir` is dropped.
    fn data_directory(&self) -> Result<(DataDir, Option<TempDir>), CliError> {
        if !self.demo || self.args.data.is_some() {
            return Ok((self.args.home()?, None));
        }
        let folder = tempfile::Builder::new().prefix("steprail-demo-").tempdir();
        let folder =
            folder.map_err(|error| CliError::new(format!("cannot create a temporary directory: {error}")))?;
        Ok((DataDir::find(Some(folder.path().to_owned())).map_err(CliError::new)?, Some(folder)))
    }

    async fn serve(&self, home: &DataDir) -> Result<ExitCode, CliError> {
        let config = self.args.config(home)?;
        // Registered before the engine starts, so that a signal during the start also shuts it down in order.
        let mut signals = Signals::listen()?;
        let stop = CancellationToken::new();
        home.create().map_err(CliError::new)?;
        let tools = if self.demo {
            demo::tools().map_err(CliError::new)?
        } else {
            self.args.tools.read(Some(home))?
        };
        let cannot_listen = |error: std::io::Error| CliError::new(format!("cannot listen: {error}"));
        // Listeners are bound before the engine starts: a daemon that cannot be reached must make no calls.
        let bind = || {
            let port = bind_port(&config)?;
            Ok((self.announce(home, &config).map_err(cannot_listen)?, port))
        };
        let (daemon, (pipes, port)) = self.args.open(home, &config, tools, &stop, bind).await?;
        daemon.serve_sockets(pipes, &stop);
        let mut out = anstream::stdout();
        writeln!(out, "data {}", home.path().display())?;
        if let Some(port) = port {
            let url = daemon.serve_http(port, &stop).map_err(cannot_listen)?;
            writeln!(out, "api {url}/api\nmcp {url}/mcp")?;
        }
        if self.demo {
            self.start_demo(&daemon, home, &mut out).await?;
        }
        writeln!(out, "ready")?;
        out.flush()?;
        let traces = observe::export_traces(&daemon.engine, &config.telemetry, stop.clone());
        let traces = traces.map_err(CliError::new)?;
        if let Some(retention) = config.store.keep {
            spawn_retention(&daemon, retention, &stop);
        }
        let engine = daemon.engine.clone();
        let failure = tokio::select! {
            () = signals.next() => None,
            failure = engine.failed() => Some(failure),
        };
        let result = tokio::select! {
            result = shut_down(daemon, &stop) => result,
            () = signals.next_after_notice() => Ok(ExitCode::from(exit::INTERRUPTED)),
        };
        // The exit code tells the supervisor of the process to start it again.
        let result = failure.map_or(result, |failure| Err(failure.into()));
        let _ = std::fs::remove_file(home.pid_file());
        // Wait for the last spans to be exported.
        if let Some(traces) = traces {
            let _ = traces.await;
        }
        result
    }

    /// Starts the runs of the demo, and prints commands to try.
    async fn start_demo(
        &self,
        daemon: &Daemon,
        home: &DataDir,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
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

    /// Writes daemon.pid and serve.json, and opens the sockets.
    fn announce(&self, home: &DataDir, config: &Config) -> std::io::Result<Sockets> {
        private_file::write(&home.pid_file(), &std::process::id().to_string())?;
        let mut arguments = self.args.to_arguments();
        if self.demo {
            arguments.push("--demo".to_owned());
        }
        private_file::write(&home.serve_arguments(), &serde_json::to_string(&arguments)?)?;
        Sockets::bind(home, config.auth.group_sockets)
    }
}

/// Binds the HTTP port. If the default port is in use, any free one is bound.
fn bind_port(config: &Config) -> Result<Option<std::net::TcpListener>, CliError> {
    let Listen::At(address) = config.http.listen else { return Ok(None) };
    let is_default = matches!(config.source("http.listen"), SettingSource::Default);
    let listener = Daemon::bind_http(address, is_default).map_err(|error| {
        CliError::new(format!("cannot listen on {address}: {error}")).hint(
            "choose another address with `http.listen` in steprail.toml or --listen; `off` disables HTTP",
        )
    })?;
    Ok(Some(listener))
}

/// Purges old runs in the background, once per [`PURGE_INTERVAL`].
fn spawn_retention(daemon: &Daemon, retention: Duration, stop: &CancellationToken) {
    let engine = daemon.engine.clone();
    let retention = async move {
        loop {
            match engine.purge(retention).await {
                Ok(0) => {}
                Ok(runs) => tracing::info!(runs, "retention deleted runs"),
                Err(error) => tracing::warn!(%error, "retention failed"),
            }
            tokio::time::sleep(PURGE_INTERVAL).await;
        }
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(retention));
}

/// Stops accepting work, waits for calls in flight and closes the engine.
async fn shut_down(daemon: Daemon, stop: &CancellationToken) -> Result<ExitCode, CliError> {
    tracing::info!("stopping");
    stop.cancel();
    let mut closing = pin!(daemon.close());
    let left = if let Ok(left) = tokio::time::timeout(QUIET_SHUTDOWN, closing.as_mut()).await {
        left
    } else {
        writeln!(anstream::stderr(), "waiting for calls in flight; press Ctrl-C again to abandon them")?;
        closing.await
    };
    if left > 0 {
        let calls = count(left, "call was", "calls were");
        writeln!(anstream::stderr(), "{calls} still in flight; the next start recovers them")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// SIGINT and SIGTERM, which shut the daemon down.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        let cannot = |error: std::io::Error| CliError::new(format!("cannot listen for signals: {error}"));
        let interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate()).map_err(cannot)? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for the next signal after the notice of `shut_down`. Some terminals send every signal twice.
    async fn next_after_notice(&mut self) {
        tokio::time::sleep(QUIET_SHUTDOWN).await;
        self.next().await;
    }
}
