//! The port to the secret store. The binary implements it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::{ProcessEnv, Variables, is_name};
use crate::limits::SECRET_NAME;
use crate::redact;

/// The owner of a secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretScope {
    /// Used by all users, set by operators.
    Shared,
    /// Used by one user, identified by id.
    User(String),
}

impl SecretScope {
    /// The scope of a user, or the shared one.
    pub fn of(user: Option<&str>) -> Self {
        user.map_or(Self::Shared, |user| Self::User(user.to_owned()))
    }
}

/// The value of a secret. `Debug` redacts it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

/// A stored secret without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretEntry {
    /// Name of the secret.
    pub name: String,
    /// When it was set, in milliseconds since the epoch.
    pub set_at: i64,
}

/// Why secrets cannot be read or stored, and what to do. Contains no secret values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretError(pub String);

impl fmt::Display for SecretError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for SecretError {}

/// Stores secrets, encrypted at rest. Methods may block on disk I/O, and `get` on a command.
pub trait SecretStore: Send + Sync {
    /// Reads a secret.
    fn get(&self, scope: &SecretScope, name: &str) -> Result<Option<Secret>, SecretError>;
    /// Stores a secret durably and replaces an older value.
    fn set(&self, scope: &SecretScope, name: &str, value: &Secret) -> Result<(), SecretError>;
    /// Deletes a secret durably. Returns whether it existed.
    fn remove(&self, scope: &SecretScope, name: &str) -> Result<bool, SecretError>;
    /// Lists the secrets of a scope that users named ([`is_secret_name`]), without logins.
    fn list(&self, scope: &SecretScope) -> Result<Vec<SecretEntry>, SecretError>;
    /// The servers that may receive a shared secret in arguments of calls. By default none: only the entries of servers can
    /// use it.
    fn receivers(&self, name: &str) -> Vec<String> {
        let _ = name;
        Vec::new()
    }
    /// Whether a shared secret exists, as far as that is known without reading its value.
    fn exists(&self, name: &str) -> Result<bool, SecretError> {
        Ok(self.get(&SecretScope::Shared, name)?.is_some())
    }
    /// Deletes every secret and login of a user. Another user may get the same id later.
    fn remove_user(&self, user: &str) -> Result<(), SecretError>;
}

/// Whether a user may choose this name for a secret. Reserved names, such as those of OAuth logins, contain a slash.
pub fn is_secret_name(name: &str) -> bool {
    is_name(name) && name.len() <= SECRET_NAME
}

/// Variables from the environment and the secret store, for one user or for shared connections.
pub(crate) struct SecretVariables {
    store: Arc<dyn SecretStore>,
    user: Option<String>,
}

impl SecretVariables {
    pub(crate) fn new(store: Arc<dyn SecretStore>, user: Option<&str>) -> Self {
        Self { store, user: user.map(str::to_owned) }
    }

    fn get(&self, scope: &SecretScope, name: &str) -> Option<String> {
        match self.store.get(scope, name) {
            Ok(found) => found.map(|secret| {
                redact::learn(name, secret.expose());
                secret.expose().to_owned()
            }),
            Err(error) => {
                tracing::error!(%error, name, "cannot read the secret");
                None
            }
        }
    }
}

impl Variables for SecretVariables {
    fn env(&self, name: &str) -> Option<String> {
        ProcessEnv.env(name)
    }

    fn user(&self, name: &str) -> Option<String> {
        self.get(&SecretScope::User(self.user.clone()?), name)
    }

    fn secret(&self, name: &str) -> Option<String> {
        self.get(&SecretScope::Shared, name)
    }
}

/// Secrets that last as long as the process, for embedding programs without a store of their own, and for tests.
#[derive(Default)]
pub struct MemorySecrets {
    secrets: Mutex<BTreeMap<(SecretScope, String), (Secret, i64)>>,
    /// The servers that may receive a secret in arguments, by the name of the secret.
    receivers: BTreeMap<String, Vec<String>>,
}

impl MemorySecrets {
    fn secrets(&self) -> MutexGuard<'_, BTreeMap<(SecretScope, String), (Secret, i64)>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a server receive a shared secret in arguments.
    #[must_use]
    pub fn receiver(mut self, name: &str, server: &str) -> Self {
        self.receivers.entry(name.to_owned()).or_default().push(server.to_owned());
        self
    }
}

impl SecretStore for MemorySecrets {
    fn get(&self, scope: &SecretScope, name: &str) -> Result<Option<Secret>, SecretError> {
        Ok(self.secrets().get(&(scope.clone(), name.to_owned())).map(|(secret, _)| secret.clone()))
    }

    fn set(&self, scope: &SecretScope, name: &str, value: &Secret) -> Result<(), SecretError> {
        let set_at = jiff::Timestamp::now().as_millisecond();
        self.secrets().insert((scope.clone(), name.to_owned()), (value.clone(), set_at));
        Ok(())
    }

    fn remove(&self, scope: &SecretScope, name: &str) -> Result<bool, SecretError> {
        Ok(self.secrets().remove(&(scope.clone(), name.to_owned())).is_some())
    }

    fn list(&self, scope: &SecretScope) -> Result<Vec<SecretEntry>, SecretError> {
        let secrets = self.secrets();
        let own = secrets.iter().filter(|((of, name), _)| of == scope && is_secret_name(name));
        Ok(own.map(|((_, name), (_, set_at))| SecretEntry { name: name.clone(), set_at: *set_at }).collect())
    }

    fn receivers(&self, name: &str) -> Vec<String> {
        self.receivers.get(name).cloned().unwrap_or_default()
    }

    fn remove_user(&self, user: &str) -> Result<(), SecretError> {
        let scope = SecretScope::User(user.to_owned());
        self.secrets().retain(|(of, _), _| *of != scope);
        Ok(())
    }
}
