//! Making appends durable: many who ask at the same time share one flush of the zones.

use crate::core::Core;
use block::{Durable, Result, ZoneIndex};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Which zones have appends that may not be durable, and which flush they are waiting for.
#[derive(Debug, Default)]
pub struct Flusher {
    unflushed: RefCell<Vec<ZoneIndex>>,
    /// Flushes that have begun, have ended, and are wanted.
    begun: Cell<u64>,
    ended: Cell<u64>,
    wanted: Cell<u64>,
    is_running: Cell<bool>,
    /// Flushes that failed, as long as somebody may ask.
    failure: RefCell<Option<(u64, block::Error)>>,
    changed: Notify,
}

impl Flusher {
    /// Something was appended to this zone, or may have been.
    pub fn appended(&self, zone: u32) {
        let mut unflushed = self.unflushed.borrow_mut();
        if !unflushed.contains(&ZoneIndex(zone)) {
            unflushed.push(ZoneIndex(zone));
        }
    }
}

impl Core {
    /// Makes durable what has been appended by now; not what waits to be appended, which may be waiting for the caller.
    ///
    /// # Errors
    /// What flushing the zones says; what was not flushed is flushed again by the next call.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        let flusher = &self.flusher;
        if self.zones.geometry().durable == Durable::OnAppend {
            return Ok(());
        }
        // A flush that has begun may have passed what was appended a moment ago.
        let ticket = flusher.begun.get() + 1;
        flusher.wanted.set(flusher.wanted.get().max(ticket));
        if !flusher.is_running.replace(true) {
            self.tasks.spawn(self.clone().run_flushes()).detach();
        }
        while flusher.ended.get() < ticket {
            flusher.changed.notified().await;
        }
        match &*flusher.failure.borrow() {
            Some((failed, error)) if *failed >= ticket => Err(error.clone()),
            _ => Ok(()),
        }
    }

    async fn run_flushes(self: Rc<Self>) {
        let flusher = &self.flusher;
        while flusher.ended.get() < flusher.wanted.get() {
            let number = flusher.begun.get() + 1;
            flusher.begun.set(number);
            let zones = std::mem::take(&mut *flusher.unflushed.borrow_mut());
            let committed = self.streams.each_ref().map(|stream| stream.borrow().committed());
            match self.zones.flush(&zones).await {
                Ok(()) => {
                    for (stream, committed) in self.streams.iter().zip(committed) {
                        stream.borrow_mut().set_durable(committed);
                    }
                }
                Err(error) => {
                    zones.iter().for_each(|zone| flusher.appended(zone.0));
                    *flusher.failure.borrow_mut() = Some((number, error));
                }
            }
            flusher.ended.set(number);
            flusher.changed.notify_all();
        }
        flusher.is_running.set(false);
    }
}
