//! The data directory: whether it is there, whose it is, and how much room there is.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use indicatif::HumanBytes;

use super::Finding;
use crate::daemon::DataDir;

/// Less room than this is a problem soon.
const LITTLE: u64 = 1 << 30;
/// Less room than this is one now.
const TOO_LITTLE: u64 = 100 << 20;

pub(super) fn look(home: &DataDir) -> Vec<Finding> {
    let path = home.path().display();
    let known = match std::fs::metadata(home.path()) {
        Ok(known) if known.is_dir() => known,
        Ok(_) => {
            return vec![Finding::problem(
                "data",
                format!("{path} is no directory"),
                "name another one with --data",
            )];
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let hint = "`steprail serve`, or an MCP client that uses `steprail mcp`, creates it";
            return vec![Finding::warning("data", format!("there is no directory {path}"), hint)];
        }
        Err(error) => {
            return vec![Finding::problem("data", format!("{path}: {error}"), "look at its rights")];
        }
    };
    let mode = known.permissions().mode() & 0o777;
    let us = rustix::process::geteuid().as_raw();
    let place = if known.uid() != us {
        Finding::problem("data", format!("{path} belongs to another user"), "name another one with --data")
    } else if mode & 0o077 != 0 {
        let what = format!("other users may look into {path} ({mode:04o})");
        Finding::warning("data", what, format!("chmod 700 {path}"))
    } else {
        Finding::ok("data", format!("{path} is for its owner alone"))
    };
    vec![place, room(home)]
}

fn room(home: &DataDir) -> Finding {
    match rustix::fs::statvfs(home.path()).map(|disk| disk.f_bavail * disk.f_frsize) {
        Ok(free) if free >= LITTLE => {
            Finding::ok("data", format!("{} are free on its disk", HumanBytes(free)))
        }
        Ok(free) => {
            let what = format!("only {} are free on its disk", HumanBytes(free));
            let hint = "free some space; `steprail purge` deletes old runs";
            let level = if free < TOO_LITTLE { Finding::problem } else { Finding::warning };
            level("data", what, hint)
        }
        Err(error) => {
            Finding::warning("data", format!("how much room is there? {error}"), "look at the disk")
        }
    }
}
