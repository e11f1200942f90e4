//! Makes a directory striped when it has many names.
//!
//! 1. Its stripes are created, one in each of several inode groups. They are inodes without names at first:
//!    after a power cut, opening the file system removes them.
//! 2. The directory and the stripes are locked. Lookups and listings continue; changes wait.
//! 3. The names are copied to the stripes, on all shards in parallel, and the copies are written.
//! 4. One record on all shards makes the directory striped ([`switch`](stripes::switch)). Before it
//!    commits, the names are those of the directory; afterwards, those of the stripes.
//! 5. The directory's own copies are now ignored, and are removed in the background; opening the file
//!    system continues the removal.
//!
//! If there is no space, the directory doesn't become striped, and a later new name tries again.

use crate::broken::if_broken;
use crate::core::Core;
use crate::metadata::change::{Change, Changes};
use crate::metadata::directory::{self, decode};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{FileType, Inode, InodeNumber, Value, kind};
use crate::metadata::stripes::{self, Holder, MAX_STRIPES, Striped, Stripes};
use crate::metadata::{Metadata, orphan};
use crate::names::joint::{self, View, Wanted};
use crate::tree::Key;
use block::{Error, Result};
use smallvec::smallvec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Names that are copied to a stripe at a time.
const COPIED_AT_ONCE: usize = 256;
/// Names in one entry of the log: even names of 255 bytes fit in a record.
const COPIED_TOGETHER: usize = 8;
/// Leftovers that are removed at a time.
const REMOVED_AT_ONCE: usize = 64;

/// Default number of names above which a directory becomes striped, with several shards.
const STRIPE_ABOVE: u64 = 16_384;

/// A name of a directory to copy: offset and value.
type Copied = (u64, Value);

/// Decides when a shard makes a directory striped.
#[derive(Debug)]
pub(crate) struct Striping {
    /// Number of names above which a directory is made striped.
    above: u64,
    /// Whether a directory of this shard is being made striped; at most one at a time.
    is_busy: Cell<bool>,
}

impl Striping {
    /// Returns the state without work; `above` is [`Settings::stripe_above`](crate::Settings::stripe_above).
    pub fn new(above: Option<u64>, shards: u32) -> Self {
        let usual = if shards > 1 { STRIPE_ABOVE } else { u64::MAX };
        Striping { above: above.unwrap_or(usual), is_busy: Cell::new(false) }
    }

    /// Whether the holder of the new name `name` is to be made striped now.
    #[inline]
    pub fn wants(&self, metadata: &RefCell<Metadata>, holder: Holder, name: &[u8]) -> bool {
        let is_candidate = holder.inode == holder.directory && !self.is_busy.get();
        is_candidate && self.is_large(&metadata.borrow().items, holder.directory, name)
    }

    fn is_large(&self, items: &Forest, directory: InodeNumber, name: &[u8]) -> bool {
        self.above < u64::MAX && items.groups() > 1 && stripes::is_large(items, directory, name, self.above)
    }

    /// Notes that making a directory striped begins or ends.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.set(is_busy);
    }
}

/// Starts making a directory striped if it has many names; called when the name `name` was added.
#[inline]
pub(crate) fn note_name(core: &Rc<Core>, holder: Holder, name: &[u8]) {
    if core.striping.wants(&core.metadata, holder, name) {
        begin_striping(core, holder.directory);
    }
}

#[cold]
fn begin_striping(core: &Rc<Core>, directory: InodeNumber) {
    core.striping.set_busy(true);
    let own = core.clone();
    let striping = async move {
        match stripe(&own, directory).await {
            Ok(()) => remove_leftovers(&own, directory),
            Err(error) => tracing::debug!("directory {directory} isn't striped for now: {error}"),
        }
        own.striping.set_busy(false);
    };
    core.kit.tasks.spawn(striping).detach();
}

/// Makes a directory of this shard striped.
async fn stripe(core: &Rc<Core>, directory: InodeNumber) -> Result<()> {
    core.admission.check_space_for_operation()?;
    let own = core.inode(directory)?;
    let (groups, first) = {
        let metadata = core.metadata.borrow();
        (metadata.items.groups(), metadata.items.group_of(directory))
    };
    let make = |index: u32| {
        let group = (first + index) % groups;
        let make = move |core: Rc<Core>| async move { make_stripe(&core, group, directory, own.mode).await };
        core.shards().of(group.into()).with(make)
    };
    let (mut made, mut outcome) = (Vec::new(), Ok(()));
    for stripe in runtime::join_all((0..groups.min(MAX_STRIPES as u32)).map(make)).await {
        match stripe {
            Ok(stripe) => made.push(stripe),
            Err(error) => outcome = Err(error),
        }
    }
    if outcome.is_ok() {
        outcome = fill_stripes(core, directory, Stripes::new(&made)).await;
    }
    if outcome.is_err() {
        for stripe in made {
            let remove = move |core: Rc<Core>| async move {
                core.remove_unused(stripe);
                Ok(())
            };
            // If the shard has ended, the next opening removes the stripe.
            core.shards().of(stripe).with(remove).await.ok();
        }
    }
    outcome
}

/// Creates an inode without names that can become a stripe of a directory.
async fn make_stripe(
    core: &Core,
    group: InodeGroup,
    directory: InodeNumber,
    mode: u32,
) -> Result<InodeNumber> {
    core.admission.check_space_for_operation()?;
    let decide = |metadata: &Metadata| {
        let number = metadata.next_inode(group);
        let inode = Change::Put { key: Inode::key(number), value: Inode::stripe(directory, mode).encode() };
        let changes: Changes = smallvec![inode, Change::Put { key: orphan(number), value: Value::new() }];
        Ok((number, changes))
    };
    core.change(decide).await.map(|(number, _)| number)
}

/// Copies the names of a directory to its stripes, and makes it striped.
async fn fill_stripes(core: &Rc<Core>, directory: InodeNumber, stripes: Stripes) -> Result<()> {
    let mut inodes = stripes.all().to_vec();
    inodes.push(directory);
    let (own_core, to_fill) = (core.clone(), stripes.clone());
    let fill = async move |view: &View| {
        // An unmount may have removed stripes before they were locked, as files without names.
        for stripe in to_fill.all() {
            view.metadata.inode(*stripe)?;
        }
        let own = view.metadata.inode(directory)?;
        if own.links == 0 || stripes::read(&view.metadata.items, directory)?.is_some() {
            return Err(Error::not_found(format!("directory {directory} was removed or striped")));
        }
        if_broken!(StripesUnlocked, own_core.peers.locks.unlock(&[directory]));
        let subdirectories = copy_names(&own_core, directory, &to_fill).await?;
        Ok(Some(((), stripes::switch((directory, &own), &to_fill, &subdirectories))))
    };
    let outcome = Cell::new(Ok(()));
    let answer = |answer: Result<Option<()>>| outcome.set(answer.map(drop));
    joint::carry_out(core, Wanted { inodes, ..Wanted::default() }, fill, answer).await;
    // The record may have taken effect after it was answered with an error for lack of space.
    match stripes::read(&core.metadata.borrow().items, directory)? {
        Some(striped) if striped.stripes == stripes => Ok(()),
        _ => outcome.into_inner(),
    }
}

/// Copies the names of a directory to its stripes, and waits until they are written. Returns the number
/// of directories in each stripe.
async fn copy_names(core: &Core, directory: InodeNumber, stripes: &Stripes) -> Result<Vec<u32>> {
    let copies = (0..stripes.all().len()).map(|index| copy_to(core, directory, stripes, index));
    runtime::join_all(copies).await.into_iter().collect()
}

async fn copy_to(core: &Core, directory: InodeNumber, stripes: &Stripes, index: usize) -> Result<u32> {
    let stripe = stripes.all()[index];
    let (mut from, mut subdirectories) = (stripes.first_offset(index), 0);
    loop {
        let mut names: Vec<Copied> = Vec::new();
        {
            let metadata = core.metadata.borrow();
            let first = Key { inode: directory, kind: kind::ENTRY, offset: from };
            let own = metadata.items.range(&first).take_while(|(key, _)| {
                (key.inode, key.kind) == (directory, kind::ENTRY) && stripes.at(key.offset) == Some(stripe)
            });
            for (key, value) in own.take(COPIED_AT_ONCE) {
                let (_, code, _) = decode(value)?;
                subdirectories += u32::from(code == FileType::Directory.code());
                names.push((key.offset, Value::from_slice(value)));
            }
        }
        let Some((last, _)) = names.last() else { return Ok(subdirectories) };
        from = last + 1;
        let take = move |core: Rc<Core>| async move { take_names(&core, stripe, names).await };
        core.shards().of(stripe).with(take).await?;
    }
}

/// Adds copies of names to a stripe of this shard, and waits until they are written.
async fn take_names(core: &Core, stripe: InodeNumber, names: Vec<Copied>) -> Result<()> {
    core.check_open()?;
    core.admission.check_space_for_operation()?;
    let bytes: usize = names.iter().map(|(_, value)| size_of::<Key>() + value.len()).sum();
    core.admission.check_space(bytes as u64 / crate::format::BLOCK + 1)?;
    for together in names.chunks(COPIED_TOGETHER) {
        let put = |(offset, value): &Copied| {
            let key = Key { inode: stripe, kind: kind::ENTRY, offset: *offset };
            Change::Put { key, value: value.clone() }
        };
        core.submit(together.iter().map(put).collect(), None)?;
    }
    if_broken!(StripesEarly, return Ok(()));
    // Ensures that the record that makes the directory striped has a later number, also on this shard.
    core.written(core.durability.issued()).await.map(drop)
}

/// Publishes the striped directories of this shard to all shards after opening, and continues the removal
/// of leftovers.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub(crate) fn open_striped(core: &Rc<Core>) -> Result<()> {
    let directories = core.metadata.borrow().striped_directories();
    for directory in directories {
        core.publish_stripes(directory)?;
        remove_leftovers(core, directory);
    }
    Ok(())
}

/// Removes the leftovers of a striped directory in the background.
fn remove_leftovers(core: &Rc<Core>, directory: InodeNumber) {
    let own = core.clone();
    let removing = async move {
        let core = &own;
        loop {
            let Some(permit) = core.admit_removal(directory).await else { break };
            let next = next_leftovers(&core.metadata.borrow(), directory);
            let changes = match next {
                Ok(changes) => changes,
                Err(error) => {
                    tracing::warn!("what directory {directory} has of its names stays: {error}");
                    break;
                }
            };
            if changes.is_empty() || core.submit(changes, Some(permit)).is_err() {
                break;
            }
            runtime::yield_now().await;
        }
    };
    core.kit.tasks.spawn(removing).detach();
}

/// Returns the next changes that remove leftovers of a directory; none at the end, or if it isn't striped.
fn next_leftovers(metadata: &Metadata, directory: InodeNumber) -> Result<Changes> {
    let striped = match stripes::read(&metadata.items, directory)? {
        Some(striped) if striped.has_leftovers => striped,
        _ => return Ok(Changes::new()),
    };
    let changes = directory::removal(&metadata.items, directory, REMOVED_AT_ONCE);
    if !changes.is_empty() {
        return Ok(changes);
    }
    let value = Striped { has_leftovers: false, ..striped }.encode();
    Ok(smallvec![Change::Put { key: stripes::key(directory), value }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Released;

    #[test]
    fn one_directory_at_a_time_is_made_striped_and_no_stripe_is() {
        let metadata = RefCell::new(Metadata::empty(Forest::new(4, &Released::new())));
        let name = |number: u8| [b'a' + number];
        for number in 0..3 {
            let key = directory::first_key(7, &name(number));
            metadata.borrow_mut().put(&key, &directory::encode(9, 8, &name(number)));
        }
        let (own, stripe) = (Holder { directory: 7, inode: 7 }, Holder { directory: 3, inode: 7 });
        let wants = |striping: &Striping, holder| striping.wants(&metadata, holder, &name(2));
        let striping = Striping::new(Some(2), 2);
        assert!(wants(&striping, own) && !wants(&striping, stripe));
        striping.set_busy(true);
        assert!(!wants(&striping, own), "another one is being made striped");
        assert!(!wants(&Striping::new(Some(3), 2), own) && !wants(&Striping::new(None, 1), own));
    }
}
