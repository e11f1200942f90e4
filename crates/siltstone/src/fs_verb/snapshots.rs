//! `siltstone fs snapshot`: snapshots of a file system, through its mount or of an image.

use super::mounted::mount_at;
use super::{check_exists, with_image};
use crate::arguments::{FsSnapshot, FsSnapshotVerb, FsSnapshots};
use crate::failure::Failure;
use crate::output::{print, print_json, print_line};
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::json;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directory of a mount with its snapshots.
const DIRECTORY: &str = ".snapshots";

/// Name of a snapshot, and its creation time in seconds.
type Listed = (String, u64);

/// Runs the verb.
///
/// # Errors
/// A wrong image, directory or name; errors of the file system.
pub(super) fn snapshot(verb: &FsSnapshotVerb) -> Result<(), Failure> {
    match verb {
        FsSnapshotVerb::Create(arguments) => create(arguments),
        FsSnapshotVerb::List(arguments) => list(arguments),
        FsSnapshotVerb::Delete(arguments) => delete(arguments),
    }
}

/// Returns the directory of snapshots if `what` is a mount point; `None` for an image.
fn mounted(what: &str) -> Result<Option<PathBuf>, Failure> {
    check_exists(what)?;
    match Path::new(what).is_dir() {
        true => Ok(Some(mount_at(Path::new(what))?.at.join(DIRECTORY))),
        false => Ok(None),
    }
}

/// Refuses names that would be other paths in the mount.
fn check_name(name: &str) -> Result<(), Failure> {
    fs::metadata::versions::check_name(name).map_err(|error| Failure::Usage(error.detail().to_owned()))
}

fn create(arguments: &FsSnapshot) -> Result<(), Failure> {
    let FsSnapshot { what, name } = arguments;
    check_name(name)?;
    match mounted(what)? {
        Some(directory) => std::fs::create_dir(directory.join(name)).map_err(|error| failed(name, &error))?,
        None => {
            let name = name.clone();
            with_image(what, async move |files| files.create_snapshot(&name).await.map(drop))?;
        }
    }
    print_line(&format!("{what}: took the snapshot {name}"))
}

fn delete(arguments: &FsSnapshot) -> Result<(), Failure> {
    let FsSnapshot { what, name } = arguments;
    check_name(name)?;
    match mounted(what)? {
        Some(directory) => std::fs::remove_dir(directory.join(name)).map_err(|error| failed(name, &error))?,
        None => {
            let name = name.clone();
            with_image(what, async move |files| files.delete_snapshot(&name).await)?;
        }
    }
    print_line(&format!("{what}: deleted the snapshot {name}"))
}

fn failed(name: &str, error: &std::io::Error) -> Failure {
    Failure::World(match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("snapshot \"{name}\" exists already; choose another name, or delete it first")
        }
        std::io::ErrorKind::NotFound => {
            format!("snapshot \"{name}\" doesn't exist; siltstone fs snapshot list shows those that do")
        }
        std::io::ErrorKind::StorageFull => {
            format!(
                "snapshot \"{name}\": no space, or 256 snapshots exist already; delete files or snapshots"
            )
        }
        _ => format!("snapshot \"{name}\": {error}"),
    })
}

fn list(arguments: &FsSnapshots) -> Result<(), Failure> {
    let found: Vec<Listed> = match mounted(&arguments.what)? {
        Some(directory) => of_mount(&directory)
            .map_err(|error| Failure::World(format!("{}: {error}", directory.display())))?,
        None => with_image(&arguments.what, async |files| {
            let seconds = |created: i64| (created / 1_000_000_000).max(0) as u64;
            Ok(files.snapshots().await?.into_iter().map(|it| (it.name, seconds(it.created))).collect())
        })?,
    };
    if arguments.json {
        let all = found.iter().map(|(name, created)| json!({ "name": name, "created": created }));
        return print_json(&json!({ "snapshots": all.collect::<Vec<_>>() }));
    }
    if found.is_empty() {
        return print_line("no snapshots");
    }
    let mut table = Grid::new(&["name", "created"]);
    for (name, created) in found {
        table.push(vec![Cell::Word(name), Cell::Word(format!("{} UTC", units::date(created)))]);
    }
    let mut out = String::new();
    table.write(0, &mut out);
    print(&out)
}

/// Lists the snapshots of a mount. The creation time is the modification time of the directory.
fn of_mount(directory: &Path) -> std::io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        found.push(((metadata.ctime(), metadata.ctime_nsec()), name));
    }
    found.sort();
    Ok(found.into_iter().map(|((seconds, _), name)| (name, seconds.max(0) as u64)).collect())
}
