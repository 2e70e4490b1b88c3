//! Encryption with the key of a key file: AES-256-GCM with random nonces.

use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

use crate::key_file::{self, hex, unhex};

/// Encrypts and decrypts with one key.
pub(super) struct Cipher(RandomizedNonceKey);

impl Cipher {
    /// Reads a key file. Returns `None` if it does not exist.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, String> {
        key_file::read(file)?.map(|key| Self::new(&key)).transpose()
    }

    /// Creates a key file. If another process creates it first, that key is used.
    pub(super) fn create(file: &Path) -> Result<Self, String> {
        Self::new(&key_file::create(file)?)
    }

    fn new(key: &[u8]) -> Result<Self, String> {
        RandomizedNonceKey::new(&AES_256_GCM, key)
            .map(Self)
            .map_err(|_| "the key is not valid for AES-256".to_owned())
    }

    /// Encrypts a text with associated data. Returns nonce, ciphertext and tag as hexadecimal digits.
    pub(super) fn seal(&self, associated: &[u8], text: &str) -> Result<String, String> {
        let mut bytes = text.as_bytes().to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::from(associated), &mut bytes);
        let nonce = nonce.map_err(|_| "cannot encrypt the secret".to_owned())?;
        Ok(hex(nonce.as_ref()) + &hex(&bytes))
    }

    /// Decrypts a text; `None` if the key or the associated data differ, or if it was modified.
    pub(super) fn open(&self, associated: &[u8], sealed: &str) -> Option<String> {
        let bytes = unhex(sealed)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = self.0.open_in_place(nonce, Aad::from(associated), &mut sealed).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::Cipher;

    #[test]
    fn decrypts_only_with_the_same_key_and_associated_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        assert!(Cipher::read(&file).expect("read").is_none());
        let cipher = Cipher::create(&file).expect("a key");
        let again = Cipher::create(&file).expect("the same key");
        assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
        let sealed = cipher.seal(b"ann/token", "s3cret").expect("sealed");
        assert_ne!(sealed, cipher.seal(b"ann/token", "s3cret").expect("sealed"), "nonces differ");
        assert_eq!(again.open(b"ann/token", &sealed).as_deref(), Some("s3cret"));
        assert_eq!(again.open(b"bob/token", &sealed), None);
        let other = Cipher::create(&folder.path().join("other")).expect("another key");
        assert_eq!(other.open(b"ann/token", &sealed), None);
        let mut changed = sealed.clone();
        changed.replace_range(30..31, if &sealed[30..31] == "0" { "1" } else { "0" });
        for bad in [changed.as_str(), "", "0", "zz", &sealed[..20], "é"] {
            assert_eq!(cipher.open(b"ann/token", bad), None, "{bad}");
        }
    }

    #[test]
    fn rejects_a_key_file_that_others_can_read_or_without_a_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        Cipher::create(&file).expect("a key");
        let allow =
            |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set");
        allow(0o640);
        assert!(Cipher::read(&file).err().expect("a problem").contains("chmod 600"));
        allow(0o600);
        std::fs::write(&file, "0123\n").expect("written");
        assert!(Cipher::read(&file).err().expect("a problem").contains("64 hexadecimal digits"));
    }
}
