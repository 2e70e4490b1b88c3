//! Passkeys of users: registration, challenges that are bound to one request, and the verification of assertions.
//!
//! Credentials are in the row of the user. Challenges are in memory, so a restart voids them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use steprail_core::presence::Presence;
use steprail_core::run::Millis;
use steprail_engine::{AdminAction, Error, User};
use uuid::Uuid;

use super::presence::PresenceRecord;
use super::secret::hex;
use super::webauthn::{Authentication, Registration, RelyingParty, Verified};
use super::{Accounts, need_in_person};
use crate::limits::{
    CHALLENGE_MS, CHALLENGES, CHALLENGES_PER_USER, PASSKEY_NAME_CHARS, PASSKEYS_PER_USER, REGISTRATION_MS,
};
use crate::request_binding::RequestBinding;

/// Whether this program supports passkeys.
pub const PASSKEYS_SUPPORTED: bool = cfg!(feature = "passkey");
/// Why a program without the feature does not support them.
pub(super) const NOT_BUILT_IN: &str =
    "passkeys are not supported: this program was built without the feature `passkey`";
/// Which URLs passkeys work at.
pub(super) const UNSUPPORTED_URL: &str =
    "`http.url` has to be an https URL with a host name, or http://localhost";

/// A passkey, in the row of its user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredPasskey {
    /// The start of the hash of the credential id.
    pub id: String,
    /// The name that the user gave it.
    pub name: String,
    pub created_at: Millis,
    /// The credential as the `WebAuthn` library writes it: its id, public key and signature counter.
    credential: Value,
}

/// The passkeys of a user, in the user's row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PasskeyRecord {
    /// The random id of the user that authenticators store.
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<Uuid>,
    pub keys: Vec<StoredPasskey>,
}

impl PasskeyRecord {
    pub(super) fn is_empty(&self) -> bool {
        self.handle.is_none() && self.keys.is_empty()
    }

    fn credentials(&self) -> Vec<&Value> {
        self.keys.iter().map(|key| &key.credential).collect()
    }
}

/// Registrations and challenges that wait for the answer of an authenticator.
#[derive(Default)]
pub(super) struct OpenChallenges(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// By user.
    registrations: HashMap<String, OpenRegistration>,
    /// By challenge.
    challenges: HashMap<String, OpenChallenge>,
}

struct OpenRegistration {
    state: Registration,
    handle: Uuid,
    until: Millis,
}

struct OpenChallenge {
    state: Authentication,
    user: String,
    binding: RequestBinding,
    until: Millis,
}

impl OpenChallenges {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_registration(&self, user: &str, registration: OpenRegistration, now: Millis) {
        let mut open = self.lock();
        open.registrations.retain(|_, open| open.until > now);
        open.registrations.insert(user.to_owned(), registration);
    }

    /// Ends the registration of a user.
    pub(super) fn end_registration(&self, user: &str) {
        self.lock().registrations.remove(user);
    }

    fn take_registration(&self, user: &str, now: Millis) -> Option<OpenRegistration> {
        self.lock().registrations.remove(user).filter(|open| open.until > now)
    }

    /// Keeps a challenge. The oldest ones of the user give way to it.
    fn begin(&self, challenge: String, new: OpenChallenge, now: Millis) -> Result<(), Error> {
        let open = &mut self.lock().challenges;
        open.retain(|_, open| open.until > now);
        let mut own: Vec<_> = open.iter().filter(|(_, open)| open.user == new.user).collect();
        own.sort_unstable_by_key(|(_, open)| open.until);
        let excess = (own.len() + 1).saturating_sub(CHALLENGES_PER_USER);
        let replaced: Vec<String> = own.into_iter().take(excess).map(|(key, _)| key.clone()).collect();
        replaced.iter().for_each(|key| drop(open.remove(key)));
        if open.len() >= CHALLENGES {
            return Err(Error::Conflict(format!("{CHALLENGES} challenges are open; try again in a minute")));
        }
        open.insert(challenge, new);
        Ok(())
    }

    /// Uses a challenge up.
    fn take(&self, challenge: &str, now: Millis) -> Option<OpenChallenge> {
        self.lock().challenges.remove(challenge).filter(|open| open.until > now)
    }
}

impl Accounts {
    /// The origin at which passkeys of this server work: the public URL, with `localhost` for loopback addresses.
    pub(crate) fn passkey_origin(&self) -> Result<String, Error> {
        if !PASSKEYS_SUPPORTED {
            return Err(Error::Conflict(NOT_BUILT_IN.to_owned()));
        }
        let no_port = || Error::Conflict("this server does not listen on a port".to_owned());
        passkey_origin(self.url.get().ok_or_else(no_port)?).map_err(Error::Conflict)
    }

    fn relying_party(&self) -> Result<&RelyingParty, Error> {
        if let Some(party) = self.relying_party.get() {
            return Ok(party);
        }
        let party = RelyingParty::new(&self.passkey_origin()?).map_err(Error::Conflict)?;
        Ok(self.relying_party.get_or_init(|| party))
    }

    /// The passkeys of a user, oldest first.
    pub(crate) fn passkeys_of(&self, user: &str) -> Vec<StoredPasskey> {
        self.presence_of(user).passkeys.keys
    }

    /// Begins to register a passkey of the caller, who has to prove the factor that they have. Returns the creation options.
    pub(crate) fn begin_passkey(&self, by: &User) -> Result<Value, Error> {
        need_in_person(by)?;
        let record = self.presence_to_set(by, Presence::Passkey)?;
        check_count(&record)?;
        let (user, now) = (&by.principal().id, self.engine.now());
        let handle = match record.passkeys.handle {
            Some(handle) => handle,
            None => new_handle()?,
        };
        let party = self.relying_party()?;
        let begun = party.begin_registration(handle, user, &record.passkeys.credentials());
        let (options, state) = begun.map_err(Error::Conflict)?;
        let until = now.saturating_add(REGISTRATION_MS);
        self.open_challenges.begin_registration(user, OpenRegistration { state, handle, until }, now);
        Ok(options)
    }

    /// Registers the passkey that an authenticator created. The caller proved their factor at the begin; a factor that is set or
    /// removed since then ends the registration, and only the caller knows its challenge.
    pub(crate) async fn finish_passkey(
        &self,
        by: &User,
        name: &str,
        credential: Value,
    ) -> Result<StoredPasskey, Error> {
        need_in_person(by)?;
        let name = checked_name(name)?;
        let verifying = self.verifying.lock().await;
        let (user, now) = (&by.principal().id, self.engine.now());
        let mut record = self.presence_of(user);
        check_count(&record)?;
        let none = || Error::Conflict("no registration is in progress; begin again".to_owned());
        let open = self.open_challenges.take_registration(user, now).ok_or_else(none)?;
        let rejected =
            |reason| Error::BadInput(format!("the passkey is not accepted: {reason}; begin again"));
        let finished = self.relying_party()?.finish_registration(credential, &open.state);
        let (id, credential) = finished.map_err(rejected)?;
        let id = hex(&Sha256::digest(&id)).chars().take(16).collect();
        let passkey = StoredPasskey { id, name, created_at: now, credential };
        if record.passkeys.keys.iter().any(|known| known.id == passkey.id) {
            return Err(rejected("it is registered already"));
        }
        record.passkeys.handle = Some(open.handle);
        record.passkeys.keys.push(passkey.clone());
        self.enroll(&verifying, by, Presence::Passkey, record).await?;
        Ok(passkey)
    }

    /// Removes a passkey of the caller, who has to prove one. The last factor stays: without one, any program of the user could
    /// set another.
    pub(crate) async fn remove_passkey(&self, by: &User, id: &str) -> Result<(), Error> {
        need_in_person(by)?;
        let _verifying = self.verifying.lock().await;
        let mut record = self.presence_to_set(by, Presence::Passkey)?;
        let count = record.passkeys.keys.len();
        record.passkeys.keys.retain(|key| key.id != id);
        if record.passkeys.keys.len() == count {
            return Err(Error::NotFound(format!("you have no passkey `{id}`")));
        }
        if ![Presence::Passkey, Presence::Totp, Presence::Pin].into_iter().any(|factor| record.has(factor)) {
            let message = "your only factor cannot be removed; register another passkey or set a PIN first";
            return Err(Error::Conflict(message.to_owned()));
        }
        let by = by.principal();
        self.open_challenges.end_registration(&by.id);
        self.enrollments.end(&by.id);
        self.store_presence(&by.id, Some(record), by).await?;
        self.record_action(AdminAction::PasskeyRemoved { user: by.id.clone(), passkey: id.to_owned() }, by)
            .await
    }

    /// Creates a challenge for a passkey of the caller that confirms one request. Returns the request options and when it expires.
    pub(crate) fn passkey_challenge(
        &self,
        by: &User,
        binding: RequestBinding,
    ) -> Result<(Value, Millis), Error> {
        let user = by.principal();
        if user.agent {
            return Err(Error::Denied("an agent cannot prove that its user is present".to_owned()));
        }
        let record = self.presence_of(&user.id);
        if !record.has(Presence::Passkey) {
            return Err(Error::Conflict("you have no passkey; register one first".to_owned()));
        }
        let begun = self.relying_party()?.begin(&record.passkeys.credentials());
        let (options, challenge, state) = begun.map_err(Error::Conflict)?;
        let now = self.engine.now();
        let until = now.saturating_add(CHALLENGE_MS);
        let new = OpenChallenge { state, user: user.id.clone(), binding, until };
        self.open_challenges.begin(challenge, new, now)?;
        Ok((options, until))
    }

    /// Verifies the assertion of a passkey, in base64url, for one request. Its challenge is used up.
    pub(super) fn verify_passkey(
        &self,
        record: &mut PresenceRecord,
        user: &str,
        value: &str,
        binding: &RequestBinding,
    ) -> Result<Result<(), &'static str>, Error> {
        let party = self.relying_party()?;
        Ok(self.verify_assertion(party, record, user, value, binding))
    }

    fn verify_assertion(
        &self,
        party: &RelyingParty,
        record: &mut PresenceRecord,
        user: &str,
        value: &str,
        binding: &RequestBinding,
    ) -> Result<(), &'static str> {
        let answer = decoded(value).ok_or("it is not JSON in base64url")?;
        let challenge = challenge_of(&answer).ok_or("it has no challenge")?;
        let open = self.open_challenges.take(&challenge, self.engine.now());
        let open = open.ok_or("its challenge has expired, was used already, or is unknown")?;
        if open.user != user {
            return Err("its challenge is that of another user");
        }
        if open.binding != *binding {
            return Err("it confirms another request");
        }
        let verified = party.verify(&answer, &open.state, &record.passkeys.credentials())?;
        let Verified { index, credential } = verified;
        if let Some(key) = record.passkeys.keys.get_mut(index) {
            key.credential = credential;
        }
        Ok(())
    }
}

/// The origin of a base URL, with `localhost` for loopback addresses: passkeys belong to names. An error says why passkeys do
/// not work at the URL.
pub fn passkey_origin(url: &str) -> Result<String, String> {
    let unsupported = || format!("passkeys cannot be used at {url}: {UNSUPPORTED_URL}");
    let uri: axum::http::Uri = url.parse().map_err(|_| unsupported())?;
    let (scheme, host) = uri.scheme_str().zip(uri.host()).ok_or_else(unsupported)?;
    let ip: Option<std::net::IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    let host = match ip {
        Some(ip) if ip.is_loopback() => "localhost",
        Some(_) => return Err(unsupported()),
        None => host,
    };
    let is_local = host == "localhost" || host.ends_with(".localhost");
    if scheme != "https" && !is_local {
        return Err(unsupported());
    }
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("{scheme}://{host}{port}"))
}

/// The assertion of a proof.
fn decoded(value: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(value.trim_end_matches('=')).ok()?).ok()
}

/// The challenge that an assertion answers, in base64url.
fn challenge_of(answer: &Value) -> Option<String> {
    let data = decoded(answer["response"]["clientDataJSON"].as_str()?)?;
    Some(data["challenge"].as_str()?.trim_end_matches('=').to_owned())
}

fn check_count(record: &PresenceRecord) -> Result<(), Error> {
    if record.passkeys.keys.len() >= PASSKEYS_PER_USER {
        let message = format!("you have {PASSKEYS_PER_USER} passkeys, the maximum; remove one first");
        return Err(Error::Conflict(message));
    }
    Ok(())
}

fn checked_name(name: &str) -> Result<String, Error> {
    let name = name.trim();
    let is_plain = !name.is_empty() && !name.chars().any(char::is_control);
    if !is_plain || name.chars().count() > PASSKEY_NAME_CHARS {
        let message = format!("the name of a passkey has 1 to {PASSKEY_NAME_CHARS} characters, on one line");
        return Err(Error::BadInput(message));
    }
    Ok(name.to_owned())
}

fn new_handle() -> Result<Uuid, Error> {
    let mut bytes = [0; 16];
    let failed = |error| Error::BadInput(format!("cannot read random numbers from the system: {error}"));
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use super::passkey_origin;

    #[test]
    fn origins_have_names() {
        let of = |url: &str| passkey_origin(url).ok();
        let some = |origin: &str| Some(origin.to_owned());
        assert_eq!(of("http://127.0.0.1:7777"), some("http://localhost:7777"));
        assert_eq!(of("http://[::1]:7777"), some("http://localhost:7777"));
        assert_eq!(of("http://localhost"), some("http://localhost"));
        assert_eq!(of("https://steprail.example/"), some("https://steprail.example"));
        assert_eq!(of("https://steprail.example:8443"), some("https://steprail.example:8443"));
        for refused in ["http://steprail.example", "https://192.0.2.1", "http://0.0.0.0:7777", "steprail", ""]
        {
            assert_eq!(of(refused), None, "{refused}");
        }
    }
}
