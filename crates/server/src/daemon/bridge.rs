//! Between a client on a pipe and the daemon: lines in, lines out. If the daemon is started anew, the client need not know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::{Home, connect};

/// Daemons that may die while they are reached, one after another.
const ATTEMPTS: u32 = 5;

/// How long an answer may take when the client has nothing more to say.
const LAST_ANSWERS: Duration = Duration::from_mins(1);

/// What an older client said to begin its session, and what it waits for.
#[derive(Default)]
struct Session {
    /// Its first request, and its word that it is ready.
    opening: Vec<String>,
    /// Requests without an answer, by their ids.
    waiting: BTreeMap<String, Value>,
    /// What this daemon has asked the client. Another one counts from the beginning: what answers the first must not
    /// answer the second.
    asked: BTreeSet<String>,
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
        session.asked.clear();
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
                    let Some(said) = said? else {
                        let _ = to_daemon.shutdown().await;
                        self.drain(out, daemon).await?;
                        return Ok(true);
                    };
                    if !self.hear_client(&said) {
                        continue;
                    }
                    if to_daemon.write_all(line(&said).as_bytes()).await.is_err() {
                        return Ok(false);
                    }
                }
                answer = daemon.next_line() => {
                    let Ok(Some(answer)) = answer else { return Ok(false) };
                    self.hear_daemon(&answer);
                    out.write_all(line(&answer).as_bytes()).await?;
                    out.flush().await?;
                }
            }
        }
    }

    /// The client says nothing more: what it waits for may still come.
    async fn drain<D: AsyncRead + Unpin>(
        &mut self,
        out: &mut (impl AsyncWrite + Unpin),
        daemon: &mut Lines<BufReader<D>>,
    ) -> std::io::Result<()> {
        while !self.waiting.is_empty() {
            let Ok(Ok(Some(answer))) = tokio::time::timeout(LAST_ANSWERS, daemon.next_line()).await else {
                break;
            };
            self.hear_daemon(&answer);
            out.write_all(line(&answer).as_bytes()).await?;
        }
        out.flush().await
    }

    /// What the client says; false if it is not for this daemon.
    fn hear_client(&mut self, said: &str) -> bool {
        let message = message(said);
        match message["method"].as_str() {
            Some("initialize") => self.opening = vec![said.to_owned()],
            Some("notifications/initialized") => self.opening.push(said.to_owned()),
            Some("notifications/cancelled") => {
                self.waiting.remove(&message["params"]["requestId"].to_string());
            }
            _ => {}
        }
        match (message.get("method").is_some(), id(&message)) {
            (true, Some(id)) => {
                self.waiting.insert(id, message["id"].clone());
                true
            }
            (false, Some(id)) => self.asked.remove(&id),
            _ => true,
        }
    }

    fn hear_daemon(&mut self, said: &str) {
        let message = message(said);
        if let Some(id) = id(&message) {
            match message.get("method") {
                Some(_) => drop(self.asked.insert(id)),
                None => drop(self.waiting.remove(&id)),
            }
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
