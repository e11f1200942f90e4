//! Control socket of each stack and flash chip.
//!
//! Without `--control`, a server's socket is in a folder of its user, under a name that is derived from the
//! stack or the chip alone, so that operators find the server by it:
//!
//! - A stack *file*, or the image of `siltstone fs mount`, is identified by its absolute path, with links
//!   resolved. It has one server at a time.
//! - A stack of *one line*, or from standard input, is identified by its text and the working directory,
//!   against which its relative paths are resolved. Two memories of the same size are two stacks, so up to
//!   [`MAX_ALIKE`] servers of the same line get numbers; if several run, an operator has to choose one.
//! - A *flash chip* is identified by its image's absolute path, or without an image by its server's process.
//!   Names of chips have their own ending, so that operators find all served chips.
//!
//! The folder is `siltstone` in `XDG_RUNTIME_DIR` if that is a folder of this user; else
//! `/run/siltstone-control` for root, or `siltstone` in `/run/user/UID` for others; else
//! `/tmp/siltstone-UID`, which another user may have created before. A server may have another environment
//! than the operator, so all of them are searched. A folder that others may write to is never used: another
//! user could impersonate the server there.

use crate::failure::Failure;
use crate::unix_connect;
use block::{Error, Result};
use stack::Stack;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Limit of servers of the same line.
pub const MAX_ALIKE: usize = 16;

/// Longest XDG_RUNTIME_DIR, so that with a socket's name it fits into the 107 bytes of an address.
const MAX_FOLDER: usize = 107 - "/siltstone/0123456789abcdef-spi.sock".len();

/// Address of a server for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlAddress {
    /// Path of `--control`.
    At(PathBuf),
    /// Path derived from the stack.
    Of(Identity),
}

/// Identity of a stack or a flash chip for its socket names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    hash: u64,
    subject: Subject,
}

/// Subject of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    StackFile,
    StackText,
    Chip,
}

/// Ending of the names of chips' sockets.
const CHIP_SUFFIX: &str = "-spi.sock";

/// Limit of the files that are examined for chips' sockets.
const MAX_EXAMINED: usize = 1000;

impl Identity {
    /// Returns the identity of a stack file, or of the image of a mount; `None` if the argument is a line, or
    /// there is no such file or block device.
    pub fn of_file(argument: &str) -> Option<Identity> {
        let path = Path::new(argument);
        let is_file = |found: std::fs::Metadata| found.is_file() || found.file_type().is_block_device();
        if argument == "-" || !std::fs::metadata(path).is_ok_and(is_file) {
            return None;
        }
        let path = std::fs::canonicalize(path).ok()?;
        Some(Identity {
            hash: hash(&[b"file", path.as_os_str().as_encoded_bytes()]),
            subject: Subject::StackFile,
        })
    }

    /// Returns the identity of a stack that was read from one line or standard input.
    ///
    /// # Errors
    /// [`Failure::World`] if the working directory doesn't exist any more.
    pub fn of_text(stack: &Stack) -> Result<Identity, Failure> {
        let folder = std::env::current_dir()
            .map_err(|error| Failure::World(format!("asking for the current folder: {error}")))?;
        let text = stack.to_toml();
        let parts: [&[u8]; 3] = [b"text", folder.as_os_str().as_encoded_bytes(), text.as_bytes()];
        Ok(Identity { hash: hash(&parts), subject: Subject::StackText })
    }

    /// Returns the identity of a flash chip with this image; without one, of the chip that this process
    /// serves.
    ///
    /// # Errors
    /// [`Failure::World`] if the image doesn't exist.
    pub fn of_chip(image: Option<&Path>) -> Result<Identity, Failure> {
        let hash = match image {
            Some(image) => {
                let path = std::fs::canonicalize(image).map_err(|error| {
                    let (image, expected) =
                        (image.display(), "expected the image of a served chip; check the path");
                    Failure::Usage(format!("image \"{image}\": {error}; {expected}"))
                })?;
                hash(&[b"chip", path.as_os_str().as_encoded_bytes()])
            }
            None => hash(&[b"chip of process", &std::process::id().to_le_bytes()]),
        };
        Ok(Identity { hash, subject: Subject::Chip })
    }

    /// Whether it identifies a stack file, which can have only one server.
    pub fn is_file(&self) -> bool {
        self.subject == Subject::StackFile
    }

    /// Returns the possible names of the socket, the preferred one first.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let Identity { hash, subject } = *self;
        let numbers = if subject == Subject::StackText { MAX_ALIKE } else { 1 };
        (1..=numbers).map(move |number| match number {
            1 if subject == Subject::Chip => format!("{hash:016x}{CHIP_SUFFIX}"),
            1 => format!("{hash:016x}.sock"),
            _ => format!("{hash:016x}-{number}.sock"),
        })
    }
}

/// 64-bit FNV-1a (Fowler, Noll and Vo; draft-eastlake-fnv), each part followed by a zero byte. All versions
/// of the program must compute the same value. It needn't resist attacks: the folder belongs to the user.
fn hash(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter().chain([&0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Folder of root's control sockets; only root may write to it.
const FOLDER_OF_ROOT: &str = "/run/siltstone-control";

/// Returns the candidate folders, existing or not. New sockets go to the first usable one.
fn folders() -> Vec<PathBuf> {
    let own = |path: &PathBuf| {
        let found = std::fs::metadata(path);
        let fits = path.as_os_str().len() <= MAX_FOLDER;
        fits && path.is_absolute() && found.is_ok_and(|found| found.is_dir() && found.uid() == own_user())
    };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
    let of_user = || Some(PathBuf::from(format!("/run/user/{}", own_user()))).filter(own);
    let first = runtime.map(|folder| folder.join("siltstone"));
    let second = match own_user() {
        0 => Some(PathBuf::from(FOLDER_OF_ROOT)),
        _ => of_user().map(|folder| folder.join("siltstone")),
    };
    let last = PathBuf::from(format!("/tmp/siltstone-{}", own_user()));
    let mut folders: Vec<_> = first.into_iter().chain(second).chain([last]).collect();
    folders.dedup();
    folders
}

/// Whether a folder exists and only its user may write to it.
///
/// # Errors
/// Another file has its name, or others may write to it.
fn is_ready(folder: &Path) -> Result<bool> {
    let found = match std::fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::from_io(&error, &format!("looking at {}", folder.display()))),
        Ok(found) => found,
    };
    if found.is_dir() && found.uid() == own_user() && found.mode() & 0o022 == 0 {
        return Ok(true);
    }
    Err(Error::permission_denied(format!(
        "{}: expected a folder for control sockets that only user {} may write to; remove it, or give --control PATH",
        folder.display(),
        own_user()
    )))
}

/// Returns the folder for new sockets, and creates it if it doesn't exist.
///
/// # Errors
/// The folder can't be created, or others may write to it.
pub fn make_folder() -> Result<PathBuf> {
    first_usable(&folders())
}

/// Returns the first folder that exists or can be created. One that others may write to is an error.
fn first_usable(folders: &[PathBuf]) -> Result<PathBuf> {
    let mut first = None;
    for folder in folders {
        let is_there = is_ready(folder)?;
        match made(folder) {
            Ok(folder) => return Ok(folder),
            Err(error) if is_there => return Err(error),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| Error::not_found("a folder for control sockets; give --control PATH")))
}

/// Creates a folder, if it doesn't exist.
fn made(folder: &Path) -> Result<PathBuf> {
    if !is_ready(folder)? {
        let made = std::fs::DirBuilder::new().mode(0o700).create(folder);
        if let Err(error) = made
            && error.kind() != ErrorKind::AlreadyExists
        {
            let doing = format!(
                "making the folder {} for control sockets (or give --control PATH)",
                folder.display()
            );
            return Err(Error::from_io(&error, &doing));
        }
        is_ready(folder)?;
    }
    Ok(folder.to_owned())
}

/// Connects to a socket; `None` without a server: the file is missing, or a killed server left it.
///
/// # Errors
/// Errors of the kernel, such as a missing permission or another type of file; [`Error::TimedOut`] for a
/// server that accepts no connection.
pub fn connect(path: &Path) -> Result<Option<UnixStream>> {
    match unix_connect::connect(path) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => {
            Err(Error::from_io(&error, &format!("connecting to control socket {}", path.display())))
        }
    }
}

/// Returns the folders that exist, without those that others may write to.
fn ready_folders() -> impl Iterator<Item = PathBuf> {
    folders().into_iter().filter(|folder| is_ready(folder).unwrap_or(false))
}

/// Connects to the sockets that have a server.
fn connected(paths: impl IntoIterator<Item = PathBuf>) -> Result<Vec<(PathBuf, UnixStream)>> {
    let connected = |path: PathBuf| connect(&path).map(|stream| Some((path, stream?))).transpose();
    paths.into_iter().filter_map(connected).collect()
}

/// Connects to all servers of this stack. Skips folders that others may write to.
///
/// # Errors
/// Errors of [`connect`].
pub fn servers(identity: &Identity) -> Result<Vec<(PathBuf, UnixStream)>> {
    connected(ready_folders().flat_map(|folder| identity.names().map(move |name| folder.join(name))))
}

/// Returns the sockets of stacks or of chips in the folders of this user, those of killed servers included.
fn sockets(of_chips: bool) -> Vec<PathBuf> {
    let is_wanted = move |path: &PathBuf| {
        let name = path.as_os_str().as_encoded_bytes();
        name.ends_with(b".sock") && name.ends_with(CHIP_SUFFIX.as_bytes()) == of_chips
    };
    let entries = |folder| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = |folder| entries(folder).map(|entry| entry.path()).filter(is_wanted).take(MAX_EXAMINED);
    ready_folders().flat_map(paths).collect()
}

/// Returns the sockets of stacks in the folders of this user, also those that a killed server left.
pub fn stack_sockets() -> Vec<PathBuf> {
    sockets(false)
}

/// Connects to all servers of flash chips.
///
/// # Errors
/// Errors of [`servers`].
pub fn chip_servers() -> Result<Vec<(PathBuf, UnixStream)>> {
    let mut paths = sockets(true);
    paths.sort();
    connected(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::registry;
    use std::os::unix::fs::PermissionsExt;

    fn text(line: &str) -> Identity {
        Identity::of_text(&Stack::from_line("stack", line, &registry()).unwrap()).unwrap()
    }

    #[test]
    fn a_line_is_what_it_says() {
        assert_eq!(text("stats(ram(1MiB))"), text("stats( on=ram(size=1024KiB) )"), "however it is written");
        assert_ne!(text("stats(ram(1MiB))"), text("stats(ram(2MiB))"));
        let names: Vec<String> = text("ram(1MiB)").names().collect();
        assert!(names.len() == MAX_ALIKE && names[1] == names[0].replace(".sock", "-2.sock"), "{names:?}");
    }

    #[test]
    fn a_file_is_where_it_lies() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("a.toml"), "").unwrap();
        std::fs::write(path("b.toml"), "").unwrap();
        std::os::unix::fs::symlink(path("a.toml"), path("link.toml")).unwrap();
        let of = |name: &str| Identity::of_file(&path(name)).unwrap();
        assert_eq!(of("a.toml"), of("link.toml"));
        assert_eq!(of("a.toml"), of("./a.toml"));
        assert_ne!(of("a.toml"), of("b.toml"));
        assert_eq!(Identity::of_file("ram(1MiB)"), None);
        assert_eq!(of("a.toml").names().count(), 1);
    }

    /// Servers and operators may be of different versions.
    #[test]
    fn the_hash_is_fnv_1a() {
        // Test vectors of the draft, with the zero byte that ends each part.
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(&[b""]), 0xaf63_bd4c_8601_b7df);
        assert_eq!(hash(&[b"foobar"]), 0x3453_1ca7_168b_8f38);
    }

    #[test]
    fn folders_of_root_come_before_one_that_anybody_may_make() {
        let folder = tempfile::tempdir().unwrap();
        let (nowhere, free) = (folder.path().join("none/at/all"), folder.path().join("free"));
        assert_eq!(first_usable(&[nowhere.clone(), free.clone()]), Ok(free.clone()));
        assert!(matches!(first_usable(&[nowhere]), Err(Error::NotFound(_))));
        std::fs::set_permissions(&free, PermissionsExt::from_mode(0o777)).unwrap();
        let refused = first_usable(&[free, folder.path().join("next")]);
        assert!(matches!(refused, Err(Error::PermissionDenied(_))), "{refused:?}");
        if own_user() == 0 {
            let of_root = Path::new(FOLDER_OF_ROOT).to_owned();
            let tmp = PathBuf::from("/tmp/siltstone-0");
            let all = folders();
            let at = |path: &PathBuf| all.iter().position(|folder| folder == path);
            assert!(at(&of_root) < at(&tmp) && at(&of_root).is_some(), "{all:?}");
        }
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("siltstone");
        assert_eq!(is_ready(&inside), Ok(false));
        std::fs::create_dir(&inside).unwrap();
        for (mode, fine) in [(0o700, true), (0o755, true), (0o770, false), (0o702, false)] {
            std::fs::set_permissions(&inside, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(is_ready(&inside).is_ok(), fine, "{mode:o}");
        }
        let link = folder.path().join("link");
        std::fs::set_permissions(&inside, PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&inside, &link).unwrap();
        assert!(matches!(is_ready(&link), Err(Error::PermissionDenied(_))), "a link may lead anywhere");
    }
}
