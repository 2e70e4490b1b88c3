//! Secrets on disk: encryption, concurrent changes, missing and wrong keys, limits.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use steprail_mcp::{Secret, SecretScope, SecretStore};
use tempfile::TempDir;

use super::{SCOPE_SECRETS, Vault};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A new vault, as in another process.
    fn vault(&self) -> Vault {
        Vault::new(self.path("secrets.json"), self.path("secrets.key"))
    }
}

fn ann() -> SecretScope {
    SecretScope::User("ann".to_owned())
}

fn value(vault: &Vault, scope: &SecretScope, name: &str) -> Option<String> {
    vault.get(scope, name).expect("read").map(|secret| secret.expose().to_owned())
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text")
}

#[test]
fn secrets_are_encrypted_and_separated_by_scope() {
    let folder = Folder::new();
    let vault = folder.vault();
    assert_eq!(value(&vault, &ann(), "token"), None);
    assert!(!folder.path("secrets.key").exists(), "reading does not create a key");
    vault.set(&ann(), "token", &Secret::new("anns s3cret")).expect("stored");
    vault.set(&SecretScope::Shared, "token", &Secret::new("shared s3cret")).expect("stored");
    vault.set(&ann(), "oauth/crm", &Secret::new("{}")).expect("stored");
    let other = folder.vault();
    assert_eq!(value(&other, &ann(), "token").as_deref(), Some("anns s3cret"));
    assert_eq!(value(&other, &SecretScope::Shared, "token").as_deref(), Some("shared s3cret"));
    assert_eq!(value(&other, &SecretScope::User("bob".to_owned()), "token"), None);
    let names: Vec<String> = other.list(&ann()).expect("a list").into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["token"]);
    let stored = text(&folder.path("secrets.json"));
    assert!(!stored.contains("s3cret"), "{stored}");
    for name in ["secrets.json", "secrets.key", "secrets.lock"] {
        let mode = std::fs::metadata(folder.path(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn changes_are_visible_to_other_vaults() {
    let folder = Folder::new();
    let (one, other) = (folder.vault(), folder.vault());
    one.set(&ann(), "a", &Secret::new("first value")).expect("stored");
    other.set(&ann(), "b", &Secret::new("second value")).expect("stored");
    one.set(&ann(), "a", &Secret::new("third value")).expect("stored");
    assert_eq!(
        (value(&other, &ann(), "a"), value(&one, &ann(), "b")),
        (Some("third value".into()), Some("second value".into()))
    );
    assert_eq!((other.remove(&ann(), "a"), one.remove(&ann(), "a")), (Ok(true), Ok(false)));
    one.remove_user("ann").expect("removed");
    assert_eq!(value(&other, &ann(), "b"), None);
}

#[test]
fn concurrent_changes_are_not_lost() {
    let folder = Folder::new();
    std::thread::scope(|threads| {
        for n in 0..8 {
            let vault = folder.vault();
            threads.spawn(move || {
                vault.set(&ann(), &format!("n{n}"), &Secret::new("value of a thread")).expect("stored");
            });
        }
    });
    assert_eq!(folder.vault().list(&ann()).expect("a list").len(), 8);
}

#[test]
fn missing_or_wrong_key_is_reported() {
    let folder = Folder::new();
    folder.vault().set(&ann(), "token", &Secret::new("s3cret")).expect("stored");
    let (key, saved) = (folder.path("secrets.key"), folder.path("saved"));
    std::fs::rename(&key, &saved).expect("moved");
    let missing = folder.vault().get(&ann(), "token").expect_err("no key").to_string();
    assert!(missing.contains("secrets.key is missing"), "{missing}");
    let before = text(&folder.path("secrets.json"));
    assert!(folder.vault().set(&ann(), "token", &Secret::new("another s3cret")).is_err());
    assert!(!key.exists(), "a lost key is not replaced");
    // The key of another directory.
    let other = Folder::new();
    other.vault().set(&ann(), "token", &Secret::new("another s3cret")).expect("stored");
    std::fs::copy(other.path("secrets.key"), &key).expect("copied");
    let wrong = folder.vault().check().expect_err("another key").to_string();
    assert!(wrong.contains("does not match"), "{wrong}");
    assert_eq!(text(&folder.path("secrets.json")), before);
    std::fs::rename(&saved, &key).expect("moved back");
    assert_eq!(value(&folder.vault(), &ann(), "token").as_deref(), Some("s3cret"));
}

#[test]
fn ciphertext_cannot_be_moved_to_another_user() {
    let folder = Folder::new();
    let vault = folder.vault();
    vault.set(&ann(), "token", &Secret::new("s3cret")).expect("stored");
    let file = folder.path("secrets.json");
    std::fs::write(&file, text(&file).replace("\"ann\"", "\"eve\"")).expect("written");
    let moved = vault.get(&SecretScope::User("eve".to_owned()), "token").expect_err("not eve's").to_string();
    assert!(moved.contains("damaged"), "{moved}");
    std::fs::write(&file, &text(&file)[..40]).expect("cut");
    assert!(vault.check().expect_err("cut").to_string().contains("is damaged"));
}

#[test]
fn interrupted_write_keeps_the_old_file() {
    let folder = Folder::new();
    folder.vault().set(&ann(), "token", &Secret::new("s3cret")).expect("stored");
    // A crash during a write leaves a temporary file and a lock file that is not locked.
    std::fs::write(folder.path(".tmpXYZ"), "{ \"version\": 1").expect("written");
    let vault = folder.vault();
    vault.set(&ann(), "next", &Secret::new("next s3cret")).expect("stored");
    assert_eq!(value(&vault, &ann(), "token").as_deref(), Some("s3cret"));
    // A crash after the key was created leaves a key without secrets.
    std::fs::remove_file(folder.path("secrets.json")).expect("removed");
    vault.set(&ann(), "token", &Secret::new("s3cret again")).expect("stored");
    assert_eq!(value(&folder.vault(), &ann(), "token").as_deref(), Some("s3cret again"));
}

#[test]
fn size_and_number_of_secrets_are_limited() {
    let folder = Folder::new();
    let vault = folder.vault();
    let large = Secret::new("x".repeat(steprail_mcp::limits::SECRET_BYTES + 1));
    assert!(vault.set(&ann(), "token", &large).is_err());
    let mut contents = super::Contents::default();
    let sealed = || super::Sealed { set_at: 0, sealed: String::new() };
    for n in 0..SCOPE_SECRETS {
        contents.put(&ann(), &n.to_string(), sealed()).expect("room");
    }
    assert!(contents.put(&ann(), "more", sealed()).is_err());
    assert!(contents.put(&ann(), "0", sealed()).is_ok(), "an existing secret can be replaced");
}
