//! Responses to agents contain no command with which an agent could decide.

use serde_json::{Value, json};
use steprail_engine::{Principal, RunId};

use super::support::{Client, Fixture, call};

/// Commands that decide at a gate, resolve a call or issue a code.
const DECIDING: [&str; 9] = [
    "steprail approve",
    "steprail deny",
    "steprail resume",
    "approvals code",
    "--yes",
    "steprail unfreeze",
    "definitions accept",
    "definitions adopt",
    "steprail presence",
];

fn check(what: &str, text: &str) {
    for command in DECIDING {
        assert!(!text.contains(command), "{what} contains `{command}`: {text}");
    }
}

async fn client(fixture: &Fixture) -> Client {
    // An agent of a user with every right.
    fixture.client("agent").await
}

async fn waiting_run(fixture: &Fixture, client: &Client, steps: &str) -> RunId {
    let spec = json!({ "spec_yaml": format!("name: waits\nsteps: [{steps}]"), "wait_s": 5 });
    let started = call(client, "workflow_start", spec).await;
    check("workflow_start", &serde_json::to_string(&started).expect("JSON"));
    let run = started.structured_content.expect("fields")["run_id"].as_str().expect("a run").to_owned();
    let user = fixture.engine.as_user(Principal::user("agent"));
    let run: RunId = run.parse().expect("a run");
    user.wait(run, None, std::time::Duration::from_secs(10)).await.expect("a run");
    run
}

#[tokio::test]
async fn responses_contain_no_command_that_decides() {
    let fixture = Fixture::new();
    let client = client(&fixture).await;
    let info = client.peer_info().expect("the server");
    check("instructions", &serde_json::to_string(&info).expect("JSON"));
    let tools = client.list_all_tools().await.expect("tools");
    check("tools/list", &serde_json::to_string(&tools).expect("JSON"));
    let waits = [
        "{ id: ask, kind: approve, prompt: Continue? }, { id: read, tool: crm__read }",
        "{ id: ask, tool: crm__read, needs_human: true }",
        "{ id: ask, tool: crm__ask }",
    ];
    for steps in waits {
        let run = waiting_run(&fixture, &client, steps).await;
        for tool in steprail_mcp::offered(|_| true) {
            let args: Value = match tool {
                "workflow_approve" | "workflow_deny" => json!({ "run_id": run, "step_name": "ask" }),
                "workflow_intervene" => json!({ "run_id": run, "action": "skip", "step": "ask" }),
                "workflow_signal" => json!({ "run_id": run, "event": "e" }),
                "workflow_define" | "workflow_check" | "workflow_start" => {
                    json!({ "spec_yaml": "name: n\nsteps: [{ id: read, tool: crm__read }]" })
                }
                "workflow_guide"
                | "workflow_tools"
                | "workflow_list_definitions"
                | "workflow_lookup"
                | "workflow_list_runs" => json!({}),
                // They would end the wait.
                "workflow_cancel" | "workflow_rerun" => continue,
                _ => json!({ "run_id": run }),
            };
            let reply = call(&client, tool, args).await;
            check(tool, &serde_json::to_string(&reply).expect("JSON"));
        }
    }
}

#[tokio::test]
async fn decision_without_a_code_says_where_it_comes_from() {
    let fixture = Fixture::new();
    let run = fixture.waiting_run().await;
    let client = client(&fixture).await;
    for (tool, code) in [("workflow_approve", ""), ("workflow_deny", "0000-0000")] {
        let reply = call(&client, tool, json!({ "run_id": run, "step_name": "ask", "code": code })).await;
        let error = reply.structured_content.expect("fields")["error"].clone();
        let hint = error["hint"].as_str().expect("a hint");
        assert!(hint.contains("in their terminal or browser") && hint.contains("single-use code"), "{error}");
    }
}
