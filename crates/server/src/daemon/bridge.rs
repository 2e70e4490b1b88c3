//! The bridge between an MCP client on stdio and the daemon. It forwards lines, and reconnects the session if the daemon
//! restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{DataDir, connect_or_start};

/// Reconnect attempts, where the daemon dies each time before the session is re-established.
const ATTEMPTS: u32 = 5;

/// Timeout of each response that is pending when the client closes its input.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(1);

/// State of a session that another daemon needs.
#[derive(Default)]
struct Session {
    /// `initialize` and `notifications/initialized` of a client that sends them.
    handshake: Vec<String>,
    /// Requests of the client without a response, by id.
    pending: BTreeMap<String, Value>,
    /// Requests of this daemon without a response. Another daemon reuses the ids, so late responses must be dropped.
    daemon_requests: BTreeSet<String>,
}

/// Forwards messages until the client closes its input.
pub(crate) async fn bridge(
    data_dir: &DataDir,
    serve: &[String],
    client: impl AsyncRead + Unpin,
    mut out: impl AsyncWrite + Unpin,
) -> Result<(), String> {
    let client_gone = |error| format!("cannot write to the client: {error}");
    let mut client = BufReader::new(client).lines();
    let mut session = Session::default();
    loop {
        let (mut daemon, mut to_daemon) = session.open(data_dir, serve).await?;
        let end = session.forward(&mut client, &mut out, &mut daemon, &mut to_daemon).await;
        match end.map_err(client_gone)? {
            End::Client => return Ok(()),
            End::Daemon => session.daemon_requests.clear(),
        }
        for id in std::mem::take(&mut session.pending).into_values() {
            out.write_all(line(&interrupted(&id)).as_bytes()).await.map_err(client_gone)?;
        }
    }
}

/// Which side closed the connection.
enum End {
    Client,
    Daemon,
}

type Daemon = (Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf);

impl Session {
    /// Connects to the daemon, and again if it dies before the session is re-established.
    async fn open(&self, data_dir: &DataDir, serve: &[String]) -> Result<Daemon, String> {
        let mut attempts = 0;
        loop {
            let stream = connect_or_start(data_dir, &data_dir.agents_socket(), serve).await?;
            match self.replay_handshake(stream).await {
                Err(error) if attempts >= ATTEMPTS => {
                    return Err(format!("cannot connect to the daemon: {error}"));
                }
                Err(_) => attempts += 1,
                Ok(daemon) => return Ok(daemon),
            }
        }
    }

    /// Sends the handshake to a new daemon. Its response is dropped, because the client already has one.
    async fn replay_handshake(&self, stream: UnixStream) -> std::io::Result<Daemon> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        for sent in &self.handshake {
            write.write_all(line(sent).as_bytes()).await?;
            if id(&parse(sent)).is_some() && lines.next_line().await?.is_none() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok((lines, write))
    }

    /// Forwards lines in both directions until one side closes the connection.
    async fn forward<D: AsyncRead + Unpin>(
        &mut self,
        client: &mut Lines<BufReader<impl AsyncRead + Unpin>>,
        out: &mut (impl AsyncWrite + Unpin),
        daemon: &mut Lines<BufReader<D>>,
        to_daemon: &mut (impl AsyncWrite + Unpin),
    ) -> std::io::Result<End> {
        loop {
            tokio::select! {
                sent = client.next_line() => {
                    let Some(sent) = sent? else {
                        let _ = to_daemon.shutdown().await;
                        self.drain(out, daemon).await?;
                        return Ok(End::Client);
                    };
                    if !self.record_sent(&sent) {
                        continue;
                    }
                    if to_daemon.write_all(line(&sent).as_bytes()).await.is_err() {
                        return Ok(End::Daemon);
                    }
                }
                received = daemon.next_line() => {
                    let Ok(Some(received)) = received else { return Ok(End::Daemon) };
                    self.record_received(&received);
                    out.write_all(line(&received).as_bytes()).await?;
                    out.flush().await?;
                }
            }
        }
    }

    /// Forwards the pending responses after the client closed its input.
    async fn drain<D: AsyncRead + Unpin>(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
        daemon: &mut Lines<BufReader<D>>,
    ) -> std::io::Result<()> {
        while !self.pending.is_empty() {
            let next = tokio::time::timeout(DRAIN_TIMEOUT, daemon.next_line()).await;
            let Ok(Ok(Some(received))) = next else { break };
            self.record_received(&received);
            out.write_all(line(&received).as_bytes()).await?;
        }
        out.flush().await
    }

    /// Records a message of the client. Returns false if it responds to a request of another daemon.
    fn record_sent(&mut self, sent: &str) -> bool {
        let message = parse(sent);
        match message["method"].as_str() {
            Some("initialize") => self.handshake = vec![sent.to_owned()],
            Some("notifications/initialized") => self.handshake.push(sent.to_owned()),
            Some("notifications/cancelled") => {
                self.pending.remove(&message["params"]["requestId"].to_string());
            }
            _ => {}
        }
        match (message.get("method").is_some(), id(&message)) {
            (true, Some(id)) => {
                self.pending.insert(id, message["id"].clone());
                true
            }
            (false, Some(id)) => self.daemon_requests.remove(&id),
            _ => true,
        }
    }

    fn record_received(&mut self, received: &str) {
        let message = parse(received);
        if let Some(id) = id(&message) {
            match message.get("method") {
                Some(_) => drop(self.daemon_requests.insert(id)),
                None => drop(self.pending.remove(&id)),
            }
        }
    }
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The id of a request or response, as JSON text.
fn id(message: &Value) -> Option<String> {
    message.get("id").filter(|id| !id.is_null()).map(Value::to_string)
}

/// The response to a request that the previous daemon did not answer.
fn interrupted(id: &Value) -> String {
    let text =
        "the daemon restarted before it answered; runs are durable and continue; send the request again";
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": text } }).to_string()
}
