//! The overhead of a step: the same tool, called directly and through the engine.
//!
//! `cargo bench -p steprail-mcp`

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest, ErrorData, ListToolsRequest,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, ServerResult,
    Tool,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, Peer, RequestContext, RoleClient, RoleServer, ServiceExt,
};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientHandler, ServerHandler};
use serde_json::{Value, json};
use steprail_engine::{Durability, Engine, Options, Principal, SqliteStore, Start};
use steprail_mcp::config::Servers;
use steprail_mcp::{Gateway, Server, Settings};

/// Environment variable that makes this program the server.
const SERVE: &str = "STEPRAIL_BENCH_SERVER";
const IN_FLIGHT: usize = 64;

#[derive(Clone)]
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let any = json!({ "type": "object" }).as_object().cloned().unwrap_or_default();
        Ok(ListToolsResult::with_all_items(vec![Tool::new("echo", "Returns its arguments.", any)]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        Ok(CallToolResult::structured(arguments).into())
    }
}

/// A client without handlers.
struct PlainClient;

impl ClientHandler for PlainClient {}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match std::env::var(SERVE).as_deref() {
        Ok("stdio") => runtime.block_on(serve_stdio()),
        Ok(_) => runtime.block_on(serve_http()),
        Err(_) => runtime.block_on(measure()),
    }
}

async fn serve_stdio() {
    if let Ok(service) = Echo.serve(rmcp::transport::stdio()).await {
        let _ = service.waiting().await;
    }
}

async fn serve_http() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("http://{}/mcp", listener.local_addr().expect("an address"));
    let sessions = Arc::new(LocalSessionManager::default());
    let service = StreamableHttpService::new(|| Ok(Echo), sessions, StreamableHttpServerConfig::default());
    let app = axum::Router::new().nest_service("/mcp", service);
    let _ = axum::serve(listener, app).await;
}

async fn measure() {
    println!("| transport | in flight | direct | through the engine | overhead of the engine |");
    println!("|---|---|---|---|---|");
    let mut program = Command::new(std::env::current_exe().expect("a program"));
    let mut child = program.env(SERVE, "http").stdout(Stdio::piped()).spawn().expect("a server");
    let mut url = String::new();
    BufReader::new(child.stdout.take().expect("output")).read_line(&mut url).expect("an address");
    let url = url.trim().to_owned();
    compare("stdio", None).await;
    compare("http", Some(&url)).await;
    child.kill().expect("an end");
    let _ = child.wait();
    list_tools_benchmark().await;
}

async fn compare(name: &str, url: Option<&str>) {
    let entry = match url {
        Some(url) => json!({ "url": url }),
        None => json!({ "command": std::env::current_exe().expect("a program"), "env": { SERVE: "stdio" } }),
    };
    // The gateway uses the same revision of the protocol.
    let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
    let direct = if let Some(url) = url {
        let transport = StreamableHttpClientTransport::from_uri(url);
        PlainClient.serve_with_lifecycle(transport, lifecycle).await.expect("a client")
    } else {
        let mut command = tokio::process::Command::new(std::env::current_exe().expect("a program"));
        command.env(SERVE, "stdio");
        let transport = TokioChildProcess::new(command).expect("a child");
        PlainClient.serve_with_lifecycle(transport, lifecycle).await.expect("a client")
    };
    let servers = Servers::read(&json!({ "mcpServers": { "bench": entry } }).to_string()).expect("servers");
    let gateway = Gateway::new(servers, steprail_mcp::Options::default()).expect("a gateway");
    gateway.connect().await;
    for (in_flight, calls) in [(1, 3_000), (IN_FLIGHT, 12_000)] {
        // Best of two measurements: other load on the machine only slows a measurement down.
        let mut best = (Duration::MAX, Duration::MAX);
        for _ in 0..2 {
            best.0 = best.0.min(direct_calls(direct.peer(), calls, in_flight).await);
            best.1 = best.1.min(engine_calls(&gateway, calls, in_flight).await);
        }
        let micros_per_call =
            |time: Duration| time.as_secs_f64() * 1e6 / f64::from(u32::try_from(calls).unwrap_or(u32::MAX));
        let (direct, engine) = (micros_per_call(best.0), micros_per_call(best.1));
        println!(
            "| {name} | {in_flight} | {direct:.0} us, {:.0}/s | {engine:.0} us, {:.0}/s | {:.0} us, {:.2} of the direct call |",
            1e6 / direct,
            1e6 / engine,
            engine - direct,
            (engine - direct) / direct
        );
    }
    gateway.shutdown().await;
}

async fn direct_calls(peer: &Peer<RoleClient>, calls: usize, in_flight: usize) -> Duration {
    let started = Instant::now();
    let all = futures::stream::iter(0..calls).map(|n| async move {
        let args = json!({ "n": n }).as_object().cloned().unwrap_or_default();
        peer.call_tool(CallToolRequestParams::new("echo").with_arguments(args)).await.expect("a response")
    });
    all.buffer_unordered(in_flight).for_each(|_| async {}).await;
    started.elapsed()
}

async fn engine_calls(gateway: &Gateway, calls: usize, in_flight: usize) -> Duration {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("bench.db"), &options).expect("a database");
    let engine = Engine::builder().store(store).tools(gateway.clone()).spawn().expect("an engine");
    let definition = format!(
        "name: bench\ninputs: {{ items: {{ type: array }} }}\nsteps:\n  - id: all\n    kind: foreach\n    items: \
         '{{{{inputs.items}}}}'\n    concurrency: {in_flight}\n    steps: [{{ id: one, tool: bench__echo, args: {{ n: \
         '{{{{item}}}}' }} }}]\noutput: done\n"
    );
    let items: Vec<usize> = (0..calls).collect();
    let start = Start::inline(definition, Principal::user("ann")).inputs(json!({ "items": items }));
    let started = Instant::now();
    let run = engine.start(start).await.expect("a run");
    let view = run.wait().await.expect("an end");
    let elapsed = started.elapsed();
    assert_eq!(view.run.status, steprail_engine::RunStatus::Completed, "{:?}", view.run.error);
    engine.shutdown().await.expect("an end");
    elapsed
}

/// The duration of `tools/list` with a growing number of published workflows.
async fn list_tools_benchmark() {
    println!("\n| published workflows | tools/list | per workflow |\n|---|---|---|");
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { durability: Durability::Process, ..Options::default() };
    let store = SqliteStore::open(folder.path().join("bench.db"), &options).expect("a database");
    let engine = Engine::builder().store(store).spawn().expect("an engine");
    let owner = Principal::user("ann");
    let (ours, theirs) = tokio::io::duplex(1 << 22);
    let (read, write) = tokio::io::split(ours);
    let server = Server::new(engine.clone(), None, Settings::default());
    tokio::spawn(server.for_user(owner.clone()).serve(read, write));
    let client = PlainClient.serve(theirs).await.expect("a client");
    let mut defined = 0;
    for published in [10, 100, 1_000] {
        while defined < published {
            let text = format!(
                "name: w{defined}\npublish: true\ninputs: {{ a: string, b: integer }}\nsteps: [{{ id: s, tool: x__y, args: {{ a: \
                 '{{{{inputs.a}}}}' }} }}]"
            );
            engine.define(&text, &owner).await.expect("a definition");
            defined += 1;
        }
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let started = Instant::now();
            let mut cursor = None;
            loop {
                // Sent as a raw request, because the client would return its cached list.
                let page = Some(PaginatedRequestParams::default().with_cursor(cursor));
                let request = ListToolsRequest { params: page, ..ListToolsRequest::default() };
                let response = client.send_request(ClientRequest::ListToolsRequest(request)).await;
                let Ok(ServerResult::ListToolsResult(page)) = response else { panic!("no tools") };
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            best = best.min(started.elapsed());
        }
        let micros_per_workflow = best.as_secs_f64() * 1e6 / f64::from(published);
        println!("| {published} | {:.2} ms | {micros_per_workflow:.1} us |", best.as_secs_f64() * 1e3);
    }
}
