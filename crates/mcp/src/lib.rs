//! MCP in and out. The only crate that knows the protocol.
//!
//! [`Gateway`] makes the tools of MCP servers callable by the steps of workflows; [`Server`] lets agents drive workflows.

mod check;
pub mod config;
mod gateway;
mod headers;
pub mod limits;
pub mod names;
mod relay;
mod secrets;
mod server;
mod signature;
mod suggest;

pub use check::{Known, check, compare, examine, examine_as, fitting, need_sound};
pub use gateway::{
    Era, Gateway, Health, LoggedIn, LoginError, LoginNeeded, Logins, Options, ServerStatus, ToolInfo,
    UserVariables, supervise,
};
pub use secrets::{
    MemorySecrets, Secret, SecretEntry, SecretError, SecretScope, SecretStore, is_secret_name,
};
pub use server::{Expose, Hosts, Identify, Server, Settings, ToolNames, offered, router};
