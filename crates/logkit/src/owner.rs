//! What the kit asks the owner of a log: the log device, a file system, a store.

use crate::appender::Appender;
use crate::entry::Entry;
use crate::kit::Kit;
use crate::mover::Mover;
use crate::stream::Joint;
use crate::victim::{Piece, Victim};
use block::{Data, EraseGuarantee, Error, Result};
use std::rc::Rc;
use std::sync::Arc;

/// The owner of a log, on one shard.
pub trait Owner: Sized + 'static {
    /// Unit that the owner appends.
    type Entry: Entry;
    /// Name of live data in a zone, as it is in the record.
    type Name: Copy + 'static;

    /// The parts of this shard.
    fn kit(&self) -> &Rc<Kit>;

    /// Group commit of this shard.
    fn appender(&self) -> &Appender<Self::Entry>;

    /// Applies a committed record's entries one by one, in order. The data of the first entry begins at block
    /// `position` of `zone`. Completes the requests that wait for the entries.
    fn commit(&self, entries: &[Self::Entry], zone: u32, position: u32);

    /// Completes the request of an entry with an error; the entry will not take effect.
    fn refuse(&self, entry: &Self::Entry, error: &Error);

    /// Completes the request of an entry with an error; the entry may still take effect.
    fn answer(&self, entry: &mut Self::Entry, error: &Error);

    /// Passes on a joint record that was written: the shard of each of its other streams calls
    /// [`lane::joint_written`](crate::lane::joint_written) with its part of the entries. The data of the
    /// first entry is at block `position` of `zone`. `entries` is empty if they had to be refused; the record
    /// takes its numbers nevertheless. The default is for owners whose entries [join](Entry::joins) no other
    /// stream.
    fn share(&self, joint: &Arc<Joint>, _entries: &[Self::Entry], _zone: u32, _position: u32) {
        unreachable!("{joint:?} is shared by an owner without such records")
    }

    /// Notes that these entries, or a part of a checkpoint if there are none, are about to be appended to a
    /// zone of this generation. It is called for each attempt, including failed ones: an owner that must
    /// erase data notes every zone that may hold it.
    /// [`ZonePool::have_been_reset`](crate::pool::ZonePool::have_been_reset) returns whether the data is
    /// erased.
    fn before_append(&self, _zone: u32, _generation: u64, _entries: &[Self::Entry]) {}

    /// Notes the checksums ([`sum_of`](crate::record::sum_of)) of a record's data blocks, which are
    /// consecutive from block `position` of `zone`. It is called on the shard that wrote the record, once it
    /// is written, for each record (of users, of the cleaner, or joint); `sums` is empty for a record without
    /// data. [`share`](Self::share) and [`commit`](Self::commit) of the entries follow later, or never if the
    /// log fails. The default is for owners that don't verify reads.
    fn note_sums(&self, _zone: u32, _position: u32, _sums: &[u32]) {}

    /// Guarantee that a reset has to give for the data in a zone. A zone whose device can't give it isn't
    /// reset.
    fn erase(&self) -> EraseGuarantee {
        EraseGuarantee::None
    }

    /// Divides an entry that is larger than a record: splits off and returns its first `blocks` blocks. An
    /// entry of one block is never divided; the default is for owners that have no others.
    fn cut(&self, _entry: &mut Self::Entry, blocks: u32) -> Self::Entry {
        unreachable!("{blocks} blocks are taken off an entry of one block")
    }

    /// Whether deleted data is left for [`free_piece`](Self::free_piece).
    fn has_pieces(&self) -> bool {
        false
    }

    /// Frees the next piece of deleted data, if deletion is divided into pieces. Returns whether there was
    /// any.
    fn free_piece(&self) -> bool {
        false
    }

    /// Approximate number of blocks that a checkpoint would take now.
    fn checkpoint_cost(&self) -> u64;

    /// Number of free zones that are reserved for a checkpoint.
    fn checkpoint_zones(&self) -> u32;

    /// Takes a checkpoint. With `clean`, it is the last one before the log is closed.
    ///
    /// # Errors
    /// Errors of writing. The previous checkpoint stays authoritative, unless the log has failed.
    fn take_checkpoint(self: &Rc<Self>, clean: bool) -> impl Future<Output = Result<()>>;

    /// Makes all earlier appends of every shard of the log durable.
    ///
    /// # Errors
    /// Errors of flushing the zones; no root is written and no zone is reset in that case.
    fn flush_all(&self) -> impl Future<Output = Result<()>> {
        async { self.kit().flush().await }
    }

    /// Resets dead zones, so that the cleaner's moves find space. The default is for the home shard; other
    /// shards call the home shard.
    ///
    /// # Errors
    /// Errors of resets and of the checkpoint.
    fn free_dead(self: &Rc<Self>) -> impl Future<Output = Result<()>> {
        async { crate::mover::free_dead(self).await }
    }

    /// Prepares the reset of zones: makes durable whatever refers to the newest checkpoint.
    ///
    /// # Errors
    /// Errors of writing; no zone is reset in that case.
    fn prepare_reset(self: &Rc<Self>) -> impl Future<Output = Result<()>> {
        async { Ok(()) }
    }

    /// Waits until no read that began before this call is in progress.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if a shard ends meanwhile.
    fn grace(&self) -> impl Future<Output = Result<()>> {
        async { self.kit().readers.grace().await }
    }

    /// Whether data must not be moved while a checkpoint is being written.
    fn moves_exclude_checkpoints(&self) -> bool {
        false
    }

    /// Finds the live data of a zone, by its records, in any order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a record that no version of the owner writes.
    fn live(&self, victim: &Victim) -> impl Future<Output = Result<Vec<Piece<Self::Name>>>>;

    /// Visits the live parts of a piece, each as its offset in the piece and its number of blocks.
    fn still_live(&self, victim: &Victim, piece: &Piece<Self::Name>, visit: &mut dyn FnMut(u32, u32));

    /// Appends data elsewhere under the class `class`, which makes it dead in the victim.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone fits it; the failure of the log.
    fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        pieces: Vec<(Piece<Self::Name>, Data)>,
        mover: &mut Mover,
    ) -> impl Future<Output = Result<()>>;

    /// Reads `bytes` bytes of data that the cleaner is about to move. An owner may let other I/O go first.
    /// Writers may be waiting for zones, so this must not wait for anything that waits for a zone.
    fn read_to_move<R>(&self, _bytes: u64, read: impl Future<Output = R>) -> impl Future<Output = R> {
        read
    }

    /// Fails the log: entries that are queued or can't commit are refused, and no further entry is accepted.
    fn fail(&self, error: &Error) {
        let told = self.kit().set_failed(error);
        for entry in self.appender().take_all() {
            self.refuse(&entry, &told);
        }
        self.kit().events.notify_all();
    }

    /// Number of free zones that users leave to the cleaner and to checkpoints.
    fn kept_zones(&self) -> u32 {
        self.kit().settings.cleaner_reserve + self.checkpoint_zones()
    }

    /// Number of free zones that users' space-freeing entries leave, while no zone can be freed for other
    /// entries.
    fn freeing_zones(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Number of free zones that the cleaner leaves: those for checkpoints and, if blocks die with the record
    /// of a removal, a zone for such records. Moving other blocks frees no zone before these records are
    /// written.
    fn zones_left_by_cleaner(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Advice to operators in the error for writers when no zone is free and none can be cleaned.
    fn space_advice(&self) -> &'static str {
        "discard some data"
    }

    /// Whether enough was appended since the last checkpoint to pay for another: 64 times its cost.
    ///
    /// Checkpoints then take 1.6 % of what is written, and as much is left for headers and summaries within
    /// the 3.4 % that all metadata may take. The price is replay at open: 1 TiB of random writes has 2^18
    /// pages, so at most 2^24 blocks (64 GiB of log) are replayed, for which 0.5 GiB of summaries are read;
    /// half of that on average.
    fn wants_checkpoint(&self) -> bool {
        let written = self.kit().since_checkpoint();
        written >= self.kit().settings.checkpoint_blocks && written >= 64 * self.checkpoint_cost()
    }
}
