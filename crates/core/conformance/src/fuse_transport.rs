//! Transports of the requests of a FUSE mount, for tests: `/dev/fuse`, or rings where the kernel has them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// The kernel's parameter. A mount has rings if it is on at its start.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Transport of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `/dev/fuse`.
    Device,
    /// Rings of io_uring.
    Rings,
}

impl Transport {
    /// Whether this machine has the transport. If not, prints that the test is skipped.
    pub fn is_possible(self) -> bool {
        let parameter = OpenOptions::new().read(true).write(true).open(PARAMETER);
        if self == Transport::Device || parameter.is_ok() {
            return true;
        }
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        println!("SKIPPED: {name}: needs Linux 6.14 and permission to write {PARAMETER}");
        false
    }

    /// Sets the kernel's parameter until the result is dropped; `None` where there is none. Another test that
    /// sets it waits meanwhile, so keep the result only while a file system is mounted.
    ///
    /// # Panics
    /// If the parameter can't be read or written.
    pub fn set(self) -> Option<ParameterGuard> {
        let file = OpenOptions::new().read(true).write(true).open(PARAMETER).ok()?;
        file.lock().expect("the parameter is locked");
        let mut before = [0];
        file.read_exact_at(&mut before, 0).expect("the parameter is read");
        let value = if self == Transport::Rings { b"Y" } else { b"N" };
        file.write_all_at(value, 0).expect("the parameter is written");
        Some(ParameterGuard { file, before })
    }
}

/// The parameter and its earlier value, which is written back.
#[derive(Debug)]
pub struct ParameterGuard {
    file: File,
    before: [u8; 1],
}

impl Drop for ParameterGuard {
    fn drop(&mut self) {
        // An error would be one of the write before.
        let _same = self.file.write_all_at(&self.before, 0);
    }
}
