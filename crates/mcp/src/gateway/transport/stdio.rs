//! The stdio transport: one JSON message per line. Handles the response to the probe, which may be late.

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
use crate::limits::{EARLY_MESSAGES, RESPONSE_BYTES};

/// The pipes of a server process.
pub(crate) struct Stdio<R, W> {
    listener: Listener,
    reader: LineReader<R>,
    writer: Arc<Mutex<Option<W>>>,
    /// Messages that arrived before the response to the probe.
    early: VecDeque<Value>,
    /// The era by the response to the probe, set whenever that arrives.
    pub probed: Arc<std::sync::OnceLock<Era>>,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send + 'static> Stdio<R, W> {
    pub(crate) fn new(reader: R, writer: W, listener: Listener) -> Self {
        Self {
            listener,
            reader: LineReader::new(reader, RESPONSE_BYTES),
            writer: Arc::new(Mutex::new(Some(writer))),
            early: VecDeque::new(),
            probed: Arc::default(),
        }
    }

    /// Sends `server/discover` and waits for the response. A later response still sets `probed`.
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

    /// The next message; `Value::Null` for the response to the probe.
    async fn next_message(&mut self) -> io::Result<Option<Value>> {
        loop {
            match self.reader.next().await? {
                None => return Ok(None),
                Some(Line::Garbage) => {}
                Some(Line::Message(message)) if era::answers_probe(&message, self.probed.get().is_some()) => {
                    let _ = self.probed.set(Era::of_response(&message));
                    return Ok(Some(Value::Null));
                }
                Some(Line::Message(message)) if self.listener.take_progress(&message) => {}
                Some(Line::Message(message)) => return Ok(Some(message)),
                Some(Line::Oversized(Some(RequestId::Number(PROBE_ID)))) => {}
                Some(Line::Oversized(Some(id))) => return Ok(Some(oversized(&id, RESPONSE_BYTES))),
                Some(Line::Oversized(None)) => {
                    let message = format!("a message exceeds {RESPONSE_BYTES} bytes");
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
                        tracing::debug!("cannot read the output of a server: {error}");
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
