//! The tools of an engine: scripted tools, or the tools of MCP servers.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::{Annotations, BoxFuture, CallSite, Capacity, Outage, Outcome, ToolCall, ToolCaller};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Logins, Options, ToolInfo};

use crate::scripted::Script;
use crate::secrets::Vault;
use steprail_http::views;

/// The hidden command that runs the supervisor of a stdio server.
pub(crate) const SUPERVISE: &str = "supervise-server";

/// The command line of the supervisor. It works also after the executable was replaced.
pub(crate) fn supervisor() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), SUPERVISE.into()]
}

/// Where tools come from, as configured.
pub(crate) enum ToolSource {
    Scripted(Arc<Script>),
    Servers(Servers),
    None,
}

impl ToolSource {
    /// Opens the source. Eras and tools of servers are cached beside the database. `provider` is the tool that creates
    /// missing tools; `vault` has the secrets and logins of the servers; `env` lists the variables that definitions can read.
    pub(crate) fn open(
        self,
        database: &Path,
        provider: Option<&str>,
        vault: Option<&Vault>,
        env: Option<BTreeSet<String>>,
    ) -> Result<Tools, String> {
        let servers = match self {
            Self::Scripted(script) => return Ok(Tools::Scripted(script)),
            Self::Servers(servers) => servers,
            Self::None => return Ok(Tools::None),
        };
        let warnings = servers.warnings.clone();
        let mut cache = database.as_os_str().to_owned();
        cache.push("-servers");
        let logins = vault.map(|vault| Logins::new(Arc::new(vault.clone()), &servers));
        let options = Options {
            cache: Some(cache.into()),
            supervisor: supervisor(),
            logins: logins.clone(),
            env,
            ..Options::default()
        };
        let provider = provider.map(Into::into);
        Gateway::new(servers, options).map(|gateway| Tools::Servers { gateway, warnings, provider, logins })
    }
}

/// The tools of an engine.
#[derive(Clone)]
pub(crate) enum Tools {
    Scripted(Arc<Script>),
    Servers {
        gateway: Gateway,
        /// Problems of the config file.
        warnings: Vec<String>,
        /// The tool that creates missing tools.
        provider: Option<Box<str>>,
        logins: Option<Logins>,
    },
    /// Every call fails.
    None,
}

impl Tools {
    /// Connects to the servers in the background. Returns the problems of the config file.
    pub(crate) fn start(&self) -> Vec<String> {
        let Self::Servers { gateway, warnings, .. } = self else { return Vec::new() };
        gateway.start();
        warnings.clone()
    }

    /// The gateway, if the tools are those of MCP servers.
    pub(crate) fn gateway(&self) -> Option<Gateway> {
        match self {
            Self::Servers { gateway, .. } => Some(gateway.clone()),
            _ => None,
        }
    }

    /// The OAuth logins, if the tools are those of MCP servers.
    pub(crate) fn logins(&self) -> Option<Logins> {
        match self {
            Self::Servers { logins, .. } => logins.clone(),
            _ => None,
        }
    }

    /// The known tools that steps can call.
    pub(crate) fn list(&self) -> Vec<views::Tool> {
        match self {
            Self::Scripted(script) => {
                script.names().map(|name| scripted(name, script.annotations(name))).collect()
            }
            Self::Servers { gateway, .. } => {
                let servers = gateway.status();
                servers.iter().flat_map(|server| &server.tools).map(|tool| described(tool)).collect()
            }
            Self::None => Vec::new(),
        }
    }

    /// Disconnects the servers.
    pub(crate) async fn close(&self) {
        if let Self::Servers { gateway, .. } = self {
            gateway.shutdown().await;
        }
    }
}

fn scripted(name: &str, annotations: Annotations) -> views::Tool {
    tool(name, "scripted", json!({ "type": "object" }), annotations)
}

fn described(info: &ToolInfo) -> views::Tool {
    tool(&info.name, &info.description, info.input_schema.clone(), info.annotations)
}

fn tool(name: &str, description: &str, input_schema: Value, annotations: Annotations) -> views::Tool {
    views::Tool {
        name: name.to_owned(),
        description: description.to_owned(),
        input_schema,
        read_only: annotations.is_read_only(),
        destructive: annotations.is_destructive(),
        idempotent: annotations.is_idempotent(),
    }
}

impl ToolCaller for Tools {
    fn call(&self, call: ToolCall) -> BoxFuture<'_, Outcome> {
        match self {
            Self::Scripted(script) => script.call(call),
            Self::Servers { gateway, .. } => gateway.call(call),
            Self::None => {
                let message = format!("there is no tool `{}`, because no servers are configured", call.tool);
                Box::pin(async {
                    Err(steprail_engine::Failure::new(steprail_engine::FailureKind::NotFound, message))
                })
            }
        }
    }

    fn annotations(&self, tool: &str) -> Annotations {
        match self {
            Self::Scripted(script) => script.annotations(tool),
            Self::Servers { gateway, .. } => gateway.annotations(tool),
            Self::None => Annotations::default(),
        }
    }

    fn capacity(&self, call: &CallSite<'_>) -> Capacity {
        match self {
            Self::Scripted(script) => script.capacity(call),
            Self::Servers { gateway, .. } => gateway.capacity(call),
            Self::None => Capacity::unlimited(call.tool),
        }
    }

    fn on_available(&self, available: Box<dyn Fn(&str) + Send + Sync>) {
        if let Self::Servers { gateway, .. } = self {
            gateway.on_available(available);
        }
    }

    fn on_outage(&self, outage: Box<dyn Fn(Outage) + Send + Sync>) {
        if let Self::Servers { gateway, .. } = self {
            gateway.on_outage(outage);
        }
    }

    fn forget(&self, state: &Value) {
        if let Self::Servers { gateway, .. } = self {
            gateway.forget(state);
        }
    }

    fn provider(&self) -> Option<Box<str>> {
        match self {
            Self::Servers { provider, .. } => provider.clone(),
            _ => None,
        }
    }

    fn check_args(&self, tool: &str, args: &Value) -> Result<(), String> {
        self.gateway().map_or(Ok(()), |gateway| gateway.check_args(tool, args))
    }

    fn pin(&self, tool: &str) -> Option<Hash> {
        self.gateway()?.pin(tool)
    }
}
