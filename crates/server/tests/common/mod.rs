//! A temporary directory in which the real binary runs.

use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A temporary directory with files, in which the binary runs.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        for (name, text) in files {
            std::fs::write(folder.0.path().join(name), text).unwrap();
        }
        folder
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steprail"));
        command.current_dir(self.0.path()).env("USER", "ann").env("TMPDIR", self.0.path());
        command.args(arguments.split_whitespace()).stdin(Stdio::null());
        command
    }

    /// Runs a command. Returns its output and exit code.
    pub(crate) fn run(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        format!("$ steprail {arguments}\n{err}--- stdout\n{out}--- exit {}\n", output.status.code().unwrap())
    }
}
