//! Arguments that select the tools of an engine.

use std::sync::Arc;

use clap::Args;
use steprail_mcp::config::Servers;

use super::error::CliError;
use super::{exit, source_file};
use crate::daemon::DataDir;
use crate::scripted::Script;
use crate::tools::ToolSource;

/// Selects the tools: scripted, of a config file, or of `servers.json` in the data directory.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(crate) struct ToolArgs {
    /// Config file of an MCP client, such as `.mcp.json` [default: servers.json in the data directory]
    #[arg(long, value_name = "FILE")]
    servers: Option<String>,
    /// Use scripted tools from this file, such as `mail__send: { return: ok, sleep: 1s, fail: 2 }`
    #[arg(long, value_name = "SCRIPT")]
    tools: Option<String>,
}

impl ToolArgs {
    /// The option and its file, as on the command line.
    pub(crate) fn argument(&self) -> Option<(&'static str, &str)> {
        let servers = self.servers.as_deref().map(|file| ("--servers", file));
        servers.or(self.tools.as_deref().map(|file| ("--tools", file)))
    }

    /// Reads the selected file.
    pub(crate) fn read(&self, home: Option<&DataDir>) -> Result<ToolSource, CliError> {
        if let Some(file) = &self.servers {
            return read_servers(file).map(ToolSource::Servers);
        }
        if let Some(file) = &self.tools {
            return read_script(file).map(|script| ToolSource::Scripted(Arc::new(script)));
        }
        match home.map(DataDir::servers).filter(|file| file.is_file()) {
            Some(file) => read_servers(&file.display().to_string()).map(ToolSource::Servers),
            None => Ok(ToolSource::None),
        }
    }
}

/// Reads the config file of an MCP client.
pub(crate) fn read_servers(file: &str) -> Result<Servers, CliError> {
    let source = source_file::read(file)?;
    Servers::read(source.text()).map_err(|problem| CliError::new(format!("{file}: {problem}")))
}

fn read_script(file: &str) -> Result<Script, CliError> {
    let source = source_file::read(file)?;
    Script::read(&source).or_else(|diagnostics| {
        source_file::print_diagnostics(&diagnostics, &source)?;
        Err(CliError::Reported(exit::INVALID))
    })
}
