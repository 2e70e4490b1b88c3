//! Calls of tools of our own server, over a pipe: what the command line does with a daemon.

use rmcp::model::{CallToolRequestParams, ContentBlock, JsonObject};
use rmcp::service::RunningService;
use rmcp::{RoleClient, ServiceExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

/// A client of a daemon.
pub struct Client(RunningService<RoleClient, ()>);

/// What a tool said.
pub struct Said {
    /// In words, on one line.
    pub line: String,
    /// The facts.
    pub facts: Value,
}

impl Client {
    /// Begins a session.
    pub async fn open<R, W>(read: R, write: W) -> Result<Self, String>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        ().serve((read, write)).await.map(Self).map_err(|error| error.to_string())
    }

    /// Calls a tool. The error is what it refused with.
    pub async fn call(&self, tool: &'static str, args: JsonObject) -> Result<Said, String> {
        let called = self.0.call_tool(CallToolRequestParams::new(tool).with_arguments(args)).await;
        let result = called.map_err(|error| error.to_string())?;
        let text = result.content.iter().find_map(|block| match block {
            ContentBlock::Text(text) => text.text.lines().next().map(str::to_owned),
            _ => None,
        });
        let line = text.unwrap_or_default();
        if result.is_error == Some(true) {
            return Err(line);
        }
        Ok(Said { line, facts: result.structured_content.unwrap_or_default() })
    }
}
