//! The public keys of an issuer: which of them may verify which token.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::{ALGORITHMS, TokenError};

/// Characters of a key's name that the log shows: whoever sends a token writes it.
const KID_CHARS: usize = 64;

/// The keys that can verify tokens.
pub(super) struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    /// What it may verify.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl Keys {
    /// Reads a set of keys (RFC 7517). Keys that are for something else are passed over, as the RFC has it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set =
            serde_json::from_slice(bytes).map_err(|error| format!("this is no JSON web key set: {error}"))?;
        Ok(Self(set.keys.into_iter().filter_map(Key::read).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of that name, or without one the only key that fits.
    pub(super) fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, TokenError> {
        let named = || self.0.iter().filter(|key| kid.is_none() || key.id.as_deref() == kid);
        let mut fitting = named().filter(|key| key.algorithms.contains(&algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(only.key.clone()),
            (Some(_), Some(_)) => Err(TokenError::SeveralKeys(algorithm)),
            (None, _) => Err(match kid {
                None => TokenError::NoKey(algorithm),
                Some(_) if named().next().is_some() => TokenError::WrongKey(algorithm),
                Some(kid) => TokenError::UnknownKey(kid.chars().take(KID_CHARS).collect()),
            }),
        }
    }
}

impl Key {
    fn read(value: Value) -> Option<Self> {
        let jwk = serde_json::from_value::<Jwk>(value).ok()?;
        let algorithms: Vec<Algorithm> =
            ALGORITHMS.iter().copied().filter(|algorithm| fits(&jwk, *algorithm)).collect();
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        (!algorithms.is_empty()).then(|| Self { id: jwk.common.key_id, algorithms, key })
    }
}

/// Whether a key is of the type that an algorithm needs, and for nothing else by its own words.
fn fits(jwk: &Jwk, algorithm: Algorithm) -> bool {
    let about = &jwk.common;
    let of_type = match &jwk.algorithm {
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
        // A secret (`oct`) is no public key; the rest is unknown.
        _ => false,
    };
    of_type
        && about.key_algorithm.is_none_or(|own| own == KeyAlgorithm::from(algorithm))
        && about.public_key_use.as_ref().is_none_or(|r#use| *r#use == PublicKeyUse::Signature)
        && about.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify))
}
