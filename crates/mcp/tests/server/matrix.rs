//! The access matrix: for every tool and kind of user, whether it is offered and whether a call succeeds.

use serde_json::{Value, json};

use super::support::{Fixture, USERS, call, outcome};

/// Arguments with which a call succeeds for a user with the rights.
fn arguments(tool: &str, run: &str) -> Value {
    let spec = "name: hello\nsteps: [{ id: read, tool: crm__read }]";
    match tool {
        "workflow_define" | "workflow_check" => json!({ "spec_yaml": spec }),
        "workflow_guide" | "workflow_tools" => json!({}),
        "workflow_list_definitions" | "workflow_lookup" | "workflow_list_runs" => json!({}),
        "workflow_start" => json!({ "spec_yaml": spec }),
        "workflow_approve" | "workflow_deny" => json!({ "run_id": run, "step_name": "ask" }),
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
            let outcome = outcome(&call(&client, tool, arguments(tool, &run)).await);
            let listed = if offered { "" } else { " (not offered)" };
            line.push_str(&format!("\n  {user}: {outcome}{listed}"));
        }
        table.push_str(&format!("{line}\n"));
    }
    insta::assert_snapshot!(table);
}
