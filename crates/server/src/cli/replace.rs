//! A file is written whole or not at all: somebody may read it at this moment.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Who may read a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// Its owner: there may be secrets in it.
    Owner,
    /// Whoever may read it now; those whom the user usually lets, if it is new.
    AsBefore,
}

/// Puts a text in the place of a file. Folders are made; a link stays one.
pub(super) fn replace(file: &Path, text: &str, readers: Readers) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let (at_first, known) = match readers {
        Readers::Owner => (Permissions::from_mode(0o600), None),
        // The system takes from these what the user does not let others do.
        Readers::AsBefore => (Permissions::from_mode(0o666), fs::metadata(&file).ok()),
    };
    let mut next = tempfile::Builder::new().permissions(at_first).tempfile_in(folder)?;
    next.write_all(text.as_bytes())?;
    if let Some(known) = known {
        next.as_file().set_permissions(known.permissions())?;
    }
    next.as_file().sync_all()?;
    next.persist(&file).map(drop).map_err(|failed| failed.error)
}
