//! The build without the feature `passkey`: there is no relying party, so no passkey is registered or verified.

use std::convert::Infallible;

use serde_json::Value;
use uuid::Uuid;

use super::passkeys::NOT_BUILT_IN;

pub(super) type Registration = Infallible;
pub(super) type Authentication = Infallible;

/// No value exists.
pub(super) struct RelyingParty(Infallible);

/// An assertion that was verified: the credential as it is stored from now on.
pub(super) struct Verified {
    pub index: usize,
    pub credential: Value,
}

impl RelyingParty {
    pub(super) fn new(_: &str) -> Result<Self, String> {
        Err(NOT_BUILT_IN.to_owned())
    }

    pub(super) fn begin_registration(
        &self,
        _: Uuid,
        _: &str,
        _: &[&Value],
    ) -> Result<(Value, Registration), String> {
        match self.0 {}
    }

    pub(super) fn finish_registration(
        &self,
        _: Value,
        _: &Registration,
    ) -> Result<(Vec<u8>, Value), &'static str> {
        match self.0 {}
    }

    pub(super) fn begin(&self, _: &[&Value]) -> Result<(Value, String, Authentication), String> {
        match self.0 {}
    }

    pub(super) fn verify(
        &self,
        _: &Value,
        _: &Authentication,
        _: &[&Value],
    ) -> Result<Verified, &'static str> {
        match self.0 {}
    }
}
