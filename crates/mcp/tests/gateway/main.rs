//! The gateway with servers that behave, and with servers that do not.

mod fixture;
mod rude;

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

/// Says that this program is to be the server.
const FIXTURE: &str = "STEPRAIL_FIXTURE";
/// Says that this program is to supervise a server.
const SUPERVISE: &str = "--supervise";
/// The trace that calls belong to.
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn main() -> std::process::ExitCode {
    let command: Vec<_> = std::env::args_os().skip_while(|argument| argument != SUPERVISE).skip(2).collect();
    if !command.is_empty() {
        std::process::exit(steprail_mcp::supervise(&command));
    }
    if std::env::var_os(FIXTURE).is_some() {
        fixture::serve();
        return std::process::ExitCode::SUCCESS;
    }
    let tests = vec![
        trial("calls_reach_their_server_and_answers_come_back", calls_reach_their_server),
        trial("what_tells_a_repetition_goes_along", what_tells_a_repetition_goes_along),
        trial("a_server_that_dies_in_a_call_leaves_an_unknown_outcome", a_server_that_dies),
        trial("an_answer_without_measure_harms_nobody_else", an_answer_without_measure),
        trial("a_call_that_is_stopped_ends", a_call_that_is_stopped_ends),
        trial("a_server_that_keeps_failing_is_tried_less_and_less", a_server_that_keeps_failing),
        trial("a_server_that_starts_late_is_connected_to", a_late_server),
        trial("what_was_learnt_about_a_server_outlives_the_gateway", what_was_learnt),
        trial("a_tool_without_a_schema_is_a_warning", a_tool_without_a_schema),
        trial("a_crash_loop_does_not_keep_others_from_starting", others_start),
        trial("servers_of_the_past_are_reached_over_sse", servers_of_the_past),
        trial("refusals_over_http_say_whether_the_call_was_sent", refusals_over_http),
        trial("a_server_that_never_answers_is_given_up", a_server_that_never_answers),
        trial("a_process_whose_output_another_one_holds_is_seen_to_end", a_held_output),
        trial("garbage_is_passed_over_or_ends_the_connection", garbage_is_passed_over),
        trial("everything_that_a_server_started_ends_with_it", everything_ends),
        trial("a_variable_that_is_not_set_is_named", a_variable_that_is_not_set),
        trial("servers_are_reached_over_http", servers_are_reached_over_http),
        trial("progress_is_told_on", progress_is_told_on),
        trial("a_task_is_asked_for_also_by_another_gateway", a_task_is_asked_for),
        trial("a_tool_that_asks_goes_on_with_the_answer", a_tool_that_asks),
        trial("a_tool_that_asks_on_its_connection_waits_there", a_tool_that_asks_on_its_connection),
        trial("a_server_that_renames_its_tools_is_listed_again", a_server_that_renames_its_tools),
        trial("a_tool_that_changed_is_told_of_and_the_definition_decides", a_tool_that_changed),
        trial("a_definition_is_compared_with_the_tools_that_it_calls", a_definition_is_compared),
        trial("a_server_that_nobody_runs_is_told_apart_from_a_lost_call", nobody_listens),
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

/// A config entry for the server in this program.
fn fixture() -> Value {
    let program = std::env::current_exe().expect("a program");
    json!({ "command": program, "env": { FIXTURE: "1" } })
}

fn shell(script: &str) -> Value {
    json!({ "command": "/bin/sh", "args": ["-c", script] })
}

fn gateway(servers: &Value) -> Gateway {
    remembering(servers, None)
}

fn remembering(servers: &Value, cache: Option<&Path>) -> Gateway {
    let servers = Servers::read(&json!({ "mcpServers": servers }).to_string()).expect("servers");
    let program = std::env::current_exe().expect("a program");
    let supervisor = vec![program.into(), SUPERVISE.into()];
    let options = Options { cache: cache.map(Path::to_owned), supervisor, ..Options::default() };
    Gateway::new(servers, options).expect("a gateway")
}

/// Connects again at once to a server that was lost.
async fn reconnect(gateway: &Gateway, server: &str) {
    gateway.restart(server).await;
    gateway.connect().await;
}

fn a_call(tool: &str, args: Value) -> ToolCall {
    ToolCall {
        tool: tool.into(),
        args: Payload::new(args),
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

/// A call whose reports are kept.
fn a_reported_call(tool: &str, args: Value) -> (ToolCall, Arc<Mutex<Vec<Report>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let kept = told.clone();
    let reporter = CallReporter::new(move |report| kept.lock().expect("reports").push(report));
    (ToolCall { reporter, ..a_call(tool, args) }, told)
}

/// The same server, speaking older revisions only.
fn older(asks: bool) -> Value {
    let mut entry = fixture();
    (entry["env"][FIXTURE], entry["elicitation"]) = (json!("legacy"), json!(asks));
    entry
}

async fn call(gateway: &Gateway, tool: &str, args: Value) -> Outcome {
    gateway.call(a_call(tool, args)).await
}

fn failed(outcome: Outcome) -> (FailureKind, String) {
    let Failure { kind, message, .. } = outcome.expect_err("a failure");
    (kind, message.to_string())
}

async fn calls_reach_their_server() {
    let gateway = gateway(&json!({ "My Server": fixture() }));
    let status = gateway.connect().await;
    assert_eq!(
        (status[0].name.as_str(), &status[0].health, status[0].tools.len()),
        ("My Server", &Health::Up, 11)
    );
    let said = call(&gateway, "my-server__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    let annotations = gateway.annotations("my-server__echo_text");
    assert!(annotations.is_read_only() && annotations.is_idempotent() && !annotations.is_destructive());
    assert_eq!(gateway.annotations("my-server__meta").destructive, Some(false));
    let (kind, message) = failed(call(&gateway, "my-server__echo_text", json!({ "text": 1 })).await);
    assert_eq!(kind, FailureKind::Validation);
    assert!(message.contains("`/text`: 1 is not of type \"string\""), "{message}");
    let broke = failed(call(&gateway, "my-server__fail", json!({})).await);
    assert_eq!(broke, (FailureKind::ToolError, "it did not work".to_owned()));
    let (kind, message) = failed(call(&gateway, "my-server__echo_txt", json!({})).await);
    assert_eq!(kind, FailureKind::NotFound);
    assert!(message.contains("did you mean `my-server__echo_text`? `my-server` has"), "{message}");
    gateway.shutdown().await;
}

async fn what_tells_a_repetition_goes_along() {
    let gateway = gateway(&json!({ "a": fixture() }));
    let meta = call(&gateway, "a__meta", json!({})).await.expect("an answer");
    assert_eq!(meta["dev.steprail/idempotencyKey"], "key-1");
    assert_eq!(meta["dev.steprail/step"], "step");
    let trace = meta["traceparent"].as_str().expect("a traceparent");
    assert_eq!(trace[..36], TRACE[..36], "the same trace");
    assert_ne!(trace[36..], TRACE[36..], "another span");
    gateway.shutdown().await;
}

async fn a_server_that_dies() {
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
    assert!(gateway.capacity(&site).exclusive, "what crashed it is made alone");
    let again = call(&gateway, "a__echo_text", json!({ "text": "back" })).await;
    assert_eq!(again.expect("it was started anew"), json!({ "said": "back" }));
    gateway.shutdown().await;
}

async fn an_answer_without_measure() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let big = async { failed(call(&gateway, "a__big", json!({})).await) };
    let other = call(&gateway, "a__echo_text", json!({ "text": "calm" }));
    let ((kind, message), other) = tokio::join!(big, other);
    assert_eq!(kind, FailureKind::Limit);
    assert!(message.contains("executed the call, and the response has more than"), "{message}");
    assert_eq!(other.expect("an answer"), json!({ "said": "calm" }));
    gateway.shutdown().await;
}

async fn a_call_that_is_stopped_ends() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let waiting = a_call("a__wait", json!({}));
    let token = waiting.cancelled.clone();
    let (outcome, ()) = tokio::join!(gateway.call(waiting), async {
        // An echo tells that the call before it was sent.
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

async fn a_server_that_keeps_failing() {
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
        (FailureKind::Transport, "a cannot take calls: its process ended with exit code 3")
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

/// A server that needs longer to start than the probe is waited for, of both eras.
async fn a_late_server() {
    let program = std::env::current_exe().expect("a program");
    let late = |era: &str| {
        let mut entry = shell(&format!("sleep 11; exec '{}'", program.display()));
        entry["env"] = json!({ FIXTURE: era });
        entry
    };
    let gateway = gateway(&json!({ "old": late("legacy"), "new": late("1"), "short": shell("sleep 20") }));
    let status = gateway.connect();
    let (status, short) = tokio::join!(status, async { gateway.status() });
    assert!(short.iter().all(|server| server.health == Health::Starting || server.health == Health::Idle));
    let up: Vec<_> =
        status.iter().filter(|server| server.health == Health::Up).map(|server| &*server.name).collect();
    assert_eq!(up, ["new", "old"], "{status:?}");
    for tool in ["old__echo_text", "new__echo_text"] {
        let said = call(&gateway, tool, json!({ "text": "hi" })).await;
        assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    }
    gateway.shutdown().await;
}

async fn what_was_learnt() {
    let folder = tempfile::tempdir().expect("a folder");
    let servers = json!({ "old": older(false), "new": fixture() });
    let first = remembering(&servers, Some(folder.path()));
    assert_eq!(first.has_tool("old__echo_text"), None, "nothing is known before the first connection");
    first.connect().await;
    first.shutdown().await;
    let second = remembering(&servers, Some(folder.path()));
    second.status();
    assert!(second.annotations("old__echo_text").is_read_only(), "annotations are known without the server");
    let eras: Vec<_> = second.status().iter().map(|server| (server.name.clone(), server.era)).collect();
    assert_eq!(eras, [("new".to_owned(), Some(Era::Modern)), ("old".to_owned(), Some(Era::Legacy))]);
    let mut other = older(false);
    other["args"] = json!(["another"]);
    let third = remembering(&json!({ "old": other }), Some(folder.path()));
    third.status();
    assert_eq!(third.has_tool("old__echo_text"), None, "another entry is another server");
}

/// Answers one line of JSON for each request that has an id: the responses of a rude server, in a shell.
fn scripted_server(tools: &str) -> Value {
    let script = format!(
        r#"while read -r line; do
          id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
          case "$line" in
            *server/discover*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{}}}}\n' "$id" ;;
            *'"initialize"'*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"rude","version":"1"}}}}}}\n' "$id" ;;
            *tools/list*) printf '{{"jsonrpc":"2.0","id":%s,"result":{{"tools":{tools}}}}}\n' "$id" ;;
          esac
        done"#
    );
    shell(&script)
}

async fn a_tool_without_a_schema() {
    let tools =
        r#"[{"name":"bare"},{"name":"good","inputSchema":{"type":"object"}},{"description":"nameless"}]"#;
    let gateway = gateway(&json!({ "rude": scripted_server(tools) }));
    let status = gateway.connect().await.remove(0);
    let names: Vec<_> = status.tools.iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(names, ["rude__bare", "rude__good"], "{status:?}");
    assert_eq!(status.warnings.len(), 2, "{:?}", status.warnings);
    assert!(status.warnings[0].contains("`bare` has no valid `inputSchema`"), "{:?}", status.warnings);
    gateway.shutdown().await;
}

async fn others_start() {
    let mut servers = json!({ "good": fixture() });
    for n in 0..12 {
        servers[format!("a{n}")] = shell("exec sleep 1000");
    }
    let gateway = gateway(&servers);
    gateway.start();
    let said = call(&gateway, "good__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    gateway.shutdown().await;
}

async fn servers_of_the_past() {
    let url = rude::serve_sse().await;
    let gateway = gateway(&json!({ "past": { "type": "sse", "url": url } }));
    let status = gateway.connect().await.remove(0);
    assert_eq!((status.health, status.era), (Health::Up, Some(Era::Legacy)), "{status:?}");
    let said = call(&gateway, "past__echo", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    gateway.shutdown().await;
}

/// Every way in which an HTTP server refuses or loses a call.
async fn refusals_over_http() {
    let url = rude::serve_http().await;
    let gateway = gateway(&json!({ "rude": { "url": url } }));
    gateway.connect().await;
    let mut told = Vec::new();
    for what in ["429", "503", "503-retry", "500", "502", "404", "400", "403", "cut", "garbage", "big"] {
        let failure = call(&gateway, "rude__answer", json!({ "what": what })).await.expect_err("a failure");
        let wait = failure.retry_after_ms.map(|wait| format!(" (again in {wait} ms)")).unwrap_or_default();
        told.push(format!("{what}: {}{wait}: {}", failure.kind.word(), failure.message));
        gateway.restart("rude").await;
        gateway.connect().await;
    }
    insta::assert_snapshot!(told.join("\n"));
    gateway.shutdown().await;
}

async fn a_server_that_never_answers() {
    tokio::time::pause();
    let gateway = gateway(&json!({ "a": shell("exec sleep 1000") }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert!(message.contains("it did not answer within 60 s"), "{message}");
    gateway.shutdown().await;
}

async fn a_held_output() {
    let gateway = gateway(&json!({ "a": shell("sleep 1000 & exit 0") }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert!(message.contains("its process ended with exit code 0"), "{message}");
    gateway.shutdown().await;
}

async fn garbage_is_passed_over() {
    let program = std::env::current_exe().expect("a program");
    let talks = |first: &str| {
        let mut entry = shell(&format!("{first}; exec '{}'", program.display()));
        entry["env"] = json!({ FIXTURE: "1" });
        entry
    };
    let servers = json!({ "a": talks("echo hello"), "b": talks(r#"echo '{"odd": 1}'"#) });
    let gateway = gateway(&servers);
    let said = call(&gateway, "a__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    let odd = call(&gateway, "b__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(
        odd.expect("an answer"),
        json!({ "said": "hi" }),
        "JSON that is no message is passed over, too"
    );
    gateway.shutdown().await;
}

/// Whether a process runs. One that has ended and that nobody asks after does not.
fn runs(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Returns when a process has ended; a test that waits for ever fails.
async fn has_ended(process: &str) {
    while runs(process) {
        tokio::task::yield_now().await;
    }
}

async fn everything_ends() {
    let gateway = gateway(&json!({ "a": fixture() }));
    let grandchild = call(&gateway, "a__nest", json!({})).await.expect("a process");
    let grandchild = grandchild.as_str().expect("a number").to_owned();
    assert!(runs(&grandchild));
    gateway.shutdown().await;
    has_ended(&grandchild).await;
}

async fn a_variable_that_is_not_set() {
    let gateway = gateway(&json!({ "a": { "command": "x", "env": { "K": "${STEPRAIL_NOT_SET}" } } }));
    let (kind, message) = failed(call(&gateway, "a__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport);
    assert_eq!(message, "a cannot take calls: the variable `STEPRAIL_NOT_SET` is not set");
}

async fn servers_are_reached_over_http() {
    let url = fixture::serve_http().await;
    let gateway =
        gateway(&json!({ "web": { "type": "http", "url": url, "headers": { "X-Team": "${USER:-ops}" } } }));
    let said = call(&gateway, "web__echo_text", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("an answer"), json!({ "said": "hi" }));
    let broke = failed(call(&gateway, "web__fail", json!({})).await);
    assert_eq!(broke, (FailureKind::ToolError, "it did not work".to_owned()));
    gateway.shutdown().await;
}

async fn nobody_listens() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    drop(listener);
    let gateway = gateway(&json!({ "web": { "url": url } }));
    let (kind, message) = failed(call(&gateway, "web__x", json!({})).await);
    assert_eq!(kind, FailureKind::Transport, "{message}");
    gateway.shutdown().await;
}

async fn progress_is_told_on() {
    for entry in [fixture(), older(false)] {
        let gateway = gateway(&json!({ "a": entry }));
        let (call, told) = a_reported_call("a__progress", json!({}));
        assert_eq!(gateway.call(call).await.expect("an answer"), json!("done"));
        let told = told.lock().expect("reports").clone();
        let report = |progress| Report::Progress { progress, total: Some(3.0), message: None };
        assert_eq!(told, [report(1.0), report(2.0), report(3.0)]);
        gateway.shutdown().await;
    }
}

async fn a_task_is_asked_for() {
    let id = format!("steprail-job-{}", std::process::id());
    let first = gateway(&json!({ "a": fixture() }));
    let (call, told) = a_reported_call("a__job", json!({ "id": id }));
    let token = call.cancelled.clone();
    let made = tokio::spawn({
        let first = first.clone();
        async move { first.call(call).await }
    });
    // Once its name is known, whoever made the call may die.
    while told.lock().expect("reports").is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(told.lock().expect("reports")[0], Report::Task { id: id.as_str().into() });
    made.abort();
    first.shutdown().await;
    drop(token);
    let second = gateway(&json!({ "a": fixture() }));
    let resumed =
        ToolCall { continues: Some(Continuation::Task(id.as_str().into())), ..a_call("a__job", json!({})) };
    assert_eq!(second.call(resumed).await.expect("a result"), json!({ "job": "done" }));
    second.shutdown().await;
    std::fs::remove_file(std::env::temp_dir().join(id)).expect("the count");
}

/// What a tool asks, as it is asked.
fn asked(outcome: Outcome) -> InputRequest {
    *outcome.expect_err("a question").request.expect("a question")
}

async fn a_tool_that_asks() {
    let mut entry = fixture();
    entry["elicitation"] = json!(true);
    let first = gateway(&json!({ "a": entry }));
    let question = asked(call(&first, "a__ask", json!({})).await);
    assert_eq!(
        (&*question.message, &question.form["properties"]["region"]["type"]),
        ("Which region?", &json!("string"))
    );
    first.shutdown().await;
    // The answer may come much later, to another process.
    let second = gateway(&json!({ "a": entry }));
    let answered =
        |answer| Continuation::Answer(Box::new(InputResponse { state: question.state.clone(), answer }));
    let resumed = |answer| ToolCall { continues: Some(answered(answer)), ..a_call("a__ask", json!({})) };
    let given = second.call(resumed(Some(json!({ "region": "eu" })))).await.expect("a result");
    assert_eq!(
        given,
        json!({ "got": { "action": "accept", "content": { "region": "eu" } }, "state": "s-1" })
    );
    let refused = second.call(resumed(None)).await.expect("a result");
    assert_eq!(refused["got"]["action"], "decline");
    second.shutdown().await;
}

async fn a_tool_that_asks_on_its_connection() {
    let gateway = gateway(&json!({ "a": older(true), "b": older(true) }));
    let question = asked(call(&gateway, "a__ask", json!({})).await);
    let other = call(&gateway, "b__echo_text", json!({ "text": "calm" })).await;
    assert_eq!(other.expect("nobody else waits"), json!({ "said": "calm" }));
    let answered = InputResponse { state: question.state.clone(), answer: Some(json!({ "region": "eu" })) };
    let answer = Some(Continuation::Answer(Box::new(answered)));
    let resumed = ToolCall { continues: answer.clone(), ..a_call("a__ask", json!({})) };
    let given = gateway.call(resumed).await.expect("a result");
    assert_eq!(given, json!({ "got": { "action": "accept", "content": { "region": "eu" } } }));
    // What was asked is answered once; a connection that was cut has an unknown outcome.
    let again = ToolCall { continues: answer, ..a_call("a__ask", json!({})) };
    assert_eq!(failed(gateway.call(again).await).0, FailureKind::Lost);
    gateway.shutdown().await;
}

async fn a_server_that_renames_its_tools() {
    let gateway = gateway(&json!({ "a": fixture(), "b": fixture() }));
    gateway.connect().await;
    call(&gateway, "a__rename", json!({})).await.expect("renamed");
    let (kind, message) = failed(call(&gateway, "a__echo_text", json!({ "text": "hi" })).await);
    assert_eq!(kind, FailureKind::Validation, "{message}");
    let said = call(&gateway, "a__say_text", json!({ "text": "hi" })).await;
    assert_eq!(said.expect("its new name"), json!({ "said": "hi" }));
    assert_eq!(
        failed(call(&gateway, "a__echo_text", json!({ "text": "hi" })).await).0,
        FailureKind::NotFound
    );
    let other = call(&gateway, "b__echo_text", json!({ "text": "calm" })).await;
    assert_eq!(other.expect("another server keeps its names"), json!({ "said": "calm" }));
    gateway.shutdown().await;
}

async fn a_tool_that_changed() {
    let gateway = gateway(&json!({ "a": fixture() }));
    gateway.connect().await;
    let now = gateway.pin("a__echo_text").expect("a known tool");
    let made = async |pin: Hash, policy| {
        let (call, told) = a_reported_call("a__echo_text", json!({ "text": "hi" }));
        let outcome = gateway.call(ToolCall { pinned: Some((pin, policy)), ..call }).await;
        let changes = told.lock().expect("reports").len();
        (outcome, changes)
    };
    let before = Hash([7; 32]);
    assert_eq!(made(now, OnToolChange::Block).await.1, 0);
    let (outcome, changes) = made(before, OnToolChange::Warn).await;
    assert_eq!((outcome.expect("it is called"), changes), (json!({ "said": "hi" }), 1));
    let (outcome, changes) = made(before, OnToolChange::Block).await;
    assert_eq!((failed(outcome).0, changes), (FailureKind::Validation, 1));
    let (outcome, _) = made(before, OnToolChange::Approve).await;
    let question = asked(outcome);
    let answered = InputResponse { state: question.state, answer: Some(json!({})) };
    let again = ToolCall {
        continues: Some(Continuation::Answer(Box::new(answered))),
        pinned: Some((before, OnToolChange::Approve)),
        ..a_call("a__echo_text", json!({ "text": "hi" }))
    };
    assert_eq!(gateway.call(again).await.expect("a yes"), json!({ "said": "hi" }));
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

async fn a_definition_is_compared() {
    let gateway = gateway(&json!({ "a": fixture(), "down": shell("exit 1") }));
    gateway.connect().await;
    let source = Source::new("typed.yaml", TYPED);
    let plan = steprail_core::load(&source).plan.expect("a sound definition");
    let found = steprail_mcp::check(&plan, &source, &gateway);
    let told = found.iter().map(|problem| {
        let place = source.position(problem.span.start);
        let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        format!("{} {}:{} {}{hint}", problem.code.id(), place.line, place.column, problem.message)
    });
    let told: Vec<String> = told.collect();
    assert_eq!(
        told,
        [
            "SR502 4:54 `text` of `a__echo_text`: 5 is not of type \"string\"",
            "SR502 5:26 `a__echo_text` needs the argument `text` (it takes (text: string))",
            "SR503 6:52 `text` of `a__echo_text` takes string, and `inputs.n` is integer",
            "SR501 8:26 there is no tool `a__echo_txt` (did you mean `a__echo_text`? `a` has `a__echo_text`, `a__meta`, `a__nest`, `a__die`, `a__job` and 6 more)",
            "SR507 9:24 the server `down` cannot be reached, so steps that call its tools will wait: it has not answered yet (ask the user to look at it: steprail servers; steprail servers restart down)",
            "SR505 11:40 `a__fail` is not annotated as repeatable: `retry` does not cover a lost connection or a timeout \
             (without more, a human is asked then; to repeat it, pass the key with `idempotency_arg` or name `lost` in \
             `retry_on`)",
            "SR504 13:23 `a__die` may destroy something, and nobody is asked before it (put an `approve` step before it, or \
             `needs_human: true` on it)",
        ]
    );
    gateway.shutdown().await;
}
