//! `steprail service`: installs the daemon as a service of systemd.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::shared::error::CliError;
use super::terminal::output;

const UNIT_NAME: &str = "steprail.service";
/// The unit of a system service. `ProtectProc` stays at its default: the daemon looks at the processes of its peers. Servers in
/// other languages compile at run time, so memory may be executable.
const SYSTEM_UNIT: &str = "\
[Unit]
Description=Steprail, durable workflows of MCP tool calls
Documentation=man:steprail(1)
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User=steprail
Group=steprail
ExecStart={program} serve --data /var/lib/steprail
Environment=HOME=/var/lib/steprail STEPRAIL_AUTH_GROUP_SOCKETS=true
Restart=on-failure
RestartSec=2
TimeoutStopSec=60
KillMode=mixed
StateDirectory=steprail
StateDirectoryMode=0710
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
";
/// The user of the system service (sysusers.d).
const SYSTEM_USER: &str = "u steprail - \"Steprail daemon\" /var/lib/steprail\n";
/// The unit of a service of one user. It has the rights of that user.
const USER_UNIT: &str = "\
[Unit]
Description=Steprail, durable workflows of MCP tool calls
Documentation=man:steprail(1)

[Service]
Type=exec
ExecStart={program} serve
Restart=on-failure
RestartSec=2
TimeoutStopSec=60
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=default.target
";

/// Install the daemon as a service of systemd
///
/// The system service runs as the user `steprail`, so that programs that run as you can neither read its files nor change them.
/// Members of the group `steprail` reach it: `export STEPRAIL_DATA=/var/lib/steprail`. With --user, the service runs as you and
/// protects nothing from your programs.
#[derive(Debug, Args)]
pub(super) struct Service {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write the unit, and print the commands that start the service
    Install(Target),
    /// Remove the unit; data and user stay
    Uninstall(Target),
}

#[derive(Debug, Args)]
struct Target {
    /// A service of your own user instead of the system
    #[arg(long)]
    user: bool,
    /// Print the files instead of changing anything
    #[arg(long, visible_alias = "print")]
    dry_run: bool,
    /// Write below this directory instead of /
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

impl Service {
    pub(super) fn run(self) -> Result<ExitCode, CliError> {
        match &self.action {
            Action::Install(target) => target.install(),
            Action::Uninstall(target) => target.uninstall(),
        }
    }
}

impl Target {
    fn install(&self) -> Result<ExitCode, CliError> {
        let files = self.files()?;
        for (path, text) in &files {
            if self.dry_run {
                output::line(&format!("# {}\n{text}", path.display()))?;
            } else {
                write(path, text)?;
                output::line(&format!("wrote {}", path.display()))?;
            }
        }
        if !self.dry_run {
            output::line(&format!("to start the service:\n{}", self.start_commands()))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn uninstall(&self) -> Result<ExitCode, CliError> {
        for (path, _) in self.files()? {
            if self.dry_run {
                output::line(&format!("would remove {}", path.display()))?;
                continue;
            }
            match std::fs::remove_file(&path) {
                Ok(()) => output::line(&format!("removed {}", path.display()))?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(cannot("remove", &path, &error)),
            }
        }
        let manager = if self.user { "systemctl --user" } else { "sudo systemctl" };
        output::line(&format!(
            "to stop the service:\n  {manager} disable --now steprail; {manager} daemon-reload"
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    /// The files of the service, with their contents.
    fn files(&self) -> Result<Vec<(PathBuf, String)>, CliError> {
        let program = std::env::current_exe();
        let program =
            program.map_err(|error| CliError::new(format!("cannot find the program itself: {error}")))?;
        let unit = |text: &str| text.replace("{program}", &quoted(&program.display().to_string()));
        if self.user {
            return Ok(vec![(self.user_units()?.join(UNIT_NAME), unit(USER_UNIT))]);
        }
        if !self.dry_run && program.starts_with("/home") {
            // ProtectHome hides it from the service.
            let message =
                format!("{} is in a home directory, which the service cannot read", program.display());
            return Err(CliError::new(message).hint("install the program to /usr/local/bin first"));
        }
        Ok(vec![
            (self.root.join("etc/systemd/system").join(UNIT_NAME), unit(SYSTEM_UNIT)),
            (self.root.join("etc/sysusers.d/steprail.conf"), SYSTEM_USER.to_owned()),
        ])
    }

    fn user_units(&self) -> Result<PathBuf, CliError> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config =
            variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
        let config = config.ok_or_else(|| CliError::new("$HOME is not set"))?;
        let below = config.strip_prefix("/").unwrap_or(&config);
        Ok(self.root.join(below).join("systemd/user"))
    }

    fn start_commands(&self) -> &'static str {
        if self.user {
            return "  systemctl --user daemon-reload\n  systemctl --user enable --now steprail";
        }
        "  sudo systemd-sysusers\n  sudo usermod --append --groups steprail \"$USER\"   # then log in again\n  \
         sudo systemctl daemon-reload\n  sudo systemctl enable --now steprail\n  \
         export STEPRAIL_DATA=/var/lib/steprail\n  steprail presence set-pin\n\
         then set `presence = \"pin\"` under [auth] in /var/lib/steprail/steprail.toml and restart the service: other programs \
         that run as you are in the group, too"
    }
}

/// A path in the syntax of a unit file.
fn quoted(path: &str) -> String {
    let escaped = path.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    if escaped.contains(char::is_whitespace) { format!("\"{escaped}\"") } else { escaped }
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(|error| cannot("create", folder, &error))?;
    std::fs::write(path, text).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> CliError {
    let failed = CliError::new(format!("cannot {what} {}: {error}", path.display()));
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            failed.hint("run it with sudo, or print the files with --dry-run; --user needs no rights")
        }
        _ => failed,
    }
}
