//! One call of a tool of our own server, over a pipe: what the command line does with a daemon.

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, ContentBlock, JsonObject};
use tokio::io::{AsyncRead, AsyncWrite};

/// Calls a tool and gives what it says. The error is what it refused with.
pub async fn call_over<R, W>(
    read: R,
    write: W,
    tool: &'static str,
    args: JsonObject,
) -> Result<String, String>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let client = ().serve((read, write)).await.map_err(|error| error.to_string())?;
    let called = client.call_tool(CallToolRequestParams::new(tool).with_arguments(args)).await;
    let result = called.map_err(|error| error.to_string());
    // The answer is here; how the connection ends changes nothing.
    let _ = client.cancel().await;
    let result = result?;
    let text = result.content.iter().find_map(|block| match block {
        ContentBlock::Text(text) => text.text.lines().next().map(str::to_owned),
        _ => None,
    });
    let text = text.unwrap_or_default();
    if result.is_error == Some(true) { Err(text) } else { Ok(text) }
}
