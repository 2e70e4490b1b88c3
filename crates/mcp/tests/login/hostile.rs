//! Malicious servers and authorization servers.

use serde_json::json;
use steprail_mcp::LoginError;

use crate::authority::{Authority, Behaviour};
use crate::support::{REDIRECT, Setup, browse, needed};

fn rejected<T: std::fmt::Debug>(result: Result<T, LoginError>) -> String {
    match result {
        Err(LoginError::Refused(message)) => message,
        other => panic!("expected a rejection, got {other:?}"),
    }
}

#[tokio::test]
async fn redirect_of_another_issuer_is_rejected_and_the_genuine_one_accepted() {
    let behaviour = Behaviour { iss: Some("https://evil.example".to_owned()), ..Behaviour::default() };
    let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
    let page = setup.logins.begin("crm", None, REDIRECT).await.expect("a page");
    let forged = browse(&page).await;
    let message = rejected(setup.logins.finish("crm", None, &forged).await);
    assert!(message.contains("issuer mismatch"), "{message}");
    let without = forged.replace("&iss=https://evil.example", "");
    assert!(rejected(setup.logins.finish("crm", None, &without).await).contains("issuer"));
    assert!(setup.grants("authorization_code").is_empty(), "no code was sent");
    let elsewhere = forged.replace("127.0.0.1:9", "127.0.0.1:10");
    assert!(rejected(setup.logins.finish("crm", None, &elsewhere).await).contains("not the redirect URI"));
    let genuine = forged.replace("https://evil.example", &setup.authority.origin);
    setup.logins.finish("crm", None, &genuine).await.expect("a login");
}

#[tokio::test]
async fn rejects_metadata_with_unsafe_endpoints() {
    let hostile = [
        (json!({ "issuer": "https://evil.example" }), "issuer mismatch"),
        (json!({ "token_endpoint": "http://evil.example/token" }), "`token_endpoint` is not an https URL"),
        (json!({ "authorization_endpoint": "file:///etc/passwd" }), "`authorization_endpoint` is not"),
        (json!({ "registration_endpoint": "http://evil.example/r" }), "`registration_endpoint` is not"),
        (json!({ "code_challenge_methods_supported": ["plain"] }), "S256"),
        (json!({ "registration_endpoint": null }), "set `oauth.clientId`"),
    ];
    for (metadata, reason) in hostile {
        let behaviour = Behaviour { metadata, ..Behaviour::default() };
        let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
        let message = rejected(setup.logins.begin("crm", None, REDIRECT).await);
        assert!(message.contains(reason), "{message}");
        assert!(setup.authority.requests("register").is_empty());
    }
}

#[tokio::test]
async fn refresh_token_is_sent_only_to_its_issuer() {
    let behaviour = Behaviour { expires_in: 1, ..Behaviour::default() };
    let setup = Setup::new(Authority::start(behaviour).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    let other = Authority::start(Behaviour::default()).await;
    setup.authority.change(|behaviour| behaviour.issuer = Some(other.origin.clone()));
    assert!(needed(setup.token().await).contains("authorization server has changed"));
    assert!(setup.grants("refresh_token").is_empty() && other.requests("token").is_empty());
}

#[tokio::test]
async fn token_is_sent_only_to_the_url_of_its_login() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    setup.log_in(None).await.expect("a login");
    let moved = setup.logins.token("crm", "https://evil.example/mcp", None).await;
    assert_eq!(moved, Ok(None));
    assert_eq!(setup.logins.token("other", &setup.authority.url(), None).await, Ok(None));
}

#[tokio::test]
async fn redirect_uri_must_be_on_loopback() {
    let setup = Setup::new(Authority::start(Behaviour::default()).await, &json!({}));
    for uri in ["https://evil.example/callback", "http://10.0.0.1/", "steprail://callback", ""] {
        let message = rejected(setup.logins.begin("crm", None, uri).await);
        assert!(message.contains("loopback"), "{uri}: {message}");
    }
    assert!(rejected(setup.logins.begin("unknown", None, REDIRECT).await).contains("not a remote server"));
    assert!(rejected(setup.logins.finish("crm", None, "access_denied").await).contains("not the URL"));
}
