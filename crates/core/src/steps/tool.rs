//! `tool` and `tool_remote`: one call of an MCP tool.

use crate::document::Node;
use crate::spec::fields::{Fields, Reader, Record, record};
use crate::spec::step::KindName;
use crate::spec::value::ToolName;

record! {
    /// One call of an MCP tool, made as the user who started the run.
    pub struct Tool {
        /// The tool: `server__tool`, or the tool alone beside `server` or `dcc`.
        tool: ToolName,
        /// The server that has the tool.
        server: ToolName,
        /// The server that has the tool, for `tool_remote`.
        dcc: ToolName,
        /// The server that has the tool, beside `action`.
        agent: ToolName,
        /// The tool, beside `agent`.
        action: ToolName,
        /// The arguments. Strings in them may hold references.
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
        let ways = [["server", "dcc"], ["server", "agent"], ["dcc", "agent"], ["tool", "action"]];
        ways.into_iter().for_each(|pair| fields.conflict(pair, reader));
        Self::read(fields, reader)
    }

    /// The server named beside the tool.
    pub fn server(&self) -> Option<&str> {
        [&self.server, &self.dcc, &self.agent].into_iter().flatten().next().map(|name| name.0.as_str())
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        self.tool.as_ref().or(self.action.as_ref()).map_or("", |name| name.0.as_str())
    }
}
