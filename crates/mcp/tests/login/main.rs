//! OAuth logins against an authorization server on loopback.

mod authority;
mod conformance;
mod conformance_client;
mod hostile;
mod logs;
mod support;
mod tokens;

use serde_json::json;
use steprail_mcp::{LoginError, Secret, SecretScope, SecretStore};

use authority::{Authority, Behaviour};
use support::{REDIRECT, Setup, browse, parameters};

#[tokio::test]
async fn login_discovers_registers_and_uses_pkce() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    assert_eq!(setup.token().await, Ok(None));
    let (page, done) = setup.log_in(None).await.expect("a login");
    assert_eq!((&*page["code_challenge_method"], &*page["client_id"]), ("S256", "registered"));
    assert_eq!((&page["resource"], &*page["scope"]), (&setup.authority.url(), "read"));
    assert_eq!((done.scopes, done.renews), (vec!["read".to_owned()], true));
    let registered = &setup.authority.requests("register")[0]["body"];
    assert!(registered.contains(REDIRECT) && registered.contains("\"native\""), "{registered}");
    // The fixture compares the verifier, the redirect URI and the resource with the authorization request.
    assert_eq!(setup.token().await, Ok(Some("access-2".to_owned())));
    assert_eq!(setup.logins.log_out("crm", None).await, Ok(true));
    assert_eq!(setup.token().await, Ok(None));
}

#[tokio::test]
async fn discovers_metadata_at_every_specified_location() {
    let locations = [
        ("/.well-known/openid-configuration", true),
        ("/.well-known/oauth-authorization-server", false),
        // Neither document: the default endpoints of the 2025-03-26 revision.
        ("/nowhere", false),
    ];
    for (metadata_at, resource_metadata) in locations {
        let behaviour = Behaviour { metadata_at, resource_metadata, ..Behaviour::default() };
        let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
        if metadata_at == "/nowhere" {
            setup.authority.change(|behaviour| behaviour.iss = Some(String::new()));
            let page = setup.logins.begin("crm", None, REDIRECT).await.expect("a page");
            let redirect = browse(&page).await.replace("&iss=", "");
            setup.logins.finish("crm", None, &redirect).await.expect("a login");
        } else {
            setup.log_in(None).await.unwrap_or_else(|error| panic!("{metadata_at}: {error}"));
        }
        assert!(setup.token().await.expect("a token").is_some(), "{metadata_at}");
    }
}

#[tokio::test]
async fn client_metadata_document_replaces_registration() {
    let metadata = json!({ "client_id_metadata_document_supported": true });
    let behaviour = Behaviour { metadata, ..Behaviour::default() };
    let document = "https://client.example/steprail.json";
    let setup = Setup::new(Authority::start(behaviour).await, &json!({ "clientMetadataUrl": document }));
    let (page, _) = setup.log_in(None).await.expect("a login");
    assert_eq!(page["client_id"], document);
    assert!(setup.authority.requests("register").is_empty());
}

#[tokio::test]
async fn configured_client_secret_is_used_and_not_stored() {
    let behaviour = Behaviour { client_secret: Some("s3cret"), expires_in: 1, ..Behaviour::default() };
    let oauth = json!({ "clientId": "ours", "clientSecret": "${secret:crm}", "scopes": ["write"] });
    let setup = Setup::new(Authority::start(behaviour).await, &oauth);
    let rejected = setup.log_in(None).await.expect_err("no secret").to_string();
    assert!(rejected.contains("secret:crm"), "{rejected}");
    setup.store.set(&SecretScope::Shared, "crm", &Secret::new("s3cret")).expect("stored");
    let (page, _) = setup.log_in(None).await.expect("a login");
    assert_eq!((&*page["client_id"], &*page["scope"]), ("ours", "write"));
    // The token expires after a second and is refreshed with the secret.
    setup.token().await.expect("a token");
    assert_eq!(setup.grants("refresh_token").len(), 1);
    let stored = setup.store.get(&SecretScope::Shared, "oauth/crm").expect("read").expect("a login");
    assert!(!stored.expose().contains("s3cret"));
    assert!(setup.authority.requests("register").is_empty());
}

#[tokio::test]
async fn registered_client_secret_is_stored_for_refreshes() {
    let behaviour = Behaviour { client_secret: Some("issued"), expires_in: 1, ..Behaviour::default() };
    let mut setup = Setup::new(Authority::start(behaviour).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    setup.restart(&json!({}));
    assert_eq!(setup.token().await, Ok(Some("access-3".to_owned())));
}

#[tokio::test]
async fn per_user_logins_are_separate() {
    let oauth = json!({ "perUser": true });
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &oauth);
    let page = setup.logins.begin("crm", Some("ann"), REDIRECT).await.expect("a page");
    let redirect = browse(&page).await;
    let stolen = setup.logins.finish("crm", Some("bob"), &redirect).await;
    assert!(matches!(stolen, Err(LoginError::Refused(_))), "{stolen:?}");
    setup.logins.finish("crm", Some("ann"), &redirect).await.expect("a login");
    let again = setup.logins.finish("crm", Some("ann"), &redirect).await;
    assert!(matches!(again, Err(LoginError::Refused(_))), "a redirect is valid once: {again:?}");
    let url = setup.authority.url();
    assert!(setup.logins.token("crm", &url, Some("ann")).await.expect("a token").is_some());
    assert_eq!(setup.logins.token("crm", &url, Some("bob")).await, Ok(None));
    assert_eq!(setup.logins.token("crm", &url, None).await, Ok(None));
}

#[tokio::test]
async fn new_login_evicts_the_oldest_of_the_user() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    let first = setup.logins.begin("crm", None, REDIRECT).await.expect("a page");
    for _ in 0..steprail_mcp::limits::USER_LOGINS {
        setup.logins.begin("crm", None, REDIRECT).await.expect("a page");
    }
    let redirect = browse(&first).await;
    assert_eq!(parameters(&redirect)["state"], parameters(&first)["state"]);
    let late = setup.logins.finish("crm", None, &redirect).await.expect_err("evicted").to_string();
    assert!(late.contains("run `steprail login crm` again"), "{late}");
}

#[tokio::test]
async fn denied_login_reports_the_error() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    let page = setup.logins.begin("crm", None, REDIRECT).await.expect("a page");
    let redirect = format!("{REDIRECT}?error=access_denied&state={}", parameters(&page)["state"]);
    let denied = setup.logins.finish("crm", None, &redirect).await.expect_err("denied");
    assert_eq!(denied.to_string(), "the authorization server rejected the login: access_denied");
}
