//! Between a client on a pipe and the daemon: lines in, lines out. If the daemon is started anew, the client need not know.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{Home, connect};

/// Daemons that may die while they are reached, one after another.
const ATTEMPTS: u32 = 5;

/// What an older client said to begin its session, and what it waits for.
#[derive(Default)]
struct Session {
    /// Its first request, and its word that it is ready.
    opening: Vec<String>,
    /// Requests without an answer, by their ids.
    waiting: BTreeMap<String, Value>,
}

/// Passes everything on until the client goes away.
pub(crate) async fn bridge(
    home: &Home,
    serve: &[String],
    client: impl AsyncRead + Unpin,
    mut out: impl AsyncWrite + Unpin,
) -> Result<(), String> {
    let mut client = BufReader::new(client).lines();
    let mut session = Session::default();
    loop {
        let (mut daemon, mut to_daemon) = session.open(home, serve).await?;
        let ended = session.pass_on(&mut client, &mut out, &mut daemon, &mut to_daemon).await;
        if ended.map_err(|error| format!("the client cannot be reached: {error}"))? {
            return Ok(());
        }
        for lost in std::mem::take(&mut session.waiting).into_values() {
            let told = out.write_all(line(&interrupted(&lost)).as_bytes()).await;
            told.map_err(|error| format!("the client cannot be reached: {error}"))?;
        }
    }
}

type Daemon = (Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf);

impl Session {
    /// Reaches the daemon. One that dies at this moment is no reason to give up.
    async fn open(&self, home: &Home, serve: &[String]) -> Result<Daemon, String> {
        let mut attempts = 0;
        loop {
            let stream = connect(home, &home.agents(), serve).await?;
            match self.reopen(stream).await {
                Err(error) if attempts >= ATTEMPTS => {
                    return Err(format!("the daemon cannot be reached: {error}"));
                }
                Err(_) => attempts += 1,
                Ok(daemon) => return Ok(daemon),
            }
        }
    }

    /// A daemon that was started anew is told how the session began; what it answers to that, the client knows.
    async fn reopen(&self, stream: UnixStream) -> std::io::Result<Daemon> {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        for said in &self.opening {
            write.write_all(line(said).as_bytes()).await?;
            if id(&message(said)).is_some() && lines.next_line().await?.is_none() {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok((lines, write))
    }

    /// Passes lines on both ways. True if the client is gone, false if the daemon is.
    async fn pass_on<D: AsyncRead + Unpin>(
        &mut self,
        client: &mut Lines<BufReader<impl AsyncRead + Unpin>>,
        out: &mut (impl AsyncWrite + Unpin),
        daemon: &mut Lines<BufReader<D>>,
        to_daemon: &mut (impl AsyncWrite + Unpin),
    ) -> std::io::Result<bool> {
        loop {
            tokio::select! {
                said = client.next_line() => {
                    let Some(said) = said? else { return Ok(true) };
                    self.asked(&said);
                    if to_daemon.write_all(line(&said).as_bytes()).await.is_err() {
                        return Ok(false);
                    }
                }
                answer = daemon.next_line() => {
                    let Ok(Some(answer)) = answer else { return Ok(false) };
                    let told = message(&answer);
                    if told.get("method").is_none() && let Some(id) = id(&told) {
                        self.waiting.remove(&id);
                    }
                    out.write_all(line(&answer).as_bytes()).await?;
                    out.flush().await?;
                }
            }
        }
    }

    fn asked(&mut self, said: &str) {
        let message = message(said);
        match message["method"].as_str() {
            Some("initialize") => self.opening = vec![said.to_owned()],
            Some("notifications/initialized") => self.opening.push(said.to_owned()),
            _ => {}
        }
        if message.get("method").is_some()
            && let Some(id) = id(&message)
        {
            self.waiting.insert(id, message["id"].clone());
        }
    }
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

fn message(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The id of a request or of an answer, as text.
fn id(message: &Value) -> Option<String> {
    message.get("id").filter(|id| !id.is_null()).map(Value::to_string)
}

/// The answer to a request that the daemon did not live to answer.
fn interrupted(id: &Value) -> String {
    let text =
        "the daemon was started anew while it was asked; nothing durable is lost, and runs go on: ask again";
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": text } }).to_string()
}
