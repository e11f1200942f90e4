//! `siltstone fs mount` on an image in a temporary folder, over kills and remounts.

use super::process::{run, run_shell};
use super::server::{Server, binary};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// An image of a file system, and its mount. Dropping it unmounts, even if the server is dead.
pub struct Mount {
    folder: TempDir,
    server: Option<Server>,
}

impl Mount {
    /// Creates a file system of 512 MiB, with these options of `siltstone fs format`, and mounts it.
    ///
    /// # Panics
    /// If it can't be created or mounted.
    #[track_caller]
    pub fn new(options: &[&str]) -> Mount {
        let mut arguments = vec!["--size", "512MiB"];
        arguments.extend_from_slice(options);
        Self::formatted(&arguments)
    }

    /// Creates a file system with these options of `siltstone fs format`, and mounts it.
    ///
    /// # Panics
    /// If it can't be created or mounted.
    #[track_caller]
    pub fn formatted(options: &[&str]) -> Mount {
        let mount = Self::in_folder(tempfile::tempdir());
        let image = mount.image();
        let mut arguments = vec!["fs", "format", &image];
        arguments.extend_from_slice(options);
        run(&program(), &arguments).ok();
        mount.mounted()
    }

    /// Prepares the folder for an image that the caller creates at [`image`](Self::image) before it is
    /// [`mounted`](Self::mounted). The folder is in memory if `/dev/shm` exists, so that nothing waits for a
    /// disk.
    ///
    /// # Panics
    /// If there can't be a folder.
    pub fn without_image() -> Mount {
        Self::in_folder(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()))
    }

    fn in_folder(folder: std::io::Result<TempDir>) -> Mount {
        let folder = folder.expect("a folder");
        std::fs::create_dir(folder.path().join("mnt")).expect("a folder");
        Mount { folder, server: None }
    }

    /// Formats a stack in TOML that mounts a file system at `mnt`, and serves it, with the control socket
    /// [`beside`](Self::beside) it as `control`. [`stopped`](Self::stopped) ends the server.
    ///
    /// # Panics
    /// If it can't be created or mounted.
    #[track_caller]
    pub fn of_stack(toml: &str) -> Mount {
        let mut mount = Self::in_folder(tempfile::tempdir());
        let (stack, control) = (mount.beside("stack.toml"), mount.beside("control"));
        std::fs::write(&stack, toml).expect("a file");
        let (stack, control) = (stack.display().to_string(), control.display().to_string());
        let arguments = ["serve", &stack, "--format", "--control", &control];
        mount.server = Some(Server::start_with(&arguments, PathBuf::new()));
        mount
    }

    /// Serves the stack of [`of_stack`](Self::of_stack) again, after its server has ended.
    ///
    /// # Panics
    /// If it can't be mounted.
    #[track_caller]
    pub fn served(mut self) -> Mount {
        let (stack, control) = (self.beside("stack.toml"), self.beside("control"));
        let (stack, control) = (stack.display().to_string(), control.display().to_string());
        let arguments = ["serve", &stack, "--control", &control];
        self.server = Some(Server::restart_with(&arguments, PathBuf::new()));
        self
    }

    /// Mounts the image again.
    ///
    /// # Panics
    /// If it can't be mounted.
    #[track_caller]
    pub fn mounted(self) -> Mount {
        self.mounted_with(&[])
    }

    /// Mounts the image again, with these options of `siltstone fs mount`.
    ///
    /// # Panics
    /// If it can't be mounted.
    #[track_caller]
    pub fn mounted_with(mut self, options: &[&str]) -> Mount {
        let (image, at) = (self.image(), self.at("").display().to_string());
        let mut arguments = vec!["fs", "mount", &image, &at];
        arguments.extend_from_slice(options);
        self.server = Some(Server::restart_with(&arguments, PathBuf::new()));
        self
    }

    /// Path of the image.
    pub fn image(&self) -> String {
        self.beside("vol.img").display().to_string()
    }

    /// Path of a file in the mounted file system.
    pub fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("mnt").join(path)
    }

    /// Path of a file beside the image, outside of the mounted file system.
    pub fn beside(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs a script in the mounted file system. Returns its output.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        run_shell(&format!("cd '{}'; {script}", self.at("").display())).ok()
    }

    /// Unmounts, and waits until the server has ended without an error.
    ///
    /// # Panics
    /// If the mount is in use, or the server fails.
    #[track_caller]
    pub fn unmounted(mut self) -> Mount {
        let at = self.at("").display().to_string();
        run_shell(&format!("umount '{at}' || fusermount3 -u '{at}'")).ok();
        let mut server = self.server.take().expect("it is mounted");
        assert!(server.process.wait().success(), "{}", server.process.err());
        self
    }

    /// Sends SIGTERM to the server, and waits until it has ended without an error.
    ///
    /// # Panics
    /// If the server fails.
    #[track_caller]
    pub fn stopped(mut self) -> Mount {
        let mut server = self.server.take().expect("it is mounted");
        server.process.signal(Signal::TERM);
        assert!(server.process.wait().success(), "{}", server.process.err());
        self
    }

    /// Kills the server, and leaves the mount without one.
    ///
    /// # Panics
    /// If there is no server.
    pub fn killed(mut self) -> Mount {
        let mut server = self.server.take().expect("it is mounted");
        if server.process.is_alive() {
            server.process.signal(Signal::KILL);
        }
        server.process.wait();
        self
    }

    /// Process id of the server.
    ///
    /// # Panics
    /// If there is no server.
    pub fn server_pid(&self) -> u32 {
        self.server.as_ref().expect("it is mounted").process.pid()
    }

    /// The server.
    ///
    /// # Panics
    /// If there is none.
    pub fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("it is mounted")
    }

    /// Status of the image, which isn't mounted.
    ///
    /// # Panics
    /// If it can't be read.
    #[track_caller]
    pub fn status(&self) -> serde_json::Value {
        let text = run(&program(), &["fs", "status", &self.image(), "--json"]).ok();
        serde_json::from_str(&text).expect("JSON")
    }

    /// Checks the image, which isn't mounted, with all data.
    ///
    /// # Panics
    /// If it is damaged.
    #[track_caller]
    pub fn is_sound(&self) {
        let said = run(&program(), &["fs", "check", &self.image(), "--data"]).ok();
        assert!(said.ends_with("no damage\n"), "{said}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Without its server the mount stays, and fails every access, until it is unmounted.
        drop(self.server.take());
        let at = self.folder.path().join("mnt");
        if is_mount_point(&at) {
            let at = at.display();
            run_shell(&format!("umount -l '{at}' || fusermount3 -uz '{at}' || true"));
        }
    }
}

/// Whether the kernel has a mount at this path, with or without a server.
fn is_mount_point(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| Path::new(at) == path))
}

fn program() -> String {
    binary().display().to_string()
}
