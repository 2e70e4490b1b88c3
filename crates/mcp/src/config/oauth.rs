//! The `oauth` object of a remote server's entry: how tokens for that server are obtained.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::expand::Text;
use crate::limits::OAUTH_SCOPES;

/// OAuth settings of one server. The default is an authorization-code login that all users share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OAuth {
    /// A client id that the authorization server issued beforehand.
    pub client_id: Option<Text>,
    /// The secret of that client, usually a reference such as `${secret:NAME}`.
    pub client_secret: Option<Text>,
    /// A private key in PEM in the place of the secret, for the client credentials grant (`private_key_jwt`).
    pub client_key: Option<Text>,
    /// The algorithm of that key.
    pub client_key_algorithm: KeyAlgorithm,
    /// Scopes that every login requests. Empty: the scopes that the server asks for.
    pub scopes: Vec<String>,
    /// The grant type.
    pub grant: Grant,
    /// The HTTPS URL of a client ID metadata document, used where the authorization server supports it.
    pub client_metadata_url: Option<String>,
    /// Each user logs in for themselves and has connections of their own.
    pub per_user: bool,
    /// The authorization server may have a private address (10/8, 172.16/12, 192.168/16, `fc00::/7`).
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

/// The object as it is written. Other clients have keys of their own in it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Written {
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

impl Written {
    /// Keys that change nothing here.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &String> {
        self.others.keys()
    }
}

impl OAuth {
    /// Checks the object as it is written.
    pub(super) fn read(written: Written) -> Result<Self, String> {
        let is_scope = |scope: &String| !scope.is_empty() && scope.bytes().all(is_scope_byte);
        if written.scopes.len() > OAUTH_SCOPES || !written.scopes.iter().all(is_scope) {
            return Err(format!(
                "`oauth.scopes` takes at most {OAUTH_SCOPES} scopes without spaces or quotes"
            ));
        }
        let grant = written.grant;
        let proofs = usize::from(written.client_secret.is_some()) + usize::from(written.client_key.is_some());
        if grant == Grant::ClientCredentials && (written.client_id.is_none() || proofs != 1) {
            let message = "`grant: client_credentials` needs `clientId`, and `clientSecret` or `clientKey`";
            return Err(message.to_owned());
        }
        if grant == Grant::AuthorizationCode && written.client_key.is_some() {
            return Err("`clientKey` needs `grant: client_credentials`".to_owned());
        }
        if grant == Grant::ClientCredentials && written.per_user {
            return Err("`perUser` needs `grant: authorization_code`".to_owned());
        }
        if written.client_secret.is_some() && written.client_id.is_none() {
            return Err("`clientSecret` needs `clientId`".to_owned());
        }
        if written.client_metadata_url.as_deref().is_some_and(|url| !is_document_url(url)) {
            return Err("`clientMetadataUrl` must be an https URL with a path".to_owned());
        }
        Ok(Self {
            client_id: written.client_id.map(Text::new),
            client_secret: written.client_secret.map(Text::new),
            client_key: written.client_key.map(Text::new),
            client_key_algorithm: written.client_key_algorithm,
            scopes: written.scopes,
            grant,
            client_metadata_url: written.client_metadata_url,
            per_user: written.per_user,
            private_addresses: written.private_addresses,
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
    use super::super::{Road, Servers};
    use super::{Grant, OAuth};

    fn read(oauth: &str) -> Result<Option<OAuth>, String> {
        let text = format!(
            r#"{{ "mcpServers": {{ "crm": {{ "url": "https://crm.example/mcp", "oauth": {oauth} }} }} }}"#
        );
        let servers = Servers::read(&text)?;
        let Some(entry) = servers.servers.get("crm").cloned() else {
            return Err(servers.warnings.join("; "));
        };
        assert!(matches!(entry.road, Road::Http { .. }));
        assert_eq!(entry.is_personal(), entry.oauth.as_ref().is_some_and(|oauth| oauth.per_user));
        Ok(entry.oauth)
    }

    #[test]
    fn settings_are_read() {
        let oauth = read(
            r#"{ "clientId": "c", "clientSecret": "${secret:crm}", "scopes": ["read"],
                              "grant": "client_credentials" }"#,
        );
        let oauth = oauth.expect("settings").expect("an object");
        assert_eq!((oauth.grant, oauth.scopes), (Grant::ClientCredentials, vec!["read".to_owned()]));
        assert!(read(r#"{ "perUser": true }"#).expect("settings").expect("an object").per_user);
    }

    #[test]
    fn keys_of_other_clients_are_passed_over() {
        let text = r#"{ "mcpServers": {
            "a": { "url": "https://a.example/mcp", "oauth": { "enabled": true, "clientId": "c" } },
            "b": { "command": "x", "oauth": {} } } }"#;
        let found = Servers::read(text).expect("servers");
        assert_eq!(
            found.warnings,
            [
                "`a`: the key `oauth.enabled` is not known and changes nothing",
                "`b`: `oauth` changes nothing without a `url`"
            ]
        );
        assert!(found.servers["a"].oauth.is_some() && found.servers["b"].oauth.is_none());
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let refused = |oauth| read(oauth).expect_err("a problem");
        assert!(refused(r#"{ "grant": "client_credentials" }"#).contains("needs `clientId`"));
        let both =
            r#"{ "grant": "client_credentials", "clientId": "c", "clientSecret": "s", "clientKey": "k" }"#;
        assert!(refused(both).contains("`clientSecret` or `clientKey`"));
        assert!(refused(r#"{ "clientSecret": "x" }"#).contains("needs `clientId`"));
        assert!(refused(r#"{ "clientMetadataUrl": "http://a.example/c.json" }"#).contains("https URL"));
        assert!(refused(r#"{ "scopes": ["a b"] }"#).contains("without spaces"));
        assert!(!refused(r#"{ "clientSecret": ["s3cret"] }"#).contains("s3cret"));
    }
}
