//! Operations on names that involve several shards, for example a rename to a directory of another shard.
//!
//! 1. The inodes are locked on all shards, in one order, and the operations queued there are written, so
//!    that their records have lower numbers than the operation's record.
//! 2. The items that the decision needs are read on each shard, and combined as a separate metadata. The
//!    decision is the same function as on one shard ([`crate::names::namespace`]).
//! 3. The changes are written as one record, which is a member of the streams of all these shards
//!    ([`logkit::Joint`]). They take effect on each shard when the record commits there, so the operation is
//!    atomic over a power cut.
//! 4. The inodes are unlocked.
//!
//! The operation continues to its end even if its caller is dropped. An inode that loses its last name is
//! kept at first, as if it were open, and is removed by its own shard.

use crate::broken::if_broken;
use crate::core::entry::{EntrySource, FsEntry};
use crate::core::{Core, user_stream};
use crate::metadata::change::{Change, Changes};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{Inode, InodeNumber, ROOT, kind};
use crate::metadata::stripes::{self, Stripes};
use crate::metadata::{Metadata, directory};
use crate::names::locks::MOVES;
use crate::tree::{Key, Released};
use block::{Error, Payload, Result};
use logkit::{Joint, StreamId, lane};
use runtime::sync::oneshot;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Inodes and names that an operation on several shards reads and changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// Inodes that the operation reads and changes.
    pub inodes: Vec<InodeNumber>,
    /// Names that the operation reads.
    pub names: Vec<(InodeNumber, Vec<u8>)>,
    /// Inode group of the inode that the operation creates; `None` if it creates none.
    pub new: Option<InodeGroup>,
    /// Directories that the operation moves to another parent: the directories above these are also read.
    pub above: Vec<InodeNumber>,
}

/// Items that were read on one shard.
#[derive(Debug, Default)]
struct Gathered {
    items: Vec<(Key, Vec<u8>)>,
    /// Wanted inodes that are open.
    open: Vec<InodeNumber>,
    /// Number for the inode to create.
    number: InodeNumber,
}

/// Items of several shards, from which an operation is decided.
#[derive(Debug)]
pub(crate) struct View {
    /// Items that the operation reads.
    pub metadata: Metadata,
    /// Number for the inode to create.
    pub number: InodeNumber,
    open: Vec<InodeNumber>,
}

impl View {
    /// Whether an inode is open.
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        self.open.contains(&inode)
    }

    /// Returns the stripes of a directory; `None` if it isn't striped.
    pub fn stripes_of(&self, directory: InodeNumber) -> Result<Option<Stripes>> {
        let striped = stripes::read(&self.metadata.items, directory)?;
        Ok(striped.map(|striped| striped.stripes))
    }

    /// Whether none of these directories has become striped, so that their names are in the directories
    /// themselves.
    fn has_names_of(&self, directories: &[InodeNumber]) -> Result<bool> {
        for directory in directories {
            if self.metadata.inode(*directory).is_err() {
                return Err(Error::not_found(format!("directory {directory} was removed")));
            }
            if self.metadata.items.get(&stripes::key(*directory)).is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add(&mut self, gathered: Gathered) {
        gathered.items.iter().for_each(|(key, value)| self.metadata.put(key, value));
        self.open.extend(gathered.open);
        self.number = self.number.max(gathered.number);
    }
}

/// Carries out an operation on inodes of several shards. `decide` returns the changes, or `None` if the
/// operation now involves other inodes; then this also returns `None`.
///
/// # Errors
/// Errors of `decide`; [`Error::NoSpace`]; the failure of the log.
pub(crate) async fn jointly<T: 'static>(
    core: &Rc<Core>,
    wanted: Wanted,
    decide: impl FnOnce(&View) -> Result<Option<(T, Changes)>> + 'static,
) -> Result<Option<T>> {
    core.check_open()?;
    let (sender, mut receiver) = oneshot();
    let own = core.clone();
    let task = async move {
        let decide = async move |view: &View| decide(view);
        // The caller may have been dropped.
        carry_out(&own, wanted, decide, |outcome| drop(sender.send(outcome))).await;
    };
    core.kit.tasks.spawn(task).detach();
    let outcome = receiver.receive().await;
    outcome.unwrap_or_else(|| Err(Error::closed("the file system is closed; open it again")))
}

/// As [`jointly`], for a caller that isn't dropped before the end. `decide` may wait; the
/// inodes stay locked. `answer` gets the outcome: for lack of space, before this function returns,
/// because the operation may still take effect. When this returns, the operation has taken effect or
/// failed.
pub(crate) async fn carry_out<T>(
    core: &Rc<Core>,
    wanted: Wanted,
    decide: impl AsyncFnOnce(&View) -> Result<Option<(T, Changes)>>,
    answer: impl FnOnce(Result<Option<T>>),
) {
    let permit = match core.admit().await {
        Ok(permit) => permit,
        Err(error) => return answer(Err(error)),
    };
    let inside = core.admission.gate.enter().await;
    let mut view =
        View { metadata: Metadata::empty(Forest::new(1, &Released::new())), number: 0, open: Vec::new() };
    let above = wanted.above.clone();
    let directories: Vec<InodeNumber> = wanted.names.iter().map(|(directory, _)| *directory).collect();
    let mut locked: Vec<(u32, Vec<InodeNumber>)> = Vec::new();
    let mut read = lock_all(core, wanted, &mut locked, &mut view).await;
    if read.is_ok() {
        read = read_above(core, above, &mut view).await;
    }
    let decided = match read.and_then(|()| view.has_names_of(&directories)) {
        Ok(true) => decide(&view).await,
        Ok(false) => Ok(None),
        Err(error) => Err(error),
    };
    let (outcome, ticket) = match decided {
        Ok(Some((result, changes))) => {
            let (appended, ticket) = append_jointly(core, changes).await;
            (appended.map(|()| Some(result)), ticket)
        }
        Ok(None) => (Ok(None), 0),
        Err(error) => (Err(error), 0),
    };
    drop(permit);
    let answered_later = match outcome {
        // The record may take effect once there is space, so the inodes stay locked until then.
        Err(error @ Error::NoSpace(_)) => {
            answer(Err(error));
            core.admission.gate.look_again();
            core.ended(ticket).await;
            None
        }
        outcome => Some((answer, outcome)),
    };
    unlock_all(core, locked).await;
    drop(inside);
    if let Some((answer, outcome)) = answered_later {
        answer(outcome);
    }
}

/// Locks and reads what is wanted, shard after shard. `locked` gets the locked inodes, also after an error.
async fn lock_all(
    core: &Core,
    wanted: Wanted,
    locked: &mut Vec<(u32, Vec<InodeNumber>)>,
    view: &mut View,
) -> Result<()> {
    for (index, part) in by_shard(core, wanted) {
        let inodes = part.inodes.clone();
        let read = core.shards().all()[index as usize].with(move |core: Rc<Core>| lock_and_read(core, part));
        let gathered = read.await?;
        locked.push((index, inodes));
        view.add(gathered);
    }
    Ok(())
}

/// Unlocks inodes, those of this shard last: it publishes them after the other shards have applied the
/// changes.
async fn unlock_all(core: &Core, mut locked: Vec<(u32, Vec<InodeNumber>)>) {
    locked.sort_by_key(|(index, _)| *index == core.index());
    for (index, inodes) in locked {
        let end = move |core: Rc<Core>| async move {
            end_joint(&core, &inodes);
            Ok(())
        };
        // An ended shard has no locks.
        core.shards().all()[index as usize].with(end).await.ok();
    }
}

/// Splits the wanted inodes and names by shard.
fn by_shard(core: &Core, wanted: Wanted) -> BTreeMap<u32, Wanted> {
    let mut parts: BTreeMap<u32, Wanted> = BTreeMap::new();
    let Wanted { mut inodes, names, new, above } = wanted;
    if !above.is_empty() {
        inodes.push(MOVES);
    }
    inodes.sort_unstable();
    inodes.dedup();
    let of = |inode| core.shards().index_of(inode);
    inodes.into_iter().for_each(|inode| parts.entry(of(inode)).or_default().inodes.push(inode));
    names.into_iter().for_each(|name| parts.entry(of(name.0)).or_default().names.push(name));
    if let Some(group) = new {
        parts.entry(of(group.into())).or_default().new = Some(group);
    }
    parts
}

/// Locks inodes of this shard, and reads the wanted items.
async fn lock_and_read(core: Rc<Core>, wanted: Wanted) -> Result<Gathered> {
    core.check_open()?;
    if !wanted.inodes.is_empty() {
        core.peers.locks.lock(&wanted.inodes).await;
        if let Err(error) = core.written(core.durability.issued()).await {
            core.peers.locks.unlock(&wanted.inodes);
            return Err(error);
        }
    }
    let mut gathered = Gathered::default();
    if let Some(group) = wanted.new {
        gathered.number = core.metadata.borrow_mut().take_number(group);
    }
    let metadata = core.metadata.borrow();
    let mut keep = |(key, value): (Key, &[u8])| gathered.items.push((key, value.to_vec()));
    for inode in &wanted.inodes {
        let key = Inode::key(*inode);
        metadata.items.get(&key).into_iter().for_each(|value| keep((key, value)));
        let key = stripes::key(*inode);
        metadata.items.get(&key).into_iter().for_each(|value| keep((key, value)));
        // The first name shows whether a directory is empty.
        let first = Key { inode: *inode, kind: kind::ENTRY, offset: 0 };
        let name = metadata.items.range(&first).next();
        name.filter(|(key, _)| (key.inode, key.kind) == (*inode, kind::ENTRY))
            .into_iter()
            .for_each(&mut keep);
    }
    for (directory, name) in &wanted.names {
        directory::alike(&metadata.items, *directory, name).for_each(&mut keep);
    }
    gathered.open = wanted.inodes.into_iter().filter(|inode| core.nodes.is_open(*inode)).collect();
    Ok(gathered)
}

/// Reads the inodes of all ancestors of these directories.
async fn read_above(core: &Core, directories: Vec<InodeNumber>, view: &mut View) -> Result<()> {
    for directory in directories {
        let (mut at, mut passed) = (directory, BTreeSet::new());
        while at != ROOT {
            if !passed.insert(at) {
                return Err(Error::corrupt(format!("directory {at} is below itself")));
            }
            let inode = match view.metadata.inode(at) {
                Ok(inode) => inode,
                Err(_) => {
                    let read = move |core: Rc<Core>| async move {
                        // An earlier move has been decided, and may not have taken effect on that shard
                        // yet.
                        lane::commit(&*core, user_stream(core.index()));
                        core.inode(at)
                    };
                    let inode = core.shards().of(at).with(read).await?;
                    view.metadata.put(&Inode::key(at), &inode.encode());
                    inode
                }
            };
            if inode.parent == at || inode.parent == 0 {
                break;
            }
            at = inode.parent;
        }
    }
    Ok(())
}

/// Appends changes of inodes of several shards, and waits until they have taken effect on this shard.
/// Returns the outcome and the number of the operation, 0 without changes.
async fn append_jointly(core: &Rc<Core>, changes: Changes) -> (Result<()>, u64) {
    if changes.is_empty() {
        return (Ok(()), 0);
    }
    let mut joins: SmallVec<[StreamId; 4]> = SmallVec::new();
    for index in changes.iter().map(|change| core.shards().index_of(change.inode())) {
        let stream = user_stream(index);
        if index != core.index() && !joins.contains(&stream) {
            joins.push(stream);
        }
    }
    if_broken!(SplitsOperations, return (super::broken::submit_apart(core, changes).await, 0));
    // Ended lanes take no entries.
    if let Err(error) = core.check_open() {
        return (Err(error), 0);
    }
    let request = core.durability.requests().begin(1, None);
    let ticket = core.queue(changes, Payload::default(), EntrySource::Joint { request, joins });
    (core.durability.requests().wait(request).await, ticket)
}

/// Sends the changes of a joint record to the other shards that it involves.
pub(crate) fn pass_on(core: &Core, joint: &Arc<Joint>, entries: &[FsEntry], zone: u32, position: u32) {
    for (stream, _) in &joint.members()[1..] {
        let index = u32::from(stream.0) / 2;
        let is_its = |change: &&Change| core.shards().index_of(change.inode()) == index;
        let changes: Changes =
            entries.iter().flat_map(|entry| &entry.changes).filter(is_its).cloned().collect();
        let (joint, is_refused) = (joint.clone(), entries.is_empty());
        let (here, there) =
            (core.shards().all()[core.index() as usize].clone(), core.shards().all()[index as usize].clone());
        let deliver = move |core: Rc<Core>| async move {
            let number = |changes| core.durability.number(changes, Payload::default(), EntrySource::Shared);
            let entry = (!is_refused).then(|| number(changes));
            lane::joint_written(&*core, joint, entry.into_iter().collect(), zone, position);
            Ok(())
        };
        let task = async move {
            if let Err(error) = there.with(deliver).await {
                let fail = move |core: Rc<Core>| async move {
                    logkit::Owner::fail(&*core, &error);
                    Ok(())
                };
                // If this fails, the file system has also ended here.
                here.with(fail).await.ok();
            }
        };
        core.kit.tasks.spawn(task).detach();
    }
}

/// Unlocks inodes after an operation on them and inodes of other shards.
fn end_joint(core: &Rc<Core>, inodes: &[InodeNumber]) {
    // The operation may not have committed here yet.
    lane::commit(&**core, user_stream(core.index()));
    core.note(inodes, core.durability.issued());
    for inode in inodes.iter().filter(|inode| **inode != MOVES) {
        if let Err(error) = core.publish_stripes(*inode) {
            logkit::Owner::fail(&**core, &error);
        }
    }
    core.peers.locks.unlock(inodes);
    inodes.iter().filter(|inode| **inode != MOVES).for_each(|inode| core.remove_unused(*inode));
}
