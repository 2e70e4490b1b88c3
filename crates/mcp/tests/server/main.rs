//! The MCP server as clients use it: lists, rights, results, notifications.

mod catalogue;
mod commands;
mod input_requests;
mod lists;
mod matrix;
mod notifications;
mod support;
mod traces;
mod users;
