//! The key file, and encryption with its key: AES-256-GCM with random nonces.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

/// The size of a key.
const KEY_BYTES: usize = 32;
/// The maximum size of a key file.
const FILE_BYTES: u64 = 1024;

/// Encrypts and decrypts with one key.
pub(super) struct Cipher(RandomizedNonceKey);

impl Cipher {
    /// Reads a key file: 64 hexadecimal digits, readable by its owner only. Returns `None` if it does not exist.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, String> {
        let path = file.display();
        let failed = |error: io::Error| format!("cannot read the key file {path}: {error}");
        let opened = match File::open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let mode = opened.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(format!("other users can read the key file {path}; run `chmod 600 {path}`"));
        }
        let mut text = String::new();
        opened.take(FILE_BYTES).read_to_string(&mut text).map_err(failed)?;
        let key = unhex(text.trim()).filter(|key| key.len() == KEY_BYTES);
        let key = key.ok_or_else(|| format!("the key file {path} must contain 64 hexadecimal digits"))?;
        Self::new(&key).map(Some)
    }

    /// Creates a key file. If another process creates it first, that key is used.
    pub(super) fn create(file: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("cannot write the key file {}: {error}", file.display());
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key)
            .map_err(|error| format!("cannot get random bytes from the system: {error}"))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut next = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .map_err(failed)?;
        writeln!(next, "{}", hex(&key)).map_err(failed)?;
        next.as_file().sync_all().map_err(failed)?;
        match next.persist_noclobber(file) {
            Ok(_) => sync(folder).map_err(failed)?,
            Err(persist) if persist.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(persist) => return Err(failed(persist.error)),
        }
        Self::read(file)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
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

/// Makes new directory entries durable.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    rest.is_empty().then(|| bytes.collect()).flatten()
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
