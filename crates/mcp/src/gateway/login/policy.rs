//! URL policy of OAuth: https, or http on loopback addresses.

use reqwest::Url;
use rmcp::transport::auth::AuthorizationMetadata;

/// Checks the URL of a server that tokens are sent to.
pub(super) fn server_url(url: &str) -> Result<Url, String> {
    let parsed = Url::parse(url).map_err(|_| "the server's URL is invalid".to_owned())?;
    match parsed.scheme() {
        "https" => Ok(parsed),
        "http" if is_loopback(&parsed) => Ok(parsed),
        _ => Err("OAuth needs an https URL; http is accepted for loopback addresses only".to_owned()),
    }
}

/// Checks the endpoints of an authorization server before they are used.
pub(super) fn endpoints(server: &Url, metadata: &AuthorizationMetadata) -> Result<(), String> {
    let optional = [("registration_endpoint", &metadata.registration_endpoint), ("issuer", &metadata.issuer)];
    let optional = optional.into_iter().filter_map(|(name, url)| Some((name, url.as_ref()?)));
    let required = [
        ("authorization_endpoint", &metadata.authorization_endpoint),
        ("token_endpoint", &metadata.token_endpoint),
    ];
    for (name, url) in required.into_iter().chain(optional) {
        let allowed = Url::parse(url).is_ok_and(|url| match url.scheme() {
            "https" => url.host_str().is_some(),
            "http" => is_loopback(&url) && is_loopback(server),
            _ => false,
        });
        if !allowed {
            return Err(format!("the authorization server's `{name}` is not an https URL"));
        }
    }
    Ok(())
}

/// Checks a redirect URI: authorization codes are only sent to loopback addresses.
pub(super) fn redirect_uri(uri: &str) -> Result<Url, String> {
    let parsed = Url::parse(uri).ok().filter(|url| {
        let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        url.scheme() == "http" && is_loopback(url) && is_plain && url.query().is_none()
    });
    parsed.ok_or_else(|| "the redirect URI must be http on a loopback address".to_owned())
}

/// Whether a URL equals a redirect URI, apart from the query.
pub(super) fn matches_redirect_uri(redirect: &Url, uri: &Url) -> bool {
    redirect.origin() == uri.origin() && redirect.path() == uri.path()
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::{Url, endpoints, matches_redirect_uri, redirect_uri, server_url};
    use rmcp::transport::auth::AuthorizationMetadata;

    #[test]
    fn server_urls_are_https_or_loopback() {
        for good in
            ["https://crm.example/mcp", "http://127.0.0.1:1/mcp", "http://[::1]:1/", "http://localhost/"]
        {
            assert!(server_url(good).is_ok(), "{good}");
        }
        for bad in [
            "http://crm.example/mcp",
            "http://10.0.0.1/",
            "file:///etc/passwd",
            "http://127.0.0.1.evil.example/",
            "x",
        ] {
            assert!(server_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints_are_https_unless_the_server_is_local() {
        let remote = Url::parse("https://crm.example/mcp").expect("a URL");
        let local = Url::parse("http://127.0.0.1:1/mcp").expect("a URL");
        let with = |authorization: &str, token: &str| {
            let json =
                serde_json::json!({ "authorization_endpoint": authorization, "token_endpoint": token });
            serde_json::from_value::<AuthorizationMetadata>(json).expect("metadata")
        };
        let good = with("https://a.example/authorize", "https://a.example/token");
        assert!(endpoints(&remote, &good).is_ok() && endpoints(&local, &good).is_ok());
        let plain = with("https://a.example/authorize", "http://127.0.0.1:2/token");
        assert!(endpoints(&remote, &plain).is_err() && endpoints(&local, &plain).is_ok());
        for hostile in ["javascript:alert(1)", "file:///etc/passwd", "http://a.example/authorize", "-x"] {
            assert!(endpoints(&local, &with(hostile, "https://a.example/token")).is_err(), "{hostile}");
        }
    }

    #[test]
    fn redirect_uris_are_on_loopback_addresses() {
        let uri = redirect_uri("http://127.0.0.1:9/callback").expect("a URI");
        for bad in
            ["https://evil.example/", "http://evil.example/", "http://u@127.0.0.1/", "http://127.0.0.1/?a=1"]
        {
            assert!(redirect_uri(bad).is_err(), "{bad}");
        }
        let url = |text: &str| Url::parse(text).expect("a URL");
        assert!(matches_redirect_uri(&url("http://127.0.0.1:9/callback?code=1"), &uri));
        assert!(!matches_redirect_uri(&url("http://127.0.0.1:8/callback?code=1"), &uri));
    }
}
