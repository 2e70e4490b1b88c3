//! The accounts of the store, held in memory: they are few and read on every request.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_engine::{Account, AccountKind, Grants, StoreError};

use super::DAY_MS;
use super::sessions::{BrowserSession, SessionLifetime};
use super::tokens::Token;
use super::users::{GroupRecord, UserRecord};

/// Expired tokens are listed for this long,
const LISTED_TOKENS_MS: Millis = 30 * DAY_MS;
/// and kept for this long: a run whose token is unknown makes no calls, and runs outlast the tokens that started them.
const EXPIRED_TOKENS_MS: Millis = 400 * DAY_MS;

/// A user or group with its revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored<T> {
    /// Incremented by every change.
    pub revision: u32,
    /// Whether an identity provider owns the name, email and groups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// When the user was deleted. The row stays, so that the id is never given to somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Millis>,
    #[serde(rename = "entry")]
    pub record: T,
}

/// Users and groups by id, tokens and sessions by the id in their secret.
#[derive(Debug, Default)]
pub(super) struct AccountCache {
    /// Id of the owner of the data directory, who is not stored.
    pub owner: String,
    pub users: BTreeMap<String, Stored<UserRecord>>,
    /// Ids of deleted users.
    pub deleted_users: BTreeSet<String>,
    pub groups: BTreeMap<String, Stored<GroupRecord>>,
    pub tokens: HashMap<String, Token>,
    pub sessions: HashMap<String, BrowserSession>,
}

impl AccountCache {
    pub(super) fn load(accounts: Vec<Account>, owner: &str) -> Result<Self, StoreError> {
        let mut cache = Self { owner: owner.to_owned(), ..Self::default() };
        accounts.into_iter().try_for_each(|account| cache.put(account))?;
        Ok(cache)
    }

    pub(super) fn put(&mut self, Account { kind, id, body }: Account) -> Result<(), StoreError> {
        match kind {
            AccountKind::User => self.put_user(id, parse(&body)?),
            AccountKind::Group => drop(self.groups.insert(id, parse(&body)?)),
            AccountKind::Token => drop(self.tokens.insert(id, parse(&body)?)),
            AccountKind::SignIn => drop(self.sessions.insert(id, parse(&body)?)),
        }
        Ok(())
    }

    fn put_user(&mut self, id: String, stored: Stored<UserRecord>) {
        if stored.deleted_at.is_some() {
            self.users.remove(&id);
            self.deleted_users.insert(id);
        } else {
            self.users.insert(id, stored);
        }
    }

    pub(super) fn remove(&mut self, kind: AccountKind, id: &str) {
        match kind {
            AccountKind::User => drop(self.users.remove(id)),
            AccountKind::Group => drop(self.groups.remove(id)),
            AccountKind::Token => drop(self.tokens.remove(id)),
            AccountKind::SignIn => drop(self.sessions.remove(id)),
        }
    }

    /// The rights of a user: the user's own and those of their groups. A disabled user has none.
    pub(super) fn grants(&self, user: &str) -> Grants {
        let mut grants = Grants::default();
        let Some(Stored { record, .. }) = self.users.get(user).filter(|stored| !stored.record.disabled)
        else {
            return grants;
        };
        record.grant(&mut grants);
        grants.groups = self.groups_of(record);
        let groups = grants.groups.iter().filter_map(|group| self.groups.get(group)).cloned();
        groups.collect::<Vec<_>>().iter().for_each(|group| group.record.grant(&mut grants));
        grants
    }

    /// The groups of a user. An identity provider may have a group with the name of a user: its members are not that user.
    pub(super) fn groups_of(&self, record: &UserRecord) -> Vec<String> {
        record.groups.iter().filter(|group| !self.is_user(group)).cloned().collect()
    }

    /// Whether a name is, or was, that of a user.
    pub(super) fn is_user(&self, name: &str) -> bool {
        name == self.owner || self.users.contains_key(name) || self.deleted_users.contains(name)
    }

    /// The tokens and sessions of a user.
    pub(super) fn credentials_of(&self, user: &str) -> Vec<(AccountKind, String)> {
        let tokens = self.tokens.iter().filter(|(_, token)| token.user == user);
        let sessions = self.sessions.iter().filter(|(_, session)| session.user == user);
        tokens
            .map(|(id, _)| (AccountKind::Token, id.clone()))
            .chain(sessions.map(|(id, _)| (AccountKind::SignIn, id.clone())))
            .collect()
    }

    /// The sessions that were started with a token.
    pub(super) fn sessions_of_token(&self, token: &str) -> Vec<String> {
        let sessions = self.sessions.iter().filter(|(_, session)| session.token.as_deref() == Some(token));
        sessions.map(|(id, _)| id.clone()).collect()
    }

    /// Whether a token is listed: it is valid, or expired a short time ago.
    pub(super) fn is_listed(token: &Token, now: Millis) -> bool {
        token.expires_at + LISTED_TOKENS_MS >= now
    }

    /// Tokens that expired long ago; all expired ones if there is no room for another token.
    pub(super) fn purgeable_tokens(&self, now: Millis, is_full: bool) -> Vec<String> {
        let kept_ms = if is_full { 0 } else { EXPIRED_TOKENS_MS };
        let expired = self.tokens.iter().filter(|(_, token)| token.expires_at + kept_ms < now);
        expired.map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn expired_sessions(&self, now: Millis, lifetime: SessionLifetime) -> Vec<String> {
        let expired = self.sessions.iter().filter(|(_, session)| session.is_expired(now, lifetime));
        expired.map(|(id, _)| id.clone()).collect()
    }
}

fn parse<T: DeserializeOwned>(body: &str) -> Result<T, StoreError> {
    serde_json::from_str(body)
        .map_err(|error| StoreError::Corrupt(format!("invalid account record: {error}")))
}
