//! The public keys of an issuer, and the selection of the key that verifies a token.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::{ALGORITHMS, TokenError};

/// The maximum length of an unknown `kid` in messages. It is untrusted input.
const KID_CHARS: usize = 64;

/// The keys that can verify tokens.
pub(super) struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    /// The algorithms that it may verify.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl Keys {
    /// Parses a JSON Web Key Set (RFC 7517). Keys that cannot verify tokens are ignored, as the RFC requires.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set =
            serde_json::from_slice(bytes).map_err(|error| format!("invalid JSON Web Key Set: {error}"))?;
        Ok(Self(set.keys.into_iter().filter_map(Key::parse).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key with an id, or the only key for the algorithm if the token has no `kid`.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, TokenError> {
        let candidates = || self.0.iter().filter(|key| kid.is_none() || key.id.as_deref() == kid);
        let mut usable = candidates().filter(|key| key.algorithms.contains(&algorithm));
        match (usable.next(), usable.next()) {
            (Some(only), None) => Ok(only.key.clone()),
            (Some(_), Some(_)) => Err(TokenError::SeveralKeys(algorithm)),
            (None, _) => Err(match kid {
                None => TokenError::NoKey(algorithm),
                Some(_) if candidates().next().is_some() => TokenError::WrongKey(algorithm),
                Some(kid) => TokenError::UnknownKey(kid.chars().take(KID_CHARS).collect()),
            }),
        }
    }
}

impl Key {
    fn parse(value: Value) -> Option<Self> {
        let jwk = serde_json::from_value::<Jwk>(value).ok()?;
        let algorithms: Vec<Algorithm> =
            ALGORITHMS.iter().copied().filter(|algorithm| supports(&jwk, *algorithm)).collect();
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self { id: jwk.common.key_id, algorithms, key })
    }
}

/// Whether a key has the type of an algorithm, and its `alg`, `use` and `key_ops` allow it.
fn supports(jwk: &Jwk, algorithm: Algorithm) -> bool {
    let common = &jwk.common;
    let has_type = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => {
            !matches!(algorithm, Algorithm::ES256 | Algorithm::ES384 | Algorithm::EdDSA)
        }
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => algorithm == Algorithm::ES256,
            EllipticCurve::P384 => algorithm == Algorithm::ES384,
            _ => false,
        },
        AlgorithmParameters::OctetKeyPair(key) => {
            key.curve == EllipticCurve::Ed25519 && algorithm == Algorithm::EdDSA
        }
        // Symmetric keys (`oct`) are not public keys. Other types are unknown.
        _ => false,
    };
    has_type
        && common.key_algorithm.is_none_or(|declared| declared == KeyAlgorithm::from(algorithm))
        && common.public_key_use.as_ref().is_none_or(|r#use| *r#use == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify))
}
