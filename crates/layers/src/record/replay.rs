//! From a timeline to every state in which a power cut could have left a device.
//!
//! # The model
//! A *cut* at event `k` is a power cut when the events below `k` had happened and no other. Of the operations
//! that write (write, write_zeroes, discard) and were submitted by then, each is, in every *unit* (a piece of
//! `atomic_write` bytes, aligned) that it covers:
//!
//! - **certain**: a flush that began after the operation had completed without error has itself completed
//!   without error; or the operation was FUA, or the device has no volatile cache, and it completed;
//! - **superseded**: it completed before an operation was submitted that is certain there. It is gone;
//! - **possible**: everything else: in flight, completed and not flushed, or failed (a failed write may have
//!   left anything of itself).
//!
//! Two operations are *ordered* where one completed before the other was submitted; else they are concurrent,
//! and in a unit that both cover either may be the last. So the unit holds, after the cut, any one version of:
//! its possible ones; its certain ones that aren't superseded (more than one only if they are concurrent);
//! and, if none is certain, what was there before. A cache that held two ordered, unflushed writes to a unit may
//! have written back neither, the first before the second came, or the second: never the first on top of the second, which is the
//! same set. Units are independent of each other: nothing but flush and FUA orders the write-back of a cache, so
//! reorderings between flushes are products of these sets. This is what ALICE (Pillai et al., OSDI 2014) calls
//! the abstract persistence model of a disk with a volatile cache, with torn writes at unit boundaries.
//!
//! The model is wider than a disk in one place: which of two concurrent writes won can be learned by a read,
//! and reads aren't recorded. A layer whose promises depend on that must not submit overlapping writes at once.
//! It is narrower in another: an operation that isn't aligned to units is torn only at their boundaries.
//!
//! # Use
//! [`History`] is what one device went through; a [`Cursor`] stands at a cut and knows what is certain and
//! possible there; a [`Choice`] makes it one [`Image`]; [`CrashStates`] goes through all cuts, and at each
//! through the choices of a [`Search`], leaving out images that it has given before. The same cursor, over a `client`'s device, says what a
//! client may find after the cut: [`Cursor::check`]. An [`ImageDisk`] is a device that begins as an image.
//!
//! Left to others: states of zones (the timeline has all events; what an unclean stop does to a write
//! pointer is the zones' own affair).

mod choice;
mod cursor;
mod disk;
mod history;
mod image;
mod states;

pub use choice::Choice;
pub use cursor::{Cursor, Mismatch};
pub use disk::ImageDisk;
pub use history::{History, Operation};
pub use image::{Image, write_image};
pub use states::{CrashState, CrashStates, Search};
