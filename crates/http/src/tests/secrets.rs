//! Secrets over HTTP: ownership, and the rights to set them.

use serde_json::{Value, json};
use steprail_mcp::SecretScope;

use super::TestServer;
use crate::accounts::Role;

fn stored(server: &TestServer, user: Option<&str>) -> Option<String> {
    let secret = server.app.secrets.get(&SecretScope::of(user), "token").expect("read");
    secret.map(|secret| secret.expose().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn users_set_their_own_secrets_and_operators_shared_ones() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let operator = server.user("olga", Role::Operator).await;
    let admin = server.user("adam", Role::Admin).await;
    let path = "/api/v1/secrets/token";
    server.call_ok(&ann, "PUT", path, &json!({ "value": "anns s3cret" })).await;
    server.call_ok(&operator, "PUT", path, &json!({ "value": "shared s3cret", "shared": true })).await;
    for (token, body) in [
        (&ann, json!({ "value": "s3cret", "shared": true })),
        (&ann, json!({ "value": "s3cret", "user": "olga" })),
        (&operator, json!({ "value": "s3cret", "user": "ann" })),
    ] {
        assert_eq!(server.call(token, "PUT", path, &body).await.0, 403, "{body}");
    }
    assert_eq!(server.call(&ann, "GET", "/api/v1/secrets?shared=true", &Value::Null).await.0, 403);
    assert_eq!(stored(&server, Some("ann")).as_deref(), Some("anns s3cret"));
    assert_eq!(
        (stored(&server, Some("olga")), stored(&server, None).as_deref()),
        (None, Some("shared s3cret"))
    );
    server.call_ok(&admin, "PUT", path, &json!({ "value": "new s3cret", "user": "ann" })).await;
    assert_eq!(stored(&server, Some("ann")).as_deref(), Some("new s3cret"));
    let listed = server.call_ok(&admin, "GET", "/api/v1/secrets?user=ann", &Value::Null).await;
    assert_eq!((&listed["items"][0]["name"], &listed["items"][0]["user"]), (&json!("token"), &json!("ann")));
    assert!(!listed.to_string().contains("s3cret"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_user_deletes_their_secrets() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    let admin = server.user("adam", Role::Admin).await;
    server.call_ok(&ann, "PUT", "/api/v1/secrets/token", &json!({ "value": "anns s3cret" })).await;
    server.call_ok(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    assert_eq!(stored(&server, Some("ann")), None, "a new user with the same id must not inherit them");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_names_and_values() {
    let server = TestServer::new();
    let ann = server.user("ann", Role::Author).await;
    for (name, body) in [
        ("oauth%2Fcrm", json!({ "value": "s3cret" })),
        ("a%20b", json!({ "value": "s3cret" })),
        ("token", json!({ "value": "" })),
        ("token", json!({ "value": "x".repeat(70_000) })),
        ("token", json!({ "value": "s3cret", "shared": true, "user": "ann" })),
        ("token", json!({})),
    ] {
        let (status, reply) = server.call(&ann, "PUT", &format!("/api/v1/secrets/{name}"), &body).await;
        assert_eq!(status, 400, "{name}: {reply}");
    }
    assert_eq!(server.call(&ann, "DELETE", "/api/v1/secrets/oauth%2Fcrm", &Value::Null).await.0, 404);
}
