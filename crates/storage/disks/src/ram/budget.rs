//! Memory budget of a `ram`: its limit, and a reserve for the machine.
//!
//! A refused request takes no memory. The machine's available memory is read once for every [`STRIDE`] that
//! is taken, and more often when little is left, so several devices and other programs may together use a
//! part of the reserve. Limits of control groups aren't considered: inside one, set `limit`. Devices that
//! share a [`Pool`] use its decision instead.

use block::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that several devices allocate from. Called on every shard, for each page that is allocated or
/// returned.
pub trait Pool: Send + Sync {
    /// Takes this many bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no memory for them; then no byte is taken.
    fn take(&self, bytes: u64) -> Result<()>;

    /// Adds bytes that are already in use.
    fn add(&self, bytes: u64);

    /// Returns this many bytes.
    fn give_back(&self, bytes: u64);
}

/// Limit of the memory that is taken between two readings of the machine's available memory, in bytes.
const STRIDE: u64 = 64 << 20;

/// Reserve for other programs: the machine's memory divided by this.
const SPARED: u64 = 32;

/// Counts the memory taken, in bytes. Shared by all shards.
pub(super) struct Budget {
    limit: Option<u64>,
    taken: AtomicU64,
    /// Memory in use at which the machine's available memory is read again, in bytes.
    look_at: AtomicU64,
    pool: Option<Arc<dyn Pool>>,
}

impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.give_back(self.taken());
        }
    }
}

impl Budget {
    /// Budget of at most `limit` bytes; `None`: no limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self::with(limit, None)
    }

    /// Budget whose memory is that of a pool.
    pub fn of_pool(pool: Arc<dyn Pool>) -> Self {
        Self::with(None, Some(pool))
    }

    fn with(limit: Option<u64>, pool: Option<Arc<dyn Pool>>) -> Self {
        Budget { limit, taken: AtomicU64::new(0), look_at: AtomicU64::new(0), pool }
    }

    /// Whether other devices use the same memory, so that each page has to be counted.
    pub fn is_shared(&self) -> bool {
        self.pool.is_some()
    }

    /// Memory in use, in bytes.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes this many bytes.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the limit or the machine's memory is exhausted.
    #[inline]
    pub fn take(&self, bytes: u64) -> Result<()> {
        if let Some(pool) = &self.pool {
            pool.take(bytes)?;
            self.taken.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if taken <= self.look_at.load(Ordering::Relaxed) { Ok(()) } else { self.look(bytes, taken) }
    }

    /// Adds bytes that are already in use.
    pub fn add(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if let Some(pool) = &self.pool {
            pool.add(bytes);
        }
    }

    pub fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(pool) = &self.pool {
            pool.give_back(bytes);
        }
    }

    /// Checks that a device of `bytes` bytes fits where memory is locked: its process isn't ended when memory
    /// is short, and its pages can't be paged out. A limit or a pool makes its own decision.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the available memory.
    pub fn check_locked(&self, bytes: u64, is_locked: bool) -> Result<()> {
        let Some((available, total)) = machine() else { return Ok(()) };
        let most = available.saturating_sub(total / SPARED);
        let wanted = self.limit.map_or(bytes, |limit| limit.min(bytes));
        match is_locked && self.pool.is_none() && wanted > most {
            true => Err(Error::out_of_memory(format!(
                "ram of {wanted} bytes, whose memory is locked because the kernel uses it as a disk: at most {most} of the \
                 machine's {available} available bytes can be taken; make it smaller, set limit, or end another program"
            ))),
            false => Ok(()),
        }
    }

    #[cold]
    fn look(&self, bytes: u64, taken: u64) -> Result<()> {
        let before = taken - bytes;
        let refuse = |why: String| {
            self.give_back(bytes);
            Err(Error::no_space(format!("ram has taken {before} bytes of memory: {why}")))
        };
        let limit = self.limit.unwrap_or(u64::MAX);
        if taken > limit {
            return refuse(format!("its limit is {limit}; raise limit, or discard what isn't needed"));
        }
        let room = match machine() {
            Some((available, total)) => match available.saturating_sub(total / SPARED) {
                room if room < bytes => {
                    return refuse(format!(
                        "the machine has {available} of {total} bytes left, and {} are spared; end another \
                         program, take a smaller device, or discard what isn't needed",
                        total / SPARED
                    ));
                }
                room => room,
            },
            // If the machine's memory is unknown, only the limit applies.
            None => STRIDE,
        };
        self.look_at.store(limit.min(taken.saturating_add(STRIDE.min(room / 4))), Ordering::Relaxed);
        Ok(())
    }
}

/// Available and total memory of the machine, in bytes.
pub(super) fn machine() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some((field(&text, "MemAvailable:")?, field(&text, "MemTotal:")?))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_kept_and_what_comes_back_can_be_taken_again() {
        let budget = Budget::new(Some(3 * 4096));
        (0..3).for_each(|_| budget.take(4096).expect("there is room"));
        let error = budget.take(4096).expect_err("it is full");
        assert_eq!((error.errno(), budget.taken()), (libc::ENOSPC, 3 * 4096));
        assert!(error.to_string().contains("its limit is 12288"), "{error}");
        budget.give_back(4096);
        budget.take(4096).expect("there is room again");
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let (available, total) = machine().expect("Linux says it");
        assert!(0 < available && available <= total);
        let budget = Budget::new(None);
        budget.take(4096).expect("there is a page");
        let error = budget.take(total).expect_err("not so much");
        assert_eq!((error.errno(), budget.taken()), (libc::ENOSPC, 4096));
        assert!(error.to_string().contains("are spared"), "{error}");
    }

    #[test]
    fn locked_memory_has_to_fit_the_machine() {
        let (available, total) = machine().expect("Linux says it");
        let budget = Budget::new(None);
        budget.check_locked(1 << 20, true).expect("a megabyte is there");
        let error = budget.check_locked(total, true).expect_err("not all of it");
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(error.to_string().contains(&format!("ram of {total} bytes")), "{error}");
        budget.check_locked(16 * total, false).expect("memory that isn't locked is taken as it is used");
        Budget::new(Some(available / 2)).check_locked(16 * total, true).expect("its limit fits");
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:       24578960 kB\nMemFree: 5 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(field(text, "MemTotal:"), Some(24_578_960 * 1024));
        assert_eq!(field(text, "MemAvailable:"), Some(23_000_000 * 1024));
        assert_eq!(field("MemTotal: many", "MemTotal:"), None);
    }
}
