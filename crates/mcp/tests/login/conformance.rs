//! The client scenarios of the official conformance suite, logins included, through the gateway. The suite's client is
//! this program, told to run one test only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::conformance_client::{self, Failed};

/// The suite, installed by a script of ours.
fn suite() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/clients");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "the suite cannot be installed");
    Path::new(String::from_utf8(output.stdout).expect("text").trim()).join("conformance")
}

/// The command that starts the client. The suite adds the URL of its server.
fn client() -> String {
    let own = std::env::current_exe().expect("a path");
    format!("{} --ignored --exact conformance::is_the_client", own.display())
}

#[tokio::test]
#[ignore = "the suite starts it"]
async fn is_the_client() -> Result<(), Failed> {
    match std::env::args().next_back() {
        Some(url) if url.starts_with("http") => conformance_client::run(url).await,
        _ => Ok(()),
    }
}

fn conforms(arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(suite());
    command.arg("client").arg("--command").arg(client()).args(arguments).current_dir(&folder);
    let output = command.output().expect("an end");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}\n{out}\n{err}");
}

#[test]
fn servers_of_2025_11_25_are_spoken_to_as_the_suite_has_it() {
    conforms(&["--requirements", "2025-11-25"]);
}

#[test]
fn servers_of_2026_07_28_are_spoken_to_as_the_suite_has_it() {
    conforms(&["--requirements", "2026-07-28"]);
}

#[test]
fn older_servers_conform() {
    for scenario in ["2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"] {
        conforms(&["--scenario", &format!("auth/{scenario}")]);
    }
}
