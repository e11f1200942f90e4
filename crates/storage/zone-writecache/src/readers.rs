//! Reads of the log in flight: the writer waits for them before it overwrites the bytes that they read.

use runtime::sync::Notify;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Reads in flight by the address of their first byte.
#[derive(Debug, Default)]
pub struct Readers {
    /// Number of reads by address.
    addresses: RefCell<BTreeMap<u64, usize>>,
    ended: Notify,
}

/// A read in flight, until it is dropped.
#[must_use = "the read ends when this is dropped"]
pub struct Reader<'a> {
    readers: &'a Readers,
    address: u64,
}

impl Readers {
    /// Begins a read of the log at or after this address.
    pub fn begin(&self, address: u64) -> Reader<'_> {
        *self.addresses.borrow_mut().entry(address).or_insert(0) += 1;
        Reader { readers: self, address }
    }

    /// Waits until no read before this address is in flight. The caller has removed the extents there from
    /// the index, so that no other read begins.
    pub async fn wait_until_ended_before(&self, address: u64) {
        while self.addresses.borrow().first_key_value().is_some_and(|(first, _)| *first < address) {
            self.ended.notified().await;
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut addresses = self.readers.addresses.borrow_mut();
        if let Some(count) = addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.address);
            }
        }
        drop(addresses);
        self.readers.ended.notify_all();
    }
}
