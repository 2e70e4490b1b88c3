//! Where the tools of a command are: in a script, at MCP servers that it names, or at those that are configured.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use steprail_mcp::config::Servers;

use super::input;
use super::session::read_script;
use super::stop::Stop;
use crate::daemon::DataDir;
use crate::tools::ToolSource;

/// Where tools are, on the command line.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(super) struct ToolsAt {
    /// MCP servers: a config file of your MCP client, such as `.mcp.json`; without it, servers.json in the data directory
    #[arg(long, value_name = "FILE")]
    servers: Option<String>,
    /// Scripted tools instead: a file that says what each does, such as `mail__send: { return: ok, sleep: 1s, fail: 2 }`
    #[arg(long, value_name = "SCRIPT")]
    tools: Option<String>,
}

impl ToolsAt {
    /// As it is written on a command line.
    pub(super) fn argument(&self) -> Option<(&'static str, &str)> {
        let servers = self.servers.as_deref().map(|file| ("--servers", file));
        servers.or(self.tools.as_deref().map(|file| ("--tools", file)))
    }

    /// Reads the file, or says what is wrong with it. Without one, the configured servers count, or there are none.
    pub(super) fn read(&self, home: Option<&DataDir>) -> Result<ToolSource, Stop> {
        match (self.argument(), home.map(DataDir::servers)) {
            (Some(("--servers", file)), _) => read_servers(file).map(ToolSource::Servers),
            (Some((_, file)), _) => read_script(file).map(|script| ToolSource::Scripted(Arc::new(script))),
            (None, Some(configured)) if configured.is_file() => {
                read_servers(&text(&configured)).map(ToolSource::Servers)
            }
            (None, _) => Ok(ToolSource::None),
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Reads a config file of an MCP client.
pub(super) fn read_servers(file: &str) -> Result<Servers, Stop> {
    let source = input::read(file)?;
    Servers::read(source.text()).map_err(|problem| Stop::usage(format!("{file}: {problem}")))
}
