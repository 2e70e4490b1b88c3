//! Checkpoints of the audit log: the daemon exports them, and they reveal a log that was cut.

use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::receiver::{Receiver, any_port};
use super::support::{Daemon, output, steprail};

fn daemon(settings: &str) -> Daemon {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("steprail.toml"), settings).expect("written");
    Daemon::start_in(folder, &[])
}

#[test]
fn checkpoints_are_exported_to_a_file_that_the_audit_accepts() {
    let mut daemon = daemon("[audit]\ncheckpoints = 'heads.jsonl'\n");
    let file = daemon.folder.path().join("heads.jsonl");
    let started = Instant::now();
    while std::fs::read_to_string(&file).unwrap_or_default().lines().count() == 0 {
        assert!(started.elapsed() < Duration::from_mins(1), "no checkpoint");
        std::thread::yield_now();
    }
    daemon.kill_and_restart();
    while std::fs::read_to_string(&file).expect("the file").lines().count() < 2 {
        assert!(started.elapsed() < Duration::from_mins(1), "no checkpoint after a restart");
        std::thread::yield_now();
    }
    let database = daemon.folder.path().join("steprail.db");
    let mut verify = Command::new(steprail());
    verify.args(["audit", "verify", "--db"]).arg(database).arg("--head").arg(&file);
    let verified = output(&mut verify);
    assert!(verified.contains('2'), "{verified}");
}

#[test]
fn checkpoints_are_posted_to_a_webhook() {
    let hook = Receiver::listen(any_port());
    let settings =
        format!("[audit]\ncheckpoints = 'http://{}/heads'\n[notify]\nallow = ['127.0.0.1']\n", hook.address);
    let _daemon = daemon(&settings);
    let checkpoint = hook.next();
    for field in ["database", "row", "hash", "key", "signature"] {
        assert!(!checkpoint[field].is_null(), "{checkpoint}");
    }
}
