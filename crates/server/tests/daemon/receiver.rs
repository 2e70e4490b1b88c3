//! An HTTP receiver of notifications on loopback, with scripted replies.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// How long a test waits for a request. A digest is sent after a minute.
const PATIENCE: Duration = Duration::from_secs(110);

/// A response of the receiver.
#[derive(Clone)]
pub(crate) enum Reply {
    Status(u16),
    RetryAfter(u32),
    Redirect(String),
    /// The connection stays open without a response.
    Hang,
}

/// A request that the receiver got.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub path: String,
    pub head: String,
    pub body: String,
}

impl Received {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Decides about each request, given its number.
pub(crate) type Script = Box<dyn FnMut(&Received) -> Reply + Send>;

/// A receiver, until it is dropped.
pub(crate) struct Receiver {
    pub address: SocketAddr,
    requests: mpsc::Receiver<Received>,
    stop: Arc<AtomicBool>,
}

impl Receiver {
    /// Accepts every request.
    pub(crate) fn listen(address: SocketAddr) -> Self {
        Self::scripted(address, Box::new(|_| Reply::Status(200)))
    }

    /// Answers the first requests with these replies, and accepts the others.
    pub(crate) fn replying(replies: &[Reply]) -> Self {
        let mut replies: VecDeque<Reply> = replies.iter().cloned().collect();
        let reply = move |_: &Received| replies.pop_front().unwrap_or(Reply::Status(200));
        Self::scripted(any_port(), Box::new(reply))
    }

    pub(crate) fn scripted(address: SocketAddr, script: Script) -> Self {
        let listener = TcpListener::bind(address).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, requests) = channel();
        let (stop, script) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(script)));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), sender, script) = (stream, sender.clone(), script.clone()) else { continue };
                std::thread::spawn(move || answer(stream, &sender, &script));
            }
        });
        Self { address, requests, stop }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn next_request(&self) -> Received {
        self.requests.recv_timeout(PATIENCE).expect("a request")
    }

    /// The JSON of the next request.
    pub(crate) fn next(&self) -> Value {
        self.next_request().json()
    }

    /// The requests that were not read.
    pub(crate) fn rest(&self) -> Vec<Received> {
        self.requests.try_iter().collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn answer(stream: TcpStream, sender: &mpsc::Sender<Received>, script: &Mutex<Script>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let received = read(&mut reader)?;
    let reply = (script.lock().expect("the script"))(&received);
    // Before the reply: what is recorded as sent was received.
    sender.send(received).ok()?;
    let (status, header) = match reply {
        Reply::Status(status) => (status, String::new()),
        Reply::RetryAfter(seconds) => (429, format!("retry-after: {seconds}\r\n")),
        Reply::Redirect(location) => (307, format!("location: {location}\r\n")),
        Reply::Hang => {
            // Until the client closes the connection.
            let _ = reader.read(&mut [0]);
            return None;
        }
    };
    // The response of Pushover. The other services ignore it.
    let body = r#"{"status":1,"request":"r1","receipt":"rLqVuqTRh62UzxtmqiaLzQmVcPgiCy"}"#;
    let length = body.len();
    let response =
        format!("HTTP/1.1 {status} X\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    reader.get_mut().write_all(response.as_bytes()).ok()
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Received> {
    let (mut head, mut line) = (String::new(), String::new());
    while reader.read_line(&mut line).ok()? > 2 {
        head.push_str(&line);
        line.clear();
    }
    let path = head.split(' ').nth(1)?.to_owned();
    let mut received = Received { path, head, body: String::new() };
    let length = received.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    received.body = String::from_utf8(body).ok()?;
    Some(received)
}
