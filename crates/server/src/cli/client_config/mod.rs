//! Config files of MCP clients: their servers are imported, and Steprail is added to them.

pub(crate) mod atomic_write;
pub(crate) mod clients;
pub(crate) mod connection;
pub(crate) mod import;
pub(crate) mod redacted;
pub(crate) mod servers_file;
