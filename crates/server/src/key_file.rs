//! Key files: 32 random bytes as hexadecimal digits, readable by their owner only.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The size of a key.
const KEY_BYTES: usize = 32;
/// The maximum size of a key file.
const FILE_BYTES: u64 = 1024;

/// Reads a key file. Returns `None` if it does not exist.
pub(crate) fn read(file: &Path) -> Result<Option<Vec<u8>>, String> {
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
    key.map(Some).ok_or_else(|| format!("the key file {path} must contain 64 hexadecimal digits"))
}

/// Creates a key file. If another process creates it first, that key is returned.
pub(crate) fn create(file: &Path) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("cannot write the key file {}: {error}", file.display());
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| format!("cannot get random bytes from the system: {error}"))?;
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
    read(file)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))
}

/// Makes new directory entries durable.
pub(crate) fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    rest.is_empty().then(|| bytes.collect()).flatten()
}
