//! Arguments, errors and files that several commands share.

pub(crate) mod database;
pub(crate) mod decision;
pub(crate) mod error;
pub(crate) mod exit;
pub(crate) mod grants;
pub(crate) mod help;
pub(crate) mod oauth_callback;
pub(crate) mod os_user;
pub(crate) mod presence;
pub(crate) mod run_action;
pub(crate) mod serve_args;
pub(crate) mod server_args;
pub(crate) mod source_file;
pub(crate) mod tool_args;
pub(crate) mod values;
