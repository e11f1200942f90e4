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
    /// What it appends.
    type Entry: Entry;
    /// Name of live data in a zone: what a record says of it.
    type Name: Copy + 'static;

    /// The parts of this shard.
    fn kit(&self) -> &Rc<Kit>;

    /// Group commit of this shard.
    fn appender(&self) -> &Appender<Self::Entry>;

    /// Lets a record of entries take effect: entry by entry, in order. The data of the first entry begins at block `position` of
    /// `zone`. Requests that wait for an entry are completed.
    fn commit(&self, entries: &[Self::Entry], zone: u32, position: u32);

    /// Completes the request that waits for an entry with an error; the entry will not take effect.
    fn refuse(&self, entry: &Self::Entry, error: &Error);

    /// Completes the request that waits for an entry with an error; the entry may still take effect.
    fn answer(&self, entry: &mut Self::Entry, error: &Error);

    /// Passes on a joint record that was written: the shard of each of its other streams calls
    /// [`lane::joint_written`](crate::lane::joint_written) with its part of the entries. The data of the first entry is at
    /// block `position` of `zone`. There are no entries where they had to be refused; the record takes its numbers nevertheless.
    /// The default is for owners whose entries [join](Entry::joins) no other stream.
    fn share(&self, joint: &Arc<Joint>, _entries: &[Self::Entry], _zone: u32, _position: u32) {
        unreachable!("{joint:?} is shared by an owner without such records")
    }

    /// Notes that these entries, or a part of a checkpoint if there are none, are about to be appended to a zone of this
    /// generation. It is called for each attempt, also for one that fails then: an owner that must erase data notes
    /// every zone that may hold it. [`ZonePool::have_been_reset`](crate::pool::ZonePool::have_been_reset) tells when it is gone.
    fn before_append(&self, _zone: u32, _generation: u64, _entries: &[Self::Entry]) {}

    /// Notes the checksums ([`sum_of`](crate::record::sum_of)) of a record's data blocks, the first of which is at block `position`
    /// of `zone`, and the others after it. It is called on the shard that wrote the record, once it is written, for each
    /// record (of users, of the cleaner, or joint), without checksums for one without data. [`share`](Self::share) and [`commit`](Self::commit) of the record's
    /// entries come later; the record may also never commit, if the log fails. The default is for owners that don't check what they read.
    fn note_sums(&self, _zone: u32, _position: u32, _sums: &[u32]) {}

    /// What a reset has to guarantee for the data in a zone. A zone whose device can't give it is left as it is.
    fn erase(&self) -> EraseGuarantee {
        EraseGuarantee::None
    }

    /// Divides an entry larger than a record: splits off and returns its first `blocks` blocks. An entry of one
    /// block is never divided; the default is for owners that have no others.
    fn cut(&self, _entry: &mut Self::Entry, blocks: u32) -> Self::Entry {
        unreachable!("{blocks} blocks are taken off an entry of one block")
    }

    /// Whether deleted data is left that [`free_piece`](Self::free_piece) makes die.
    fn has_pieces(&self) -> bool {
        false
    }

    /// Makes the next piece of deleted data die, where deleting is divided into pieces. Returns whether there was any.
    fn free_piece(&self) -> bool {
        false
    }

    /// Number of blocks that a checkpoint would take now, about.
    fn checkpoint_cost(&self) -> u64;

    /// Number of free zones that a checkpoint may need: they are left to it.
    fn checkpoint_zones(&self) -> u32;

    /// Takes a checkpoint. With `clean`, it is the last one before the log is closed.
    ///
    /// # Errors
    /// What writing returns. The log goes on with the checkpoint before unless it has failed.
    fn take_checkpoint(self: &Rc<Self>, clean: bool) -> impl Future<Output = Result<()>>;

    /// Makes durable what every shard of the log has appended by now.
    ///
    /// # Errors
    /// What flushing the zones returns; no root is written and no zone is reset then.
    fn flush_all(&self) -> impl Future<Output = Result<()>> {
        async { self.kit().flush().await }
    }

    /// Resets dead zones for what is moved. The default is for the home shard; another one asks that.
    ///
    /// # Errors
    /// What resetting and a checkpoint return.
    fn free_dead(self: &Rc<Self>) -> impl Future<Output = Result<()>> {
        async { crate::mover::free_dead(self).await }
    }

    /// Seals open zones that this shard holds for moves and for the owner's own appends while no task uses them; one that does answers
    /// requests to seal itself ([`seals`](crate::seals)). The default is for owners whose only mover is the cleaner's.
    fn seal_idle_movers(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Prepares the reset of zones: makes durable whatever refers to the newest checkpoint.
    ///
    /// # Errors
    /// What writing returns; no zone is reset then.
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

    /// Visits those parts of a piece that are still live: offset in the piece, and number of blocks.
    fn still_live(&self, victim: &Victim, piece: &Piece<Self::Name>, visit: &mut dyn FnMut(u32, u32));

    /// Appends data elsewhere under the class `class`, so that it dies in the victim.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where no zone takes it; the failure of the log.
    fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        pieces: Vec<(Piece<Self::Name>, Data)>,
        mover: &mut Mover,
    ) -> impl Future<Output = Result<()>>;

    /// Reads data that the cleaner is about to move: `bytes` bytes. An owner may let other I/O go first. Writers may wait for zones meanwhile, so what it
    /// waits for must not wait for a zone.
    fn read_to_move<R>(&self, _bytes: u64, read: impl Future<Output = R>) -> impl Future<Output = R> {
        read
    }

    /// Fails the log: entries that are queued or can't commit are refused, and no further one is taken.
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

    /// Number of free zones that users' entries leave that free space, while no zone can be freed for others.
    fn freeing_zones(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Number of free zones that the cleaner leaves: to checkpoints and, where blocks die with the record of a removal, to a zone for these records.
    /// Moving other blocks frees no zone before they are written.
    fn zones_left_by_cleaner(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Advice to operators in the error for writers when no zone is free and none can be cleaned.
    fn space_advice(&self) -> &'static str {
        "discard some data"
    }

    /// Whether enough was appended since the last checkpoint that another is worth its cost.
    ///
    /// 64 times its cost: so checkpoints take 1.6 % of what is written, and as much again is left for headers and summaries
    /// under the 3.4 % that all metadata may take. Opening pays for it: 1 TiB that is written at random has 2^18 pages,
    /// so at most 2^24 blocks, 64 GiB of log, are replayed: 0.5 GiB of summaries are read. Half as much on the average.
    fn wants_checkpoint(&self) -> bool {
        let written = self.kit().since_checkpoint();
        written >= self.kit().settings.checkpoint_blocks && written >= 64 * self.checkpoint_cost()
    }
}
