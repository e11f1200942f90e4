//! Borrowers: exports `memory/NAME`, each with memory of its own, which are created when a client opens them.
//!
//! A borrower exists while clients are connected to it, and for a configured time after the last one has
//! disconnected. Then its memory is released; a borrower that is created later under the same name has zeros
//! and another epoch.

use crate::lending::Lending;
use crate::status::MAX_BORROWERS;
use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Extent, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use disks::ram::RamPart;
use doors::nbd::negotiation::ExportDescription;
use doors::nbd::server::ExportConfig;
use doors::nbd::source::ExportSource;
use runtime::Instant;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Beginning of the names of borrowers' exports.
pub(crate) const PREFIX: &str = "memory/";
/// Time for which a borrower without memory and without a connection is kept: a client such as nbdinfo leaves
/// one.
const KEPT_EMPTY: Duration = Duration::from_secs(30);
/// Longest name of a borrower, in bytes.
const MAX_NAME: usize = 64;
/// Block size of borrowers' devices, in bytes.
pub(crate) const BLOCK: u64 = 4096;

/// All borrowers of a node.
#[derive(Debug)]
pub(crate) struct Borrowers {
    pub lending: Arc<Lending>,
    /// Size of each borrower's device, in bytes.
    pub quota: u64,
    most: usize,
    all: Mutex<BTreeMap<String, Arc<Borrower>>>,
}

impl Borrowers {
    /// Creates an empty set of at most `most` borrowers.
    pub fn new(lending: Arc<Lending>, quota: u64, most: usize) -> Self {
        Borrowers { lending, quota, most: most.min(MAX_BORROWERS), all: Mutex::default() }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Borrower>>> {
        // Nothing panics while the lock is held.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The borrowers, by name.
    pub fn all(&self) -> Vec<Arc<Borrower>> {
        self.locked().values().cloned().collect()
    }

    /// Removes the borrowers whose last client disconnected at least this long ago, and returns them. Their
    /// memory is released when they are dropped.
    pub fn forget(&self, after: Duration) -> Vec<Arc<Borrower>> {
        let mut all = self.locked();
        let names: Vec<String> = all
            .iter()
            .filter(|(_, borrower)| borrower.forget_if_unused(after))
            .map(|(name, _)| name.clone())
            .collect();
        names.iter().filter_map(|name| all.remove(name)).collect()
    }

    /// Returns the name of an export's borrower, if it exists or may be created.
    fn check<'n>(&self, export: &'n str, all: &BTreeMap<String, Arc<Borrower>>) -> Result<&'n str> {
        let name = export.strip_prefix(PREFIX).ok_or_else(|| {
            Error::not_found(format!(
                "there is no export \"{}\": expected status, or {PREFIX}NAME",
                shortened(export, MAX_NAME)
            ))
        })?;
        check_name(name)?;
        if !all.contains_key(name) && all.len() >= self.most {
            return Err(Error::busy(format!(
                "the limit of {} borrowers is reached; use the name of an existing one, or another node",
                all.len()
            )));
        }
        Ok(name)
    }

    fn description(&self, name: &str) -> ExportDescription {
        ExportDescription {
            name: format!("{PREFIX}{name}"),
            description: DESCRIPTION.to_owned(),
            size: self.quota,
            read_only: false,
            several_connections: true,
            preferred_block: BLOCK as u32,
        }
    }
}

const DESCRIPTION: &str = "borrowed memory; lost with the node";

/// Checks the name of a borrower.
///
/// # Errors
/// [`Error::Invalid`] for an empty or long name, or characters other than letters, digits, '.', '_' and '-'.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "name \"{}\" of a borrower: expected 1 to {MAX_NAME} letters, digits, '.', '_' or '-'",
            shortened(name, MAX_NAME)
        ))),
    }
}

/// Returns the first `most` characters of a text from outside, with control characters escaped.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let mut begin = String::new();
    for character in text.chars().take(most) {
        match character.is_control() {
            true => begin.extend(character.escape_default()),
            false => begin.push(character),
        }
    }
    if text.chars().nth(most).is_some() { begin + "…" } else { begin }
}

impl ExportSource for Borrowers {
    fn list(&self) -> Vec<ExportDescription> {
        self.locked().keys().map(|name| self.description(name)).collect()
    }

    fn describe(&self, export: &str) -> Result<ExportDescription> {
        Ok(self.description(self.check(export, &self.locked())?))
    }

    fn open(&self, export: &str) -> Result<ExportConfig> {
        let mut all = self.locked();
        let name = self.check(export, &all)?;
        let borrower = match all.get(name) {
            Some(borrower) => borrower.clone(),
            None => {
                let borrower = Arc::new(Borrower::new(name.to_owned(), self)?);
                all.insert(name.to_owned(), borrower.clone());
                borrower
            }
        };
        borrower.uses().since = runtime::now();
        let description = DESCRIPTION.to_owned();
        Ok(ExportConfig { name: export.to_owned(), description, device: borrower, read_only: false })
    }
}

/// A borrower and its memory.
#[derive(Debug)]
pub(crate) struct Borrower {
    pub name: String,
    /// Random number of this creation of the name: a different one means that earlier memory was lost. It has
    /// 53 bits, which are exact in programs that parse JSON numbers as floating-point ones.
    pub epoch: u64,
    ram: Ram,
    uses: Arc<Mutex<Uses>>,
}

struct Ram(RamPart);

impl std::fmt::Debug for Ram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes of memory", self.0.memory_bytes())
    }
}

/// Connections of a borrower.
#[derive(Debug)]
pub(crate) struct Uses {
    pub connections: usize,
    /// Time of the last change of the number of connections.
    pub since: Instant,
    is_forgotten: bool,
}

impl Borrower {
    fn new(name: String, borrowers: &Borrowers) -> Result<Self> {
        let ram = RamPart::with_pool(borrowers.quota, BlockSize::new(BLOCK)?, borrowers.lending.clone())?;
        let uses = Uses { connections: 0, since: runtime::now(), is_forgotten: false };
        let (epoch, uses) = (runtime::random_u64() >> 11, Arc::new(Mutex::new(uses)));
        Ok(Borrower { name, epoch, ram: Ram(ram), uses })
    }

    pub fn uses(&self) -> MutexGuard<'_, Uses> {
        locked(&self.uses)
    }

    /// Memory of the borrower, in bytes.
    pub fn lent(&self) -> u64 {
        self.ram.0.memory_bytes()
    }

    fn forget_if_unused(&self, after: Duration) -> bool {
        let after = if self.lent() == 0 { after.min(KEPT_EMPTY) } else { after };
        let mut uses = self.uses();
        if uses.connections == 0 && uses.since.elapsed() >= after {
            uses.is_forgotten = true;
        }
        uses.is_forgotten
    }
}

fn locked(uses: &Mutex<Uses>) -> MutexGuard<'_, Uses> {
    // Nothing panics while the lock is held.
    uses.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Part for Borrower {
    fn kind(&self) -> &'static str {
        "borrower"
    }

    fn status(&self) -> Call<'_, Status> {
        self.ram.0.status()
    }
}

impl DevicePart for Borrower {
    fn geometry(&self) -> &DeviceGeometry {
        self.ram.0.geometry()
    }

    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async {
            let device = self.ram.0.open().await?;
            let mut uses = self.uses();
            if uses.is_forgotten {
                return Err(Error::closed(format!(
                    "borrower {} has been forgotten; connect again",
                    self.name
                )));
            }
            (uses.connections, uses.since) = (uses.connections + 1, runtime::now());
            Ok(Rc::new(Borrowed { device, uses: self.uses.clone() }) as Rc<dyn Device>)
        })
    }
}

/// Handle of a connection: the borrower is in use until the handle is dropped.
struct Borrowed {
    device: Rc<dyn Device>,
    uses: Arc<Mutex<Uses>>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let mut uses = locked(&self.uses);
        (uses.connections, uses.since) = (uses.connections - 1, runtime::now());
    }
}

impl Device for Borrowed {
    fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.device.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.device.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.device.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.device.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.device.write_zeroes(range, mode, durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(range)
    }
}
