//! Writes a file atomically, since its program may read it at any time.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permissions of the written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permissions {
    /// Only the owner can read it: it may contain secrets.
    OwnerOnly,
    /// Those of the replaced file; those of the umask for a new one.
    Preserve,
}

/// Replaces a file by renaming a temporary one. Creates directories and follows symbolic links.
pub(crate) fn write_atomically(file: &Path, text: &str, permissions: Permissions) -> io::Result<()> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let (mode, existing) = match permissions {
        Permissions::OwnerOnly => (0o600, None),
        // The umask applies to this mode.
        Permissions::Preserve => (0o666, fs::metadata(&file).ok()),
    };
    let mode = fs::Permissions::from_mode(mode);
    let mut temporary = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
    temporary.write_all(text.as_bytes())?;
    if let Some(existing) = existing {
        temporary.as_file().set_permissions(existing.permissions())?;
    }
    temporary.as_file().sync_all()?;
    temporary.persist(&file).map(drop).map_err(|failed| failed.error)
}
