//! `WebAuthn`: registers passkeys and verifies their assertions for the origin of this server.
//!
//! Attestation is not requested, and the authenticator has to verify its user (a fingerprint, a face or its own PIN).

use serde_json::{Value, json};
use uuid::Uuid;
use webauthn_rs::prelude::{
    Credential, Passkey, PasskeyAuthentication, PasskeyRegistration, PublicKeyCredential,
    RegisterPublicKeyCredential, Url, WebauthnError,
};
use webauthn_rs::{Webauthn, WebauthnBuilder};

use super::passkeys::UNSUPPORTED_URL;

/// A registration that has begun.
pub(super) type Registration = PasskeyRegistration;
/// A challenge that waits for its assertion.
pub(super) type Authentication = PasskeyAuthentication;

/// The server as its origin identifies it to authenticators.
pub(super) struct RelyingParty(Webauthn);

/// An assertion that was verified: the credential as it is stored from now on.
pub(super) struct Verified {
    pub index: usize,
    pub credential: Value,
}

impl RelyingParty {
    /// The relying party of a base URL whose host is a name.
    pub(super) fn new(origin: &str) -> Result<Self, String> {
        let unsupported = || format!("passkeys cannot be used at {origin}: {UNSUPPORTED_URL}");
        let url = Url::parse(origin).map_err(|_| unsupported())?;
        let id = url.domain().ok_or_else(unsupported)?;
        let party = WebauthnBuilder::new(id, &url).and_then(|builder| builder.rp_name("Steprail").build());
        party.map(Self).map_err(|_| unsupported())
    }

    /// Begins to register a passkey. Returns the creation options for the browser.
    pub(super) fn begin_registration(
        &self,
        handle: Uuid,
        user: &str,
        known: &[&Value],
    ) -> Result<(Value, Registration), String> {
        let known = known.iter().filter_map(|known| read(known)).map(|known| known.cred_id().clone());
        let begun = self.0.start_passkey_registration(handle, user, user, Some(known.collect()));
        begun.map(|(options, state)| (json!(options), state)).map_err(|error| failed(&error))
    }

    /// Finishes a registration. Returns the credential id and the credential to store.
    pub(super) fn finish_registration(
        &self,
        answer: Value,
        state: &Registration,
    ) -> Result<(Vec<u8>, Value), &'static str> {
        let answer: RegisterPublicKeyCredential =
            serde_json::from_value(answer).map_err(|_| "it is not a credential in JSON")?;
        let passkey = self.0.finish_passkey_registration(&answer, state).map_err(|error| reason(&error))?;
        Ok((passkey.cred_id().clone(), json!(passkey)))
    }

    /// Begins an authentication. Returns the request options for the browser, and their challenge in base64url.
    pub(super) fn begin(&self, known: &[&Value]) -> Result<(Value, String, Authentication), String> {
        let known: Vec<Passkey> = known.iter().filter_map(|known| read(known)).collect();
        let (options, state) = self.0.start_passkey_authentication(&known).map_err(|error| failed(&error))?;
        let options = json!(options);
        let challenge = options["publicKey"]["challenge"].as_str().unwrap_or_default().to_owned();
        Ok((options, challenge, state))
    }

    /// Verifies an assertion against the credentials that the user has now.
    pub(super) fn verify(
        &self,
        answer: &Value,
        state: &Authentication,
        known: &[&Value],
    ) -> Result<Verified, &'static str> {
        let answer: PublicKeyCredential =
            serde_json::from_value(answer.clone()).map_err(|_| "it is not an assertion in JSON")?;
        let result = self.0.finish_passkey_authentication(&answer, state).map_err(|error| reason(&error))?;
        let found = known.iter().enumerate().filter_map(|(index, known)| Some((index, read(known)?)));
        let mut found = found.filter(|(_, passkey)| passkey.cred_id() == result.cred_id());
        let (index, mut passkey) = found.next().ok_or("the passkey was removed")?;
        // The library compares with the counter at the time of the challenge. Another assertion may have raised it since.
        let counter = Credential::from(passkey.clone()).counter;
        if counter > 0 && result.counter() <= counter {
            return Err(reason(&WebauthnError::CredentialPossibleCompromise));
        }
        passkey.update_credential(&result);
        Ok(Verified { index, credential: json!(passkey) })
    }
}

fn read(credential: &Value) -> Option<Passkey> {
    serde_json::from_value(credential.clone()).ok()
}

fn failed(error: &WebauthnError) -> String {
    format!("cannot create the challenge of a passkey: {error}")
}

/// Why an answer of an authenticator is rejected.
fn reason(error: &WebauthnError) -> &'static str {
    match error {
        WebauthnError::MismatchedChallenge => "its challenge is another one",
        WebauthnError::InvalidRPOrigin => "it was made for another origin",
        WebauthnError::InvalidRPIDHash => "it was made for another host",
        WebauthnError::UserNotPresent | WebauthnError::UserNotVerified => {
            "the authenticator did not verify its user"
        }
        WebauthnError::CredentialPossibleCompromise => {
            "its signature counter did not increase, so there may be a copy of the passkey"
        }
        WebauthnError::CredentialNotFound => "it is not a passkey of yours",
        WebauthnError::CredentialExcludedFromRequest | WebauthnError::CredentialAlreadyExists => {
            "this authenticator is registered already"
        }
        _ => "it is invalid",
    }
}
