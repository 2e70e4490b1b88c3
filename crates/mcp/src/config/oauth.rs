//! The `oauth` object of a server entry: how tokens for the server are obtained.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::expand::Text;
use crate::limits::OAUTH_SCOPES;

/// OAuth settings of one server. The default is an authorization-code login that all users share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OAuth {
    /// The id of a client that is registered at the authorization server.
    pub client_id: Option<Text>,
    /// The secret of that client, usually a reference such as `${secret:NAME}`.
    pub client_secret: Option<Text>,
    /// A private key in PEM instead of a secret, for the client credentials grant (`private_key_jwt`).
    pub client_key: Option<Text>,
    /// The signing algorithm of `client_key`.
    pub client_key_algorithm: KeyAlgorithm,
    /// Scopes that every login requests; if empty, the scopes that the server advertises.
    pub scopes: Vec<String>,
    /// The grant type.
    pub grant: Grant,
    /// The HTTPS URL of a client ID metadata document, used where the authorization server supports it.
    pub client_metadata_url: Option<String>,
    /// Whether each user has their own login and connection.
    pub per_user: bool,
    /// Whether the authorization server may have a private address (10/8, 172.16/12, 192.168/16, `fc00::/7`).
    pub private_addresses: bool,
}

/// OAuth grant types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A user logs in with a browser.
    #[default]
    AuthorizationCode,
    /// The daemon authenticates with its own client id and secret.
    ClientCredentials,
}

/// Algorithms that a client signs its assertions with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the names of RFC 7518")]
pub enum KeyAlgorithm {
    #[default]
    ES256,
    ES384,
    RS256,
    RS384,
    RS512,
}

/// The object before it is checked. Other clients use additional keys.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawOAuth {
    client_id: Option<String>,
    client_secret: Option<String>,
    client_key: Option<String>,
    #[serde(default)]
    client_key_algorithm: KeyAlgorithm,
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default)]
    grant: Grant,
    client_metadata_url: Option<String>,
    #[serde(default)]
    per_user: bool,
    #[serde(default)]
    private_addresses: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl RawOAuth {
    pub(super) fn unknown_keys(&self) -> impl Iterator<Item = &String> {
        self.others.keys()
    }
}

impl OAuth {
    /// Checks the object.
    pub(super) fn read(raw: RawOAuth) -> Result<Self, String> {
        let is_scope = |scope: &String| !scope.is_empty() && scope.bytes().all(is_scope_byte);
        if raw.scopes.len() > OAUTH_SCOPES || !raw.scopes.iter().all(is_scope) {
            return Err(format!(
                "`oauth.scopes` must have at most {OAUTH_SCOPES} scopes, without spaces or quotes"
            ));
        }
        let grant = raw.grant;
        let proofs = usize::from(raw.client_secret.is_some()) + usize::from(raw.client_key.is_some());
        if grant == Grant::ClientCredentials && (raw.client_id.is_none() || proofs != 1) {
            let message = "`grant: client_credentials` needs `clientId`, and `clientSecret` or `clientKey`";
            return Err(message.to_owned());
        }
        if grant == Grant::AuthorizationCode && raw.client_key.is_some() {
            return Err("`clientKey` needs `grant: client_credentials`".to_owned());
        }
        if grant == Grant::ClientCredentials && raw.per_user {
            return Err("`perUser` needs `grant: authorization_code`".to_owned());
        }
        if raw.client_secret.is_some() && raw.client_id.is_none() {
            return Err("`clientSecret` needs `clientId`".to_owned());
        }
        if raw.client_metadata_url.as_deref().is_some_and(|url| !is_document_url(url)) {
            return Err("`clientMetadataUrl` must be an https URL with a path".to_owned());
        }
        Ok(Self {
            client_id: raw.client_id.map(Text::new),
            client_secret: raw.client_secret.map(Text::new),
            client_key: raw.client_key.map(Text::new),
            client_key_algorithm: raw.client_key_algorithm,
            scopes: raw.scopes,
            grant,
            client_metadata_url: raw.client_metadata_url,
            per_user: raw.per_user,
            private_addresses: raw.private_addresses,
        })
    }
}

/// RFC 6749, section 3.3: printable ASCII without space, quote and backslash.
pub(crate) fn is_scope_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'
}

fn is_document_url(url: &str) -> bool {
    reqwest::Url::parse(url)
        .is_ok_and(|url| url.scheme() == "https" && url.path() != "/" && url.host_str().is_some())
}

#[cfg(test)]
mod tests {
    use super::super::{Servers, Transport};
    use super::{Grant, OAuth};

    fn read(oauth: &str) -> Result<Option<OAuth>, String> {
        let text = format!(
            r#"{{ "mcpServers": {{ "crm": {{ "url": "https://crm.example/mcp", "oauth": {oauth} }} }} }}"#
        );
        let servers = Servers::read(&text)?;
        let Some(entry) = servers.servers.get("crm").cloned() else {
            return Err(servers.warnings.join("; "));
        };
        assert!(matches!(entry.transport, Transport::Http { .. }));
        assert_eq!(entry.is_per_user(), entry.oauth.as_ref().is_some_and(|oauth| oauth.per_user));
        Ok(entry.oauth)
    }

    #[test]
    fn reads_settings() {
        let oauth = read(
            r#"{ "clientId": "c", "clientSecret": "${secret:crm}", "scopes": ["read"],
                              "grant": "client_credentials" }"#,
        );
        let oauth = oauth.expect("settings").expect("an object");
        assert_eq!((oauth.grant, oauth.scopes), (Grant::ClientCredentials, vec!["read".to_owned()]));
        assert!(read(r#"{ "perUser": true }"#).expect("settings").expect("an object").per_user);
    }

    #[test]
    fn ignores_keys_of_other_clients() {
        let text = r#"{ "mcpServers": {
            "a": { "url": "https://a.example/mcp", "oauth": { "enabled": true, "clientId": "c" } },
            "b": { "command": "x", "oauth": {} } } }"#;
        let servers = Servers::read(text).expect("servers");
        assert_eq!(
            servers.warnings,
            ["`a`: the unknown key `oauth.enabled` is ignored", "`b`: `oauth` is ignored without a `url`"]
        );
        assert!(servers.servers["a"].oauth.is_some() && servers.servers["b"].oauth.is_none());
    }

    #[test]
    fn rejects_contradictory_settings() {
        let rejected = |oauth| read(oauth).expect_err("a problem");
        assert!(rejected(r#"{ "grant": "client_credentials" }"#).contains("needs `clientId`"));
        let both =
            r#"{ "grant": "client_credentials", "clientId": "c", "clientSecret": "s", "clientKey": "k" }"#;
        assert!(rejected(both).contains("`clientSecret` or `clientKey`"));
        assert!(rejected(r#"{ "clientSecret": "x" }"#).contains("needs `clientId`"));
        assert!(rejected(r#"{ "clientMetadataUrl": "http://a.example/c.json" }"#).contains("https URL"));
        assert!(rejected(r#"{ "scopes": ["a b"] }"#).contains("without spaces"));
        assert!(!rejected(r#"{ "clientSecret": ["s3cret"] }"#).contains("s3cret"));
    }
}
