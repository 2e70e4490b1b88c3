//! An authenticator in software, for the tests of passkeys: ES256 keys without attestation.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const USER_PRESENT: u8 = 0x01;
const USER_VERIFIED: u8 = 0x04;
const HAS_CREDENTIAL: u8 = 0x40;

/// An authenticator with one credential, and the browser that it is used from.
pub(super) struct SoftAuthenticator {
    key: EcdsaKeyPair,
    id: Vec<u8>,
    /// The next signature has the next value. At zero, it has no counter.
    pub counter: u32,
    pub origin: String,
    pub verifies_user: bool,
}

impl SoftAuthenticator {
    /// An authenticator whose credential id is made of one byte.
    pub(super) fn new(id: u8) -> Self {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).expect("a key");
        Self {
            key,
            id: vec![id; 32],
            counter: 10,
            origin: "http://localhost".to_owned(),
            verifies_user: true,
        }
    }

    /// Answers creation options (`publicKey`).
    pub(super) fn create(&mut self, options: &Value) -> Value {
        let data = self.client_data("webauthn.create", options);
        let mut authenticator_data = self.data(options["rp"]["id"].as_str().expect("an id"), HAS_CREDENTIAL);
        authenticator_data.extend([0; 16]);
        authenticator_data.extend(u16::try_from(self.id.len()).expect("short").to_be_bytes());
        authenticator_data.extend(&self.id);
        authenticator_data.extend(self.cose_key());
        // {"fmt": "none", "attStmt": {}, "authData": …} in CBOR.
        let mut attestation = b"\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x58".to_vec();
        attestation.push(u8::try_from(authenticator_data.len()).expect("short"));
        attestation.extend(authenticator_data);
        self.credential(
            &json!({ "clientDataJSON": encode(&data), "attestationObject": encode(&attestation) }),
        )
    }

    /// Answers request options (`publicKey`).
    pub(super) fn get(&mut self, options: &Value) -> Value {
        let data = self.client_data("webauthn.get", options);
        let authenticator_data = self.data(options["rpId"].as_str().expect("an id"), 0);
        let signed = [&*authenticator_data, &*Sha256::digest(&data)].concat();
        let signature = self.key.sign(&SystemRandom::new(), &signed).expect("a signature");
        self.credential(&json!({
            "clientDataJSON": encode(&data),
            "authenticatorData": encode(&authenticator_data),
            "signature": encode(signature.as_ref()),
        }))
    }

    fn credential(&self, response: &Value) -> Value {
        let id = encode(&self.id);
        json!({ "id": id, "rawId": id, "type": "public-key", "response": response })
    }

    fn client_data(&self, kind: &str, options: &Value) -> Vec<u8> {
        let data = json!({
            "type": kind, "challenge": options["challenge"], "origin": self.origin, "crossOrigin": false,
        });
        data.to_string().into_bytes()
    }

    fn data(&mut self, party: &str, flags: u8) -> Vec<u8> {
        if self.counter > 0 {
            self.counter += 1;
        }
        let verified = if self.verifies_user { USER_VERIFIED } else { 0 };
        let mut data = Sha256::digest(party.as_bytes()).to_vec();
        data.push(USER_PRESENT | verified | flags);
        data.extend(self.counter.to_be_bytes());
        data
    }

    /// The public key: {1: 2, 3: -7, -1: 1, -2: x, -3: y} in CBOR.
    fn cose_key(&self) -> Vec<u8> {
        let point = self.key.public_key().as_ref();
        [b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20", &point[1..33], b"\x22\x58\x20", &point[33..]].concat()
    }
}

/// The value of the header for an assertion.
pub(super) fn proof(assertion: &Value) -> String {
    format!("passkey {}", encode(assertion.to_string().as_bytes()))
}

fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
