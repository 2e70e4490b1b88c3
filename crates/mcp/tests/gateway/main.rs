//! The gateway against conforming and faulty servers.

mod faulty;
mod fixture;

use std::path::Path;
use std::sync::{Arc, Mutex};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};
use steprail_core::plan::Hash;
use steprail_core::source::Source;
use steprail_engine::{
    CallReporter, CallSite, Continuation, Failure, FailureKind, InputRequest, InputResponse, OnToolChange,
    Outcome, Payload, Principal, Report, RunId, RunTrace, ToolCall, ToolCaller,
};
use steprail_mcp::config::Servers;
use steprail_mcp::{Era, Gateway, Health, Options};
use tokio_util::sync::CancellationToken;

/// Environment variable that makes this program the fixture server.
const FIXTURE: &str = "STEPRAIL_FIXTURE";
/// Argument that makes this program the supervisor of a server.
const SUPERVISE: &str = "--supervise";
/// The trace context of the calls.
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A list of trials, named like their functions.
macro_rules! trials {
    ($($test:ident),* $(,)?) => { vec![$(trial(stringify!($test), $test)),*] };
}

fn main() -> std::process::ExitCode {
    let command: Vec<_> = std::env::args_os().skip_while(|argument| argument != SUPERVISE).skip(2).collect();
    if !command.is_empty() {
        std::process::exit(steprail_mcp::supervise(&command));
    }
    if std::env::var_os(FIXTURE).is_some() {
        fixture::serve();
        return std::process::ExitCode::SUCCESS;
    }
    let tests = trials![
        calls_tools_and_returns_results,
        sends_idempotency_key_and_trace,
        crashed_server_leaves_an_unknown_outcome,
        oversized_response_fails_only_its_call,
        cancelled_call_ends,
        failing_server_is_retried_with_backoff,
        slow_server_is_connected,
        era_and_tools_are_cached_across_gateways,
        tool_without_a_schema_is_a_warning,
        hanging_servers_do_not_block_others,
        connects_over_sse,
        http_failures_state_whether_the_call_was_sent,
        silent_server_times_out_at_start,
        detects_exit_while_a_descendant_holds_the_output,
        ignores_garbage_on_stdout,
        shutdown_kills_descendants,
        names_a_variable_that_is_not_set,
        connects_over_http,
        reports_progress_in_order,
        task_is_polled_by_another_gateway,
        input_request_is_answered_through_another_gateway,
        input_request_of_a_legacy_server_holds_its_connection,
        renamed_tools_are_listed_again,
        changed_tool_follows_on_tool_change,
        checks_a_definition_against_its_tools,
        refused_connection_is_not_a_lost_call,
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn trial<F: Future<Output = ()> + 'static>(name: &str, test: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failed::from(error.to_string()))?.block_on(test());
        Ok(())
    })
}

/// Config entry of the fixture server.
fn fixture() -> Value {
    let program = std::env::current_exe().expect("a program");
    json!({ "command": program, "env": { FIXTURE: "1" } })
}

fn shell(script: &str) -> Value {
    json!({ "command": "/bin/sh", "args": ["-c", script] })
}

fn gateway(servers: &Value) -> Gateway {
    cached_gateway(servers, None)
}

fn cached_gateway(servers: &Value, cache: Option<&Path>) -> Gateway {
    let servers = Servers::read(&json!({ "mcpServers": servers }).to_string()).expect("servers");
    let program = std::env::current_exe().expect("a program");
    let supervisor = vec![program.into(), SUPERVISE.into()];
    let options = Options { cache: cache.map(Path::to_owned), supervisor, ..Options::default() };
    Gateway::new(servers, options).expect("a gateway")
}

/// Reconnects to a server without backoff.
async fn reconnect(gateway: &Gateway, server: &str) {
    gateway.restart(server).await;
    gateway.connect().await;
}

fn a_call(tool: &str, args: Value) -> ToolCall {
    ToolCall {
        tool: tool.into(),
        args: Payload::new(args),
        secrets: Arc::default(),
        principal: Arc::new(Principal::user("ann")),
        run: RunId(uuid::Uuid::nil()),
        path: "step".into(),
        attempt: 1,
        trace: RunTrace::new(RunId(uuid::Uuid::nil()), Some(TRACE)).attempt(1, 1),
        idempotency_key: "key-1".into(),
        deadline: None,
        persona: None,
        cancelled: CancellationToken::new(),
        continues: None,
        reporter: CallReporter::default(),
        pinned: None,
    }
}

/// A call, and the reports that it makes.
fn a_reported_call(tool: &str, args: Value) -> (ToolCall, Arc<Mutex<Vec<Report>>>) {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = reports.clone();
    let reporter = CallReporter::new(move |report| sink.lock().expect("reports").push(report));
    (ToolCall { reporter, ..a_call(tool, args) }, reports)
}

/// Config entry of the fixture server with legacy revisions only.
fn legacy(elicitation: bool) -> Value {
    let mut entry = fixture();
    (entry["env"][FIXTURE], entry["elicitation"]) = (json!("legacy"), json!(elicitation));
    entry
}

async fn call(gateway: &Gateway, tool: &str, args: Value) -> Outcome {
    gateway.call(a_call(tool, args)).await
}

fn failed(outcome: Outcome) -> (FailureKind, String) {
    let Failure { kind, message, .. } = outcome.expect_err("a failure");
    (kind, message.to_string())
}

async fn calls_tools_and_returns_results() {
    let gateway = gateway(&json!({ "My Server": fixture() }));
    let status = gateway.connect().await;
    assert_eq!(
        (status[0].name.as_str(), &status[0].health, status[0].tools.len()),
        ("My Server", &Health::Up, 11)
    );
    let result = call(&gateway, "my-server__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    let annotations = gateway.annotations("my-server__echo_text");
    assert!(annotations.is_read_only() && annotations.is_idempotent() && !annotations.is_destructive());
    assert_eq!(gateway.annotations("my-server__meta").destructive, Some(false));
    let (kind, message) = failed(call(&gateway, "my-server__echo_text", json!({ "text": 1 })).await);
    assert_eq!(kind, FailureKind::Validation);
    assert!(message.contains("`/text`: 1 is not of type \"string\""), "{message}");
    let error = failed(call(&gateway, "my-server__fail", json!({})).await);
    assert_eq!(error, (FailureKind::ToolError, "it did not work".to_owned()));
    let (kind, message) = failed(call(&gateway, "my-server__echo_txt", json!({})).await);
    assert_eq!(kind, FailureKind::NotFound);
    assert!(message.contains("did you mean `my-server__echo_text`? `my-server` has"), "{message}");
    gateway.shutdown().await;
}

async fn sends_idempotency_key_and_trace() {
    let gateway = gateway(&json!({ "a": fixture() }));
    let meta = call(&gateway, "a__meta", json!({})).await.expect("an answer");
    assert_eq!(meta["dev.steprail/idempotencyKey"], "key-1");
    assert_eq!(meta["dev.steprail/step"], "step");
    let trace = meta["traceparent"].as_str().expect("a traceparent");
    assert_eq!(trace[..36], TRACE[..36], "the same trace");
    assert_ne!(trace[36..], TRACE[36..], "another span");
    gateway.shutdown().await;
}

async fn crashed_server_leaves_an_unknown_outcome() {
    let gateway = gateway(&json!({ "a": fixture() }));
    let (kind, message) = failed(call(&gateway, "a__die", json!({})).await);
    assert_eq!(kind, FailureKind::Lost, "{message}");
    assert!(message.ends_with("its process ended with exit code 9"), "{message}");
    reconnect(&gateway, "a").await;
    let site = CallSite {
        tool: "a__x",
        principal: &Principal::user("ann"),
        run: RunId(uuid::Uuid::nil()),
        path: "step",
    };
    assert!(gateway.capacity(&site).exclusive, "a call that crashed its server is repeated alone");
    let again = call(&gateway, "a__echo_text", json!({ "text": "back" })).await;
    assert_eq!(again.expect("it was restarted"), json!({ "echo": "back" }));
    gateway.shutdown().await;
}

async fn oversized_response_fails_only_its_call() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let big = async { failed(call(&gateway, "a__big", json!({})).await) };
    let other = call(&gateway, "a__echo_text", json!({ "text": "other" }));
    let ((kind, message), other) = tokio::join!(big, other);
    assert_eq!(kind, FailureKind::Limit);
    assert!(message.contains("executed the call, but the response exceeds"), "{message}");
    assert_eq!(other.expect("an answer"), json!({ "echo": "other" }));
    gateway.shutdown().await;
}

async fn cancelled_call_ends() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let waiting = a_call("a__wait", json!({}));
    let token = waiting.cancelled.clone();
    let (outcome, ()) = tokio::join!(gateway.call(waiting), async {
        // The response to a later call shows that the first one was sent.
        call(&gateway, "a__echo_text", json!({ "text": "sent" })).await.expect("an answer");
        token.cancel();
    });
    assert_eq!(failed(outcome).0, FailureKind::Cancelled);
    let unsent = a_call("a__wait", json!({}));
    unsent.cancelled.cancel();
    gateway.restart("a").await;
    assert_eq!(failed(gateway.call(unsent).await).0, FailureKind::Transport, "nothing was sent");
    gateway.shutdown().await;
}

async fn failing_server_is_retried_with_backoff() {
    let gateway = gateway(
        &json!({ "a": shell("echo I cannot start >&2; exit 3"), "b": { "command": "/no/such/program" } }),
    );
    let status = gateway.connect().await;
    assert_eq!(
        (status[0].health, status[0].error.as_deref()),
        (Health::Down, Some("its process ended with exit code 3"))
    );
    assert_eq!(status[0].stderr, ["I cannot start"]);
    assert!(
        status[0].retry_in.is_some()
            && status[0].next_action().as_deref() == Some("steprail servers restart a")
    );
    let missing = status[1].error.as_deref().expect("a reason");
    assert_eq!(missing, "`/no/such/program` cannot be started: No such file or directory (os error 2)");
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(
        (kind, message.as_str()),
        (FailureKind::Transport, "a is unavailable: its process ended with exit code 3")
    );
    let site = CallSite {
        tool: "a__x",
        principal: &Principal::user("ann"),
        run: RunId(uuid::Uuid::nil()),
        path: "s",
    };
    let capacity = gateway.capacity(&site);
    assert_eq!(
        capacity.unavailable.as_deref(),
        Some("a cannot be reached: its process ended with exit code 3")
    );
    gateway.shutdown().await;
}

/// Servers of both eras that start after the timeout of the probe.
async fn slow_server_is_connected() {
    let program = std::env::current_exe().expect("a program");
    let late = |era: &str| {
        let mut entry = shell(&format!("sleep 11; exec '{}'", program.display()));
        entry["env"] = json!({ FIXTURE: era });
        entry
    };
    let gateway = gateway(&json!({ "old": late("legacy"), "new": late("1"), "short": shell("sleep 20") }));
    let status = gateway.connect();
    let (status, before) = tokio::join!(status, async { gateway.status() });
    assert!(before.iter().all(|server| server.health == Health::Starting || server.health == Health::Idle));
    let up: Vec<_> =
        status.iter().filter(|server| server.health == Health::Up).map(|server| &*server.name).collect();
    assert_eq!(up, ["new", "old"], "{status:?}");
    for tool in ["old__echo_text", "new__echo_text"] {
        let result = call(&gateway, tool, json!({ "text": "hi" })).await;
        assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    }
    gateway.shutdown().await;
}

async fn era_and_tools_are_cached_across_gateways() {
    let folder = tempfile::tempdir().expect("a folder");
    let servers = json!({ "old": legacy(false), "new": fixture() });
    let first = cached_gateway(&servers, Some(folder.path()));
    assert_eq!(first.has_tool("old__echo_text"), None, "no tools are known before the first connection");
    first.connect().await;
    first.shutdown().await;
    let second = cached_gateway(&servers, Some(folder.path()));
    second.status();
    assert!(second.annotations("old__echo_text").is_read_only(), "annotations are known without the server");
    let eras: Vec<_> = second.status().iter().map(|server| (server.name.clone(), server.era)).collect();
    assert_eq!(eras, [("new".to_owned(), Some(Era::Modern)), ("old".to_owned(), Some(Era::Legacy))]);
    let mut other = legacy(false);
    other["args"] = json!(["another"]);
    let third = cached_gateway(&json!({ "old": other }), Some(folder.path()));
    third.status();
    assert_eq!(third.has_tool("old__echo_text"), None, "another entry is another server");
}

/// A legacy server as a shell script, with this list of tools.
fn scripted_server(tools: &str) -> Value {
    let script = format!(
        r#"while read -r line; do
          id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
          case "$line" in
            *server/discover*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{}}}}\n' "$id" ;;
            *'"initialize"'*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"faulty","version":"1"}}}}}}\n' "$id" ;;
            *tools/list*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"tools":{tools}}}}}\n' "$id" ;;
          esac
        done"#
    );
    shell(&script)
}

async fn tool_without_a_schema_is_a_warning() {
    let tools =
        r#"[{"name":"bare"},{"name":"good","inputSchema":{"type":"object"}},{"description":"nameless"}]"#;
    let gateway = gateway(&json!({ "faulty": scripted_server(tools) }));
    let status = gateway.connect().await.remove(0);
    let names: Vec<_> = status.tools.iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(names, ["faulty__bare", "faulty__good"], "{status:?}");
    assert_eq!(status.warnings.len(), 2, "{:?}", status.warnings);
    assert!(status.warnings[0].contains("`bare` has no valid `inputSchema`"), "{:?}", status.warnings);
    gateway.shutdown().await;
}

async fn hanging_servers_do_not_block_others() {
    let mut servers = json!({ "good": fixture() });
    for n in 0..12 {
        servers[format!("a{n}")] = shell("exec sleep 1000");
    }
    let gateway = gateway(&servers);
    gateway.start();
    let result = call(&gateway, "good__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    gateway.shutdown().await;
}

async fn connects_over_sse() {
    let url = faulty::serve_sse().await;
    let gateway = gateway(&json!({ "sse": { "type": "sse", "url": url } }));
    let status = gateway.connect().await.remove(0);
    assert_eq!((status.health, status.era), (Health::Up, Some(Era::Legacy)), "{status:?}");
    let result = call(&gateway, "sse__echo", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    gateway.shutdown().await;
}

async fn http_failures_state_whether_the_call_was_sent() {
    let url = faulty::serve_http().await;
    let gateway = gateway(&json!({ "faulty": { "url": url } }));
    gateway.connect().await;
    let mut lines = Vec::new();
    for what in ["429", "503", "503-retry", "500", "502", "404", "400", "403", "cut", "garbage", "big"] {
        let failure = call(&gateway, "faulty__answer", json!({ "what": what })).await.expect_err("a failure");
        let wait = failure.retry_after_ms.map(|wait| format!(" (retry after {wait} ms)")).unwrap_or_default();
        lines.push(format!("{what}: {}{wait}: {}", failure.kind.name(), failure.message));
        gateway.restart("faulty").await;
        gateway.connect().await;
    }
    insta::assert_snapshot!(lines.join("\n"));
    gateway.shutdown().await;
}

async fn silent_server_times_out_at_start() {
    tokio::time::pause();
    let gateway = gateway(&json!({ "a": shell("exec sleep 1000") }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert!(message.contains("it did not answer within 60 s"), "{message}");
    gateway.shutdown().await;
}

async fn detects_exit_while_a_descendant_holds_the_output() {
    let gateway = gateway(&json!({ "a": shell("sleep 1000 & exit 0") }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert!(message.contains("its process ended with exit code 0"), "{message}");
    gateway.shutdown().await;
}

async fn ignores_garbage_on_stdout() {
    let program = std::env::current_exe().expect("a program");
    let after = |command: &str| {
        let mut entry = shell(&format!("{command}; exec '{}'", program.display()));
        entry["env"] = json!({ FIXTURE: "1" });
        entry
    };
    let servers = json!({ "a": after("echo hello"), "b": after(r#"echo '{"odd": 1}'"#) });
    let gateway = gateway(&servers);
    let result = call(&gateway, "a__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    let odd = call(&gateway, "b__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(
        odd.expect("an answer"),
        json!({ "echo": "hi" }),
        "JSON that is not a message is ignored, too"
    );
    gateway.shutdown().await;
}

/// Whether a process runs; false for a zombie.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Waits until a process has exited. The test times out otherwise.
async fn wait_for_exit(process: &str) {
    while runs(process) {
        tokio::task::yield_now().await;
    }
}

async fn shutdown_kills_descendants() {
    let gateway = gateway(&json!({ "a": fixture() }));
    let grandchild = call(&gateway, "a__nest", json!({})).await.expect("a process");
    let grandchild = grandchild.as_str().expect("a number").to_owned();
    assert!(runs(&grandchild));
    gateway.shutdown().await;
    wait_for_exit(&grandchild).await;
}

async fn names_a_variable_that_is_not_set() {
    let gateway = gateway(&json!({ "a": { "command": "x", "env": { "K": "${STEPRAIL_NOT_SET}" } } }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert_eq!(message, "a is unavailable: the variable `STEPRAIL_NOT_SET` is not set");
}

async fn connects_over_http() {
    let url = fixture::serve_http().await;
    let gateway =
        gateway(&json!({ "web": { "type": "http", "url": url, "headers": { "X-Team": "${USER:-ops}" } } }));
    let result = call(&gateway, "web__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("an answer"), json!({ "echo": "hi" }));
    let error = failed(call(&gateway, "web__fail", json!({})).await);
    assert_eq!(error, (FailureKind::ToolError, "it did not work".to_owned()));
    gateway.shutdown().await;
}

async fn refused_connection_is_not_a_lost_call() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    drop(listener);
    let gateway = gateway(&json!({ "web": { "url": url } }));
    let (kind, message) = failed(call(&gateway, "web__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport, "{message}");
    gateway.shutdown().await;
}

async fn reports_progress_in_order() {
    for entry in [fixture(), legacy(false)] {
        let gateway = gateway(&json!({ "a": entry }));
        let (call, reports) = a_reported_call("a__progress", json!({}));
        assert_eq!(gateway.call(call).await.expect("an answer"), json!("done"));
        let reports = reports.lock().expect("reports").clone();
        let report = |progress| Report::Progress { progress, total: Some(3.0), message: None };
        assert_eq!(reports, [report(1.0), report(2.0), report(3.0)]);
        gateway.shutdown().await;
    }
}

async fn task_is_polled_by_another_gateway() {
    let id = format!("steprail-job-{}", std::process::id());
    let first = gateway(&json!({ "a": fixture() }));
    let (call, reports) = a_reported_call("a__job", json!({ "id": id }));
    let token = call.cancelled.clone();
    let calling = tokio::spawn({
        let first = first.clone();
        async move { first.call(call).await }
    });
    // Once the id of the task is known, the caller may die.
    while reports.lock().expect("reports").is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(reports.lock().expect("reports")[0], Report::Task { id: id.as_str().into() });
    calling.abort();
    first.shutdown().await;
    drop(token);
    let second = gateway(&json!({ "a": fixture() }));
    let resumed =
        ToolCall { continues: Some(Continuation::Task(id.as_str().into())), ..a_call("a__job", json!({})) };
    assert_eq!(second.call(resumed).await.expect("a result"), json!({ "job": "done" }));
    second.shutdown().await;
    std::fs::remove_file(std::env::temp_dir().join(id)).expect("the count");
}

fn input_request(outcome: Outcome) -> InputRequest {
    *outcome.expect_err("an input request").request.expect("an input request")
}

async fn input_request_is_answered_through_another_gateway() {
    let mut entry = fixture();
    entry["elicitation"] = json!(true);
    let first = gateway(&json!({ "a": entry }));
    let request = input_request(call(&first, "a__ask", json!({})).await);
    assert_eq!(
        (&*request.message, &request.form["properties"]["region"]["type"]),
        ("Which region?", &json!("string"))
    );
    first.shutdown().await;
    // The answer may arrive later, in another process.
    let second = gateway(&json!({ "a": entry }));
    let answered =
        |answer| Continuation::Answer(Box::new(InputResponse { state: request.state.clone(), answer }));
    let resumed = |answer| ToolCall { continues: Some(answered(answer)), ..a_call("a__ask", json!({})) };
    let accepted = second.call(resumed(Some(json!({ "region": "eu" })))).await.expect("a result");
    assert_eq!(
        accepted,
        json!({ "got": { "action": "accept", "content": { "region": "eu" } }, "state": "s-1" })
    );
    let declined = second.call(resumed(None)).await.expect("a result");
    assert_eq!(declined["got"]["action"], "decline");
    second.shutdown().await;
}

async fn input_request_of_a_legacy_server_holds_its_connection() {
    let gateway = gateway(&json!({ "a": legacy(true), "b": legacy(true) }));
    let request = input_request(call(&gateway, "a__ask", json!({})).await);
    let other = call(&gateway, "b__echo_text", json!({ "text": "other" })).await;
    assert_eq!(other.expect("other servers are not blocked"), json!({ "echo": "other" }));
    let answered = InputResponse { state: request.state.clone(), answer: Some(json!({ "region": "eu" })) };
    let answer = Some(Continuation::Answer(Box::new(answered)));
    let resumed = ToolCall { continues: answer.clone(), ..a_call("a__ask", json!({})) };
    let result = gateway.call(resumed).await.expect("a result");
    assert_eq!(result, json!({ "got": { "action": "accept", "content": { "region": "eu" } } }));
    // The request is answered once. After that its connection is closed, and the outcome is unknown.
    let again = ToolCall { continues: answer, ..a_call("a__ask", json!({})) };
    assert_eq!(failed(gateway.call(again).await).0, FailureKind::Lost);
    gateway.shutdown().await;
}

async fn renamed_tools_are_listed_again() {
    let gateway = gateway(&json!({ "a": fixture(), "b": fixture() }));
    gateway.connect().await;
    call(&gateway, "a__rename", json!({})).await.expect("renamed");
    let (kind, message) = failed(call(&gateway, "a__echo_text", json!({ "text": "hi" })).await);
    assert_eq!(kind, FailureKind::Validation, "{message}");
    let result = call(&gateway, "a__say_text", json!({ "text": "hi" })).await;
    assert_eq!(result.expect("its new name"), json!({ "echo": "hi" }));
    assert_eq!(
        failed(call(&gateway, "a__echo_text", json!({ "text": "hi" })).await).0,
        FailureKind::NotFound
    );
    let other = call(&gateway, "b__echo_text", json!({ "text": "other" })).await;
    assert_eq!(other.expect("another server keeps its names"), json!({ "echo": "other" }));
    gateway.shutdown().await;
}

async fn changed_tool_follows_on_tool_change() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let now = gateway.pin("a__echo_text").expect("a known tool");
    let call_pinned = async |pin: Hash, policy| {
        let (call, reports) = a_reported_call("a__echo_text", json!({ "text": "hi" }));
        let outcome = gateway.call(ToolCall { pinned: Some((pin, policy)), ..call }).await;
        let changes = reports.lock().expect("reports").len();
        (outcome, changes)
    };
    let before = Hash([7; 32]);
    assert_eq!(call_pinned(now, OnToolChange::Block).await.1, 0);
    let (outcome, changes) = call_pinned(before, OnToolChange::Warn).await;
    assert_eq!((outcome.expect("a result"), changes), (json!({ "echo": "hi" }), 1));
    let (outcome, changes) = call_pinned(before, OnToolChange::Block).await;
    assert_eq!((failed(outcome).0, changes), (FailureKind::Validation, 1));
    let (outcome, _) = call_pinned(before, OnToolChange::Approve).await;
    let request = input_request(outcome);
    let answered = InputResponse { state: request.state, answer: Some(json!({})) };
    let again = ToolCall {
        continues: Some(Continuation::Answer(Box::new(answered))),
        pinned: Some((before, OnToolChange::Approve)),
        ..a_call("a__echo_text", json!({ "text": "hi" }))
    };
    assert_eq!(gateway.call(again).await.expect("approved"), json!({ "echo": "hi" }));
    gateway.shutdown().await;
}

const TYPED: &str = "\
name: typed
inputs: { n: integer, t: string }
steps:
  - { id: literal, tool: a__echo_text, args: { text: 5 } }
  - { id: missing, tool: a__echo_text }
  - { id: other, tool: a__echo_text, args: { text: '{{inputs.n}}' } }
  - { id: fine, tool: a__echo_text, args: { text: 'n = {{inputs.n}}' } }
  - { id: unknown, tool: a__echo_txt, args: { text: '{{inputs.t}}' } }
  - { id: later, tool: down__anything }
  - { id: created, tool: a__created, missing_tool: create }
  - { id: again, tool: a__fail, retry: 2 }
  - { id: keyed, tool: a__fail, retry: 2, idempotency_key: k, idempotency_arg: key }
  - { id: harm, tool: a__die }
  - { id: gate, kind: approve }
  - { id: asked, tool: a__die }
";

async fn checks_a_definition_against_its_tools() {
    let gateway = gateway(&json!({ "a": fixture(), "down": shell("exit 1") }));
    gateway.connect().await;
    let source = Source::new("typed.yaml", TYPED);
    let plan = steprail_core::load(&source).plan.expect("a valid definition");
    let diagnostics = steprail_mcp::check(&plan, &source, &gateway);
    let lines = diagnostics.iter().map(|problem| {
        let position = source.position(problem.span.start);
        let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} {}:{} {}{hint}", problem.code.id(), position.line, position.column, problem.message)
    });
    let lines: Vec<String> = lines.collect();
    assert_eq!(
        lines,
        [
            "SR502 4:54 `text` of `a__echo_text`: 5 is not of type \"string\"",
            "SR502 5:26 `a__echo_text` needs the argument `text` (it takes (text: string))",
            "SR503 6:52 `text` of `a__echo_text` must be string, but `inputs.n` is integer",
            "SR501 8:26 there is no tool `a__echo_txt` (did you mean `a__echo_text`? `a` has `a__echo_text`, `a__meta`, `a__nest`, `a__die`, `a__job` and 6 more)",
            "SR507 9:24 the server `down` cannot be reached, so steps that call its tools will wait: it has not answered yet (ask the user to look at it: steprail servers; steprail servers restart down)",
            "SR505 11:40 `a__fail` is not annotated as repeatable: `retry` does not cover a lost connection or a timeout \
             (a human decides in these cases; to repeat the call, pass the key with `idempotency_arg` or add `lost` to \
             `retry_on`)",
            "SR504 13:23 `a__die` may be destructive and is called without an approval (put an `approve` step before it, or \
             `needs_human: true` on it)",
        ]
    );
    gateway.shutdown().await;
}
