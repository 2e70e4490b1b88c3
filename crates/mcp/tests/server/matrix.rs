//! The access matrix: for every tool and kind of user, whether it is offered and whether a call succeeds.

use serde_json::{Value, json};
use steprail_engine::{CodeRequest, Principal, RunId};

use super::support::{Fixture, USERS, call, outcome};

/// Arguments with which a call succeeds for a user with the rights.
fn arguments(tool: &str, run: &str, code: Option<&str>) -> Value {
    let spec = "name: hello\nsteps: [{ id: read, tool: crm__read }]";
    match tool {
        "workflow_define" | "workflow_check" => json!({ "spec_yaml": spec }),
        "workflow_guide" | "workflow_tools" => json!({}),
        "workflow_list_definitions" | "workflow_lookup" | "workflow_list_runs" => json!({}),
        "workflow_start" => json!({ "spec_yaml": spec }),
        "workflow_approve" | "workflow_deny" => {
            json!({ "run_id": run, "step_name": "ask", "code": code.unwrap_or("0000-0000") })
        }
        "workflow_signal" => json!({ "event": "e", "run_id": run }),
        "workflow_intervene" => {
            json!({ "run_id": run, "action": "set_arguments", "step": "read", "value": {} })
        }
        _ => json!({ "run_id": run }),
    }
}

/// A run in the state that a tool needs.
async fn prepare_run(fixture: &Fixture, tool: &str) -> String {
    let run = fixture.waiting_run().await;
    let starter = fixture.engine.as_user(super::support::principal("starter"));
    match tool {
        "workflow_rerun" => starter.cancel(run, "over").await.expect("cancelled"),
        "workflow_resume" => starter.pause(run).await.expect("paused"),
        _ => {}
    }
    run.to_string()
}

/// The code that a user gets in person for a decision.
async fn code_for(fixture: &Fixture, tool: &str, user: &str, run: &str) -> Option<String> {
    let run: RunId = run.parse().expect("a run");
    let approved = match tool {
        "workflow_approve" => true,
        "workflow_deny" => false,
        _ => return None,
    };
    let open = fixture.engine.run_approvals(run).await.expect("approvals");
    let (path, digest) = (open[0].path.clone(), open[0].digest);
    let request = CodeRequest { run, path, digest, approved, answer: None, reason: None };
    fixture.engine.as_user(Principal::user(user)).issue_code(request).await.ok().map(|issued| issued.code)
}

#[tokio::test]
async fn tools_require_their_rights() {
    let fixture = Fixture::new();
    let mut table = String::new();
    for tool in steprail_mcp::offered(|_| true) {
        let mut line = format!("{tool}:");
        for user in USERS {
            let client = fixture.client(user).await;
            let offered =
                client.list_all_tools().await.expect("tools").iter().any(|listed| listed.name == tool);
            let run = prepare_run(&fixture, tool).await;
            let code = code_for(&fixture, tool, user, &run).await;
            let outcome = outcome(&call(&client, tool, arguments(tool, &run, code.as_deref())).await);
            let listed = if offered { "" } else { " (not offered)" };
            line.push_str(&format!("\n  {user}: {outcome}{listed}"));
        }
        table.push_str(&format!("{line}\n"));
    }
    insta::assert_snapshot!(table);
}
