//! Grants: which tools a user may call, and which rights they have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde::{Deserialize, Serialize};
use steprail_core::pattern;
use steprail_core::run::Millis;
use steprail_store::{Principal, Right};

use crate::ports::{Authorizer, BoxFuture};

/// The tools and rights of one user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// Patterns of tool names: `crm__read_*`, `git__*`, `*`.
    pub tools: Vec<String>,
    /// Rights of the user.
    pub may: BTreeSet<Right>,
    /// Groups of the user, which rules of the policy can name.
    pub groups: Vec<String>,
}

impl Grants {
    /// All tools and all rights.
    pub fn all() -> Self {
        Self { tools: vec!["*".to_owned()], may: Right::ALL.into(), groups: Vec::new() }
    }

    fn has_tool(&self, tool: &str) -> bool {
        self.tools.iter().any(|pattern| pattern::matches(pattern, tool))
    }
}

/// Allows everything to every user: for programs with a single user.
pub(crate) struct AllowAll;

impl Authorizer for AllowAll {
    fn may_call<'a>(&'a self, _: &'a Principal, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// An [`Authorizer`] with a table of users and their grants, and of tokens. Changes apply from the next call. Clones share
/// the tables.
#[derive(Debug, Clone, Default)]
pub struct Access(Arc<RwLock<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    users: BTreeMap<String, Grants>,
    /// Names of groups, also of those without users.
    groups: BTreeSet<String>,
    /// When tokens expire, by their ids.
    tokens: HashMap<String, Millis>,
}

impl Access {
    /// A table with these users. Users that are not in the table have no grants.
    pub fn new(users: BTreeMap<String, Grants>) -> Self {
        Self(Arc::new(RwLock::new(Tables { users, ..Tables::default() })))
    }

    /// Replaces the grants of a user.
    pub fn grant(&self, user: impl Into<String>, grants: Grants) {
        self.write().users.insert(user.into(), grants);
    }

    /// Removes all grants of a user. The user stays known, so that their definitions call no more tools.
    pub fn revoke(&self, user: &str) {
        self.write().users.insert(user.to_owned(), Grants::default());
    }

    /// Adds a group, whose name then has to be distinguished from that of a user.
    pub fn add_group(&self, name: impl Into<String>) {
        self.write().groups.insert(name.into());
    }

    /// Removes a group.
    pub fn remove_group(&self, name: &str) {
        self.write().groups.remove(name);
    }

    /// Adds a token, or changes when it expires.
    pub fn add_token(&self, id: impl Into<String>, expires_at: Millis) {
        self.write().tokens.insert(id.into(), expires_at);
    }

    /// Revokes a token. Runs that it started make no further calls, and its schedules start no further runs.
    pub fn revoke_token(&self, id: &str) {
        self.write().tokens.remove(id);
    }

    /// The users who have a right.
    pub fn holders(&self, right: Right) -> Vec<String> {
        let tables = self.tables();
        let holders = tables.users.iter().filter(|(_, grants)| grants.may.contains(&right));
        holders.map(|(user, _)| user.clone()).collect()
    }

    /// The names of all users.
    pub fn users(&self) -> Vec<String> {
        self.tables().users.keys().cloned().collect()
    }

    /// The names of all groups.
    pub fn all_groups(&self) -> Vec<String> {
        let tables = self.tables();
        let of_users = tables.users.values().flat_map(|grants| grants.groups.iter().cloned());
        let all: BTreeSet<String> = tables.groups.iter().cloned().chain(of_users).collect();
        all.into_iter().collect()
    }

    /// The users of a group.
    pub fn members(&self, group: &str) -> Vec<String> {
        let tables = self.tables();
        let members =
            tables.users.iter().filter(|(_, grants)| grants.groups.iter().any(|name| name == group));
        members.map(|(user, _)| user.clone()).collect()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, user: &Principal, query: impl FnOnce(&Grants) -> T) -> Option<T> {
        self.tables().users.get(&user.id).map(query)
    }
}

impl Authorizer for Access {
    fn may_call<'a>(&'a self, principal: &'a Principal, tool: &'a str) -> BoxFuture<'a, Result<(), String>> {
        let is_granted = self.read(principal, |grants| grants.has_tool(tool)) == Some(true);
        let denied = || format!("{} may not call `{tool}`", principal.id);
        Box::pin(std::future::ready(if is_granted { Ok(()) } else { Err(denied()) }))
    }

    fn may(&self, principal: &Principal, right: Right) -> Result<(), String> {
        match self.read(principal, |grants| grants.may.contains(&right)) {
            Some(true) => Ok(()),
            _ => Err(format!(
                "{} may not {}: the right `{right}` ({}) is missing",
                principal.id,
                right.purpose(),
                right.key()
            )),
        }
    }

    fn token_expiry(&self, token: &str) -> Option<Millis> {
        self.tables().tokens.get(token).copied()
    }

    fn groups(&self, user: &str) -> Vec<String> {
        self.tables().users.get(user).map(|grants| grants.groups.clone()).unwrap_or_default()
    }

    fn tools(&self, principal: &Principal) -> Option<Vec<String>> {
        Some(self.read(principal, |grants| grants.tools.clone()).unwrap_or_default())
    }

    fn is_ambiguous(&self, name: &str) -> bool {
        let tables = self.tables();
        let is_group = |grants: &Grants| grants.groups.iter().any(|group| group == name);
        tables.users.contains_key(name)
            && (tables.groups.contains(name) || tables.users.values().any(is_group))
    }

    fn author_tools(&self, author: &str) -> Option<Vec<String>> {
        self.tables().users.get(author).map(|grants| grants.tools.clone())
    }
}
