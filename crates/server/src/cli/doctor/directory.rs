//! Checks the data directory: its owner, its permissions and its free space.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use indicatif::HumanBytes;

use super::Finding;
use crate::daemon::DataDir;

const TOPIC: &str = "data";

/// Less free space than this, in bytes, is a warning.
const LOW_SPACE: u64 = 1 << 30;
/// Less free space than this, in bytes, is a problem.
const CRITICAL_SPACE: u64 = 100 << 20;

pub(super) fn check(home: &DataDir) -> Vec<Finding> {
    let path = home.path().display();
    let metadata = match std::fs::metadata(home.path()) {
        Ok(metadata) if metadata.is_dir() => metadata,
        Ok(_) => {
            let message = format!("{path} is not a directory");
            return vec![Finding::problem(TOPIC, message, "choose another one with --data")];
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "`steprail serve`, or an MCP client that starts `steprail mcp`, creates it";
            return vec![Finding::warning(TOPIC, format!("there is no directory {path}"), hint)];
        }
        Err(error) => {
            return vec![Finding::problem(TOPIC, format!("{path}: {error}"), "check its permissions")];
        }
    };
    let mode = metadata.permissions().mode() & 0o777;
    let access = if metadata.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{path} belongs to another user");
        Finding::problem(TOPIC, message, "choose another one with --data")
    } else if mode & 0o077 != 0 {
        let message = format!("other users can access {path} ({mode:04o})");
        Finding::warning(TOPIC, message, format!("chmod 700 {path}"))
    } else {
        Finding::ok(TOPIC, format!("only its owner can access {path}"))
    };
    vec![access, check_space(home)]
}

fn check_space(home: &DataDir) -> Finding {
    match rustix::fs::statvfs(home.path()).map(|disk| disk.f_bavail * disk.f_frsize) {
        Ok(free) if free >= LOW_SPACE => Finding::ok(TOPIC, format!("{} free on its disk", HumanBytes(free))),
        Ok(free) => {
            let message = format!("only {} free on its disk", HumanBytes(free));
            let hint = "free some space; `steprail purge` deletes old runs";
            let finding = if free < CRITICAL_SPACE { Finding::problem } else { Finding::warning };
            finding(TOPIC, message, hint)
        }
        Err(error) => {
            Finding::warning(TOPIC, format!("cannot determine free space: {error}"), "check the disk")
        }
    }
}
