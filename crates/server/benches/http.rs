//! Throughput of the daemon over HTTP, compared with bare axum and with the engine alone:
//! `cargo bench -p steprail-server --bench http`.
//!
//! `-- requests` and `-- streams` run one half. `wrk` generates the load. Compare the ratios, not the absolute rates: load
//! and daemon share the machine.

#![expect(clippy::cast_precision_loss, reason = "rates are rounded")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steprail_engine::{Engine, Options, Principal, SqliteStore, Start, Tools};
use tempfile::TempDir;

/// A run that waits immediately, to measure starts.
const HOLD: &str = "name: hold\nsteps: [{ id: hold, kind: wait, event: never }]\n";
/// A run that makes many calls after a signal.
const BURST: &str = "name: burst\ninputs: { n: { type: array } }\nsteps:\n  - { id: hold, kind: wait, event: go }\n  \
                     - { id: all, kind: foreach, items: '{{inputs.n}}', concurrency: 4, steps: [{ id: call, tool: t__call }] }\n";
const BURST_RUNS: u64 = 880;
const BURST_CALLS: u32 = 60;
const CONNECTIONS: &str = "64";
const SECONDS: u64 = 5;

struct Daemon {
    child: Child,
    _folder: TempDir,
    url: String,
}

impl Daemon {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("tools.yaml"), "t__call: { return: ok, idempotent: true }\n")
            .expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_steprail"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path());
        command.arg("--tools").arg(folder.path().join("tools.yaml"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a daemon");
        let mut url = String::new();
        for line in BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok) {
            if let Some(page) = line.strip_prefix("api ") {
                page.trim_end_matches("/api").clone_into(&mut url);
            }
            if line == "ready" {
                break;
            }
        }
        Self { child, _folder: folder, url }
    }

    fn memory_mb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or_default() / 1024
    }

    fn host(&self) -> &str {
        self.url.trim_start_matches("http://")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests per second, measured with `wrk`.
fn wrk(url: &str, post: Option<&Value>) -> f64 {
    let script = tempfile::NamedTempFile::new().expect("a file");
    if let Some(body) = post {
        let lua = format!(
            "wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['Content-Type'] = 'application/json'\n"
        );
        std::fs::write(script.path(), lua).expect("a script");
    }
    let mut command = Command::new("wrk");
    command.args(["-t1", "-c", CONNECTIONS, "-d", &format!("{SECONDS}s"), "-s"]).arg(script.path()).arg(url);
    let output = command.output().expect("wrk; install it with `apt-get install wrk`");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!text.contains("Non-2xx"), "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).unwrap_or_default();
    line.trim().parse().unwrap_or_default()
}

async fn call(method: reqwest::Method, url: String, body: Value) -> Value {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    let request = CLIENT.get_or_init(reqwest::Client::new).request(method, url).json(&body);
    request.send().await.expect("a response").json().await.unwrap_or_default()
}

/// Starts an axum server that only responds. Returns its URL.
async fn bare_axum() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let app = axum::Router::new().route("/", axum::routing::get(async || "ok"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// Durable starts per second of an engine in this process.
async fn engine_alone() -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path().join("x.db"), &Options::default()).expect("a store");
    let engine = Engine::builder().store(store).tools(Tools::new()).spawn().expect("an engine");
    let user = Principal::user("ann");
    engine.define(HOLD, &user).await.expect("a definition");
    let started = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let starters = (0..64).map(|_| {
        let (engine, user, started) = (engine.clone(), user.clone(), started.clone());
        tokio::spawn(async move {
            while Instant::now() < until {
                engine.start(Start::named("hold", user.clone())).await.expect("a run");
                started.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    futures::future::join_all(starters.collect::<Vec<_>>()).await;
    engine.shutdown().await.expect("an end");
    started.load(Ordering::Relaxed) as f64 / SECONDS as f64
}

/// Opens streams. A thread reads most of them; 100 are never read.
fn readers(daemon: &Daemon, runs: &[String], stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<u64>> {
    let open = |path: String| {
        let mut stream = TcpStream::connect(daemon.host()).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request");
        stream
    };
    let mut live: Vec<TcpStream> =
        runs.iter().map(|run| open(format!("/api/v1/runs/{run}/stream"))).collect();
    live.extend((0..20).map(|_| open("/api/v1/stream".to_owned())));
    let unread: Vec<TcpStream> = (0..100).map(|_| open("/api/v1/stream?after=start".to_owned())).collect();
    let stop = stop.clone();
    vec![std::thread::spawn(move || {
        live.iter().for_each(|stream| stream.set_nonblocking(true).expect("a socket"));
        let (mut bytes, mut buffer) = (0, vec![0; 64 * 1024]);
        while !stop.load(Ordering::Relaxed) {
            for stream in &mut live {
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    bytes += read as u64;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(unread);
        bytes
    })]
}

/// Steps per second of many runs that are signalled at once, and the memory of the daemon in MB.
async fn burst(with_readers: bool) -> (f64, u64) {
    let daemon = Daemon::start();
    let api = format!("{}/api/v1", daemon.url);
    call(reqwest::Method::POST, format!("{api}/definitions"), json!({ "text": BURST })).await;
    let items: Vec<u32> = (0..BURST_CALLS).collect();
    let mut runs = Vec::new();
    for _ in 0..BURST_RUNS {
        let run = call(
            reqwest::Method::POST,
            format!("{api}/runs"),
            json!({ "name": "burst", "input": { "n": items } }),
        )
        .await;
        runs.push(run["run_id"].as_str().expect("a run").to_owned());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let reading = if with_readers { readers(&daemon, &runs, &stop) } else { Vec::new() };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let burst_start = Instant::now();
    call(reqwest::Method::POST, format!("{api}/signals"), json!({ "event": "go" })).await;
    loop {
        let text = reqwest::get(format!("{}/metrics", daemon.url))
            .await
            .expect("metrics")
            .text()
            .await
            .expect("text");
        let ended = text
            .lines()
            .find_map(|line| line.strip_prefix("steprail_runs_ended_total{status=\"completed\"} "));
        if ended.and_then(|ended| ended.parse::<u64>().ok()) == Some(BURST_RUNS) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rate = BURST_RUNS as f64 * f64::from(BURST_CALLS + 1) / burst_start.elapsed().as_secs_f64();
    let memory = daemon.memory_mb();
    if with_readers {
        catch_up(&api).await;
    }
    stop.store(true, Ordering::Relaxed);
    reading.into_iter().for_each(|thread| drop(thread.join()));
    (rate, memory)
}

/// Reads the stream from the first event and checks that every event arrives in order.
async fn catch_up(api: &str) {
    let mut response = reqwest::get(format!("{api}/stream?after=start")).await.expect("a stream");
    let (mut expected, mut text) = (VecDeque::new(), String::new());
    let mut next = Some("start".to_owned());
    while let Some(after) = next {
        let page =
            call(reqwest::Method::GET, format!("{api}/audit?after={after}&limit=1000"), json!({})).await;
        let items = page["items"].as_array().expect("events");
        expected.extend(items.iter().map(|event| event["id"].as_str().expect("an id").to_owned()));
        next = page["next"].as_str().map(str::to_owned);
    }
    let count = expected.len();
    while !expected.is_empty() {
        let chunk = response.chunk().await.expect("more").expect("more");
        text.push_str(&String::from_utf8_lossy(&chunk));
        while let Some((frame, rest)) =
            text.split_once("\n\n").map(|(frame, rest)| (frame.to_owned(), rest.to_owned()))
        {
            text = rest;
            let id = frame.lines().find_map(|line| line.strip_prefix("id: "));
            if frame.contains("data:") && !expected.is_empty() {
                assert_eq!(id, expected.pop_front().as_deref(), "a gap or a repetition");
            }
        }
    }
    println!("a reader that catches up received all {count} events, in order");
}

/// Rates of requests, compared with bare axum and the engine alone.
async fn requests() {
    let bare = wrk(&bare_axum().await, None);
    let alone = engine_alone().await;
    let daemon = Daemon::start();
    println!("idle memory              {:>8} MB", daemon.memory_mb());
    let api = format!("{}/api/v1", daemon.url);
    call(reqwest::Method::POST, format!("{api}/definitions"), json!({ "text": HOLD })).await;
    let run = call(reqwest::Method::POST, format!("{api}/runs"), json!({ "name": "hold" })).await;
    let reads = wrk(&format!("{api}/runs/{}", run["run_id"].as_str().expect("a run")), None);
    let starts = wrk(&format!("{api}/runs"), Some(&json!({ "name": "hold" })));
    println!("bare axum                {bare:>8.0} requests/s");
    println!("status reads             {reads:>8.0} requests/s   {:.2} of bare axum", reads / bare);
    println!("engine alone             {alone:>8.0} durable starts/s");
    println!("starts over REST         {starts:>8.0} durable starts/s   {:.2} of the engine", starts / alone);
}

/// Rates of steps without and with readers.
async fn streams() {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        without.push(burst(false).await);
        with.push(burst(true).await);
    }
    let median = |all: &mut Vec<(f64, u64)>| {
        all.sort_by(|left, right| left.0.total_cmp(&right.0));
        all[all.len() / 2]
    };
    let ((alone, idle), (read, busy)) = (median(&mut without), median(&mut with));
    println!("steps, no readers        {alone:>8.0} steps/s, {idle} MB");
    println!(
        "steps, 1,000 readers     {read:>8.0} steps/s, {busy} MB   {:.2} of that (100 never read, 20 follow all runs)",
        read / alone
    );
    println!("samples                  {without:.0?} and {with:.0?}");
}

#[tokio::main]
async fn main() {
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with("--"));
    if only.as_deref() != Some("streams") {
        requests().await;
    }
    if only.as_deref() != Some("requests") {
        streams().await;
    }
}
