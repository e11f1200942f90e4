//! Contract between the kit and the owner of a log: the log device, the file system, the key-value store.
//!
//! An owner has one value that implements [`Owner`] on each of its shards. All methods are called on the
//! thread of that shard, so the value needs no locks. `tests/engine.rs` in the folder `tests` of the
//! repository is the smallest complete owner.
//!
//! # Order of the calls
//!
//! ## An entry
//! 1. The owner queues it with [`lane::push`](crate::lane::push). An entry that no record can carry is
//!    [refused](Owner::refuse) in this call, so `push` must not be called while the owner borrows what
//!    `refuse` changes.
//! 2. A lane takes entries for its next record. An entry that doesn't fit is [cut](Owner::cut): both parts
//!    are entries from then on, and each ends by itself.
//! 3. [`Entry::encode_meta`] is called, and checksums are computed, when the record gets its number. Later
//!    attempts write the same bytes, in other zones. Only if entries with data are refused for lack of space
//!    are the others encoded again.
//! 4. [`before_append`](Owner::before_append), for each attempt to append the record, also for one that
//!    fails.
//! 5. [`note_sums`](Owner::note_sums), once, when the record is written.
//! 6. [`share`](Owner::share), for a joint record, on the shard that wrote it.
//! 7. [`commit`](Owner::commit), when all earlier records of its streams have committed. If none is missing,
//!    steps 5 to 7 are in one turn.
//!
//! Each entry ends exactly once, by [`commit`](Owner::commit) or by [`refuse`](Owner::refuse). Before its end
//! [`answer`](Owner::answer) may be called any number of times: the request of the client ends with an error,
//! and the entry ends later. [`fail`](Owner::fail) refuses all entries that are queued or wait for an earlier
//! record. Entries whose append is in flight then are refused when it ends.
//!
//! ## A pass of the cleaner, on the home shard
//! 1. [`kept_zones`](Owner::kept_zones), [`has_pieces`](Owner::has_pieces),
//!    [`wants_checkpoint`](Owner::wants_checkpoint) for each decision.
//! 2. [`free_piece`](Owner::free_piece) until [`has_pieces`](Owner::has_pieces) is false.
//! 3. [`live`](Owner::live), once for each victim.
//! 4. For each batch of moves: [`still_live`](Owner::still_live) for all pieces of the batch in one turn,
//!    then [`read_to_move`](Owner::read_to_move), then [`relocate`](Owner::relocate), which appends entries.
//!    These commit as all entries do.
//!
//! ## A reset, in a task of its own on the home shard
//! 1. [`flush_all`](Owner::flush_all);
//! 2. [`prepare_reset`](Owner::prepare_reset);
//! 3. [`grace`](Owner::grace);
//! 4. [`erase`](Owner::erase) and the reset, zone by zone.
//!
//! An error of one of the first three ends the attempt: no zone is reset.
//!
//! ## A checkpoint, in a task of its own on the home shard
//! The kit calls [`take_checkpoint`](Owner::take_checkpoint). The owner passes the writing to
//! [`checkpoint::take`](crate::checkpoint::take), which excludes other checkpoints. In it the owner
//! 1. waits with [`wait_for_moves`](crate::moves::wait_for_moves), if moves exclude checkpoints;
//! 2. copies the state of each shard, or freezes it, and takes the shard's part of the
//!    [`Cut`](crate::checkpoint::Cut) in the same turn;
//! 3. appends pages with [`checkpoint::space`](crate::checkpoint::space) and
//!    [`checkpoint::append`](crate::checkpoint::append), while entries commit;
//! 4. ends with [`checkpoint::commit`](crate::checkpoint::commit), which writes the directory, calls
//!    [`flush_all`](Owner::flush_all) and writes the root.
//!
//! Resets, checkpoints and moves run concurrently, except as
//! [`moves_exclude_checkpoints`](Owner::moves_exclude_checkpoints) says.
//!
//! # What may wait
//! Methods that aren't `async` run within one turn of the shard: they must not block the thread. No other
//! task of the shard runs during such a call. In particular [`commit`](Owner::commit) changes the whole of
//! the owner's state for a record, and the caller holds no borrow of the kit's queues while it runs.
//! [`cut`](Owner::cut) and [`answer`](Owner::answer) are called while the queues are borrowed, so they must
//! not queue entries.
//!
//! Methods that return a future may wait, and other tasks of the shard run meanwhile, also
//! [`commit`](Owner::commit). So an implementation must not keep a borrow of its state over an `await`.
//! [`relocate`](Owner::relocate), [`take_checkpoint`](Owner::take_checkpoint) and
//! [`free_dead`](Owner::free_dead) may wait for free zones; [`live`](Owner::live),
//! [`read_to_move`](Owner::read_to_move), [`flush_all`](Owner::flush_all),
//! [`prepare_reset`](Owner::prepare_reset) and [`grace`](Owner::grace) must not, because zones become free
//! only after them.
//!
//! # What an implementation must guarantee
//! - *Effects only by commit.* The location of data changes only in [`commit`](Owner::commit). A move takes
//!   effect only for blocks that are still where they were moved from.
//! - *Exact counts.* In the turn in which a block gets or loses a location, the owner counts it as live or
//!   dead in the [`ZonePool`](crate::ZonePool). A zone without live blocks is reset.
//! - *Complete answers.* [`live`](Owner::live) finds every block of the zone that the pool counts as live and
//!   that isn't dying. The zone is excluded from cleaning if one is missing.
//! - *Covered means not needed.* Replay of the records after the cut, over the checkpoint, restores the whole
//!   state. What a checkpoint shows of later records must not be counted twice by their replay.
//! - *Durable before authoritative.* [`flush_all`](Owner::flush_all) reaches all shards of the log.
//! - *Reads are registered.* [`ShardReads::begin`](crate::readers::ShardReads::begin) is called in the turn
//!   in which the location of data is looked up, and its result is held until the data has arrived. A reset
//!   waits for these reads only.

use crate::appender::Appender;
use crate::entry::Entry;
use crate::kit::Kit;
use crate::mover::Mover;
use crate::stream::Joint;
use crate::victim::{Piece, Victim};
use block::{Data, EraseGuarantee, Error, Result};
use std::rc::Rc;
use std::sync::Arc;

/// The owner of a log, on one shard. The [module](self) has the order of the calls and the guarantees.
pub trait Owner: Sized + 'static {
    /// Unit of change that the owner appends.
    type Entry: Entry;
    /// Name of live data in a zone, as its record has it: a block of a file, of a volume, of a table.
    type Name: Copy + 'static;

    /// Returns the kit of this shard.
    fn kit(&self) -> &Rc<Kit>;

    /// Returns the queue of this shard's group commit.
    fn appender(&self) -> &Appender<Self::Entry>;

    /// Lets a record of entries take effect, entry by entry in order, and completes the requests that wait
    /// for them. The data of the first entry begins at block `position` of `zone`; the data of each further
    /// entry follows it.
    ///
    /// The caller guarantees that all earlier records of the stream have committed. The record is written,
    /// and not necessarily durable. `entries` is empty for a mark of an idle shard and for a record whose
    /// entries were refused. An implementation must apply the whole record in this call.
    fn commit(&self, entries: &[Self::Entry], zone: u32, position: u32);

    /// Completes the request that waits for an entry with an error. The caller guarantees that the entry
    /// takes no effect, now or after recovery, unless the log has failed: then its record may be on the
    /// medium.
    fn refuse(&self, entry: &Self::Entry, error: &Error);

    /// Completes the request that waits for an entry with an error; the entry may still take effect. It is
    /// called again while the record can't commit, so an implementation must detach the request from the
    /// entry. What the entry reserved stays reserved until [`commit`](Self::commit) or
    /// [`refuse`](Self::refuse).
    fn answer(&self, entry: &mut Self::Entry, error: &Error);

    /// Passes on a joint record that was written. An implementation must have the shard of each of its other
    /// streams call [`lane::joint_written`](crate::lane::joint_written) with that shard's part of the
    /// entries, or fail the log. It does so by messages, and doesn't wait for them here. The data of the
    /// first entry is at block `position` of `zone`. `entries` is empty if they were refused; the record
    /// takes its numbers nevertheless. The default is for owners whose entries [join](Entry::joins) no other
    /// stream.
    fn share(&self, joint: &Arc<Joint>, _entries: &[Self::Entry], _zone: u32, _position: u32) {
        unreachable!("{joint:?} is shared by an owner without such records")
    }

    /// Notes that these entries, or a part of a checkpoint if there are none, are about to be appended to a
    /// zone of this generation. It is called for each attempt, also for one that fails afterwards: an owner
    /// that must erase data notes every zone that may hold it.
    /// [`ZonePool::have_been_reset`](crate::pool::ZonePool::have_been_reset) says when such zones have been
    /// reset.
    fn before_append(&self, _zone: u32, _generation: u64, _entries: &[Self::Entry]) {}

    /// Notes the checksums ([`sum_of`](crate::record::sum_of)) of a record's data blocks, the first of which
    /// is at block `position` of `zone`, and the others after it. It is called on the shard that wrote the
    /// record, once it is written, for each record (of users, of the cleaner, or joint), with no checksums
    /// for one without data. [`share`](Self::share) and [`commit`](Self::commit) of the record's entries come
    /// later; if the log fails, the record may never commit. The default is for owners that don't check what
    /// they read.
    fn note_sums(&self, _zone: u32, _position: u32, _sums: &[u32]) {}

    /// Erase guarantee that a reset must give. A zone whose reset fails is not used again before the log is
    /// reopened.
    fn erase(&self) -> EraseGuarantee {
        EraseGuarantee::None
    }

    /// Divides an entry: splits off and returns its first `blocks` blocks. The caller guarantees that
    /// `blocks` is at least 1 and less than its [`blocks`](Entry::blocks), and that the entry isn't
    /// [atomic](Entry::is_atomic). The request of the entry must wait for both parts. The default is for
    /// owners whose entries have one block at most.
    fn cut(&self, _entry: &mut Self::Entry, blocks: u32) -> Self::Entry {
        unreachable!("{blocks} blocks are taken off an entry of one block")
    }

    /// Whether deleted data is left that [`free_piece`](Self::free_piece) makes die.
    fn has_pieces(&self) -> bool {
        false
    }

    /// Frees the next piece of deleted data, where deleting is divided into pieces. Returns whether there was
    /// any. A piece is small enough for one turn of the shard.
    fn free_piece(&self) -> bool {
        false
    }

    /// Approximate number of blocks that a checkpoint would take now.
    fn checkpoint_cost(&self) -> u64;

    /// Number of free zones that a checkpoint may need: they are left to it.
    fn checkpoint_zones(&self) -> u32;

    /// Takes a checkpoint. With `clean`, it is the last one before the log is closed. When it returns, the
    /// checkpoint is durable. It must need no more than [`checkpoint_zones`](Self::checkpoint_zones) free
    /// zones.
    ///
    /// # Errors
    /// Errors of writing. The previous checkpoint stays authoritative, unless the log has failed.
    fn take_checkpoint(self: &Rc<Self>, clean: bool) -> impl Future<Output = Result<()>>;

    /// Makes durable what every shard of the log has appended before this call. An owner with several shards
    /// must override the default, which flushes this shard.
    ///
    /// # Errors
    /// Errors of flushing the zones: no root is written and no zone is reset then.
    fn flush_all(&self) -> impl Future<Output = Result<()>> {
        async { self.kit().flush().await }
    }

    /// Resets dead zones for moves that found no free zone. The default is for the home shard. On another
    /// shard an implementation must call [`reset::free_dead`](crate::reset::free_dead) on the home.
    ///
    /// # Errors
    /// Errors of resets and of the checkpoint.
    fn free_dead(self: &Rc<Self>) -> impl Future<Output = Result<()>> {
        async { crate::reset::free_dead(self).await }
    }

    /// Seals the open zones that this shard holds for moves and for the owner's own appends, as far as no
    /// task uses them: a task that uses a zone answers requests to seal itself ([`seals`](crate::seals)). The
    /// default is for owners whose only mover is the cleaner's.
    fn seal_idle_movers(&self) -> impl Future<Output = ()> {
        async {}
    }

    /// Prepares the reset of zones, for owners with state outside of the zones: makes that state durable as
    /// far as the newest checkpoint needs it.
    ///
    /// # Errors
    /// Errors of writing: no zone is reset then.
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

    /// Whether data must not be moved while a checkpoint is being written. The answer may change over time.
    fn moves_exclude_checkpoints(&self) -> bool {
        false
    }

    /// Finds the live data of a zone by the victim's records, in any order. The zone takes no appends any
    /// more; blocks of it may die during this call and after it, and none become live.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a record that no version of the owner writes.
    fn live(&self, victim: &Victim) -> impl Future<Output = Result<Vec<Piece<Self::Name>>>>;

    /// Visits the parts of a piece that are still live: offset in the piece, and number of blocks. An
    /// implementation may visit dead blocks, whose move then takes no effect; it must not omit live ones.
    fn still_live(&self, victim: &Victim, piece: &Piece<Self::Name>, visit: &mut dyn FnMut(u32, u32));

    /// Appends live data of the victim to other zones, under the class `class`, by [`Mover::append`] on the
    /// shard that owns the data. Returns when the moves are written. Their entries must name the old
    /// location: the commit of a move frees the old block only if it is still authoritative.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone takes the data: the victim is released and may be chosen again. Any
    /// other error excludes the victim from cleaning until the log is opened again.
    fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        pieces: Vec<(Piece<Self::Name>, Data)>,
        mover: &mut Mover,
    ) -> impl Future<Output = Result<()>>;

    /// Runs `read`, which reads `bytes` bytes that the cleaner is about to move. An owner may let other I/O
    /// go first. Writers may wait for zones meanwhile, so what it waits for must not wait for a zone.
    fn read_to_move<R>(&self, _bytes: u64, read: impl Future<Output = R>) -> impl Future<Output = R> {
        read
    }

    /// Fails the log: entries that are queued or wait for an earlier record are refused, and no further one
    /// is taken. It is called by the kit after an error that leaves the state of the medium unknown, and by
    /// an owner whose state is damaged.
    fn fail(&self, error: &Error) {
        let told = self.kit().set_failed(error);
        for entry in self.appender().take_all() {
            self.refuse(&entry, &told);
        }
        self.kit().events.notify_all();
    }

    /// Number of free zones that users leave to the cleaner and to checkpoints: while fewer are free, the
    /// cleaner works without a pause.
    fn kept_zones(&self) -> u32 {
        self.kit().settings.cleaner_reserve + self.checkpoint_zones()
    }

    /// Number of free zones that records of users leave, at most [`kept_zones`](Self::kept_zones): fewer for
    /// an owner that admits entries only while more zones are free.
    fn kept_by_records(&self) -> u32 {
        self.kept_zones()
    }

    /// Number of free zones that users' entries leave that free space, while no zone can be freed for others.
    fn freeing_zones(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Number of free zones that the cleaner leaves: to checkpoints and, where blocks die with the record of
    /// a removal, to a zone for these records. Moving other blocks frees no zone before they are written.
    fn zones_left_by_cleaner(&self) -> u32 {
        self.checkpoint_zones()
    }

    /// Advice to operators in the error for writers when no zone is free and none can be cleaned.
    fn space_advice(&self) -> &'static str {
        "discard some data"
    }

    /// Whether enough was appended since the last checkpoint that another is worth its cost.
    ///
    /// 64 times its cost: so checkpoints take 1.6 % of what is written, and as much again is left for headers
    /// and summaries under the 3.4 % that all metadata may take. Opening pays for it: 1 TiB that is written
    /// at random has 2^18 pages, so at most 2^24 blocks, 64 GiB of log, are replayed: 0.5 GiB of summaries
    /// are read. Half as much on the average.
    fn wants_checkpoint(&self) -> bool {
        let written = self.kit().since_checkpoint();
        written >= self.kit().settings.checkpoint_blocks && written >= 64 * self.checkpoint_cost()
    }
}
