//! An agent that has only the list of tools writes and runs workflows: every reply contains the next call.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::support::{Daemon, Rpc, output, server, steprail};

/// The maximum length of all replies, in bytes.
const BYTES: usize = 64_000;
/// The maximum number of calls.
const CALLS: usize = 60;

/// A stand-in for a model: it copies names, arguments and calls out of replies.
struct Agent {
    rpc: Rpc,
    calls: usize,
    bytes: usize,
}

/// The result of a tool call: structured content, first text block, and all content.
struct Reply {
    facts: Value,
    text: String,
    content: Value,
}

impl Agent {
    async fn new(url: &str) -> Self {
        let mut rpc = Rpc::new(url);
        rpc.initialize().await;
        Self { rpc, calls: 0, bytes: 0 }
    }

    async fn tools(&self) -> Vec<String> {
        let listed = self.rpc.legacy("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().cloned().expect("tools");
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Reply {
        let params = json!({ "name": tool, "arguments": arguments });
        let result = self.rpc.legacy("tools/call", params).await["result"].clone();
        let text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
        let facts = result["structuredContent"].clone();
        for key in ["message", "next"] {
            let fact = facts[key].as_str().unwrap_or_default();
            assert!(text.contains(fact), "the text of {tool} lacks the {key}: {text}");
        }
        self.calls += 1;
        self.bytes += text.len();
        Reply { facts, text, content: result["content"].clone() }
    }

    /// Makes the call that a reply names as the next one.
    async fn follow(&mut self, reply: &Reply) -> Reply {
        let (tool, arguments) = reply.next_call().unwrap_or_else(|| panic!("no next call in {}", reply.text));
        self.call(&tool, arguments).await
    }

    async fn define(&mut self, spec: &str) -> Reply {
        self.call("workflow_define", json!({ "spec_yaml": spec })).await
    }

    async fn start(&mut self, spec: &str) -> Reply {
        self.call("workflow_start", json!({ "spec_yaml": spec })).await
    }
}

impl Reply {
    /// The first `workflow_… {…}` in the hint for the next call, or in the whole text.
    fn next_call(&self) -> Option<(String, Value)> {
        let next = self.facts["next"].as_str().or(self.facts["error"]["hint"].as_str());
        first_call(next.unwrap_or(&self.text))
    }

    fn problems(&self) -> Vec<&Value> {
        let lists = [&self.facts["problems"], &self.facts["warnings"], &self.facts["error"]["problems"]];
        lists.iter().filter_map(|list| list.as_array()).flatten().collect()
    }

    fn problem(&self, code: &str) -> &Value {
        let found = self.problems().into_iter().find(|problem| problem["code"] == code);
        found.unwrap_or_else(|| panic!("no {code} in {}", self.text))
    }

    fn status(&self) -> &str {
        self.facts["status"].as_str().unwrap_or_default()
    }
}

fn first_call(text: &str) -> Option<(String, Value)> {
    let at = text.match_indices("workflow_").find_map(|(at, _)| {
        let (name, rest) = text[at..].split_once(' ')?;
        rest.starts_with('{').then_some((name, rest))
    });
    let (name, rest) = at?;
    let arguments = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next()?.ok()?;
    Some((name.to_owned(), arguments))
}

/// The parts in backticks after some text.
fn ticked(text: &Value, after: &str) -> Vec<String> {
    let text = text.as_str().unwrap_or_default();
    let rest = text.split_once(after).map_or_else(|| panic!("no `{after}` in {text}"), |(_, rest)| rest);
    rest.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The required arguments of `it takes (a: string, b?: integer)`.
fn required(hint: &Value) -> Vec<String> {
    let hint = hint.as_str().unwrap_or_default();
    let inside =
        hint.split_once("it takes (").and_then(|(_, rest)| rest.rsplit_once(')')).expect("arguments").0;
    let names = inside.split(", ").filter_map(|argument| argument.split_once(": "));
    names.map(|(name, _)| name.to_owned()).filter(|name| !name.ends_with('?')).collect()
}

fn git(root: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=ann", "-c", "user.email=ann@localhost", "-C", "repo"]).args(arguments);
    output(command.current_dir(root));
}

/// A repository with a commit, two files, four servers that work and one that fails.
fn prepare(root: &Path) {
    std::fs::create_dir(root.join("repo")).expect("a folder");
    git(root, &["init", "--quiet"]);
    git(root, &["commit", "--quiet", "--allow-empty", "--message", "first commit"]);
    std::fs::write(root.join("a.txt"), "alpha").expect("a file");
    std::fs::write(root.join("long.txt"), "0123456789".repeat(2_000)).expect("a file");
    let entry =
        |name: &str, args: Value| json!({ "command": server(&format!("mcp-server-{name}")), "args": args });
    let servers = json!({
        "git": entry("git", json!([])),
        "time": entry("time", json!([])),
        "files": entry("filesystem", json!([root])),
        "everything": entry("everything", json!([])),
        "broken": { "command": "sh", "args": ["-c", "echo no licence >&2; exit 3"] },
    });
    std::fs::write(root.join("servers.json"), json!({ "mcpServers": servers }).to_string())
        .expect("a config");
}

#[tokio::test]
async fn agent_completes_its_tasks_from_replies_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_owned();
    prepare(&root);
    let daemon = Daemon::start_in(folder, &[]);
    let mut agent = Agent::new(&daemon.url).await;
    let first = agent.tools().await;
    assert!(
        ["workflow_guide", "workflow_tools", "workflow_check"]
            .iter()
            .all(|tool| first.iter().any(|name| name == tool))
    );
    let root = root.display().to_string();

    find_a_tool(&mut agent, &root).await;
    wrong_tool_name(&mut agent, &root).await;
    wrong_argument(&mut agent, &root).await;
    missing_gate(&mut agent, &root).await;
    reshape(&mut agent).await;
    wrong_output(&mut agent, &root).await;
    failing_tool(&mut agent, &root).await;
    paused_run(&mut agent, &daemon).await;
    waiting_run(&mut agent).await;
    sub_workflow(&mut agent).await;
    server_down(&mut agent).await;
    empty_loop(&mut agent).await;
    published(&mut agent).await;
    missing_input(&mut agent).await;
    binary_and_long_outputs(&mut agent, &root).await;
    eprintln!("{} calls, {} bytes", agent.calls, agent.bytes);
    assert!(agent.calls < CALLS && agent.bytes < BYTES, "{} calls, {} bytes", agent.calls, agent.bytes);
}

/// Finds a tool by a query. Its example shows the arguments.
async fn find_a_tool(agent: &mut Agent, root: &str) {
    let found = agent.call("workflow_tools", json!({ "query": "commit logs" })).await;
    let tool = &found.facts["tools"][0];
    let mut args = tool["example"].clone();
    let path = args.as_object().and_then(|args| args.keys().next().cloned()).expect("an argument");
    args[&path] = format!("{root}/repo").into();
    let spec = json!({ "name": "log", "steps": [{ "id": "log", "tool": tool["name"], "args": args }] });
    let defined = agent.call("workflow_define", json!({ "spec": spec })).await;
    let ran = agent.follow(&defined).await;
    assert!(ran.status() == "completed" && ran.text.contains("first commit"), "{}", ran.text);
}

async fn wrong_tool_name(agent: &mut Agent, root: &str) {
    let spec = |tool: &str| {
        format!("name: wrong_tool\nsteps: [{{ id: log, tool: {tool}, args: {{ repo_path: {root}/repo }} }}]")
    };
    let defined = agent.define(&spec("git__git_logs")).await;
    assert_eq!(defined.facts["runnable"], false, "{}", defined.text);
    assert!(!defined.text.contains("workflow_start"), "no start is suggested: {}", defined.text);
    let near = ticked(&defined.problem("SR501")["hint"], "did you mean").remove(0);
    let defined = agent.define(&spec(&near)).await;
    let ran = agent.follow(&defined).await;
    assert_eq!(ran.status(), "completed", "{}", ran.text);
}

async fn wrong_argument(agent: &mut Agent, root: &str) {
    let spec = |argument: &str| {
        format!(
            "name: wrong_argument\nsteps: [{{ id: log, tool: git__git_log, args: {{ {argument}: {root}/repo }} }}]"
        )
    };
    let checked = agent.call("workflow_check", json!({ "spec_yaml": spec("repository") })).await;
    assert_eq!((&checked.facts["valid"], checked.problems().len()), (&json!(false), 2), "{}", checked.text);
    checked.problem("SR506");
    let argument = required(&checked.problem("SR502")["hint"]).remove(0);
    let checked = agent.call("workflow_check", json!({ "spec_yaml": spec(&argument) })).await;
    assert_eq!(checked.facts["runnable"], true, "{}", checked.text);
    let ran = agent.start(&spec(&argument)).await;
    assert_eq!(ran.status(), "completed", "{}", ran.text);
}

async fn missing_gate(agent: &mut Agent, root: &str) {
    let spec = |more: &str| {
        format!(
            "name: gated\nsteps:\n  - id: write\n    tool: files__write_file\n    args: {{ path: {root}/new.txt, content: hi }}\n    {more}\n"
        )
    };
    let checked = agent.call("workflow_check", json!({ "spec_yaml": spec("") })).await;
    let gate = ticked(&checked.problem("SR504")["hint"], "step before it");
    let checked = agent.call("workflow_check", json!({ "spec_yaml": spec(&gate[0]) })).await;
    assert!(checked.problems().iter().all(|problem| problem["code"] != "SR504"), "{}", checked.text);
}

/// The error for a missing key lists the existing keys.
async fn reshape(agent: &mut Agent) {
    let spec = |key: &str| {
        format!(
            "name: reshape\nsteps: [{{ id: now, tool: time__get_current_time, args: {{ timezone: Europe/Oslo }} }}]\noutput: {{ at: '{{{{steps.now.output.{key}}}}}' }}"
        )
    };
    let failed = agent.start(&spec("time")).await;
    assert_eq!(failed.status(), "failed", "{}", failed.text);
    let keys = ticked(&failed.facts["message"], "; there is ");
    let key = keys.iter().find(|key| key.contains("time")).expect("a key");
    let ran = agent.start(&spec(key)).await;
    assert!(ran.facts["output"]["at"].is_string(), "{}", ran.text);
}

/// A reference that contradicts the output schema of a tool is reported before the run.
async fn wrong_output(agent: &mut Agent, root: &str) {
    let spec = |key: &str| {
        format!(
            "name: info\nsteps: [{{ id: info, tool: files__get_file_info, args: {{ path: {root}/a.txt }} }}]\noutput: '{{{{steps.info.output.{key}}}}}'"
        )
    };
    let checked = agent.call("workflow_check", json!({ "spec_yaml": spec("size") })).await;
    assert_eq!(checked.facts["runnable"], false, "{}", checked.text);
    let key = ticked(&checked.problem("SR510")["hint"], "the schema has").remove(0);
    let ran = agent.start(&spec(&key)).await;
    assert_eq!(ran.status(), "completed", "{}", ran.text);
}

/// A rerun would fail again, so it is not the first suggestion.
async fn failing_tool(agent: &mut Agent, root: &str) {
    let spec = |file: &str| {
        format!(
            "name: reads\nsteps: [{{ id: read, tool: files__read_text_file, args: {{ path: {root}/{file} }} }}]"
        )
    };
    let failed = agent.start(&spec("missing.txt")).await;
    let explained = agent.call("workflow_explain", json!({ "run_id": failed.facts["run_id"] })).await;
    let options = explained.facts["options"].as_array().cloned().expect("options");
    assert!(!options[0].to_string().contains("workflow_rerun"), "{}", explained.text);
    let values = agent.follow(&failed).await;
    let path = values.facts["steps"][0]["input"]["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with("missing.txt"), "{}", values.text);
    let ran = agent.start(&spec("a.txt")).await;
    assert!(ran.status() == "completed" && ran.facts["possible_duplicate_of"].is_null(), "{}", ran.text);
}

/// The reply tells the agent to leave the decision to a human.
async fn paused_run(agent: &mut Agent, daemon: &Daemon) {
    let paused = agent.start("name: asks\nsteps: [{ id: ask, kind: approve, prompt: 'Go on?' }]").await;
    assert_eq!(paused.status(), "paused", "{}", paused.text);
    let next = paused.facts["next"].as_str().expect("what to do next");
    assert!(next.contains("a human has to decide `ask`") && !next.contains("steprail "), "{next}");
    let run = paused.facts["run_id"].as_str().expect("a run");
    let mut human = Command::new(steprail());
    output(human.args(["approve", run, "ask", "--yes", "--data"]).arg(daemon.folder.path()));
    let ended = agent.follow(&paused).await;
    assert_eq!(ended.status(), "completed", "{}", ended.text);
}

async fn waiting_run(agent: &mut Agent) {
    let spec = "name: waits\nsteps: [{ id: paid, kind: wait, event: payment, correlate: { order: o-1 } }]\noutput: '{{steps.paid.output.order}}'";
    let waits = agent.start(spec).await;
    assert_eq!(waits.facts["waiting"][0]["event"], "payment", "{}", waits.text);
    let signalled = agent.follow(&waits).await;
    let ended = agent.follow(&signalled).await;
    assert_eq!((ended.status(), &ended.facts["output"]), ("completed", &json!("o-1")), "{}", ended.text);

    let sleeps = agent
        .call(
            "workflow_start",
            json!({ "spec_yaml": "name: naps\nsteps: [{ id: nap, kind: sleep, for: 1h }]", "wait_s": 0.5 }),
        )
        .await;
    let (started, until) = (&sleeps.facts["started_at"], &sleeps.facts["waiting"][0]["until"]);
    assert!(until.as_str() > started.as_str(), "{}", sleeps.text);
    let run = sleeps.facts["run_id"].clone();
    agent.call("workflow_cancel", json!({ "run_id": run })).await;
}

async fn sub_workflow(agent: &mut Agent) {
    agent.define("name: child\ninputs: { n: integer }\nsteps: [{ id: nap, kind: sleep, for: 1ms }]\noutput: '{{inputs.n + 1}}'").await;
    let spec = |name: &str| {
        format!(
            "name: parent\nsteps: [{{ id: sub, kind: workflow, name: {name}, inputs: {{ n: 1 }} }}]\noutput: '{{{{steps.sub.output}}}}'"
        )
    };
    let defined = agent.define(&spec("chld")).await;
    let near = ticked(&defined.problem("SR508")["hint"], "did you mean").remove(0);
    let defined = agent.define(&spec(&near)).await;
    let ran = agent.follow(&defined).await;
    assert_eq!(ran.facts["output"], 2, "{}", ran.text);
}

async fn server_down(agent: &mut Agent) {
    let checked = agent
        .call("workflow_check", json!({ "spec_yaml": "name: down\nsteps: [{ id: x, tool: broken__do }]" }))
        .await;
    let problem = checked.problem("SR507");
    assert_eq!(checked.facts["runnable"], false, "{}", checked.text);
    assert!(
        problem["hint"].as_str().is_some_and(|hint| hint.contains("steprail servers")),
        "{}",
        checked.text
    );
    let listed = agent.call("workflow_tools", json!({ "server": "broken" })).await;
    assert_eq!(listed.facts["servers_down"][0]["name"], "broken", "{}", listed.text);
}

async fn empty_loop(agent: &mut Agent) {
    let spec = "name: loops\ninputs: { files: { type: array, default: [] } }\nsteps: [{ id: each, kind: foreach, items: '{{inputs.files}}', steps: [{ id: nap, kind: sleep, for: 1ms }] }]";
    let ran = agent.start(spec).await;
    assert!(ran.facts["notes"][0].as_str().is_some_and(|note| note.contains("`each`")), "{}", ran.text);
    let explained = agent.call("workflow_explain", json!({ "run_id": ran.facts["run_id"] })).await;
    assert!(!explained.text.contains("nothing is left to do"), "{}", explained.text);
}

async fn published(agent: &mut Agent) {
    let spec = "name: greet\npublish: true\ninputs: { who: string }\nsteps: [{ id: nap, kind: sleep, for: 1ms }]\noutput: { text: 'hello {{inputs.who}}' }";
    agent.define(spec).await;
    let tools = agent.tools().await;
    let tool = tools.iter().find(|tool| tool.starts_with("wf_")).expect("a published workflow").clone();
    let greeted = agent.call(&tool, json!({ "who": "Lea" })).await;
    assert_eq!(greeted.facts["text"], "hello Lea", "{}", greeted.text);
}

/// The error contains a call that works.
async fn missing_input(agent: &mut Agent) {
    let rejected = agent.call("workflow_start", json!({ "name": "greet" })).await;
    assert_eq!(rejected.facts["error"]["code"], "bad_input", "{}", rejected.text);
    let ran = agent.follow(&rejected).await;
    assert_eq!(ran.status(), "completed", "{}", ran.text);
    let unknown = agent.call("workflow_start", json!({ "name": "gret" })).await;
    assert_eq!(ticked(&unknown.facts["error"]["hint"], "did you mean"), ["greet"]);
}

async fn binary_and_long_outputs(agent: &mut Agent, root: &str) {
    let found = agent.call("workflow_tools", json!({ "server": "everything", "query": "image" })).await;
    let tool = found.facts["tools"][0]["name"].as_str().expect("a tool").to_owned();
    let ran = agent.start(&format!("name: image\nsteps: [{{ id: image, tool: {tool} }}]")).await;
    let blocks = ran.content.as_array().cloned().expect("content");
    let image = blocks.iter().find(|block| block["type"] == "image").expect("an image");
    let data = image["data"].as_str().expect("data");
    assert!(!ran.text.contains(data) && !ran.facts.to_string().contains(data), "base64 in the text");

    let ran = agent
        .start(&format!("name: long\nsteps: [{{ id: read, tool: files__read_text_file, args: {{ path: {root}/long.txt }} }}]"))
        .await;
    let mut part = ran.facts["output"].clone();
    let mut json = part["json_part"].as_str().expect("a part").to_owned();
    while let Some(rest) = part["rest"].as_str() {
        let (tool, arguments) = first_call(rest).expect("a call");
        part = agent.call(&tool, arguments).await.facts["output"].clone();
        json.push_str(part["json_part"].as_str().expect("a part"));
    }
    let whole: Value = serde_json::from_str(&json).expect("the whole output");
    assert!(whole.to_string().contains(&"0123456789".repeat(2_000)));
}
