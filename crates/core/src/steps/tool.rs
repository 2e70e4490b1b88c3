//! `tool` and `tool_remote`: calls an MCP tool.

use crate::document::Node;
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::step::KindName;
use crate::spec::value::ToolName;

record! {
    /// Calls an MCP tool, with the rights of the user who started the run. The output is the result of the tool.
    pub struct Tool {
        /// Name of the tool: `server__tool`, or without the server if `server` or `dcc` is set.
        tool: ToolName,
        /// Name of the server.
        server: ToolName,
        /// Name of the server, for `tool_remote`.
        dcc: ToolName,
        /// Alias of `server`, used with `action`.
        agent: ToolName,
        /// Alias of `tool`, used with `agent`.
        action: ToolName,
        /// Arguments of the call: a map, or a reference to one. Strings can contain references.
        args: Node,
    }
}

impl Tool {
    pub(crate) fn read_as(kind: KindName, fields: &mut Fields, reader: &mut Reader) -> Self {
        let by_action = fields.is_set("agent") || fields.is_set("action");
        let (server_key, tool_key) = if by_action { ("agent", "action") } else { ("dcc", "tool") };
        if by_action || kind == KindName::ToolRemote {
            fields.require(server_key, reader);
        }
        fields.require(tool_key, reader);
        let exclusive = [["server", "dcc"], ["server", "agent"], ["dcc", "agent"], ["tool", "action"]];
        exclusive.into_iter().for_each(|pair| fields.conflict(pair, reader));
        Self::read(fields, reader)
    }

    /// The server, if it is not part of the tool's name.
    pub fn server(&self) -> Option<&str> {
        [&self.server, &self.dcc, &self.agent].into_iter().flatten().next().map(|name| name.0.as_str())
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        self.tool.as_ref().or(self.action.as_ref()).map_or("", |name| name.0.as_str())
    }
}
