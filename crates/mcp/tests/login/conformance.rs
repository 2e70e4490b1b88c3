//! Client scenarios of the official conformance suite, through the gateway. The suite starts this program as its client,
//! with a filter for one test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::conformance_client::{self, Failed};

/// The path of the suite. `scripts/clients` installs it.
fn suite() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/clients");
    let output = Command::new(script).stderr(Stdio::inherit()).output().expect("the script");
    assert!(output.status.success(), "cannot install the suite");
    Path::new(String::from_utf8(output.stdout).expect("text").trim()).join("conformance")
}

/// The command that starts the client. The suite adds the URL of its server.
fn client() -> String {
    let program = std::env::current_exe().expect("a path");
    format!("{} --ignored --exact conformance::is_the_client", program.display())
}

#[tokio::test]
#[ignore = "started by the suite"]
async fn is_the_client() -> Result<(), Failed> {
    match std::env::args().next_back() {
        Some(url) if url.starts_with("http") => conformance_client::run(url).await,
        _ => Ok(()),
    }
}

fn run_suite(arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(suite());
    command.arg("client").arg("--command").arg(client()).args(arguments).current_dir(&folder);
    let output = command.output().expect("the output of the suite");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}\n{out}\n{err}");
}

#[test]
fn conforms_to_2025_11_25() {
    run_suite(&["--requirements", "2025-11-25"]);
}

#[test]
fn conforms_to_2026_07_28() {
    run_suite(&["--requirements", "2026-07-28"]);
}

#[test]
fn conforms_to_oauth_of_2025_03_26() {
    for scenario in ["2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"] {
        run_suite(&["--scenario", &format!("auth/{scenario}")]);
    }
}
