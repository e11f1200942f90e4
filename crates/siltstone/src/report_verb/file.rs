//! File of a report: without a name until it is complete, so that an interrupted report leaves nothing.
//!
//! On file systems without such files (`O_TMPFILE`) it is created when everything is collected, and removed
//! again if it can't be written. An existing file is never replaced.

use crate::failure::Failure;
use bench::units;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most names that are tried for reports of one second.
const MAX_ALIKE: usize = 100;

/// File of a report that isn't complete.
pub struct ReportFile {
    /// Possible names, the preferred one first.
    names: Vec<PathBuf>,
    /// `None` on a file system that has no files without a name.
    file: Option<File>,
}

impl ReportFile {
    /// Creates the file for this path; without one, for a name in the current folder by the time `now`, in
    /// seconds since 1970.
    ///
    /// # Errors
    /// [`Failure::World`] for a file that exists, or a folder that can't be written.
    pub fn new(path: Option<PathBuf>, now: u64) -> Result<ReportFile, Failure> {
        let names = path.map_or_else(|| usual_names(now).collect(), |path| vec![path]);
        let exists = |name: &&PathBuf| name.symlink_metadata().is_ok();
        let Some(first) = names.iter().find(|name| !exists(name)) else {
            return Err(failed(&names[0], &ErrorKind::AlreadyExists.into()));
        };
        let folder = first.parent().filter(|folder| !folder.as_os_str().is_empty());
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, Mode::RUSR | Mode::WUSR);
        match opened {
            Ok(file) => Ok(ReportFile { names, file: Some(file.into()) }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS) => Ok(ReportFile { names, file: None }),
            Err(error) => Err(failed(first, &error.into())),
        }
    }

    /// Writes the file, and gives it the first free name, which is returned.
    ///
    /// # Errors
    /// [`Failure::World`] for errors of writing, and if no name is free any more.
    pub fn write(self, write: impl FnOnce(&File) -> std::io::Result<()>) -> Result<PathBuf, Failure> {
        let failed_to_write =
            |name: &Path, error| Failure::World(format!("report {}: {error}", name.display()));
        let Some(file) = self.file else {
            let create = |name: &Path| File::options().write(true).create_new(true).mode(0o600).open(name);
            let (file, name) = first_free(&self.names, create)?;
            return match write(&file) {
                Ok(()) => Ok(name),
                Err(error) => {
                    // It was created above, and is incomplete.
                    let _ = std::fs::remove_file(&name);
                    Err(failed_to_write(&name, error))
                }
            };
        };
        write(&file).map_err(|error| failed_to_write(&self.names[0], error))?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |name: &Path| Ok(rustix::fs::linkat(CWD, &unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW)?);
        first_free(&self.names, link).map(|((), name)| name)
    }
}

/// Creates the first of the names that doesn't exist.
fn first_free<T>(
    names: &[PathBuf],
    create: impl Fn(&Path) -> std::io::Result<T>,
) -> Result<(T, PathBuf), Failure> {
    for name in names {
        match create(name) {
            Ok(created) => return Ok((created, name.clone())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(name, &error)),
        }
    }
    Err(failed(&names[0], &ErrorKind::AlreadyExists.into()))
}

fn usual_names(now: u64) -> impl Iterator<Item = PathBuf> {
    let date = units::date(now).replace(' ', "-").replace(':', "");
    (1..=MAX_ALIKE).map(move |number| {
        let number = if number == 1 { String::new() } else { format!("-{number}") };
        format!("siltstone-report-{date}{:02}{number}.tar", now % 60).into()
    })
}

fn failed(path: &Path, error: &Error) -> Failure {
    let shown = path.display();
    Failure::World(match error.kind() {
        ErrorKind::AlreadyExists => format!(
            "report {shown}: the file exists; expected a new name; remove it, or give another one with -o"
        ),
        _ => format!("report {shown}: {error}; expected a folder that can be written; give one with -o"),
    })
}
