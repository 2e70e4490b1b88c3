//! Ownership of definitions over REST: proposals, adoption, published names, names of users and groups.

use serde_json::{Value, json};
use steprail_core::source::Source;
use steprail_engine::compile_policy;

use super::TestServer;
use crate::accounts::{GroupRecord, Role, UserRecord};

fn text(tool: &str) -> Value {
    json!({ "text": format!("name: report\nsteps: [{{ id: a, tool: {tool} }}]") })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_of_an_agent_is_shown_and_accepted_by_a_person() {
    let server = TestServer::new();
    let source = Source::new("policy.yaml", "{ default: allow, definitions: { by_agents: proposed } }");
    server.app.engine.policy().replace(compile_policy(&source).0);
    let ann = server.user("ann", Role::Author).await;
    let agent = server.token("ann", true, None).await;
    let bob = server.user("bob", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &text("crm__read")).await;
    let (status, reply) = server.call(&agent, "POST", "/api/v1/definitions", &text("crm__write")).await;
    assert_eq!((status, &reply["proposed"], &reply["version"]), (202, &json!(true), &json!(0)), "{reply}");
    let newest = server.call_ok(&ann, "GET", "/api/v1/definitions/report", &Value::Null).await;
    assert_eq!(newest["version"], 1, "{newest}");

    let list = server.call_ok(&ann, "GET", "/api/v1/proposals", &Value::Null).await;
    assert_eq!(
        (&list["items"][0]["name"], &list["items"][0]["created_by"]),
        (&json!("report"), &json!("ann"))
    );
    let others = server.call_ok(&bob, "GET", "/api/v1/proposals", &Value::Null).await;
    assert_eq!(others["items"], json!([]));
    let shown = server.call_ok(&ann, "GET", "/api/v1/proposals/report", &Value::Null).await;
    insta::assert_snapshot!(shown["diff"].as_str().expect("a diff"));
    let digest = json!({ "digest": shown["digest"] });
    for (caller, expected) in [(&agent, 403), (&bob, 404)] {
        for action in ["accept", "reject"] {
            let path = format!("/api/v1/proposals/report/{action}");
            let (status, reply) = server.call(caller, "POST", &path, &digest).await;
            assert_eq!(status, expected, "{action}: {reply}");
        }
    }
    let stale = json!({ "digest": "0".repeat(64) });
    assert_eq!(server.call(&ann, "POST", "/api/v1/proposals/report/accept", &stale).await.0, 409);
    let accepted = server.call_ok(&ann, "POST", "/api/v1/proposals/report/accept", &digest).await;
    assert_eq!(accepted["version"], 2, "{accepted}");
    assert_eq!(server.call(&ann, "POST", "/api/v1/proposals/report/accept", &digest).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_that_hide_a_change_are_visible_in_the_difference() {
    let server = TestServer::new();
    let source = Source::new("policy.yaml", "{ default: allow, definitions: { by_agents: proposed } }");
    server.app.engine.policy().replace(compile_policy(&source).0);
    let ann = server.user("ann", Role::Author).await;
    let agent = server.token("ann", true, None).await;
    let hidden =
        json!({ "text": "name: report\nsteps: [{ id: a, tool: crm__read, args: { x: \"\\u202Eevil\" } }]" });
    server.call_ok(&agent, "POST", "/api/v1/definitions", &hidden).await;
    let shown = server.call_ok(&ann, "GET", "/api/v1/proposals/report", &Value::Null).await;
    let diff = shown["diff"].as_str().expect("a diff");
    assert!(diff.contains("⟨U+202E⟩evil") && !diff.contains('\u{202e}'), "{diff}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_whose_author_lost_a_right_is_adopted() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let olga = server.user("olga", Role::Operator).await;
    let olgas_agent = server.token("olga", true, None).await;
    let bob = server.user("bob", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &text("crm__read")).await;
    server.app.accounts.delete_user(&server.owner(), "ann").await.expect("deleted");
    let start = json!({ "name": "report" });
    let (status, reply) = server.call(&bob, "POST", "/api/v1/runs", &start).await;
    assert_eq!((status, &reply["code"]), (403, &json!("author_denied")), "{reply}");
    assert!(reply["hint"].as_str().is_some_and(|hint| hint.contains("adopt 'report'")), "{reply}");
    for caller in [&bob, &olgas_agent] {
        let (status, reply) =
            server.call(caller, "POST", "/api/v1/definitions/report/adopt", &Value::Null).await;
        assert_eq!(status, 403, "{reply}");
    }
    let adopted = server.call_ok(&olga, "POST", "/api/v1/definitions/report/adopt", &Value::Null).await;
    assert_eq!((&adopted["version"], &adopted["created_by"]), (&json!(1), &json!("olga")), "{adopted}");
    server.call_ok(&bob, "POST", "/api/v1/runs", &start).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn authors_do_not_publish_and_publishers_do() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    server.call_ok(&ann, "POST", "/api/v1/definitions", &text("crm__read")).await;
    let publish = json!({ "published": true });
    let path = "/api/v1/definitions/report/published";
    assert_eq!(server.call(&ann, "PUT", path, &publish).await.0, 403);
    let roles = [Role::Author, Role::Publisher].into();
    let record = UserRecord { roles, tools: vec!["crm__*".to_owned()], ..UserRecord::default() };
    server.app.accounts.put_user(&server.owner(), "ann", record, None).await.expect("a user");
    server.call_ok(&ann, "PUT", path, &publish).await;
    let olga = server.user("olga", Role::Operator).await;
    let hijack = json!({ "text": "name: Report\npublish: true\nsteps: [{ id: a, tool: crm__write }]" });
    let (status, reply) = server.call(&olga, "POST", "/api/v1/definitions", &hijack).await;
    assert_eq!(status, 409, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_groups_have_different_names() {
    let server = TestServer::new();
    let owner = server.owner();
    let accounts = &server.app.accounts;
    server.user("lea", Role::Approver).await;
    let group = GroupRecord::default;
    for taken in ["lea", "owner"] {
        let error = accounts.put_group(&owner, taken, group(), None).await.expect_err("a user has the name");
        assert_eq!(error.code(), "conflict", "{error}");
    }
    accounts.put_group(&owner, "finance", group(), None).await.expect("a group");
    let user = |groups: &[&str]| UserRecord {
        groups: groups.iter().map(ToString::to_string).collect(),
        ..UserRecord::default()
    };
    let error =
        accounts.put_user(&owner, "finance", user(&[]), None).await.expect_err("a group has the name");
    assert_eq!(error.code(), "conflict", "{error}");
    for member in ["lea", "eve"] {
        let error = accounts.put_user(&owner, "eve", user(&[member]), None).await.expect_err("not a group");
        assert_eq!(error.code(), "bad_input", "{error}");
    }
    accounts.delete_user(&owner, "lea").await.expect("deleted");
    let error =
        accounts.put_group(&owner, "lea", group(), None).await.expect_err("the name of a deleted user");
    assert_eq!(error.code(), "conflict", "{error}");
    // A group of an identity provider with the name of a user is none.
    let external =
        UserRecord { groups: ["owner".to_owned(), "staff".to_owned()].into(), ..UserRecord::default() };
    let mallory = accounts.by_provider("mallory", external).await.expect("a user");
    assert_eq!(mallory.groups, ["staff"]);
}
