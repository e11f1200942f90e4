//! Border to the storage of a map that isn't in the log's zones (`home`).

use crate::core::MapKeeper;
use crate::directory::Directory;
use crate::format::Own;
use crate::layout::Layout;
use crate::map::Map;
use crate::versions::Versions;
use block::{Call, Error, Result, ZoneReport};
use logkit::ZonePool;
use logkit::directory::ZoneEntry;
use logkit::record::Identity;
use logkit::root::Root;
use runtime::file::SharedFile;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// A new home, and its empty map.
pub type NewHome = (Rc<dyn MapKeeper>, Arc<dyn Map>);

/// Storage of a map's home that isn't open yet.
pub trait HomeStorage {
    /// Returns the name of the storage for operators.
    fn name(&self) -> &str;

    /// Creates a home for a log of `zones` zones with a volume of `blocks` blocks. Returns it with the empty
    /// map. The home is invalid until its first transaction.
    ///
    /// # Errors
    /// Errors of allocating, writing and mapping.
    fn create(&self, identity: Identity, zones: u32, blocks: u64) -> Call<'_, Result<NewHome>>;

    /// Opens the home of a log with this root, which demands transaction `demanded` or a later one. With
    /// `look_only`, nothing is written.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another log's home or another file; [`Error::Corrupt`] for a damaged home, one
    /// that is too old, or one that is newer than the disk; errors of reading, writing and mapping.
    fn open<'a>(
        &'a self,
        layout: &'a Layout,
        root: &'a Root,
        demanded: u64,
        reports: &'a [ZoneReport],
        look_only: bool,
    ) -> Call<'a, Result<AtHome>>;
}

/// State of a log at its home's last transaction, from which records are replayed.
pub struct AtHome {
    /// The root, with the home's moment.
    pub root: Root,
    /// The zones that hold records, as in a directory.
    pub known: Vec<ZoneEntry>,
    /// The versions, as in a directory.
    pub directory: Directory,
    /// State of the zones.
    pub pool: ZonePool,
    /// The maps.
    pub versions: Versions,
    /// The home that keeps the maps; `None` if it was opened read-only.
    pub home: Option<Rc<dyn MapKeeper>>,
}

/// Use of the file of a map's home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileUse {
    /// Creating a log: the file is created, or truncated if it is a map's home.
    Create,
    /// Opening a log.
    Open,
    /// Reading a log: the file isn't written.
    LookOnly,
}

/// Opens the file of a home.
pub type OpenFile =
    for<'a> fn(&'a Path, FileUse, Option<&'a SharedFile>) -> Call<'a, Result<Rc<dyn HomeStorage>>>;

/// Functions for the files of maps' homes.
#[derive(Debug, Clone, Copy)]
pub struct HomeFiles {
    /// Opens and locks a file for [`Arguments::claim`](stack::Arguments::claim).
    pub lock: stack::LockFile,
    /// Opens a file. The last argument is the file if `lock` has opened and locked it.
    pub open: OpenFile,
}

/// Returns the storage of a log's map home, and the oldest transaction with which the log can be opened;
/// `None` for a log without a map home.
///
/// # Errors
/// [`Error::Invalid`] if the stack and the log differ about the map home.
pub(crate) fn demanded(
    root: &Root,
    storage: Option<Rc<dyn HomeStorage>>,
) -> Result<Option<(Rc<dyn HomeStorage>, u64)>> {
    match (Own::decode(&root.own)?.home, storage) {
        (Some(demanded), Some(storage)) => Ok(Some((storage, demanded))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::invalid(
            "map_home: not set, but this log's map is in a file of its own; set map_home = \"pmem:PATH\"",
        )),
        (None, Some(storage)) => Err(Error::invalid(format!(
            "map_home: {}, but this log's map is on its own disk; leave map_home out, or format the log with it",
            storage.name()
        ))),
    }
}
