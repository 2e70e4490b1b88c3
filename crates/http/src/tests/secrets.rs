//! Secrets over HTTP: whose they are, and who may set which.

use serde_json::{Value, json};
use steprail_mcp::SecretScope;

use super::House;
use crate::accounts::Role;

fn stored(house: &House, user: Option<&str>) -> Option<String> {
    let secret = house.app.secrets.get(&SecretScope::of(user), "token").expect("read");
    secret.map(|secret| secret.expose().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_sets_their_own_and_operators_the_shared_ones() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let operator = house.user("olga", Role::Operator).await;
    let admin = house.user("adam", Role::Admin).await;
    let path = "/api/v1/secrets/token";
    house.done(&ann, "PUT", path, &json!({ "value": "anns" })).await;
    house.done(&operator, "PUT", path, &json!({ "value": "all", "shared": true })).await;
    for (who, body) in [
        (&ann, json!({ "value": "x", "shared": true })),
        (&ann, json!({ "value": "x", "user": "olga" })),
        (&operator, json!({ "value": "x", "user": "ann" })),
    ] {
        assert_eq!(house.ask(who, "PUT", path, &body).await.0, 403, "{body}");
    }
    assert_eq!(house.ask(&ann, "GET", "/api/v1/secrets?shared=true", &Value::Null).await.0, 403);
    assert_eq!(stored(&house, Some("ann")).as_deref(), Some("anns"));
    assert_eq!((stored(&house, Some("olga")), stored(&house, None).as_deref()), (None, Some("all")));
    house.done(&admin, "PUT", path, &json!({ "value": "new", "user": "ann" })).await;
    assert_eq!(stored(&house, Some("ann")).as_deref(), Some("new"));
    let listed = house.done(&admin, "GET", "/api/v1/secrets?user=ann", &Value::Null).await;
    assert_eq!((&listed["items"][0]["name"], &listed["items"][0]["user"]), (&json!("token"), &json!("ann")));
    assert!(!listed.to_string().contains("new"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secrets_of_a_deleted_user_are_deleted() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    let admin = house.user("adam", Role::Admin).await;
    house.done(&ann, "PUT", "/api/v1/secrets/token", &json!({ "value": "anns" })).await;
    house.done(&admin, "DELETE", "/api/v1/users/ann", &Value::Null).await;
    assert_eq!(stored(&house, Some("ann")), None, "another ann does not inherit them");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_secret_is_refused() {
    let house = House::new();
    let ann = house.user("ann", Role::Author).await;
    for (name, body) in [
        ("oauth%2Fcrm", json!({ "value": "x" })),
        ("a%20b", json!({ "value": "x" })),
        ("token", json!({ "value": "" })),
        ("token", json!({ "value": "x".repeat(70_000) })),
        ("token", json!({ "value": "x", "shared": true, "user": "ann" })),
        ("token", json!({})),
    ] {
        let (status, said) = house.ask(&ann, "PUT", &format!("/api/v1/secrets/{name}"), &body).await;
        assert_eq!(status, 400, "{name}: {said}");
    }
    assert_eq!(house.ask(&ann, "DELETE", "/api/v1/secrets/oauth%2Fcrm", &Value::Null).await.0, 404);
}
