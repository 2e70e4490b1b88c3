//! Access tokens of an identity provider (OIDC): who sends one, if its issuer signed it for us.

mod claims;
mod keys;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use serde_json::{Value, json};

use claims::Claims;
use source::Source;

/// Bytes of a token.
const TOKEN_BYTES: usize = 8 * 1024;

/// How tokens may be signed: with a key whose public half is all that we need to know.
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

/// What a token may call itself. Issuers sign other things with the same keys, such as notes of a logout.
const TYPES: &[&str] = &["JWT", "at+jwt", "application/at+jwt"];

/// Whose tokens are accepted, and what is read from them.
#[derive(Debug, Clone)]
pub(crate) struct OidcSettings {
    /// The claim `iss` of every token, to the letter.
    pub issuer: String,
    /// Who a token must be for: one of its `aud`.
    pub audience: String,
    /// Where the issuer's keys are: a file, or a URL with `https` (or `http` to this machine).
    pub jwks: String,
    /// The claim that names the user.
    pub user_claim: String,
    /// The claim that lists the user's groups.
    pub groups_claim: String,
}

/// Who sent a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub user: String,
    /// How people call them; empty if the token does not say.
    pub name: String,
    /// Empty if the token does not say, or says that nobody verified it.
    pub email: String,
    pub groups: Vec<String>,
    pub scopes: Vec<String>,
    /// In seconds since 1970.
    pub expires_at: i64,
}

/// Why a token is refused, as the log tells it. The client hears `for_client`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the token has more than {TOKEN_BYTES} bytes")]
    TooLong,
    #[error("it is no signed JSON web token, or names no known algorithm")]
    Malformed,
    #[error("tokens signed with {0:?} are not accepted")]
    Algorithm(Algorithm),
    #[error("its header says something that is not understood: {0}")]
    Header(&'static str),
    #[error("the issuer has no key {0:?}")]
    UnknownKey(String),
    #[error("the issuer has no key for {0:?}")]
    NoKey(Algorithm),
    #[error("the key that it names is not for {0:?}")]
    WrongKey(Algorithm),
    #[error("several keys are for {0:?} and it does not say which")]
    SeveralKeys(Algorithm),
    #[error("the signature is wrong")]
    Signature,
    #[error("it is from another issuer")]
    Issuer,
    #[error("it is for somebody else")]
    Audience,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("the claim {claim:?} {problem}")]
    Claim { claim: String, problem: &'static str },
}

impl Refused {
    /// What the client is told. Whoever forges tokens learns nothing from it; `Expired` needs a signature.
    pub(crate) fn for_client(&self) -> &'static str {
        match self {
            Self::Expired => "the token has expired",
            _ => "the token is not valid",
        }
    }
}

/// Tells who sends a token.
pub(crate) struct Oidc {
    settings: OidcSettings,
    source: Arc<Source>,
}

impl Oidc {
    /// Reads the issuer's keys. `now` is the time in seconds since 1970, as in tokens.
    pub(crate) async fn open(
        settings: OidcSettings,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let needed = [
            ("issuer", &settings.issuer),
            ("audience", &settings.audience),
            ("user claim", &settings.user_claim),
        ];
        if let Some((name, _)) = needed.iter().find(|(_, value)| value.is_empty()) {
            return Err(format!("OIDC needs the {name} of the tokens; it is empty"));
        }
        let source = Arc::new(Source::open(&settings.jwks, now).await?);
        Ok(Self { settings, source })
    }

    pub(crate) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Whether this could be one of the tokens that `validate` judges. Other tokens of ours have no dots.
    pub(crate) fn looks_like_jwt(token: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        token.bytes().filter(|byte| *byte == b'.').count() == 2 && token.bytes().all(allowed)
    }

    /// Says who sent a token.
    pub(crate) async fn validate(&self, token: &str) -> Result<Identity, Refused> {
        if token.len() > TOKEN_BYTES {
            return Err(Refused::TooLong);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| Refused::Malformed)?;
        check_header(&header)?;
        let key = self.key(&header).await?;
        let claims = Claims::new(verified(token, &key, header.alg)?);
        claims.check(&self.settings, self.source.now())?;
        claims.identity(&self.settings)
    }

    /// The key that a token names. If it is unknown, the issuer may have made it since we asked.
    async fn key(&self, header: &Header) -> Result<DecodingKey, Refused> {
        let (kid, algorithm) = (header.kid.as_deref(), header.alg);
        match self.source.keys().await.find(kid, algorithm) {
            Err(Refused::UnknownKey(_) | Refused::NoKey(_)) => {
                self.source.newer_keys().await.find(kid, algorithm)
            }
            found => found,
        }
    }
}

fn check_header(header: &Header) -> Result<(), Refused> {
    let known = |typ: &String| TYPES.iter().any(|known| known.eq_ignore_ascii_case(typ));
    if !ALGORITHMS.contains(&header.alg) {
        return Err(Refused::Algorithm(header.alg));
    }
    if header.crit.is_some() {
        return Err(Refused::Header("`crit`, which asks for an extension"));
    }
    if !header.typ.as_ref().is_none_or(known) {
        return Err(Refused::Header("`typ`, which is not that of an access token"));
    }
    Ok(())
}

/// What a token claims, if this key signed it. The claims are judged elsewhere: the library has its own clock,
/// and would take a list of issuers.
fn verified(
    token: &str,
    key: &DecodingKey,
    algorithm: Algorithm,
) -> Result<serde_json::Map<String, Value>, Refused> {
    let mut signature_only = Validation::new(algorithm);
    signature_only.required_spec_claims.clear();
    signature_only.validate_exp = false;
    signature_only.validate_aud = false;
    match jsonwebtoken::decode(token, key, &signature_only) {
        Ok(token) => Ok(token.claims),
        Err(error) => match error.kind() {
            jsonwebtoken::errors::ErrorKind::InvalidSignature => Err(Refused::Signature),
            _ => Err(Refused::Malformed),
        },
    }
}

/// Tells clients where to get a token for a resource (RFC 9728). Which scopes to ask for is left to them and the
/// issuer: one that it does not know would make it refuse.
pub(crate) fn protected_resource(resource_url: &str, settings: &OidcSettings) -> Value {
    json!({
        "resource": resource_url,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
        "resource_name": "Steprail",
    })
}
