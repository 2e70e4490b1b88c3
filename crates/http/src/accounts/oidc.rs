//! Access tokens of an OIDC identity provider.

mod claims;
mod keys;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use serde_json::{Value, json};

use claims::Claims;
use source::KeySource;

/// The maximum size of a token.
const TOKEN_BYTES: usize = 8 * 1024;

/// Accepted signature algorithms: asymmetric ones only.
const ALGORITHMS: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Accepted values of `typ`. Issuers sign other things with the same keys, such as logout tokens.
const TYPES: &[&str] = &["JWT", "at+jwt", "application/at+jwt"];

/// The identity provider, and the claims that are read from its tokens.
#[derive(Debug, Clone)]
pub struct OidcSettings {
    /// The issuer: `iss` of every token, compared exactly.
    pub issuer: String,
    /// The audience: one of `aud` of every token.
    pub audience: String,
    /// Location of the issuer's JWKS: a file, or a URL with `https` (`http` on loopback).
    pub jwks: String,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim that lists the user's groups.
    pub groups_claim: String,
}

/// The identity in a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub user: String,
    /// Display name; empty if the token has none.
    pub name: String,
    /// Empty if the token has none, or if it is not verified.
    pub email: String,
    pub groups: Vec<String>,
    pub scopes: Vec<String>,
    /// In seconds since 1970.
    pub expires_at: i64,
}

/// Why a token is rejected, for the log. Clients get [`TokenError::for_client`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the token has more than {TOKEN_BYTES} bytes")]
    TooLong,
    #[error("the token is not a signed JWT, or its algorithm is unknown")]
    Malformed,
    #[error("signature algorithm {0:?} is not accepted")]
    Algorithm(Algorithm),
    #[error("unsupported header field {0}")]
    Header(&'static str),
    #[error("the issuer has no key {0:?}")]
    UnknownKey(String),
    #[error("the issuer has no key for {0:?}")]
    NoKey(Algorithm),
    #[error("the key of the token does not support {0:?}")]
    WrongKey(Algorithm),
    #[error("the token has no `kid`, and the issuer has several keys for {0:?}")]
    SeveralKeys(Algorithm),
    #[error("invalid signature")]
    Signature,
    #[error("wrong issuer")]
    Issuer,
    #[error("wrong audience")]
    Audience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("claim {claim:?} {problem}")]
    Claim { claim: String, problem: &'static str },
}

impl TokenError {
    /// The message for the client. It reveals nothing about forged tokens: `Expired` needs a valid signature.
    pub(crate) fn for_client(&self) -> &'static str {
        match self {
            Self::Expired => "the token has expired",
            _ => "the token is not valid",
        }
    }
}

/// Validates tokens of one issuer.
pub struct Oidc {
    settings: OidcSettings,
    source: Arc<KeySource>,
}

impl Oidc {
    /// Fetches the issuer's keys. `now` returns the time in seconds since 1970, as in tokens.
    pub async fn open(
        settings: OidcSettings,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let required = [
            ("issuer", &settings.issuer),
            ("audience", &settings.audience),
            ("user claim", &settings.user_claim),
        ];
        if let Some((name, _)) = required.iter().find(|(_, value)| value.is_empty()) {
            return Err(format!("the OIDC {name} must not be empty"));
        }
        let source = Arc::new(KeySource::open(&settings.jwks, now).await?);
        Ok(Self { settings, source })
    }

    pub(crate) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Whether a token has the form of a JWT. API tokens contain no dots.
    pub(crate) fn looks_like_jwt(token: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        token.bytes().filter(|byte| *byte == b'.').count() == 2 && token.bytes().all(is_allowed)
    }

    /// Validates a token and returns the identity in it.
    pub(crate) async fn validate(&self, token: &str) -> Result<Identity, TokenError> {
        if token.len() > TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)?;
        check_header(&header)?;
        let key = self.key(&header).await?;
        let claims = Claims::new(verified(token, &key, header.alg)?);
        claims.check(&self.settings, self.source.now())?;
        claims.identity(&self.settings)
    }

    /// The key of a token. If it is unknown, the keys are fetched again: the issuer may have rotated them.
    async fn key(&self, header: &Header) -> Result<DecodingKey, TokenError> {
        let (kid, algorithm) = (header.kid.as_deref(), header.alg);
        match self.source.keys().await.find(kid, algorithm) {
            Err(TokenError::UnknownKey(_) | TokenError::NoKey(_)) => {
                self.source.newer_keys().await.find(kid, algorithm)
            }
            result => result,
        }
    }
}

fn check_header(header: &Header) -> Result<(), TokenError> {
    let is_known = |typ: &String| TYPES.iter().any(|known| known.eq_ignore_ascii_case(typ));
    if !ALGORITHMS.contains(&header.alg) {
        return Err(TokenError::Algorithm(header.alg));
    }
    if header.crit.is_some() {
        return Err(TokenError::Header("`crit`"));
    }
    if !header.typ.as_ref().is_none_or(is_known) {
        return Err(TokenError::Header("`typ`: not the type of an access token"));
    }
    Ok(())
}

/// The claims of a token that this key signed. They are checked elsewhere, because the library uses the system clock
/// and accepts a list of issuers.
fn verified(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
) -> Result<serde_json::Map<String, Value>, TokenError> {
    let mut signature_only = Validation::new(algorithm);
    signature_only.required_spec_claims.clear();
    signature_only.validate_exp = false;
    signature_only.validate_aud = false;
    match jsonwebtoken::decode(token, key, &signature_only) {
        Ok(token) => Ok(token.claims),
        Err(error) => match error.kind() {
            jsonwebtoken::errors::ErrorKind::InvalidSignature => Err(TokenError::Signature),
            _ => Err(TokenError::Malformed),
        },
    }
}

/// OAuth protected resource metadata (RFC 9728). It lists no scopes, because issuers reject unknown ones.
pub(crate) fn protected_resource(resource_url: &str, settings: &OidcSettings) -> Value {
    json!({
        "resource": resource_url,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Steprail",
    })
}
