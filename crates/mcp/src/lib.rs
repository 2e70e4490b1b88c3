//! MCP client and server. No other crate depends on the protocol.
//!
//! [`Gateway`] calls the tools of MCP servers for the steps of workflows. [`Server`] offers workflows to MCP clients.

mod check;
pub mod config;
mod gateway;
mod headers;
pub mod limits;
pub mod names;
pub mod redact;
mod relay;
mod secrets;
mod server;
mod signature;
mod suggest;

pub use check::{CheckContext, check, check_tools, compare, examine, examine_as, require_valid};
pub use gateway::{
    Era, Gateway, Health, LoggedIn, LoginError, LoginNeeded, Logins, Options, ServerStatus, ToolInfo,
    UserVariables, supervise,
};
pub use secrets::{
    MemorySecrets, Secret, SecretEntry, SecretError, SecretScope, SecretStore, is_secret_name,
};
pub use server::{Expose, Hosts, Identify, Server, Settings, ToolNames, offered, router};
