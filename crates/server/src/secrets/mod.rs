//! Secrets of a data directory, encrypted at rest under a key file.

mod file;
mod key;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use steprail_mcp::{Secret, SecretEntry, SecretError, SecretScope, SecretStore, limits};

use crate::config::Config;
use crate::daemon::Home;
use file::{Contents, Named, Sealed, Stamp};
use key::Cipher;

/// Secrets of one user, or shared ones.
const SCOPE_SECRETS: usize = 1_000;
/// Secrets of all users together.
const SECRETS: usize = 20_000;
/// The text that tells whether a key fits.
const CHECK: &str = "steprail";

/// The secrets of a data directory. A clone is another handle to the same.
#[derive(Clone)]
pub(crate) struct Vault(Arc<Inner>);

struct Inner {
    file: PathBuf,
    key: PathBuf,
    state: Mutex<State>,
}

/// What was last read.
#[derive(Default)]
struct State {
    stamp: Option<Stamp>,
    contents: Contents,
    cipher: Option<Cipher>,
}

impl Vault {
    /// The secrets of a data directory.
    pub(crate) fn of(home: &Home, config: &Config) -> Self {
        let key = config.store.secrets_key.as_ref().map_or_else(|| home.secrets_key(), |file| file.0.clone());
        Self::new(home.secrets(), key)
    }

    /// The secrets in a file, under the key in another one. Neither has to exist.
    pub(crate) fn new(file: PathBuf, key: PathBuf) -> Self {
        Self(Arc::new(Inner { file, key, state: Mutex::default() }))
    }

    /// Checks that the secrets can be read.
    pub(crate) fn check(&self) -> Result<(), SecretError> {
        self.read(|_| Ok(()))
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> Result<T, String>) -> Result<T, SecretError> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.refresh(&mut state).and_then(|()| look(&state)).map_err(SecretError)
    }

    /// Changes the file. Other processes with the same data directory wait.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Contents, &Cipher) -> Result<T, String>,
    ) -> Result<T, SecretError> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.change(&mut state, change).map_err(SecretError)
    }
}

impl Inner {
    /// Reads the file again if it has changed.
    fn refresh(&self, state: &mut State) -> Result<(), String> {
        let told = |error| format!("{} cannot be read: {error}", self.file.display());
        let stamp = file::stamp(&self.file).map_err(told)?;
        let Some(now) = stamp else {
            *state = State::default();
            return Ok(());
        };
        if state.stamp == Some(now) {
            return Ok(());
        }
        let contents = file::read(&self.file)?;
        let cipher = Cipher::read(&self.key)?.ok_or_else(|| {
            format!(
                "the key file {} is missing, so the secrets cannot be read; restore it, or delete {} and set the \
                 secrets again",
                self.key.display(),
                self.file.display()
            )
        })?;
        if cipher.open(&check_bound(), &contents.check).as_deref() != Some(CHECK) {
            return Err(format!(
                "the key file {} is not the one that {} was written with; restore the right one",
                self.key.display(),
                self.file.display()
            ));
        }
        *state = State { stamp: Some(now), contents, cipher: Some(cipher) };
        Ok(())
    }

    fn change<T>(
        &self,
        state: &mut State,
        change: impl FnOnce(&mut Contents, &Cipher) -> Result<T, String>,
    ) -> Result<T, String> {
        let _lock = self.lock()?;
        self.refresh(state)?;
        let cipher = match state.cipher.take() {
            Some(cipher) => cipher,
            None => match Cipher::read(&self.key)? {
                Some(cipher) => cipher,
                None => Cipher::create(&self.key)?,
            },
        };
        let mut contents = state.contents.clone();
        // What was read counts only until the file is written: the next reader reads it again.
        *state = State::default();
        if contents.check.is_empty() {
            contents.version = file::VERSION;
            contents.check = cipher.seal(&check_bound(), CHECK)?;
        }
        let changed = change(&mut contents, &cipher)?;
        file::write(&self.file, &contents)?;
        Ok(changed)
    }

    /// Excludes other processes until the file is dropped.
    fn lock(&self) -> Result<std::fs::File, String> {
        let path = self.file.with_extension("lock");
        let told = |error: std::io::Error| format!("{} cannot be locked: {error}", path.display());
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(told)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| told(error.into()))?;
        Ok(lock)
    }
}

impl Contents {
    fn named(&self, scope: &SecretScope) -> Option<&Named> {
        match scope {
            SecretScope::Shared => Some(&self.shared),
            SecretScope::User(user) => self.users.get(user),
        }
    }

    fn put(&mut self, scope: &SecretScope, name: &str, sealed: Sealed) -> Result<(), String> {
        let all = self.shared.len() + self.users.values().map(Named::len).sum::<usize>();
        let named = match scope {
            SecretScope::Shared => &mut self.shared,
            SecretScope::User(user) => self.users.entry(user.clone()).or_default(),
        };
        if !named.contains_key(name) && (named.len() >= SCOPE_SECRETS || all >= SECRETS) {
            return Err("there are too many secrets; remove some".to_owned());
        }
        named.insert(name.to_owned(), sealed);
        Ok(())
    }

    fn take(&mut self, scope: &SecretScope, name: &str) -> bool {
        match scope {
            SecretScope::Shared => self.shared.remove(name).is_some(),
            SecretScope::User(user) => {
                let Some(named) = self.users.get_mut(user) else { return false };
                let was_there = named.remove(name).is_some();
                if named.is_empty() {
                    self.users.remove(user);
                }
                was_there
            }
        }
    }
}

impl SecretStore for Vault {
    fn get(&self, scope: &SecretScope, name: &str) -> Result<Option<Secret>, SecretError> {
        self.read(|state| {
            let found = state.contents.named(scope).and_then(|named| named.get(name));
            let (Some(found), Some(cipher)) = (found, &state.cipher) else { return Ok(None) };
            let value = cipher.open(&bound(scope, name), &found.sealed);
            let value =
                value.ok_or_else(|| format!("the stored secret `{name}` is damaged; set it again"))?;
            Ok(Some(Secret::new(value)))
        })
    }

    fn set(&self, scope: &SecretScope, name: &str, value: &Secret) -> Result<(), SecretError> {
        if value.expose().len() > limits::SECRET_BYTES {
            return Err(SecretError(format!("a secret has at most {} bytes", limits::SECRET_BYTES)));
        }
        self.change(|contents, cipher| {
            let sealed = cipher.seal(&bound(scope, name), value.expose())?;
            let set_at = jiff::Timestamp::now().as_millisecond();
            contents.put(scope, name, Sealed { set_at, sealed })
        })
    }

    fn remove(&self, scope: &SecretScope, name: &str) -> Result<bool, SecretError> {
        if self.read(|state| Ok(state.contents.named(scope).is_none_or(|named| !named.contains_key(name))))? {
            return Ok(false);
        }
        self.change(|contents, _| Ok(contents.take(scope, name)))
    }

    fn list(&self, scope: &SecretScope) -> Result<Vec<SecretEntry>, SecretError> {
        self.read(|state| {
            let named = state.contents.named(scope).into_iter().flatten();
            let own = named.filter(|(name, _)| steprail_mcp::is_secret_name(name));
            Ok(own.map(|(name, sealed)| SecretEntry { name: name.clone(), set_at: sealed.set_at }).collect())
        })
    }

    fn remove_user(&self, user: &str) -> Result<(), SecretError> {
        let has_some = self.read(|state| Ok(state.contents.users.contains_key(user)))?;
        if !has_some {
            return Ok(());
        }
        self.change(|contents, _| Ok(contents.users.remove(user))).map(drop)
    }
}

/// What a ciphertext is bound to, so that it cannot be moved to another name or user.
fn bound(scope: &SecretScope, name: &str) -> Vec<u8> {
    let user = match scope {
        SecretScope::Shared => None,
        SecretScope::User(user) => Some(user),
    };
    serde_json::json!(["steprail secret 1", user, name]).to_string().into_bytes()
}

fn check_bound() -> Vec<u8> {
    b"steprail secrets 1".to_vec()
}

#[cfg(test)]
mod tests;
