//! An export as a file, through FUSE: for programs that can't speak NBD.

use super::process::{is_installed, is_root, run_shell};
use super::server::Background;
use super::skip;
use std::path::{Path, PathBuf};

/// Root unmounts by itself; other users through the helper that mounted the folder for them. A loop device on
/// the export may be released a moment after its own unmount.
const UNMOUNT: &str = "for attempt in 1 2 3 4 5 6 7 8 9; do umount FOLDER 2>/dev/null && exit; sleep 0.1; done; \
                       umount FOLDER || fusermount3 -u FOLDER || fusermount -u FOLDER";

/// Whether FUSE can be used here; if not, reports why the test is skipped.
pub fn has_fuse() -> bool {
    let can_mount = is_root() || is_installed("fusermount3") || is_installed("fusermount");
    let there = Path::new("/dev/fuse").exists() && can_mount;
    if !there {
        skip("there is no /dev/fuse, or fusermount3 is not installed");
    }
    there
}

/// Whether a file can be mounted here, by root; if not, reports why the test is skipped.
pub fn can_mount_loop() -> bool {
    let there = Path::new("/dev/loop-control").exists();
    if !there {
        skip("there are no loop devices");
    }
    there
}

/// `nbdfuse`, with the export as the file `export` in a folder.
pub struct Fuse {
    process: Option<Background>,
    folder: PathBuf,
}

impl Fuse {
    /// Shows the export with this address in this folder.
    ///
    /// # Panics
    /// If the file doesn't appear in time.
    #[track_caller]
    pub fn start(folder: &Path, uri: &str) -> Fuse {
        let export = folder.join("export");
        let mut process = Background::start("nbdfuse", &[&export.display().to_string(), uri]);
        process.wait_until("the export is there", |_| export.exists());
        Fuse { process: Some(process), folder: folder.to_owned() }
    }

    /// Path of the file.
    pub fn export(&self) -> String {
        self.folder.join("export").display().to_string()
    }

    /// Unmounts the folder and waits for the end of `nbdfuse`.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn close(mut self) {
        self.unmount();
        let mut process = self.process.take().expect("it is closed once");
        assert!(process.wait().success(), "nbdfuse: {}", process.err());
    }

    /// Ends `nbdfuse` after its server has died.
    ///
    /// # Panics
    /// If it doesn't end.
    #[track_caller]
    pub fn give_up(mut self) {
        self.unmount();
        self.process.take().expect("it is closed once").wait();
    }

    #[track_caller]
    fn unmount(&self) {
        run_shell(&UNMOUNT.replace("FOLDER", &self.folder.display().to_string())).ok();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.process.is_some() {
            // After a failure. Unmounting a folder that isn't mounted only fails.
            let folder = self.folder.display();
            run_shell(&format!("fusermount3 -uz {folder} || umount -l {folder} || true"));
        }
    }
}
