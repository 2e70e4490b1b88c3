//! Files that only their owner can access, whatever the umask and the directory are.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Opens a file with the given options, and restricts it to its owner.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.create(true).mode(0o600).open(path)?;
    // A file of an earlier version may be readable by others.
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Writes a file.
pub(crate) fn write(path: &Path, contents: &str) -> io::Result<()> {
    open(path, OpenOptions::new().write(true).truncate(true))?.write_all(contents.as_bytes())
}
