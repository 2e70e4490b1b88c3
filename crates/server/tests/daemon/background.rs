//! A daemon that the first command starts in the background, logging at level `trace`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::support::steprail;

/// A data directory. Its daemon is stopped when this is dropped.
pub(crate) struct Background(TempDir);

impl Background {
    /// Creates a data directory with the given servers.json.
    pub(crate) fn new(servers: &Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("servers.json", &servers.to_string());
        write(
            "steprail.toml",
            "[log]\nlevel = 'trace'\n[store]\ndurability = 'process'\n[http]\nlisten = '127.0.0.1:0'\n",
        );
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(steprail());
        command.args(arguments).env("STEPRAIL_DATA", self.0.path()).env("USER", "ann");
        command.env_remove("STEPRAIL_SERVER").env_remove("STEPRAIL_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("an end")
    }

    /// Runs a command with text on its standard input.
    pub(crate) fn piped(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().expect("a command");
        child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("written");
        child.wait_with_output().expect("an end")
    }

    /// The log of the daemon.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("daemon.log")).expect("a log")
    }

    /// The files of the data directory, including log and database, that contain one of the texts.
    pub(crate) fn files_with(&self, texts: &[&str]) -> Vec<String> {
        files_with(self.0.path(), texts)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.run(&["stop"]);
    }
}

fn files_with(folder: &Path, texts: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            files.extend(files_with(&entry.path(), texts));
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            let has = |text: &&str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            if texts.iter().any(has) {
                files.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    files
}

/// Standard output of a command that must have succeeded.
pub(crate) fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Standard error of a command that must have failed with exit code 2.
pub(crate) fn err(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr.clone()).expect("text")
}
