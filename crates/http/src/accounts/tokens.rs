//! API tokens: created, authenticated, revoked. Only hashes are stored.

use serde::{Deserialize, Serialize};
use steprail_core::run::Millis;
use steprail_engine::{AccountKind, Error, Principal, Right, TokenScope, User};

use super::cache::AccountCache;
use super::secret::{Secret, SecretHash};
use super::{ACCOUNTS_PER_KIND, Accounts, AuthError, DAY_MS, check_capacity, need_in_person};

/// The default and the maximum validity of a token, in days.
pub(crate) const TOKEN_DAYS: (u32, u32) = (90, 366);

/// The stored part of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    /// The user whom the token authenticates.
    pub user: String,
    /// Its purpose, for people.
    pub name: String,
    pub hash: SecretHash,
    /// Whether its holder is an agent of the user instead of the user in person.
    pub agent: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TokenScope>,
    pub created_at: Millis,
    pub expires_at: Millis,
}

/// A token to create.
#[derive(Debug, Clone)]
pub(crate) struct NewToken {
    pub user: String,
    pub name: String,
    pub days: u32,
    pub agent: bool,
    pub scope: Option<TokenScope>,
}

impl Accounts {
    /// The principal of a token.
    pub(crate) fn by_token(&self, text: &str) -> Result<Principal, AuthError> {
        let secret = Secret::parse(text).ok_or(AuthError::Unknown)?;
        let token = self.cache().tokens.get(&secret.id).filter(|token| token.hash.matches(&secret)).cloned();
        let token = token.ok_or(AuthError::Unknown)?;
        if token.expires_at <= self.engine.now() {
            return Err(AuthError::Expired);
        }
        let principal = self.principal(&token.user).ok_or(AuthError::NoUser)?;
        let (agent, id) = (token.agent, Some(secret.id.into()));
        Ok(Principal { agent, agent_only: agent, scope: token.scope, token: id, ..principal })
    }

    /// Tokens by age: those of all users for managers, otherwise only the caller's.
    pub(crate) fn tokens(&self, by: &User) -> Vec<(String, Token)> {
        let (sees_all, now) = (by.may(Right::Manage), self.engine.now());
        let cache = self.cache();
        let visible = cache.tokens.iter().filter(|(_, token)| {
            AccountCache::is_listed(token, now) && (sees_all || token.user == by.principal().id)
        });
        let mut tokens: Vec<_> = visible.map(|(id, token)| (id.clone(), token.clone())).collect();
        tokens.sort_by(|(left, l), (right, r)| (l.created_at, left).cmp(&(r.created_at, right)));
        tokens
    }

    /// Creates a token. Returns its id, what is stored of it, and its text, which cannot be read again.
    pub(crate) async fn create_token(
        &self,
        by: &User,
        new: NewToken,
    ) -> Result<(String, Token, String), Error> {
        need_in_person(by)?;
        by.require_presence()?;
        if new.user != by.principal().id {
            by.require(Right::Manage)?;
        }
        if self.principal(&new.user).is_none() {
            return Err(Error::NotFound(format!("there is no active user `{}`", new.user)));
        }
        if !(1..=TOKEN_DAYS.1).contains(&new.days) {
            return Err(Error::BadInput(format!("a token is valid for 1 to {} days", TOKEN_DAYS.1)));
        }
        let secret = Secret::generate().map_err(Error::BadInput)?;
        let created_at = self.engine.now();
        let token = Token {
            user: new.user,
            name: new.name,
            hash: secret.hash(),
            agent: new.agent,
            scope: new.scope,
            created_at,
            expires_at: created_at + Millis::from(new.days) * DAY_MS,
        };
        let _writing = self.writing.lock().await;
        let is_full = self.cache().tokens.len() >= ACCOUNTS_PER_KIND;
        let purgeable = self.cache().purgeable_tokens(created_at, is_full);
        for id in purgeable {
            self.delete(AccountKind::Token, &id, None).await?;
        }
        check_capacity(self.cache().tokens.len(), false, "tokens")?;
        self.put(AccountKind::Token, &secret.id, &token, Some(by.principal())).await?;
        Ok((secret.id.clone(), token, secret.text()))
    }

    /// Revokes a token, and ends its browser sessions and schedules. Its streams end, and its runs make no further calls.
    pub(crate) async fn revoke_token(&self, by: &User, id: &str) -> Result<(), Error> {
        need_in_person(by)?;
        by.require_presence()?;
        let _writing = self.writing.lock().await;
        let user = self.cache().tokens.get(id).map(|token| token.user.clone());
        match user {
            Some(user) if user == by.principal().id || by.may(Right::Manage) => {}
            _ => return Err(Error::NotFound(format!("there is no token `{id}`"))),
        }
        self.delete(AccountKind::Token, id, Some(by.principal())).await?;
        let sessions = self.cache().sessions_of_token(id);
        for session in sessions {
            self.delete(AccountKind::SignIn, &session, Some(by.principal())).await?;
        }
        let is_of_token = |principal: &Principal| principal.token.as_deref() == Some(id);
        self.engine.end_schedules("the token that created the schedule was revoked", is_of_token).await?;
        Ok(())
    }
}
