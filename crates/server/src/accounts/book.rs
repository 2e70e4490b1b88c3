//! Every account, as it is held in memory.

use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_engine::{Account, AccountKind, Grants, StoreError};

use super::people::{Group, Person};
use super::token::{SignIn, Token};
use super::{DAY_MS, Lasting};

/// An entry that people change, and how often it was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept<T> {
    /// Counts its changes.
    pub revision: u32,
    /// Whether an identity provider says what it is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// What it is.
    pub entry: T,
}

/// Users and groups by id; secrets by the id in them.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub users: BTreeMap<String, Kept<Person>>,
    pub groups: BTreeMap<String, Kept<Group>>,
    pub tokens: HashMap<String, Token>,
    pub sign_ins: HashMap<String, SignIn>,
}

impl Book {
    /// Reads what is stored.
    pub(super) fn read(accounts: Vec<Account>) -> Result<Self, StoreError> {
        let mut book = Self::default();
        accounts.into_iter().try_for_each(|account| book.put(account))?;
        Ok(book)
    }

    /// Takes an entry in.
    pub(super) fn put(&mut self, Account { kind, id, body }: Account) -> Result<(), StoreError> {
        match kind {
            AccountKind::User => drop(self.users.insert(id, parse(&body)?)),
            AccountKind::Group => drop(self.groups.insert(id, parse(&body)?)),
            AccountKind::Token => drop(self.tokens.insert(id, parse(&body)?)),
            AccountKind::SignIn => drop(self.sign_ins.insert(id, parse(&body)?)),
        }
        Ok(())
    }

    /// Lets go of an entry.
    pub(super) fn remove(&mut self, kind: AccountKind, id: &str) {
        match kind {
            AccountKind::User => drop(self.users.remove(id)),
            AccountKind::Group => drop(self.groups.remove(id)),
            AccountKind::Token => drop(self.tokens.remove(id)),
            AccountKind::SignIn => drop(self.sign_ins.remove(id)),
        }
    }

    /// What a user may do: their own grants and those of their groups.
    pub(super) fn grants(&self, user: &str) -> Grants {
        let mut grants = Grants::default();
        let Some(Kept { entry, .. }) = self.users.get(user).filter(|kept| !kept.entry.disabled) else {
            return grants;
        };
        entry.grant(&mut grants);
        let groups = entry.groups.iter().filter_map(|group| self.groups.get(group));
        groups.for_each(|group| group.entry.grant(&mut grants));
        grants
    }

    /// The tokens and sign-ins of a user.
    pub(super) fn secrets_of(&self, user: &str) -> Vec<(AccountKind, String)> {
        let tokens = self.tokens.iter().filter(|(_, token)| token.user == user);
        let sign_ins = self.sign_ins.iter().filter(|(_, sign_in)| sign_in.user == user);
        tokens
            .map(|(id, _)| (AccountKind::Token, id.clone()))
            .chain(sign_ins.map(|(id, _)| (AccountKind::SignIn, id.clone())))
            .collect()
    }

    /// Tokens whose time was up long enough ago that nobody wonders any more.
    pub(super) fn expired(&self, now: Millis) -> Vec<String> {
        let over = self.tokens.iter().filter(|(_, token)| token.expires_at + 30 * DAY_MS < now);
        over.map(|(id, _)| id.clone()).collect()
    }

    /// Sign-ins whose time is up.
    pub(super) fn over(&self, now: Millis, lasting: Lasting) -> Vec<String> {
        let over = self.sign_ins.iter().filter(|(_, sign_in)| sign_in.is_over(now, lasting));
        over.map(|(id, _)| id.clone()).collect()
    }
}

impl SignIn {
    pub(super) fn is_over(&self, now: Millis, lasting: Lasting) -> bool {
        now - self.seen_at >= lasting.idle || now - self.created_at >= lasting.most
    }
}

fn parse<T: DeserializeOwned>(body: &str) -> Result<T, StoreError> {
    serde_json::from_str(body)
        .map_err(|error| StoreError::Corrupt(format!("an account cannot be read: {error}")))
}
