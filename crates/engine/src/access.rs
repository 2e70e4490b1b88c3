//! Rights: which tools a user may call, and what else they may do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use steprail_core::pattern;
use steprail_store::{Principal, Right};

use crate::ports::{Authorizer, BoxFuture};

/// What one user may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grants {
    /// Tools, as patterns: `crm__read_*`, `git__*`, `*`.
    pub tools: Vec<String>,
    /// Rights.
    pub may: BTreeSet<Right>,
}

impl Grants {
    /// Everything.
    pub fn all() -> Self {
        Self { tools: vec!["*".to_owned()], may: Right::ALL.into() }
    }

    fn has_tool(&self, tool: &str) -> bool {
        self.tools.iter().any(|pattern| pattern::matches(pattern, tool))
    }
}

/// Everybody may do everything: for programs with a single user.
pub(crate) struct AllowAll;

impl Authorizer for AllowAll {
    fn may_call<'a>(&'a self, _: &'a Principal, _: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Users with their grants. What changes here counts from the next call on. A clone is the same list.
#[derive(Debug, Clone, Default)]
pub struct Access(Arc<RwLock<BTreeMap<String, Grants>>>);

impl Access {
    /// These users and nobody else.
    pub fn new(users: BTreeMap<String, Grants>) -> Self {
        Self(Arc::new(RwLock::new(users)))
    }

    /// Gives a user these grants, in place of those before.
    pub fn grant(&self, user: impl Into<String>, grants: Grants) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(user.into(), grants);
    }

    /// Takes everything from a user.
    pub fn revoke(&self, user: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(user);
    }

    fn of<T>(&self, user: &Principal, ask: impl FnOnce(&Grants) -> T) -> Option<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&user.id).map(ask)
    }
}

impl Authorizer for Access {
    fn may_call<'a>(&'a self, principal: &'a Principal, tool: &'a str) -> BoxFuture<'a, Result<(), String>> {
        let granted = self.of(principal, |grants| grants.has_tool(tool));
        let refused = || format!("{} may not call `{tool}`", principal.id);
        let answer = if granted == Some(true) { Ok(()) } else { Err(refused()) };
        Box::pin(std::future::ready(answer))
    }

    fn may(&self, principal: &Principal, right: Right) -> Result<(), String> {
        match self.of(principal, |grants| grants.may.contains(&right)) {
            Some(true) => Ok(()),
            _ => Err(format!(
                "{} may not {}: the right `{right}` ({}) is missing",
                principal.id,
                right.purpose(),
                right.key()
            )),
        }
    }

    fn tools(&self, principal: &Principal) -> Option<Vec<String>> {
        Some(self.of(principal, |grants| grants.tools.clone()).unwrap_or_default())
    }
}
