//! A disk of its own: a file system in a file that can lose its power, or a small one in memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a command; what it says if it fails.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in plain letters")
}

/// A mounted file system. It is unmounted when this is dropped.
pub(crate) struct Disk {
    folder: tempfile::TempDir,
    point: PathBuf,
    device: Option<String>,
    /// Whether it becomes read-only when it fails.
    fails: bool,
}

impl Disk {
    /// A file system of a kind (`xfs`, `ext4`) in a file. The error says what this machine lacks.
    pub(crate) fn in_a_file(kind: &str) -> Result<Self, String> {
        let mut disk = Self::prepare()?;
        // The oldest tool that can cut the power; it must be there before anything is made.
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

    /// A file system in memory that holds so many kilobytes.
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

    /// Where it is mounted.
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

    /// The power is gone: what was not written to the disk never will be.
    pub(crate) fn cut(&self) {
        run("xfs_io", &["-x", "-c", "shutdown", text(&self.point)]).expect("a cut");
    }

    /// The power is back.
    pub(crate) fn power_on(&self) {
        run("umount", &[text(&self.point)]).expect("nobody uses the disk");
        self.mount().expect("a disk that was cut off");
    }

    /// The disk fails, and takes no more writes.
    pub(crate) fn fail(&self) {
        let device = self.device.as_deref().and_then(|device| device.rsplit('/').next()).expect("a device");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("a failure");
    }

    /// Mounts again with other options.
    pub(crate) fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        let remount = || run("mount", &["-o", &options, text(&self.point)]);
        // What is being written back keeps it busy.
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
