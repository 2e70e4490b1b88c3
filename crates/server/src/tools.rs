//! The tools of an engine: scripted ones, or those of MCP servers.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_engine::{Annotations, BoxFuture, CallSite, Capacity, Outcome, ToolCall, ToolCaller};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Logins, Options, ToolInfo};

use crate::scripted::Script;
use crate::secrets::Vault;
use steprail_http::views;

/// The hidden command that supervises a stdio server.
pub(crate) const SUPERVISE: &str = "supervise-server";

/// How this program supervises stdio servers, also after its file was replaced.
pub(crate) fn supervisor() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), SUPERVISE.into()]
}

/// Tools that a file names.
pub(crate) enum Named {
    /// What each does.
    Scripted(Arc<Script>),
    /// Servers that have them.
    Servers(Servers),
    /// None.
    None,
}

impl Named {
    /// Makes them callable. What is learnt about servers is kept beside the database. `provider` is the tool that creates
    /// missing ones; `vault` holds the secrets and logins of the servers.
    pub(crate) fn open(
        self,
        database: &Path,
        provider: Option<&str>,
        vault: Option<&Vault>,
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
            ..Options::default()
        };
        let provider = provider.map(Into::into);
        Gateway::new(servers, options).map(|gateway| Tools::Servers { gateway, warnings, provider, logins })
    }
}

/// The tools of an engine.
#[derive(Clone)]
pub(crate) enum Tools {
    /// Scripted.
    Scripted(Arc<Script>),
    /// At MCP servers.
    Servers {
        /// The way to them.
        gateway: Gateway,
        /// What there is to say about the file.
        warnings: Vec<String>,
        /// The tool that creates missing ones.
        provider: Option<Box<str>>,
        /// OAuth logins at them.
        logins: Option<Logins>,
    },
    /// None: steps that call something fail.
    None,
}

impl Tools {
    /// Begins to connect in the background; gives the problems of the config file.
    pub(crate) fn start(&self) -> Vec<String> {
        let Self::Servers { gateway, warnings, .. } = self else { return Vec::new() };
        gateway.start();
        warnings.clone()
    }

    /// The way to MCP servers, if that is where they are.
    pub(crate) fn gateway(&self) -> Option<Gateway> {
        match self {
            Self::Servers { gateway, .. } => Some(gateway.clone()),
            _ => None,
        }
    }

    /// OAuth logins at MCP servers, if that is where the tools are.
    pub(crate) fn logins(&self) -> Option<Logins> {
        match self {
            Self::Servers { logins, .. } => logins.clone(),
            _ => None,
        }
    }

    /// Tools that steps can call, as far as they are known.
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

    /// Ends what was started for the tools.
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
                let message = format!("there is no tool `{}`: no servers are configured", call.tool);
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

    fn pin(&self, tool: &str) -> Option<Hash> {
        self.gateway()?.pin(tool)
    }
}
