//! Checks whether the stored secrets can be decrypted.

use super::Finding;
use crate::daemon::DataDir;
use crate::secrets::Vault;

const TOPIC: &str = "secrets";

pub(super) fn check(home: &DataDir, vault: &Vault) -> Option<Finding> {
    if !home.secrets().exists() {
        return None;
    }
    Some(match vault.check() {
        Ok(()) => Finding::ok(TOPIC, format!("{} can be decrypted", home.secrets().display())),
        Err(error) => Finding::problem(
            TOPIC,
            error.to_string(),
            "until this is corrected, servers that use secrets or logins cannot be reached",
        ),
    })
}
