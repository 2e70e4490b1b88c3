//! Where the tools of a run are: in a script, or at MCP servers.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use steprail_engine::{BoxFuture, Outcome, ToolCall, ToolCaller, Traits};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Health, Options};

use super::input;
use super::session::read_script;
use super::stop::Stop;
use crate::scripted::Script;

/// Where tools are, on the command line.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub(super) struct ToolsAt {
    /// MCP servers: a config file of your MCP client, such as `.mcp.json`
    #[arg(long, value_name = "FILE")]
    servers: Option<String>,
    /// Scripted tools instead: a file that says what each does, such as `mail__send: { return: ok, sleep: 1s, fail: 2 }`
    #[arg(long, value_name = "SCRIPT")]
    tools: Option<String>,
}

impl ToolsAt {
    /// As it is written on a command line.
    pub(super) fn argument(&self) -> (&'static str, &str) {
        match (&self.servers, &self.tools) {
            (Some(servers), _) => ("--servers", servers),
            (None, tools) => ("--tools", tools.as_deref().unwrap_or_default()),
        }
    }

    /// Reads the file, or says what is wrong with it.
    pub(super) fn read(&self) -> Result<Named, Stop> {
        match self.argument() {
            ("--servers", file) => {
                let source = input::read(file)?;
                let servers = Servers::read(source.text());
                servers.map(Named::Servers).map_err(|problem| Stop::usage(format!("{file}: {problem}")))
            }
            (_, file) => read_script(file).map(|script| Named::Scripted(Arc::new(script))),
        }
    }
}

/// Tools that a file names.
pub(super) enum Named {
    /// What each does.
    Scripted(Arc<Script>),
    /// Servers that have them.
    Servers(Servers),
}

impl Named {
    /// Makes them callable. Processes that an earlier command left behind are ended, so the database must be ours.
    pub(super) fn open(self, database: &Path) -> Result<Tools, Stop> {
        let servers = match self {
            Self::Scripted(script) => return Ok(Tools::Scripted(script)),
            Self::Servers(servers) => servers,
        };
        let warnings = servers.warnings.clone();
        let mut records = database.as_os_str().to_owned();
        records.push("-servers");
        let options = Options { records: Some(records.into()), users: None };
        let gateway = Gateway::new(servers, options).map_err(Stop::usage)?;
        Ok(Tools::Servers { gateway, warnings })
    }
}

/// The tools of a session.
#[derive(Clone)]
pub(super) enum Tools {
    /// Scripted.
    Scripted(Arc<Script>),
    /// At MCP servers.
    Servers {
        /// The way to them.
        gateway: Gateway,
        /// What there is to say about the file.
        warnings: Vec<String>,
    },
}

impl Tools {
    /// Gets everything ready; gives what the user should know.
    pub(super) async fn connect(&self) -> Vec<String> {
        let Self::Servers { gateway, warnings } = self else { return Vec::new() };
        let mut told = warnings.clone();
        for server in gateway.connect().await {
            told.extend(server.warnings.iter().map(|warning| format!("{}: {warning}", server.name)));
            if let Health::Down(reason) | Health::Parked(reason) = server.health {
                told.push(format!("{} cannot be reached: {reason}", server.name));
            }
        }
        told
    }

    /// Ends what was started for the tools.
    pub(super) async fn close(&self) {
        if let Self::Servers { gateway, .. } = self {
            gateway.shutdown().await;
        }
    }
}

impl ToolCaller for Tools {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        match self {
            Self::Scripted(script) => script.call(call),
            Self::Servers { gateway, .. } => gateway.call(call),
        }
    }

    fn traits(&self, tool: &str) -> Traits {
        match self {
            Self::Scripted(script) => script.traits(tool),
            Self::Servers { gateway, .. } => gateway.traits(tool),
        }
    }
}
