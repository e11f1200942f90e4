//! Folder of an attachment: its paths, its lock, and the list of all attachments.
//!
//! `/run/siltstone/NAME` is created by the holder and removed when the node is detached. It has the record
//! `attachment.json`, the mount point `volume` or the socket `volume.sock` of the NBD door, the socket
//! `holder.sock` and the server's `log`. A folder without a listening holder is *stale*.

use super::announcement;
use block::{Error, Result};
use runtime::net::is_listened_on;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Folder of all attachments.
const FOLDER: &str = "/run/siltstone";
/// Folder of the links to the nodes.
const LINKS: &str = "/dev/siltstone";
/// Permissions of the sockets in the folder.
pub const OWNER_ONLY: u32 = 0o600;
/// Longest name of an attachment, in bytes: the path of its socket has to fit into a socket address.
const MAX_NAME: usize = 64;

/// Checks a name for an attachment.
///
/// # Errors
/// [`Error::Invalid`] with what is expected.
pub fn check_name(name: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_valid = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_plain);
    match is_valid && !name.starts_with('.') {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "name of an attachment \"{}\": expected 1 to {MAX_NAME} letters, digits, \".\", \"_\" or \"-\", and no \".\" first; \
             give one with --name",
            name.escape_debug()
        ))),
    }
}

/// Default name for the attachment of a stack: the name of its file without the ending, else that of its top
/// device.
pub fn name_for(stack: &str, top: &str) -> String {
    let path = Path::new(stack);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|_| path.is_file());
    stem.unwrap_or(top).to_owned()
}

/// Returns the link to the node of the attachment of this name.
pub fn link_of(name: &str) -> PathBuf {
    Path::new(LINKS).join(name)
}

/// Paths of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    name: String,
    path: PathBuf,
}

impl Folder {
    /// Returns the folder of this name, which needn't exist.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an [invalid name](check_name).
    pub fn of(name: &str) -> Result<Folder> {
        check_name(name)?;
        Ok(Folder { name: name.to_owned(), path: Path::new(FOLDER).join(name) })
    }

    /// Returns all folders with valid names, sorted by name.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn all() -> Result<Vec<Folder>> {
        let failed = |error: std::io::Error| Error::from_io(&error, &format!("listing {FOLDER}"));
        let entries = match std::fs::read_dir(FOLDER) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed)?,
        };
        let mut folders = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            folders.extend(name.to_str().and_then(|name| Folder::of(name).ok()));
        }
        folders.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(folders)
    }

    /// Creates the folder.
    ///
    /// # Errors
    /// [`Error::Busy`] with advice if the folder exists; errors of the kernel.
    pub fn create(&self) -> Result<FolderLock> {
        let mut builder = std::fs::DirBuilder::new();
        match builder.mode(0o755).create(FOLDER) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::from_io(&error, &format!("creating {FOLDER}")));
            }
            _ => {}
        }
        match builder.mode(0o700).create(&self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(self.is_taken()),
            other => {
                other.map_err(|error| Error::from_io(&error, &format!("creating {}", self.path.display())))?
            }
        }
        self.lock()
    }

    /// Locks the folder against its removal by others. Creates the lock file if it is missing.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has the lock; [`Error::NotFound`] if the folder doesn't exist.
    pub fn lock(&self) -> Result<FolderLock> {
        self.lock_with(std::fs::OpenOptions::new().create(true).truncate(false))
    }

    /// As [`lock`](Self::lock), but creates nothing.
    ///
    /// # Errors
    /// Errors of [`lock`](Self::lock); [`Error::NotFound`] if the lock file doesn't exist.
    pub fn lock_existing(&self) -> Result<FolderLock> {
        self.lock_with(&mut std::fs::OpenOptions::new())
    }

    fn lock_with(&self, options: &mut std::fs::OpenOptions) -> Result<FolderLock> {
        let shown = self.path.display();
        let failed = |error: std::io::Error| Error::from_io(&error, &format!("locking {shown}"));
        let path = self.path.join("lock");
        let file = options.write(true).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Error::busy(format!(
                    "attachment \"{}\" is being attached or detached: try again later",
                    self.name
                )));
            }
            other => other.map_err(|error| failed(error.into()))?,
        }
        // Another process may have removed and recreated the file meanwhile.
        let locked = file.metadata().map_err(failed)?;
        let named = std::fs::metadata(&path).map_err(failed)?;
        match locked.ino() == named.ino() && locked.dev() == named.dev() {
            true => Ok(FolderLock(file)),
            false => {
                Err(Error::busy(format!("attachment \"{}\" has just been replaced: try again", self.name)))
            }
        }
    }

    /// Whether anything is mounted on the volume.
    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let volume = self.volume().display().to_string();
        mounts.lines().any(|line| line.split(' ').nth(4) == Some(volume.as_str()))
    }

    fn is_taken(&self) -> Error {
        let name = &self.name;
        match self.is_alive() {
            true => Error::busy(format!(
                "attachment \"{name}\" exists: expected another name (--name), or detach it first: siltstone detach {name}"
            )),
            false => Error::busy(format!(
                "attachment \"{name}\" has lost its holder: unmount what is on its node, then run: siltstone detach {name}"
            )),
        }
    }

    /// Returns the name of the attachment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mount point of the FUSE door.
    pub fn volume(&self) -> PathBuf {
        self.path.join("volume")
    }

    /// Returns the path of the holder's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("holder.sock")
    }

    /// Returns the path of the log: standard error of holder and servers.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the link to the node.
    pub fn link(&self) -> PathBuf {
        link_of(&self.name)
    }

    /// Returns the path of the record.
    pub fn record(&self) -> PathBuf {
        self.path.join("attachment.json")
    }

    /// Whether a holder listens, also a stopped one. A holder that can't be looked for, such as by users who
    /// may not talk to it, counts as alive: the node of a lost one is removed. Never waits.
    pub fn is_alive(&self) -> bool {
        is_listened_on(&self.socket()).unwrap_or(true)
    }

    /// Creates the link to a node.
    ///
    /// # Errors
    /// [`Error::Busy`] if another file has its name; errors of the kernel.
    pub fn make_link(&self, node: &Path) -> Result<()> {
        let link = self.link();
        let making =
            |error: std::io::Error| Error::from_io(&error, &format!("making the link {}", link.display()));
        std::fs::create_dir_all(LINKS).map_err(making)?;
        self.remove_link();
        match std::os::unix::fs::symlink(node, &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::busy(format!(
                "{}: expected a link, and another file is there: remove it",
                link.display()
            ))),
            other => other.map_err(making),
        }
    }

    /// Whether the link to the node exists, whatever its target.
    pub fn has_link(&self) -> bool {
        std::fs::symlink_metadata(self.link()).is_ok_and(|found| found.is_symlink())
    }

    /// Removes the link to the node, if it exists.
    pub fn remove_link(&self) {
        if self.has_link() {
            // A link that is left has no target.
            let _ = std::fs::remove_file(self.link());
        }
    }

    /// Removes the link and the folder. The caller holds the lock.
    ///
    /// # Errors
    /// [`Error::Busy`] while the volume is mounted, and removes nothing; errors of the kernel.
    pub fn remove(&self) -> Result<()> {
        if self.is_mounted() {
            return Err(Error::busy(format!("{} is still mounted: unmount it", self.volume().display())));
        }
        self.remove_link();
        announcement::withdraw(&self.name);
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => {
                other.map_err(|error| Error::from_io(&error, &format!("removing {}", self.path.display())))
            }
        }
    }
}

/// Truncates a log to at most its last `kept` bytes. Writers append, so they continue after these; a line
/// that is written at the same time may be lost.
///
/// # Errors
/// Errors of the kernel.
pub fn shorten_log(path: &Path, kept: u64) -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io(&error, &format!("shortening {}", path.display()));
    let mut log = std::fs::OpenOptions::new().read(true).append(true).open(path).map_err(failed)?;
    let length = log.metadata().map_err(failed)?.len();
    let mut rest = Vec::new();
    log.seek(SeekFrom::Start(length.saturating_sub(kept)))
        .and_then(|_| log.read_to_end(&mut rest))
        .map_err(failed)?;
    let line = rest.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    log.set_len(0).and_then(|()| log.write_all(b"(earlier lines were removed)\n")).map_err(failed)?;
    log.write_all(&rest[line..]).map_err(failed)
}

/// Lock of an attachment's folder, released by dropping it.
#[derive(Debug)]
pub struct FolderLock(#[allow(dead_code)] std::fs::File);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_log_keeps_its_last_lines_and_its_writers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut writer = std::fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        (0..1000).for_each(|line| writeln!(writer, "line {line}").unwrap());
        shorten_log(&path, 100).unwrap();
        writeln!(writer, "line 1000").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() < 200 && text.starts_with("(earlier lines were removed)\nline 98"), "{text}");
        assert!(text.ends_with("line 999\nline 1000\n"), "{text}");
    }

    /// A stopped holder accepts no connection; once the queue of its socket is full, further connections
    /// wait.
    #[test]
    fn a_holder_that_accepts_nothing_is_alive() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder { name: "vol".into(), path: parent.path().join("vol") };
        assert!(!folder.is_alive(), "there is no folder");
        std::fs::create_dir(&folder.path).unwrap();
        assert!(!folder.is_alive(), "there is no socket");
        let listener = std::os::unix::net::UnixListener::bind(folder.socket()).unwrap();
        let queue: Vec<_> = std::iter::from_fn(|| filling(&folder.socket())).collect();
        assert!(!queue.is_empty() && folder.is_alive());
        drop(listener);
        assert!(!folder.is_alive(), "nothing listens");
        std::fs::remove_file(folder.socket()).unwrap();
        std::os::unix::fs::symlink("holder.sock", folder.socket()).unwrap();
        assert!(folder.is_alive(), "it can't be looked for");
    }

    /// Connects without waiting; `None` if the listener's queue is full.
    fn filling(path: &Path) -> Option<std::os::fd::OwnedFd> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).is_ok().then_some(socket)
    }

    #[test]
    fn a_lock_that_must_exist_is_not_created() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder { name: "vol".into(), path: parent.path().to_owned() };
        assert!(matches!(folder.lock_existing(), Err(Error::NotFound(_))));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
        let lock = folder.lock().unwrap();
        assert!(matches!(folder.lock_existing(), Err(Error::Busy(_))));
        drop(lock);
        folder.lock_existing().unwrap();
    }

    #[test]
    fn names_are_one_component_of_a_path() {
        for name in ["vol", "a.b-c_1", &"x".repeat(64)] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", ".hidden", "a/b", "a b", "ä", &"x".repeat(65), "a\n"] {
            let text = check_name(name).unwrap_err().to_string();
            assert!(text.contains("--name"), "{name}: {text}");
        }
    }
}
