//! MCP over the pipes of a process: messages are written whole, a slow or late answer to the probe is dropped.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use super::lines::{Line, LineReader};
use super::oversized;
use crate::gateway::era::{self, Era, PROBE_ID};
use crate::gateway::listener::Listener;
use crate::limits::{ANSWER_BYTES, EARLY_MESSAGES};

/// Both pipes of a server.
pub(crate) struct Stdio<R, W> {
    listener: Listener,
    reader: LineReader<R>,
    writer: Arc<Mutex<Option<W>>>,
    /// Messages that arrived while the probe was waited for.
    early: VecDeque<Value>,
    /// What the answer to the probe says, which may come at any time.
    pub probed: Arc<std::sync::OnceLock<Era>>,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Stdio<R, W> {
    pub(crate) fn new(reader: R, writer: W, listener: Listener) -> Self {
        Self {
            listener,
            reader: LineReader::new(reader, ANSWER_BYTES),
            writer: Arc::new(Mutex::new(Some(writer))),
            early: VecDeque::new(),
            probed: Arc::default(),
        }
    }

    /// Sends `server/discover` and waits for the answer. A server that is silent may answer later: see `probed`.
    pub(crate) async fn probe(&mut self, discover: &Value) -> io::Result<Era> {
        write(&self.writer, discover).await?;
        loop {
            let Some(message) = self.next_message().await? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            if let Some(era) = self.probed.get() {
                return Ok(*era);
            }
            if self.early.len() < EARLY_MESSAGES {
                self.early.push_back(message);
            }
        }
    }

    /// The next message; the answer to the probe is noted and gives an empty one.
    async fn next_message(&mut self) -> io::Result<Option<Value>> {
        loop {
            match self.reader.next().await? {
                None => return Ok(None),
                Some(Line::Garbage) => {}
                Some(Line::Message(message)) if era::answers_probe(&message, self.probed.get().is_some()) => {
                    let _ = self.probed.set(Era::of_answer(&message));
                    return Ok(Some(Value::Null));
                }
                Some(Line::Message(message)) if self.listener.take_progress(&message) => {}
                Some(Line::Message(message)) => return Ok(Some(message)),
                Some(Line::Oversized(Some(RequestId::Number(PROBE_ID)))) => {}
                Some(Line::Oversized(Some(id))) => return Ok(Some(oversized(&id, ANSWER_BYTES))),
                Some(Line::Oversized(None)) => {
                    let message = format!("a message has more than {ANSWER_BYTES} bytes");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
            }
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(
    writer: &Mutex<Option<W>>,
    message: &impl serde::Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut writer = writer.lock().await;
    let pipe = writer.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    pipe.write_all(&line).await?;
    pipe.flush().await
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Transport<RoleClient>
    for Stdio<R, W>
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let writer = self.writer.clone();
        async move { write(&writer, &message).await }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let message = match self.early.pop_front() {
                Some(message) => message,
                None => match self.next_message().await {
                    Ok(message) => message?,
                    Err(error) => {
                        tracing::debug!("a server's output cannot be read: {error}");
                        return None;
                    }
                },
            };
            if let Ok(message) = serde_json::from_value(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.writer.lock().await.take();
        Ok(())
    }
}
