//! The data directory: where a daemon keeps everything.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a socket's path that the system takes.
const SOCKET_BYTES: usize = 107;

/// The folder of the sockets.
const SOCKETS: &str = "run";

/// A data directory.
#[derive(Debug, Clone)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// The directory that was named, or that of the user.
    pub(crate) fn find(named: Option<PathBuf>) -> Result<Self, String> {
        let set = |name: &str| {
            std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from)
        };
        let of_user = || {
            let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
            data.map(|data| data.join("steprail"))
        };
        let found = named.or_else(|| set("STEPRAIL_DATA")).or_else(of_user);
        let path = found.ok_or("there is no home directory; name a data directory with --data")?;
        std::path::absolute(&path).map(Self).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Creates it, for its owner alone, and a folder for the sockets: whoever reaches those is the owner.
    pub(crate) fn create(&self) -> Result<(), String> {
        let told =
            |error: io::Error| format!("cannot create the data directory {}: {error}", self.0.display());
        let sockets = self.0.join(SOCKETS);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&sockets).map_err(told)?;
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o700)).map_err(told)?;
        match self.agents().as_os_str().len() {
            bytes if bytes > SOCKET_BYTES => Err(format!(
                "the path {} is too long for a socket; name a shorter data directory with --data",
                self.0.display()
            )),
            _ => Ok(()),
        }
    }

    /// Whose it is: who was the user when it was first used. Later the environment may say something else.
    pub(crate) fn owner(&self, user: &str) -> io::Result<String> {
        let file = self.0.join("owner");
        match std::fs::read_to_string(&file) {
            Ok(owner) => Ok(owner.trim().to_owned()),
            Err(_) => std::fs::write(&file, user).map(|()| user.to_owned()),
        }
    }

    /// How the last daemon was told to serve: one that is started in its place does the same.
    pub(crate) fn settings(&self) -> PathBuf {
        self.0.join("serve.json")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("steprail.db")
    }

    /// The socket of MCP clients.
    pub(crate) fn agents(&self) -> PathBuf {
        self.0.join(SOCKETS).join("agents.sock")
    }

    /// The socket of the terminal.
    pub(crate) fn humans(&self) -> PathBuf {
        self.0.join(SOCKETS).join("human.sock")
    }

    /// The servers whose tools are called, as MCP clients write them down.
    pub(crate) fn servers(&self) -> PathBuf {
        self.0.join("servers.json")
    }

    /// The encrypted secrets.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.0.join("secrets.json")
    }

    /// The key that secrets are encrypted with, unless `store.secrets_key` names another file.
    pub(crate) fn secrets_key(&self) -> PathBuf {
        self.0.join("secrets.key")
    }

    /// The number of the daemon's process.
    pub(crate) fn process(&self) -> PathBuf {
        self.0.join("daemon.pid")
    }

    /// What a daemon in the background says.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }
}
