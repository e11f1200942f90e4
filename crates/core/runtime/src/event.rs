//! Event descriptors (eventfd(2)) that are shared with another process, as vhost uses them.
//!
//! The other process may pass any descriptor: a wait or a signal never blocks the shard, and a descriptor
//! that isn't an eventfd is an error.

use crate::file::os_error;
use crate::in_flight::submit;
use crate::operation::{Descriptor, Operation};
use crate::shard;
use block::{Error, Result};
use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

/// Returns a new event descriptor, not signalled.
///
/// # Errors
/// Errors of eventfd(2).
pub fn create_event() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Error::from_io(&error.into(), "creating an eventfd"))
}

/// Whether a descriptor of another process is an eventfd. Uses the descriptor's link in /proc, which isn't a
/// path for an eventfd: no file system, which could block, is involved.
pub fn is_event(descriptor: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Makes reads and writes of a descriptor of another process return at once.
fn set_nonblocking(descriptor: &OwnedFd) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(descriptor);
    flags
        .and_then(|flags| rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NONBLOCK))
        .map_err(|error| Error::from_io(&error.into(), "preparing an event descriptor"))
}

/// Event descriptor that any thread may signal.
pub struct EventSignal(OwnedFd);

impl EventSignal {
    /// Takes a descriptor of another process.
    ///
    /// # Errors
    /// Errors of fcntl(2).
    pub fn new(descriptor: OwnedFd) -> Result<EventSignal> {
        set_nonblocking(&descriptor)?;
        Ok(EventSignal(descriptor))
    }

    /// Signals the event. Does nothing if it has been signalled 2^64 - 2 times without a wait.
    ///
    /// # Errors
    /// Errors of write(2), for a descriptor that isn't an eventfd.
    #[inline]
    pub fn signal(&self) -> Result<()> {
        match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(Error::from_io(&error.into(), "signalling an event")),
        }
    }
}

/// Event descriptor that a task of this shard waits for.
pub struct EventWait {
    descriptor: Rc<Descriptor>,
}

impl EventWait {
    /// Takes a descriptor of another process.
    ///
    /// # Errors
    /// Errors of fcntl(2).
    pub fn new(descriptor: OwnedFd) -> Result<EventWait> {
        set_nonblocking(&descriptor)?;
        Ok(EventWait { descriptor: Rc::new(shard::with_current(|shard| shard.adopt(descriptor))) })
    }

    /// Waits until the event has been signalled since the last wait. Dropping the wait leaves the event as it
    /// is.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a descriptor that isn't an eventfd; errors of the kernel.
    pub async fn wait(&self) -> Result<()> {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else {
            return Err(Error::unsupported("an event descriptor under simulation"));
        };
        loop {
            readable(&self.descriptor).await?;
            let mut value = [0; 8];
            match rustix::io::read(fd, &mut value) {
                Ok(8) => return Ok(()),
                Ok(count) => {
                    return Err(Error::invalid(format!(
                        "event descriptor: a read returned {count} bytes; expected 8; pass an eventfd"
                    )));
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(Error::from_io(&error.into(), "waiting for an event")),
            }
        }
    }
}

/// Waits until a read of the descriptor wouldn't block.
pub(crate) async fn readable(descriptor: &Rc<Descriptor>) -> Result<()> {
    match submit(Operation::Readable { file: descriptor.clone() }).await.0 {
        0.. => Ok(()),
        error => Err(os_error(-error, "waiting for a descriptor".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_event_wakes_its_waiter_once_and_a_dropped_wait_takes_nothing() {
        crate::run(crate::Config::default().with_shards(2), || async {
            let descriptor = create_event().unwrap();
            let signal = EventSignal::new(descriptor.try_clone().unwrap()).unwrap();
            let event = EventWait::new(descriptor).unwrap();
            let waited = crate::timeout(Duration::from_millis(1), event.wait()).await;
            assert!(waited.is_err(), "nothing has been signalled");
            let remote = crate::spawn_on(crate::ShardIndex(1), move || async move {
                signal.signal().unwrap();
                signal.signal().unwrap();
            });
            event.wait().await.unwrap();
            remote.await.unwrap();
            // Takes the second signal, unless the wait above took both.
            let _ = crate::timeout(Duration::from_millis(1), event.wait()).await;
            assert!(crate::timeout(Duration::from_millis(1), event.wait()).await.is_err());
        })
        .unwrap();
    }

    #[test]
    fn what_is_no_event_is_an_error_and_never_blocks() {
        crate::run(crate::Config::default(), || async {
            let file = tempfile::tempfile().unwrap();
            let event = EventWait::new(file.into()).unwrap();
            assert!(matches!(event.wait().await, Err(Error::Invalid(_))));
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let signal = EventSignal::new(writer).unwrap();
            for _ in 0..20_000 {
                signal.signal().unwrap();
            }
            drop(reader);
        })
        .unwrap();
    }
}
