//! Secrets of a data directory, encrypted at rest with the key of a key file.

mod file;
mod key;
mod source;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use steprail_mcp::{Secret, SecretEntry, SecretError, SecretScope, SecretStore, limits};

use crate::config::Config;
use crate::config::secret_source::{Origin, SecretSource};
use crate::daemon::DataDir;
use file::{Contents, Fingerprint, Sealed, SealedByName};
use key::Cipher;

/// The maximum number of secrets of one user, and of shared secrets.
const SCOPE_SECRETS: usize = 1_000;
/// The maximum number of secrets in total.
const SECRETS: usize = 20_000;
/// The known plaintext of `Contents::check`.
const CHECK: &str = "steprail";

/// A handle to the secrets of a data directory. Clones share it.
#[derive(Clone)]
pub(crate) struct Vault(Arc<Inner>);

struct Inner {
    file: PathBuf,
    key: PathBuf,
    /// Secrets whose value or receivers are configured.
    sources: BTreeMap<String, SecretSource>,
    state: Mutex<State>,
}

/// The file as last read; empty if it does not exist.
#[derive(Default)]
struct State {
    fingerprint: Option<Fingerprint>,
    contents: Contents,
    cipher: Option<Cipher>,
}

impl Vault {
    /// The secrets of a data directory.
    pub(crate) fn of(data_dir: &DataDir, config: &Config) -> Self {
        let key =
            config.store.secrets_key.as_ref().map_or_else(|| data_dir.secrets_key(), |file| file.0.clone());
        let sources = config.store.secrets.0.clone();
        Self(Arc::new(Inner { file: data_dir.secrets(), key, sources, state: Mutex::default() }))
    }

    /// The secrets of a file, encrypted with the key of another file. Neither has to exist.
    pub(crate) fn new(file: PathBuf, key: PathBuf) -> Self {
        Self(Arc::new(Inner { file, key, sources: BTreeMap::new(), state: Mutex::default() }))
    }

    /// Checks that the file can be read and decrypted.
    pub(crate) fn check(&self) -> Result<(), SecretError> {
        self.read(|_| Ok(()))
    }

    /// The configured origin of a secret, if it is not the encrypted store.
    fn origin(&self, scope: &SecretScope, name: &str) -> Option<&Origin> {
        let source = self.0.sources.get(name).filter(|_| *scope == SecretScope::Shared)?;
        Some(&source.origin).filter(|origin| **origin != Origin::Store)
    }

    fn read<T>(&self, query: impl FnOnce(&State) -> Result<T, String>) -> Result<T, SecretError> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.refresh(&mut state).and_then(|()| query(&state)).map_err(SecretError)
    }

    /// Changes the file. Other processes that change it wait.
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
        let failed = |error| format!("cannot read {}: {error}", self.file.display());
        let Some(current) = file::fingerprint(&self.file).map_err(failed)? else {
            *state = State::default();
            return Ok(());
        };
        if state.fingerprint == Some(current) {
            return Ok(());
        }
        let contents = file::read(&self.file)?;
        let cipher = Cipher::read(&self.key)?.ok_or_else(|| {
            format!(
                "the key file {} is missing; restore it, or delete {} and set the secrets again",
                self.key.display(),
                self.file.display()
            )
        })?;
        if cipher.open(&check_data(), &contents.check).as_deref() != Some(CHECK) {
            return Err(format!(
                "the key file {} does not match {}; restore the key that encrypted it",
                self.key.display(),
                self.file.display()
            ));
        }
        *state = State { fingerprint: Some(current), contents, cipher: Some(cipher) };
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
        // The next read must load the file again, also if the write fails halfway.
        *state = State::default();
        if contents.check.is_empty() {
            contents.version = file::VERSION;
            contents.check = cipher.seal(&check_data(), CHECK)?;
        }
        let changed = change(&mut contents, &cipher)?;
        file::write(&self.file, &contents)?;
        Ok(changed)
    }

    /// Locks out other writers until the returned file is dropped.
    fn lock(&self) -> Result<std::fs::File, String> {
        let path = self.file.with_extension("lock");
        let failed = |error: std::io::Error| format!("cannot lock {}: {error}", path.display());
        let mut options = OpenOptions::new();
        let lock =
            options.create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        Ok(lock)
    }
}

impl Contents {
    fn in_scope(&self, scope: &SecretScope) -> Option<&SealedByName> {
        match scope {
            SecretScope::Shared => Some(&self.shared),
            SecretScope::User(user) => self.users.get(user),
        }
    }

    fn put(&mut self, scope: &SecretScope, name: &str, sealed: Sealed) -> Result<(), String> {
        let total = self.shared.len() + self.users.values().map(SealedByName::len).sum::<usize>();
        let secrets = match scope {
            SecretScope::Shared => &mut self.shared,
            SecretScope::User(user) => self.users.entry(user.clone()).or_default(),
        };
        if !secrets.contains_key(name) && (secrets.len() >= SCOPE_SECRETS || total >= SECRETS) {
            return Err(format!(
                "the limit of {SCOPE_SECRETS} secrets per user or {SECRETS} in total is reached; remove some"
            ));
        }
        secrets.insert(name.to_owned(), sealed);
        Ok(())
    }

    fn remove(&mut self, scope: &SecretScope, name: &str) -> bool {
        match scope {
            SecretScope::Shared => self.shared.remove(name).is_some(),
            SecretScope::User(user) => {
                let Some(secrets) = self.users.get_mut(user) else { return false };
                let existed = secrets.remove(name).is_some();
                if secrets.is_empty() {
                    self.users.remove(user);
                }
                existed
            }
        }
    }
}

impl SecretStore for Vault {
    fn get(&self, scope: &SecretScope, name: &str) -> Result<Option<Secret>, SecretError> {
        if let Some(origin) = self.origin(scope, name) {
            return source::read(name, origin);
        }
        self.read(|state| {
            let sealed = state.contents.in_scope(scope).and_then(|secrets| secrets.get(name));
            let (Some(sealed), Some(cipher)) = (sealed, &state.cipher) else { return Ok(None) };
            let value = cipher.open(&associated_data(scope, name), &sealed.sealed);
            let value =
                value.ok_or_else(|| format!("the stored secret `{name}` is damaged; set it again"))?;
            Ok(Some(Secret::new(value)))
        })
    }

    fn set(&self, scope: &SecretScope, name: &str, value: &Secret) -> Result<(), SecretError> {
        if self.origin(scope, name).is_some() {
            let message = format!("the setting `store.secrets` has the source of `{name}`; change it there");
            return Err(SecretError(message));
        }
        if value.expose().len() < limits::SECRET_MIN_BYTES && steprail_mcp::is_secret_name(name) {
            let minimum = limits::SECRET_MIN_BYTES;
            return Err(SecretError(format!(
                "the secret has fewer than {minimum} bytes: such a value occurs by chance and cannot be redacted"
            )));
        }
        if value.expose().len() > limits::SECRET_BYTES {
            return Err(SecretError(format!("the secret has more than {} bytes", limits::SECRET_BYTES)));
        }
        self.change(|contents, cipher| {
            let sealed = cipher.seal(&associated_data(scope, name), value.expose())?;
            let set_at = jiff::Timestamp::now().as_millisecond();
            contents.put(scope, name, Sealed { set_at, sealed })
        })
    }

    fn remove(&self, scope: &SecretScope, name: &str) -> Result<bool, SecretError> {
        if self.read(|state| {
            Ok(state.contents.in_scope(scope).is_none_or(|secrets| !secrets.contains_key(name)))
        })? {
            return Ok(false);
        }
        self.change(|contents, _| Ok(contents.remove(scope, name)))
    }

    fn list(&self, scope: &SecretScope) -> Result<Vec<SecretEntry>, SecretError> {
        self.read(|state| {
            let secrets = state.contents.in_scope(scope).into_iter().flatten();
            let listed = secrets.filter(|(name, _)| steprail_mcp::is_secret_name(name));
            Ok(listed
                .map(|(name, sealed)| SecretEntry { name: name.clone(), set_at: sealed.set_at })
                .collect())
        })
    }

    fn receivers(&self, name: &str) -> Vec<String> {
        self.0.sources.get(name).map(|source| source.servers.clone()).unwrap_or_default()
    }

    fn exists(&self, name: &str) -> Result<bool, SecretError> {
        match self.origin(&SecretScope::Shared, name) {
            Some(origin) => Ok(source::exists(origin)),
            None => self.read(|state| Ok(state.contents.shared.contains_key(name))),
        }
    }

    fn remove_user(&self, user: &str) -> Result<(), SecretError> {
        let has_secrets = self.read(|state| Ok(state.contents.users.contains_key(user)))?;
        if !has_secrets {
            return Ok(());
        }
        self.change(|contents, _| Ok(contents.users.remove(user))).map(drop)
    }
}

/// The associated data of a secret. It binds the ciphertext to its scope and name.
fn associated_data(scope: &SecretScope, name: &str) -> Vec<u8> {
    let user = match scope {
        SecretScope::Shared => None,
        SecretScope::User(user) => Some(user),
    };
    serde_json::json!(["steprail secret 1", user, name]).to_string().into_bytes()
}

/// The associated data of `Contents::check`.
fn check_data() -> Vec<u8> {
    b"steprail secrets 1".to_vec()
}

#[cfg(test)]
mod tests;
