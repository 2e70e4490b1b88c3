//! Accounts: users, groups, API tokens and browser sessions. Cached in memory, written through to the store.

mod cache;
mod directory;
mod factors;
pub mod oidc;
mod passkeys;
mod presence;
mod rate_limit;
mod secret;
mod sessions;
mod tickets;
mod tokens;
mod users;
#[cfg(not(feature = "passkey"))]
#[path = "no_webauthn.rs"]
mod webauthn;
#[cfg(feature = "passkey")]
mod webauthn;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use serde::Serialize;
use steprail_core::run::Millis;
use steprail_engine::{
    Access, Account, AccountKind, Actor, Engine, Error, Grants, Principal, Reads, StoreError, User,
};
use steprail_mcp::SecretStore;
use tokio::sync::watch;

use cache::AccountCache;
pub(crate) use cache::Stored;
#[cfg(test)]
pub(crate) use factors::code_at;
use passkeys::OpenChallenges;
pub(crate) use passkeys::StoredPasskey;
pub use passkeys::{PASSKEYS_SUPPORTED, passkey_origin};
use presence::Enrollments;
pub(crate) use presence::{PresenceError, TotpEnrollment};
pub(crate) use rate_limit::FailureLimiter;
pub use sessions::SessionLifetime;
use sessions::SignInKey;
pub(crate) use sessions::{NewSession, SessionAuth};
pub(crate) use tickets::TICKET_SECS;
use tickets::Tickets;
pub(crate) use tokens::{NewToken, TOKEN_DAYS, Token};
pub use users::{GroupRecord, Role, UserRecord};
use webauthn::RelyingParty;

/// Milliseconds in a day.
pub(crate) const DAY_MS: Millis = 24 * 60 * 60 * 1_000;
/// The maximum number of accounts of one kind.
const ACCOUNTS_PER_KIND: usize = 10_000;

/// The accounts of a server. Reads come from memory; a change is durable before it applies.
pub(crate) struct Accounts {
    engine: Engine,
    access: Access,
    owner: Principal,
    cache: Arc<RwLock<AccountCache>>,
    /// Serializes changes, so that a revision that was compared is still current when the change is written.
    writing: tokio::sync::Mutex<()>,
    /// Keys of sign-in links that were not used yet.
    links: Mutex<HashMap<String, SignInKey>>,
    tickets: Tickets,
    secrets: Arc<dyn SecretStore>,
    /// Serializes attempts to prove presence.
    verifying: tokio::sync::Mutex<()>,
    enrollments: Enrollments,
    open_challenges: OpenChallenges,
    /// Public base URL, from the settings or the first port that is served.
    url: Arc<OnceLock<String>>,
    relying_party: OnceLock<RelyingParty>,
    /// The number of changes to accounts. Streams re-check their credentials at each.
    changes: watch::Sender<u64>,
    lifetime: SessionLifetime,
    pub failures: FailureLimiter,
}

/// Why a token or a cookie is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthError {
    /// Unknown or revoked.
    Unknown,
    Expired,
    /// The user was deleted or is disabled.
    NoUser,
    /// The link belongs to another user of the operating system.
    OtherOsUser,
}

/// The accounts of a store, loaded before an engine runs on it: recovery makes calls, and calls need the rights.
pub struct LoadedAccounts {
    cache: AccountCache,
    access: Access,
    owner: Principal,
}

impl LoadedAccounts {
    /// Loads the accounts. The owner of the data directory has every right.
    pub fn load(readers: &impl Reads, owner: Principal) -> Result<Self, StoreError> {
        let cache = AccountCache::load(readers.accounts()?, &owner.id)?;
        let access = Access::default();
        cache.users.keys().for_each(|user| access.grant(user, cache.grants(user)));
        cache.deleted_users.iter().for_each(|user| access.revoke(user));
        cache.groups.keys().for_each(|group| access.add_group(group));
        cache.tokens.iter().for_each(|(id, token)| access.add_token(id, token.expires_at));
        access.grant(&owner.id, Grants::all());
        Ok(Self { cache, access, owner })
    }

    /// The rights of all users, as the engine's authorizer.
    pub fn access(&self) -> Access {
        self.access.clone()
    }

    /// Attaches the engine that writes changes.
    pub(crate) fn attach(
        self,
        engine: Engine,
        lifetime: SessionLifetime,
        secrets: Arc<dyn SecretStore>,
        url: Arc<OnceLock<String>>,
    ) -> Accounts {
        Accounts {
            engine,
            access: self.access,
            owner: self.owner,
            cache: Arc::new(RwLock::new(self.cache)),
            writing: tokio::sync::Mutex::default(),
            links: Mutex::default(),
            tickets: Tickets::default(),
            secrets,
            verifying: tokio::sync::Mutex::default(),
            enrollments: Enrollments::default(),
            open_challenges: OpenChallenges::default(),
            url,
            relying_party: OnceLock::new(),
            changes: watch::Sender::new(0),
            lifetime,
            failures: FailureLimiter::default(),
        }
    }
}

impl Accounts {
    fn cache(&self) -> std::sync::RwLockReadGuard<'_, AccountCache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches changes to users, groups and tokens, and the end of sessions.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The owner of the data directory, in person.
    pub(crate) fn owner(&self) -> &Principal {
        &self.owner
    }

    /// The principal of a user, or `None` if the user does not exist or is disabled.
    pub(crate) fn principal(&self, user: &str) -> Option<Principal> {
        if user == self.owner.id {
            return Some(self.owner.clone());
        }
        let cache = self.cache();
        let Stored { record, .. } = cache.users.get(user).filter(|stored| !stored.record.disabled)?;
        let (name, email) = (record.name.clone(), record.email.clone());
        let groups = cache.groups_of(record);
        Some(Principal { name, email, groups, ..Principal::user(user) })
    }

    /// Stores an account, first durably, then in memory. The log names `by`; `None` for the server itself.
    async fn put(
        &self,
        kind: AccountKind,
        id: &str,
        record: &impl Serialize,
        by: Option<&Principal>,
    ) -> Result<(), Error> {
        let body = serde_json::to_string(record).map_err(|error| Error::BadInput(error.to_string()))?;
        self.change(Change::Put(Account { kind, id: id.to_owned(), body }), by).await
    }

    /// Deletes an account, first durably, then from memory.
    async fn delete(&self, kind: AccountKind, id: &str, by: Option<&Principal>) -> Result<(), Error> {
        self.change(Change::Delete(kind, id.to_owned()), by).await
    }

    /// Changes the store, then the cache. It runs in its own task, so that a caller that is cancelled in between cannot
    /// leave the cache behind the store.
    async fn change(&self, change: Change, by: Option<&Principal>) -> Result<(), Error> {
        let by = by.map(Actor::from);
        let (engine, access, cache) = (self.engine.clone(), self.access.clone(), self.cache.clone());
        // The use of a session is stored, too, and changes no rights.
        let is_watched = !matches!(&change, Change::Put(Account { kind: AccountKind::SignIn, .. }));
        let changes = self.changes.clone();
        let owner = self.owner.id.clone();
        let changing = tokio::spawn(async move {
            let (kind, id) = match change {
                Change::Put(account) => {
                    engine.registry().put_account(account.clone(), by).await?;
                    let key = (account.kind, account.id.clone());
                    cache.write().unwrap_or_else(PoisonError::into_inner).put(account)?;
                    key
                }
                Change::Delete(kind, id) => {
                    engine.registry().drop_account(kind, &id, by).await?;
                    cache.write().unwrap_or_else(PoisonError::into_inner).remove(kind, &id);
                    (kind, id)
                }
            };
            let cache = cache.read().unwrap_or_else(PoisonError::into_inner);
            refresh_grants(&access, &cache, kind, &id, &owner);
            if is_watched {
                changes.send_modify(|count| *count += 1);
            }
            Ok(())
        });
        changing.await.unwrap_or(Err(Error::Stopped))
    }
}

enum Change {
    Put(Account),
    Delete(AccountKind, String),
}

/// Applies the rights that follow from a changed account, from the next call on.
fn refresh_grants(access: &Access, cache: &AccountCache, kind: AccountKind, id: &str, owner: &str) {
    match kind {
        // The owner has every right. Their row grants nothing.
        AccountKind::User if id == owner => {}
        AccountKind::User if cache.users.contains_key(id) => access.grant(id, cache.grants(id)),
        AccountKind::User => access.revoke(id),
        AccountKind::Group => {
            if cache.groups.contains_key(id) {
                access.add_group(id);
            } else {
                access.remove_group(id);
            }
            let users = cache.users.keys().filter(|user| **user != owner);
            users.for_each(|user| access.grant(user, cache.grants(user)));
        }
        AccountKind::Token => match cache.tokens.get(id) {
            Some(token) => access.add_token(id, token.expires_at),
            None => access.revoke_token(id),
        },
        AccountKind::SignIn => {}
    }
}

/// Rejects agents and scoped tokens: they must not create or revoke credentials.
fn need_in_person(by: &User) -> Result<(), Error> {
    if by.principal().agent || by.principal().scope.is_some() {
        let message = "tokens are managed in person, not by an agent or with a scoped token";
        return Err(Error::Denied(message.to_owned()));
    }
    Ok(())
}

fn check_capacity(count: usize, exists: bool, kind: &str) -> Result<(), Error> {
    if count >= ACCOUNTS_PER_KIND && !exists {
        return Err(Error::Conflict(format!("the limit of {ACCOUNTS_PER_KIND} {kind} is reached")));
    }
    Ok(())
}
