//! The secrets: whether the key fits.

use super::Finding;
use crate::daemon::DataDir;
use crate::secrets::Vault;

pub(super) fn look(home: &DataDir, vault: &Vault) -> Option<Finding> {
    if !home.secrets().exists() {
        return None;
    }
    Some(match vault.check() {
        Ok(()) => Finding::ok("secrets", format!("{} can be decrypted", home.secrets().display())),
        Err(error) => Finding::problem(
            "secrets",
            error.to_string(),
            "servers that use secrets or logins cannot be reached until then",
        ),
    })
}
