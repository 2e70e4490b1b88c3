//! A test issuer with generated keys and a manual clock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    RsaKeyPair,
};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::super::{Oidc, OidcSettings};

pub(super) const NOW: i64 = 1_800_000_000;

/// Length of the PKCS #8 header before a 2048-bit RSA key, in bytes.
const RSA_PREFIX: usize = 26;

pub(super) struct Key {
    pub id: &'static str,
    pub algorithm: Algorithm,
    pub private: EncodingKey,
}

impl Key {
    pub(super) fn rsa(id: &'static str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let der: Pkcs8V1Der<'_> = pair.as_der().expect("a key");
        let private = EncodingKey::from_rsa_der(&der.as_ref()[RSA_PREFIX..]);
        Self { id, algorithm: Algorithm::RS256, private }
    }

    pub(super) fn ec(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let private = EncodingKey::from_ec_der(pair.to_pkcs8v1().expect("a key").as_ref());
        Self { id, algorithm: Algorithm::ES256, private }
    }

    pub(super) fn ec384(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).expect("a key");
        let private = EncodingKey::from_ec_der(pair.to_pkcs8v1().expect("a key").as_ref());
        Self { id, algorithm: Algorithm::ES384, private }
    }

    pub(super) fn ed(id: &'static str) -> Self {
        let pair = Ed25519KeyPair::generate().expect("a key");
        let private = EncodingKey::from_ed_der(pair.to_pkcs8v1().expect("a key").as_ref());
        Self { id, algorithm: Algorithm::EdDSA, private }
    }

    /// The same key with another algorithm.
    pub(super) fn using(&self, algorithm: Algorithm) -> Self {
        Self { id: self.id, algorithm, private: self.private.clone() }
    }

    /// The public key as the issuer publishes it.
    pub(super) fn public(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.private, self.algorithm).expect("a public key");
        let mut jwk = serde_json::to_value(jwk).expect("JSON");
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    /// The public key without `alg`, `use` and `kid`.
    pub(super) fn plain(&self) -> Value {
        without(without(without(self.public(), "alg"), "use"), "kid")
    }

    pub(super) fn header(&self) -> Header {
        Header { kid: Some(self.id.to_owned()), ..Header::new(self.algorithm) }
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_as(&self.header(), claims)
    }

    pub(super) fn sign_as(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.private).expect("a token")
    }
}

/// The claims of a valid token.
pub(super) fn claims() -> Value {
    json!({
        "iss": "https://id.example",
        "aud": "steprail",
        "exp": NOW + 300,
        "nbf": NOW,
        "iat": NOW,
        "sub": "ann",
    })
}

/// The claims of a valid token, with one replaced.
pub(super) fn with(claim: &str, value: impl Into<Value>) -> Value {
    let mut claims = claims();
    claims[claim] = value.into();
    claims
}

pub(super) fn without(mut object: Value, key: &str) -> Value {
    object.as_object_mut().expect("an object").remove(key);
    object
}

pub(super) fn set(keys: impl IntoIterator<Item = Value>) -> String {
    json!({ "keys": keys.into_iter().collect::<Vec<_>>() }).to_string()
}

/// A clock that the test advances.
#[derive(Clone)]
pub(super) struct Clock(Arc<AtomicI64>);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicI64::new(NOW)))
    }

    pub(super) fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

pub(super) async fn open_at(jwks: &str, clock: &Clock) -> Result<Oidc, String> {
    let settings = OidcSettings {
        issuer: "https://id.example".to_owned(),
        audience: "steprail".to_owned(),
        jwks: jwks.to_owned(),
        user_claim: "sub".to_owned(),
        groups_claim: "groups".to_owned(),
    };
    let clock = clock.clone();
    Oidc::open(settings, move || clock.0.load(Ordering::Relaxed)).await
}

/// Opens a validator for these keys.
pub(super) async fn open(keys: impl IntoIterator<Item = Value>) -> Oidc {
    let file = KeyFile::new(&set(keys));
    open_at(file.path(), &Clock::new()).await.expect("keys")
}

/// A file with a key set.
pub(super) struct KeyFile {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl KeyFile {
    pub(super) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.json");
        std::fs::write(&path, text).expect("a file");
        Self { _folder: folder, path }
    }

    pub(super) fn path(&self) -> &str {
        self.path.to_str().expect("a path")
    }

    /// Replaces the contents and sets the modification time, because the file system's clock may be too coarse.
    pub(super) fn write(&self, text: &str, modified_secs: u64) {
        let path: &Path = &self.path;
        std::fs::write(path, text).expect("a file");
        let file = std::fs::File::options().write(true).open(path).expect("a file");
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(modified_secs))
            .expect("a time");
    }

    pub(super) fn remove(&self) {
        std::fs::remove_file(&self.path).expect("a file");
    }
}
