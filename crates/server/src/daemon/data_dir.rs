//! The data directory of a daemon and the files in it.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::private_file;

/// The maximum length of a socket's path, in bytes (`sun_path`).
const SOCKET_PATH_BYTES: usize = 107;

/// The directory of the sockets.
const SOCKETS: &str = "run";

/// A data directory, as an absolute path.
#[derive(Debug, Clone)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    /// The given directory, `$STEPRAIL_DATA`, or the default directory of the user.
    pub(crate) fn find(given: Option<PathBuf>) -> Result<Self, String> {
        let variable = |name: &str| {
            std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from)
        };
        let default = || {
            let home = || variable("HOME").map(|home| home.join(".local/share"));
            variable("XDG_DATA_HOME").or_else(home).map(|data| data.join("steprail"))
        };
        let path = given.or_else(|| variable("STEPRAIL_DATA")).or_else(default);
        let path = path.ok_or("$HOME is not set; name a data directory with --data")?;
        std::path::absolute(&path).map(Self).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Creates the directory and the directory of the sockets. Only the owner can enter them: connections to the sockets
    /// are not authenticated.
    pub(crate) fn create(&self) -> Result<(), String> {
        let failed =
            |error: io::Error| format!("cannot create the data directory {}: {error}", self.0.display());
        let sockets = self.0.join(SOCKETS);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&sockets).map_err(failed)?;
        std::fs::set_permissions(&sockets, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
        if self.agents_socket().as_os_str().len() > SOCKET_PATH_BYTES {
            return Err(format!(
                "the path {} is too long for a socket; name a shorter data directory with --data",
                self.0.display()
            ));
        }
        Ok(())
    }

    /// Lets the group of the process enter the directory of the sockets. The other files are for their owner only.
    pub(super) fn open_sockets_to_group(&self) -> io::Result<()> {
        let enter = || std::fs::Permissions::from_mode(0o710);
        std::fs::set_permissions(self.0.join(SOCKETS), enter())?;
        std::fs::set_permissions(&self.0, enter())
    }

    /// The owner of the directory. The first call stores `user`; later calls return the stored owner.
    pub(crate) fn owner(&self, user: &str) -> io::Result<String> {
        let file = self.0.join("owner");
        match std::fs::read_to_string(&file) {
            Ok(owner) => Ok(owner.trim().to_owned()),
            Err(_) => private_file::write(&file, user).map(|()| user.to_owned()),
        }
    }

    /// Arguments of the last `steprail serve`. A daemon that is started in the background reuses them.
    pub(crate) fn serve_arguments(&self) -> PathBuf {
        self.0.join("serve.json")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("steprail.db")
    }

    /// The operator's policy.
    pub(crate) fn policy(&self) -> PathBuf {
        self.0.join("policy.yaml")
    }

    /// The socket of MCP clients, which act as agents of the owner.
    pub(crate) fn agents_socket(&self) -> PathBuf {
        self.0.join(SOCKETS).join("agents.sock")
    }

    /// The socket of the command line, which acts as the owner in person.
    pub(crate) fn human_socket(&self) -> PathBuf {
        self.0.join(SOCKETS).join("human.sock")
    }

    /// The MCP servers that workflows call, in the config format of MCP clients.
    pub(crate) fn servers(&self) -> PathBuf {
        self.0.join("servers.json")
    }

    /// The encrypted secrets.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.0.join("secrets.json")
    }

    /// The encryption key of the secrets, unless `store.secrets_key` names another file.
    pub(crate) fn secrets_key(&self) -> PathBuf {
        self.0.join("secrets.key")
    }

    /// The key that signs approval links. Without the file, earlier links are void.
    pub(crate) fn links_key(&self) -> PathBuf {
        self.0.join("links.key")
    }

    /// The process id of the daemon.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.0.join("daemon.pid")
    }

    /// Output of a daemon in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("daemon.log")
    }
}
