//! Constructs every state in which a power cut could have left a device, from a timeline.
//!
//! # The model
//! A *cut* at event `k` is a power cut after exactly the events below `k`. In every *unit* (an aligned range
//! of `atomic_write` bytes) that it covers, an operation that changes data (write, write_zeroes, discard) and
//! was submitted before the cut is:
//!
//! - **certain**: a flush that began after the operation had completed without error has itself completed
//!   without error; or the operation completed and was FUA, or the device has no volatile cache;
//! - **superseded**: it completed before the submission of an operation that is certain in the unit. Its data
//!   is overwritten;
//! - **possible**: otherwise: in flight, completed and not flushed, or failed (any part of a failed write may
//!   be on the medium).
//!
//! Two operations are *ordered* if one completed before the other was submitted; otherwise they are
//! concurrent, and either may be the last one in a unit that both cover. After the cut a unit contains one
//! version of: its possible ones; its certain ones that aren't superseded (several only if they are
//! concurrent); and, if none is certain, the earlier contents. A cache with two ordered, unflushed writes to
//! a unit may have written back neither, the first, or the second, and never the first after the second,
//! which is the same set. Units are independent: only flush and FUA order the write-back of a cache, so
//! reorderings between flushes are products of these sets. ALICE (Pillai et al., OSDI 2014) calls this the
//! abstract persistence model of a disk with a volatile cache, with torn writes at unit boundaries.
//!
//! The model permits more than a disk in one respect: a read reveals which of two concurrent writes is the
//! last, and the model ignores reads. A layer whose promises depend on that must not submit overlapping
//! writes concurrently. It permits less in another: an operation that isn't aligned to units is torn only at
//! their boundaries.
//!
//! # Use
//! A [`History`] has the operations of one device. A [`Cursor`] is a cut, with the certain and possible
//! operations there. A [`Choice`] of the possible ones gives one [`Image`]. [`CrashStates`] iterates over all
//! cuts, and at each over the choices of a [`Search`], without repeating images. A cursor over a `client`'s
//! device checks the data that a client finds after the cut: [`Cursor::check`]. An [`ImageDisk`] is a device
//! that begins as an image.
//!
//! States of zones aren't constructed: the timeline has all events, but the effect of an unclean stop on
//! write pointers depends on the implementation of zones.

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
