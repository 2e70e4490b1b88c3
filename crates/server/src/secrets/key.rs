//! The key file, and encryption under its key: AES-256-GCM with random nonces.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of a key file that are read.
const FILE_BYTES: u64 = 1024;

/// Encrypts and decrypts under one key.
pub(super) struct Cipher(RandomizedNonceKey);

impl Cipher {
    /// Reads a key file: 64 hexadecimal digits, in a file that only its owner can read.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, String> {
        let told = |what: String| format!("the key file {} {what}", file.display());
        let opened = match File::open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| told(format!("cannot be read: {error}")))?,
        };
        let mode = opened.metadata().map_err(|error| told(error.to_string()))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(told("can be read by other users; run `chmod 600` on it".to_owned()));
        }
        let mut text = String::new();
        let read = opened.take(FILE_BYTES).read_to_string(&mut text);
        read.map_err(|error| told(format!("cannot be read: {error}")))?;
        let key = unhex(text.trim()).filter(|key| key.len() == KEY_BYTES);
        let key = key.ok_or_else(|| told("does not hold a key of 64 hexadecimal digits".to_owned()))?;
        Self::new(&key).map(Some)
    }

    /// Creates a key file, unless another process does so at this moment; then its key counts.
    pub(super) fn create(file: &Path) -> Result<Self, String> {
        let told = |error: io::Error| format!("the key file {} cannot be written: {error}", file.display());
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(|error| format!("the system has no randomness: {error}"))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut next = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .map_err(told)?;
        writeln!(next, "{}", hex(&key)).map_err(told)?;
        next.as_file().sync_all().map_err(told)?;
        match next.persist_noclobber(file) {
            Ok(_) => sync(folder).map_err(told)?,
            Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(failed) => return Err(told(failed.error)),
        }
        Self::read(file)?.ok_or_else(|| told(io::ErrorKind::NotFound.into()))
    }

    fn new(key: &[u8]) -> Result<Self, String> {
        RandomizedNonceKey::new(&AES_256_GCM, key).map(Self).map_err(|_| "the key cannot be used".to_owned())
    }

    /// Encrypts a text: nonce, ciphertext and tag as hexadecimal digits. `bound` must be the same when it is decrypted.
    pub(super) fn seal(&self, bound: &[u8], text: &str) -> Result<String, String> {
        let mut bytes = text.as_bytes().to_vec();
        let sealed = self.0.seal_in_place_append_tag(Aad::from(bound), &mut bytes);
        let nonce = sealed.map_err(|_| "the secret cannot be encrypted".to_owned())?;
        Ok(hex(nonce.as_ref()) + &hex(&bytes))
    }

    /// Decrypts a text; `None` if it was encrypted under another key, for something else, or was changed.
    pub(super) fn open(&self, bound: &[u8], sealed: &str) -> Option<String> {
        let bytes = unhex(sealed)?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = self.0.open_in_place(nonce, Aad::from(bound), &mut sealed).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }
}

/// Makes new names in a folder durable.
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
    fn a_text_opens_where_it_belongs_and_nowhere_else() {
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
    fn a_key_file_that_others_can_read_or_that_holds_no_key_is_refused() {
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
