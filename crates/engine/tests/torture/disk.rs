//! Mounted file systems for tests: a loop-mounted image with simulated power failures, or a small tmpfs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a command and returns its output. The error is its standard error.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// A mounted file system, which is unmounted on drop.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    point: PathBuf,
    device: Option<String>,
    /// Whether it is mounted with `errors=remount-ro`.
    fails: bool,
}

impl Disk {
    /// Loop-mounts an image of a file system (`xfs`, `ext4`). The error names the missing requirement.
    pub(crate) fn in_a_file(kind: &str) -> Result<Self, String> {
        let mut disk = Self::prepare()?;
        // `cut` needs it; checked before anything is created.
        run("xfs_io", &["-V"])?;
        let image = disk.folder.path().join("image");
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(512 * 1024 * 1024).map_err(|error| error.to_string())?;
        let force = if kind == "xfs" { "-f" } else { "-F" };
        run(&format!("mkfs.{kind}"), &["-q", force, text(&image)])?;
        disk.fails = kind == "ext4";
        disk.device = Some(run("losetup", &["--find", "--show", text(&image)])?);
        disk.mount()?;
        Ok(disk)
    }

    /// Mounts a tmpfs of this size.
    pub(crate) fn in_memory(kilobytes: u32) -> Result<Self, String> {
        let disk = Self::prepare()?;
        run("mount", &["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "none", text(&disk.point)])?;
        Ok(disk)
    }

    fn prepare() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount a file system".to_owned());
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let point = folder.path().join("disk");
        std::fs::create_dir(&point).map_err(|error| error.to_string())?;
        Ok(Self { folder, point, device: None, fails: false })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    fn mount(&self) -> Result<String, String> {
        let device = self.device.as_deref().expect("a device");
        let mut args = vec![device, text(&self.point)];
        if self.fails {
            args.extend(["-o", "errors=remount-ro"]);
        }
        run("mount", &args)
    }

    /// Cuts the power: data that was not written to the disk is lost.
    pub(crate) fn cut(&self) {
        run("xfs_io", &["-x", "-c", "shutdown", text(&self.point)]).expect("a power failure");
    }

    /// Restores the power by mounting the disk again.
    pub(crate) fn power_on(&self) {
        run("umount", &[text(&self.point)]).expect("an unused disk");
        self.mount().expect("a disk after a power failure");
    }

    /// Makes the file system report an error and become read-only.
    pub(crate) fn fail(&self) {
        let device = self.device.as_deref().and_then(|device| device.rsplit('/').next()).expect("a device");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("a failure");
    }

    /// Remounts with other options.
    pub(crate) fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let remount = || run("mount", &["-o", &options, text(&self.point)]);
        // The file system is busy while data is written back.
        let is_done = (0..100).any(|_| remount().is_ok() || run("sync", &[]).is_err());
        assert!(is_done, "{:?}", remount());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["--lazy", text(&self.point)]);
        if let Some(device) = &self.device {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}
