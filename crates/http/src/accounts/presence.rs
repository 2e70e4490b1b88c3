//! Presence of users: PINs, one-time codes and passkeys, their verification, and the lockout after wrong ones.
//!
//! The hash of the PIN, the last used time step and the count of failures are in the row of the user: a restart lifts no
//! lockout, and a one-time code works once. The secret of the authenticator is in the secret store, which backups of the
//! database do not contain.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use steprail_core::presence::Presence;
use steprail_core::run::Millis;
use steprail_engine::{AccountKind, Actor, AdminAction, AdminEvent, Error, Principal, Right, User};
use steprail_mcp::{Secret, SecretError, SecretScope};
use tokio::sync::MutexGuard;

use super::factors::{PIN_CHARS, PinHash, TotpSecret};
use super::passkeys::PasskeyRecord;
use super::{Accounts, Stored, UserRecord, need_in_person};
use crate::limits::ASSERTION_CHARS;
use crate::request_binding::RequestBinding;

/// Name of the secret of an authenticator. Names of users' secrets contain no slash.
const TOTP_SECRET: &str = "presence/totp";
/// Failures before the lockout.
const FAILURES: u32 = 5;
/// The first lockout, in milliseconds. Each further failure doubles it.
const LOCKOUT_MS: Millis = 60 * 1_000;
/// The longest lockout, in milliseconds.
const MAX_LOCKOUT_MS: Millis = 60 * LOCKOUT_MS;
/// How long an enrollment waits for its first code, in milliseconds.
const ENROLLMENT_MS: Millis = 10 * 60 * 1_000;

/// The factors of a user, in the user's row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PresenceRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    pin: Option<PinHash>,
    /// The last time step whose code was used, if the user has an authenticator.
    #[serde(skip_serializing_if = "Option::is_none")]
    totp_step: Option<u64>,
    #[serde(skip_serializing_if = "PasskeyRecord::is_empty")]
    pub(super) passkeys: PasskeyRecord,
    /// Failures since the last success.
    failures: u32,
    /// No attempt is accepted before this time.
    locked_until: Millis,
}

impl PresenceRecord {
    /// Whether the user has a factor.
    pub(crate) fn has(&self, factor: Presence) -> bool {
        match factor {
            Presence::None => true,
            Presence::Pin => self.pin.is_some(),
            Presence::Totp => self.totp_step.is_some(),
            Presence::Passkey => !self.passkeys.keys.is_empty(),
        }
    }

    /// The factor that a user has to prove before they set a factor: the same one, otherwise another one that they have.
    fn needed_to_set(&self, factor: Presence) -> Presence {
        let known = [factor, Presence::Passkey, Presence::Totp, Presence::Pin];
        let known = known.into_iter().find(|known| self.has(*known));
        known.unwrap_or(Presence::None)
    }

    fn fail(&mut self, now: Millis) {
        self.failures = self.failures.saturating_add(1);
        if let Some(excess) = self.failures.checked_sub(FAILURES) {
            let lockout = LOCKOUT_MS.saturating_mul(1 << excess.min(16));
            self.locked_until = now.saturating_add(lockout.min(MAX_LOCKOUT_MS));
        }
    }

    fn is_locked(&self, now: Millis) -> bool {
        self.locked_until > now
    }
}

/// Why a proof of presence is rejected.
#[derive(Debug)]
pub(crate) enum PresenceError {
    /// It is not `pin …`, `totp …` or `passkey …`.
    Malformed,
    /// The user has not set this factor.
    NotSet(Presence),
    /// The PIN or code is wrong.
    Wrong(Presence),
    /// The assertion of a passkey is rejected, with the reason.
    WrongPasskey(&'static str),
    /// Too many wrong ones; seconds until the next attempt.
    Locked(u32),
    /// The factor cannot be checked or stored.
    Failed(Error),
}

impl From<Error> for PresenceError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Authenticators that wait for their first code, by user.
#[derive(Default)]
pub(super) struct Enrollments(Mutex<HashMap<String, (TotpSecret, Millis)>>);

impl Enrollments {
    fn begin(&self, user: &str, secret: TotpSecret, now: Millis) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, (_, until)| *until > now);
        open.insert(user.to_owned(), (secret, now.saturating_add(ENROLLMENT_MS)));
    }

    /// Ends the enrollment of a user. Returns its secret, and until when it counts.
    pub(super) fn end(&self, user: &str) -> Option<(TotpSecret, Millis)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(user)
    }
}

/// The secret of an authenticator that was not confirmed yet.
pub(crate) struct TotpEnrollment {
    /// The secret in base32.
    pub secret: String,
    /// The URI that authenticator apps read.
    pub uri: String,
}

impl Accounts {
    /// The factors of a user.
    pub(crate) fn presence_of(&self, user: &str) -> PresenceRecord {
        let presence = self.cache().users.get(user).and_then(|stored| stored.presence.clone());
        presence.unwrap_or_default()
    }

    /// Verifies `pin …`, `totp …` or `passkey …` of a user. Returns the factor that it proves. A passkey proves it for the request
    /// that it is bound to.
    pub(crate) async fn verify_presence(
        &self,
        by: &Principal,
        proof: &str,
        binding: Option<&RequestBinding>,
    ) -> Result<Presence, PresenceError> {
        let (factor, value) = parse(proof).ok_or(PresenceError::Malformed)?;
        // One attempt at a time, so that parallel ones cannot exceed the limit.
        let _verifying = self.verifying.lock().await;
        let (mut record, now) = (self.presence_of(&by.id), self.engine.now());
        if !record.has(factor) {
            return Err(PresenceError::NotSet(factor));
        }
        if record.is_locked(now) {
            let seconds = (record.locked_until - now) / 1_000 + 1;
            return Err(PresenceError::Locked(u32::try_from(seconds).unwrap_or(u32::MAX)));
        }
        let before = record.clone();
        let matched = match (factor, binding) {
            (Presence::Passkey, None) => return Err(PresenceError::Malformed),
            (Presence::Passkey, Some(binding)) => {
                let verified = self.verify_passkey(&mut record, &by.id, value, binding)?;
                verified.map_err(PresenceError::WrongPasskey)
            }
            _ if self.matches(&mut record, &by.id, factor, value, now).await? => Ok(()),
            _ => Err(PresenceError::Wrong(factor)),
        };
        let Err(wrong) = matched else {
            (record.failures, record.locked_until) = (0, 0);
            if record != before {
                self.store_presence(&by.id, Some(record), by).await?;
            }
            return Ok(factor);
        };
        // A rejected assertion changes nothing but the count.
        record = before;
        record.fail(now);
        let locked = record.is_locked(now);
        self.store_presence(&by.id, Some(record), by).await?;
        let user = by.id.clone();
        self.record_action(AdminAction::PresenceRejected { user, factor, locked }, by).await?;
        tracing::warn!(target: crate::audit::TARGET, action = "presence_rejected", user = by.id, locked, "wrong {}", factor.name());
        Err(wrong)
    }

    /// Whether a value is the PIN or the current code of a user. A code is used up.
    async fn matches(
        &self,
        record: &mut PresenceRecord,
        user: &str,
        factor: Presence,
        value: &str,
        now: Millis,
    ) -> Result<bool, Error> {
        match (factor, &record.pin) {
            (Presence::Pin, Some(hash)) => {
                let (hash, value) = (hash.clone(), value.to_owned());
                tokio::task::spawn_blocking(move || hash.matches(&value)).await.map_err(|_| Error::Stopped)
            }
            (Presence::Totp, _) => {
                let secret = self.totp_secret(user).await?;
                let step = secret.step_of(value, now, record.totp_step.unwrap_or_default());
                record.totp_step = step.or(record.totp_step);
                Ok(step.is_some())
            }
            _ => Ok(false),
        }
    }

    async fn totp_secret(&self, user: &str) -> Result<TotpSecret, Error> {
        let (secrets, scope) = (self.secrets.clone(), SecretScope::User(user.to_owned()));
        let stored = on_disk(move || secrets.get(&scope, TOTP_SECRET)).await?;
        let missing = || {
            Error::Conflict(
                "the secret of your authenticator is missing in the secret store; enroll again".to_owned(),
            )
        };
        stored.and_then(|secret| TotpSecret::parse(secret.expose())).ok_or_else(missing)
    }

    /// Sets the PIN of the caller, who has to prove the factor that they have.
    pub(crate) async fn set_pin(&self, by: &User, pin: String) -> Result<(), Error> {
        need_in_person(by)?;
        let is_plain = pin.chars().all(|c| c.is_ascii_graphic());
        if !PIN_CHARS.contains(&pin.len()) || !is_plain {
            let (min, max) = (PIN_CHARS.start(), PIN_CHARS.end());
            return Err(Error::BadInput(format!(
                "a PIN has {min} to {max} printable ASCII characters, no spaces"
            )));
        }
        // The factor is checked and written without another change in between.
        let verifying = self.verifying.lock().await;
        let record = self.presence_to_set(by, Presence::Pin)?;
        let hash =
            tokio::task::spawn_blocking(move || PinHash::new(&pin)).await.map_err(|_| Error::Stopped)?;
        let record = PresenceRecord { pin: Some(hash.map_err(Error::BadInput)?), ..record };
        self.enroll(&verifying, by, Presence::Pin, record).await
    }

    /// Begins to enroll an authenticator of the caller. It counts after its first code.
    pub(crate) fn begin_totp(&self, by: &User) -> Result<TotpEnrollment, Error> {
        need_in_person(by)?;
        self.presence_to_set(by, Presence::Totp)?;
        let (secret, now) = (TotpSecret::generate().map_err(Error::BadInput)?, self.engine.now());
        self.enrollments.begin(&by.principal().id, secret.clone(), now);
        Ok(TotpEnrollment { secret: secret.base32(), uri: secret.uri(&by.principal().id) })
    }

    /// Enrolls the authenticator of the caller, if a code is its current one.
    pub(crate) async fn confirm_totp(&self, by: &User, code: &str) -> Result<(), Error> {
        need_in_person(by)?;
        let verifying = self.verifying.lock().await;
        // The caller may have set a factor since the enrollment began.
        let record = self.presence_to_set(by, Presence::Totp)?;
        let (user, now) = (by.principal().id.clone(), self.engine.now());
        let Some((secret, _)) = self.enrollments.end(&user).filter(|(_, until)| *until > now) else {
            return Err(Error::Conflict("no enrollment is in progress; begin again".to_owned()));
        };
        let Some(step) = secret.step_of(code.trim(), now, 0) else {
            let message = "the code is not the current one of the authenticator; begin again";
            return Err(Error::BadInput(message.to_owned()));
        };
        let (secrets, scope, text) = (self.secrets.clone(), SecretScope::User(user), secret.text());
        on_disk(move || secrets.set(&scope, TOTP_SECRET, &Secret::new(text))).await?;
        let record = PresenceRecord { totp_step: Some(step), ..record };
        self.enroll(&verifying, by, Presence::Totp, record).await
    }

    /// Removes the factors of another user who lost them. Needs the right `manage`.
    pub(crate) async fn reset_presence(&self, by: &User, user: &str) -> Result<(), Error> {
        need_in_person(by)?;
        by.require(Right::Manage)?;
        by.require_presence()?;
        if self.principal(user).is_none() {
            return Err(Error::NotFound(format!("there is no active user `{user}`")));
        }
        if user == by.principal().id {
            let message = "another user with the right `manage` has to remove your factors";
            return Err(Error::Denied(message.to_owned()));
        }
        let _verifying = self.verifying.lock().await;
        self.enrollments.end(user);
        self.open_challenges.end_registration(user);
        self.store_presence(user, None, by.principal()).await?;
        self.record_action(AdminAction::PresenceRemoved { user: user.to_owned() }, by.principal()).await
    }

    /// The factors of the caller, if the caller proved the one that is needed to set another.
    pub(super) fn presence_to_set(&self, by: &User, factor: Presence) -> Result<PresenceRecord, Error> {
        let record = self.presence_of(&by.principal().id);
        let needed = record.needed_to_set(factor);
        if !by.principal().provenance.presence.satisfies(needed) {
            return Err(Error::PresenceRequired(needed));
        }
        Ok(record)
    }

    /// Stores a factor of the caller, and ends an enrollment that began before.
    pub(super) async fn enroll(
        &self,
        _verifying: &MutexGuard<'_, ()>,
        by: &User,
        factor: Presence,
        record: PresenceRecord,
    ) -> Result<(), Error> {
        let by = by.principal();
        self.enrollments.end(&by.id);
        self.open_challenges.end_registration(&by.id);
        let record = PresenceRecord { failures: 0, locked_until: 0, ..record };
        self.store_presence(&by.id, Some(record), by).await?;
        self.record_action(AdminAction::PresenceEnrolled { user: by.id.clone(), factor }, by).await
    }

    /// Stores the factors in the row of the user. The owner has a row only for them.
    pub(super) async fn store_presence(
        &self,
        user: &str,
        presence: Option<PresenceRecord>,
        by: &Principal,
    ) -> Result<(), Error> {
        let _writing = self.writing.lock().await;
        let stored = self.cache().users.get(user).cloned();
        let stored = stored.unwrap_or_else(|| Stored::new(UserRecord::default()));
        self.put(AccountKind::User, user, &Stored { presence, ..stored }, Some(by)).await
    }

    pub(super) async fn record_action(&self, action: AdminAction, by: &Principal) -> Result<(), Error> {
        self.engine.registry().record(vec![AdminEvent::new(action, Some(Actor::from(by)))]).await
    }
}

/// Splits `pin 123456`, `totp 123456` or `passkey …`.
fn parse(proof: &str) -> Option<(Presence, &str)> {
    let (factor, value) = proof.trim().split_once(' ')?;
    let factor = Presence::from_name(factor).filter(|factor| !factor.is_none())?;
    let max = if factor == Presence::Passkey { ASSERTION_CHARS } else { *PIN_CHARS.end() };
    Some((factor, value.trim())).filter(|(_, value)| (1..=max).contains(&value.len()))
}

/// Runs a blocking operation on secrets.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SecretError> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|_| Error::Stopped)?;
    done.map_err(|error| Error::Conflict(error.0))
}
