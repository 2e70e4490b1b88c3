//! Checks the policy file and the state of the policy of a running daemon.

use serde_json::Value;

use super::Finding;
use crate::client::{Autostart, Client, ServerAddress};
use crate::daemon::{DataDir, policy_file};

const TOPIC: &str = "policy";

pub(super) async fn check(home: &DataDir, is_running: bool) -> Vec<Finding> {
    let mut findings = vec![check_file(home)];
    if is_running {
        findings.extend(check_daemon(home).await);
    }
    findings
}

fn check_file(home: &DataDir) -> Finding {
    let path = home.policy();
    match policy_file::load(&path) {
        Ok(Some(policy)) => {
            Finding::ok(TOPIC, format!("policy.yaml is valid (version {})", policy.version()))
        }
        Ok(None) => Finding::warning(
            TOPIC,
            "there is no policy.yaml: all calls are allowed that users may make",
            "`steprail init` writes one that requires approval for destructive calls",
        ),
        Err(error) => {
            let hint = "a daemon does not start with it; `steprail policy check` shows every problem";
            Finding::problem(TOPIC, error.in_short(), hint)
        }
    }
}

async fn check_daemon(home: &DataDir) -> Option<Finding> {
    let address = ServerAddress::Local(home.clone());
    let client = Client::connect(address, Autostart::IfDatabaseExists).await.ok()?;
    let status: Value = client.get("/policy").await.ok()?;
    if let Some(problem) = status["problem"].as_str() {
        let hint = "the daemon enforces the policy that it loaded before; correct policy.yaml";
        return Some(Finding::problem(TOPIC, problem, hint));
    }
    status["freeze"]["by"].as_str().map(|by| {
        let reason =
            status["freeze"]["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
        Finding::warning(
            TOPIC,
            format!("all calls are frozen by {by}{reason}"),
            "`steprail unfreeze` lets them start",
        )
    })
}
