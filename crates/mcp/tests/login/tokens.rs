//! Access tokens: refresh, rotation, expiry, client credentials, step-up.

use axum::http::StatusCode;
use serde_json::{Value, json};
use steprail_mcp::{LoginError, Secret, SecretScope, SecretStore};

use crate::authority::{Authority, Behaviour};
use crate::support::{Setup, needed};

/// A login whose access token is about to expire.
async fn expiring() -> Setup {
    let behaviour = Behaviour { expires_in: 1, ..Behaviour::default() };
    let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    setup
}

fn client_credentials() -> Value {
    json!({ "grant": "client_credentials", "clientId": "ours", "clientSecret": "${secret:crm}", "scopes": ["read"] })
}

#[tokio::test]
async fn concurrent_calls_share_one_refresh() {
    let setup = expiring().await;
    setup.authority.change(|behaviour| behaviour.expires_in = 3600);
    let tokens = futures::future::join_all((0..20).map(|_| setup.token())).await;
    assert!(tokens.iter().all(|token| *token == Ok(Some("access-3".to_owned()))), "{tokens:?}");
    let refreshes = setup.grants("refresh_token");
    assert_eq!((refreshes.len(), &refreshes[0]["resource"]), (1, &setup.authority.url()));
}

#[tokio::test]
async fn rotated_refresh_token_replaces_the_old_one() {
    let mut setup = expiring().await;
    for _ in 0..3 {
        setup.token().await.expect("a token");
        setup.restart(&json!({}));
    }
    let sent: Vec<String> =
        setup.grants("refresh_token").into_iter().map(|form| form["refresh_token"].clone()).collect();
    assert_eq!(sent, ["refresh-2", "refresh-3", "refresh-4"]);
}

#[tokio::test]
async fn refresh_completes_after_its_call_is_cancelled() {
    let setup = expiring().await;
    let gate = setup.authority.gate.clone();
    let permits = gate.acquire_many(1_000).await.expect("permits");
    let (logins, url) = (setup.logins.clone(), setup.authority.url());
    let call = tokio::spawn(async move { logins.token("crm", &url, None).await });
    while setup.grants("refresh_token").is_empty() {
        tokio::task::yield_now().await;
    }
    call.abort();
    assert!(call.await.expect_err("aborted").is_cancelled());
    setup.authority.change(|behaviour| behaviour.expires_in = 3600);
    drop(permits);
    assert_eq!(setup.token().await, Ok(Some("access-3".to_owned())));
    assert_eq!(setup.grants("refresh_token").len(), 1);
}

#[tokio::test]
async fn rejected_refresh_token_requires_a_login() {
    let mut setup = expiring().await;
    setup.authority.change(|behaviour| {
        behaviour.reject_refresh = Some((StatusCode::BAD_REQUEST, "invalid_grant"));
    });
    let message = "`crm` needs a login: the login has expired; run `steprail login crm`";
    assert_eq!(needed(setup.token().await), message);
    assert_eq!(needed(setup.token().await), message);
    setup.restart(&json!({}));
    assert_eq!(needed(setup.token().await), message);
    assert_eq!(setup.grants("refresh_token").len(), 1, "a rejected refresh token is not sent again");
    assert_eq!(setup.logins.needed("crm", None).expect("needed").to_string(), message);

    let (logins, other) = (setup.logins.clone(), setup.logins.clone());
    let waiting = tokio::spawn(async move { logins.wait_for_login("crm", None).await });
    setup.log_in(None).await.expect("a login");
    waiting.await.expect("woken");
    assert_eq!(other.needed("crm", None), None);
}

#[tokio::test]
async fn unavailable_authorization_server_does_not_invalidate_a_login() {
    let setup = expiring().await;
    setup.authority.change(|behaviour| {
        behaviour.reject_refresh = Some((StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable"));
    });
    let failures = futures::future::join_all((0..5).map(|_| setup.token())).await;
    assert!(failures.iter().all(|token| matches!(token, Err(LoginError::Unavailable(_)))), "{failures:?}");
    assert_eq!(setup.grants("refresh_token").len(), 1, "waiting callers do not repeat the request");
    assert_eq!(setup.logins.needed("crm", None), None);
}

#[tokio::test]
async fn token_requests_are_limited_if_the_server_rejects_every_token() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    let first = needed(setup.token_after_challenge(None, "").await);
    assert!(first.contains("no user has logged in"), "{first}");
    setup.log_in(None).await.expect("a login");
    let invalid = ", error=\"invalid_token\"";
    let second = setup.token_after_challenge(Some("access-2"), invalid).await.expect("another token");
    assert_eq!(second, "access-3");
    // A call with the old token gets the new one without another request.
    assert_eq!(setup.token_after_challenge(Some("access-2"), invalid).await, Ok(second.clone()));
    let third = needed(setup.token_after_challenge(Some(&second), invalid).await);
    assert!(third.contains("the server rejects the tokens"), "{third}");
    assert_eq!(setup.grants("refresh_token").len(), 1);
}

#[tokio::test]
async fn next_login_requests_missing_scopes() {
    let mut setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    let more = ", error=\"insufficient_scope\", scope=\"read write\"";
    let message = needed(setup.token_after_challenge(Some("access-2"), more).await);
    assert!(message.contains("(missing scopes: read, write); run `steprail login crm`"), "{message}");
    assert_eq!(setup.token().await, Ok(Some("access-2".to_owned())), "other calls continue");
    setup.restart(&json!({}));
    let (page, done) = setup.log_in(None).await.expect("a login");
    assert_eq!((&*page["scope"], done.scopes.len()), ("read write", 2));
}

#[tokio::test]
async fn client_credentials_grant_issues_tokens_and_adds_scopes() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &client_credentials());
    let unset = setup.token().await.expect_err("no secret").to_string();
    assert!(unset.contains("secret:crm"), "{unset}");
    let setup = Setup::new(setup.authority, &client_credentials());
    setup.store.set(&SecretScope::Shared, "crm", &Secret::new("s3cret")).expect("stored");
    let first = setup.token().await.expect("a token").expect("one");
    assert_eq!(setup.token().await, Ok(Some(first.clone())), "it is valid for an hour");
    let more = ", error=\"insufficient_scope\", scope=\"write\"";
    let second = setup.token_after_challenge(Some(&first), more).await.expect("another token");
    assert_ne!(first, second);
    let sent: Vec<String> =
        setup.grants("client_credentials").into_iter().map(|form| form["scope"].clone()).collect();
    assert_eq!(sent, ["read", "read write"]);
    setup.token_after_challenge(Some(&second), more).await.expect("one more token");
    let bounded = setup.token_after_challenge(setup.token().await.expect("a token").as_deref(), more).await;
    assert!(matches!(bounded, Err(LoginError::Refused(_))), "{bounded:?}");
    assert!(setup.logins.begin("crm", None, crate::support::REDIRECT).await.is_err());
}
