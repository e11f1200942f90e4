//! Snapshots and clones: the operator's messages, and the kind that opens a version as a device in a stack.
//!
//! A snapshot is a record in the log's order: it has every write before that record and none after. Its cost
//! is that of the map's own snapshot, and later that of the pages that change. A clone is a writable version
//! whose parent is a snapshot.

use crate::capacity::Planned;
use crate::core::Core;
use crate::format::{Change, MAX_NAME, VersionId};
use crate::map::{Map, PAGE_BLOCKS};
use crate::versions::{Version, own_page};
use block::{Call, Durability, Error, Payload, Result};
use logkit::Owner;
use serde_json::{Value, json};
use stack::{Built, Contract, Key, Kind, Shape, Size, ValueKind};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// `snapshot(log(file(disk.img)), before)`.
pub const KIND: Kind = Kind {
    name: "snapshot",
    contract: Contract::Device,
    summary: "a snapshot (read-only) or a clone (writable) of a log",
    keys: &[
        Key::required("of", ValueKind::Device, "the log").positional(),
        Key::required("name", ValueKind::Text, "the name of the snapshot or clone").positional(),
    ],
    messages: &[],
    metrics: &[],
    shareable: true,
    example: "snapshot(log(ram(256MiB), size=192MiB), before)",
    plan: |_| Ok(Shape { block_size: Some(crate::layout::BLOCK as u32), ..Shape::default() }),
    build: |arguments| {
        Call::new(async move {
            let name = arguments.text("name")?;
            Ok(Built::Device(arguments.device("of")?.version(&name).await?))
        })
    },
};

/// Number of pages between two yields to other tasks.
const PAGES_AT_ONCE: u64 = 64;
/// Most ranges that `diff` reports.
const MAX_RANGES: usize = 200_000;

stack::messages! {
    /// A message to a log.
    Message;
    "snapshot create NAME" => Create(String), "create a snapshot of the volume";
    "snapshot list" => List, "list snapshots and clones, as JSON";
    "snapshot delete NAME" => Delete(String), "delete a snapshot or clone";
    "snapshot clone NAME NEW" => Clone(String, String), "create a clone NEW of the snapshot NAME";
    "snapshot diff NAME [OTHER]" => Diff(String, Option<String>),
        "list blocks that differ between NAME and OTHER (default: the volume), as JSON";
    "resize SIZE" => Resize(Size), "grow the volume to SIZE; takes effect when the stack is opened again";
    "checkpoint" => Checkpoint, "write a checkpoint now";
}

/// Carries out a message and answers with a JSON text.
///
/// # Errors
/// [`Error::NotFound`] and [`Error::AlreadyExists`] for names, [`Error::Busy`] for a version that is in use,
/// [`Error::Invalid`] for an impossible request; errors of writes.
pub(crate) async fn carry_out(core: &Rc<Core>, message: Message) -> Result<String> {
    if core.lost.is_some() && !matches!(message, Message::List | Message::Diff(..)) {
        return Err(crate::salvage::refusal());
    }
    let answer = match message {
        Message::Create(name) => create(core, VersionId::HEAD, name, false).await?,
        Message::Clone(of, name) => {
            let parent = find(core, &of)?;
            if core.version_is_writable(parent) {
                return Err(Error::invalid(format!(
                    "clone of \"{of}\": it is a clone itself; expected a snapshot"
                )));
            }
            create(core, parent, name, true).await?
        }
        Message::List => list(core).await?,
        Message::Delete(name) => delete(core, &name).await?,
        Message::Diff(name, other) => diff(core, &name, other.as_deref()).await?,
        Message::Resize(Size(bytes)) => resize(core, bytes).await?,
        Message::Checkpoint => {
            // In a task, since dropping the call must not leave pages that are neither dirty nor written.
            let own = core.clone();
            core.kit().tasks.spawn(async move { own.write_checkpoint(false).await }).await?;
            json!({ "checkpoint": true })
        }
    };
    Ok(answer.to_string())
}

fn find(core: &Core, name: &str) -> Result<VersionId> {
    let found = core.versions.borrow().by_name(name).map(|version| version.id);
    found.ok_or_else(|| not_found(core, name))
}

/// Returns the error for a name that no snapshot or clone has.
pub fn not_found(core: &Core, name: &str) -> Error {
    let versions = core.versions.borrow();
    let names: Vec<&str> = versions.list.iter().map(|version| version.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    Error::not_found(match names.is_empty() {
        true => format!("snapshot \"{name}\" doesn't exist: the log has no snapshots or clones"),
        false => format!("snapshot \"{name}\" doesn't exist; expected one of {}", names.join(", ")),
    })
}

/// Carries out a change of the versions; it is durable when this returns.
async fn change_versions(core: &Rc<Core>, change: Change) -> Result<()> {
    core.change(smallvec::smallvec![change], Payload::new(), Durability::Durable).await?;
    core.commit_everywhere().await?;
    core.publish_images().await
}

async fn create(core: &Rc<Core>, parent: VersionId, name: String, writable: bool) -> Result<Value> {
    let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control();
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_plain) {
        return Err(Error::invalid(format!(
            "name {name:?}: expected 1 to {MAX_NAME} bytes without spaces and control characters"
        )));
    }
    let version = {
        let mut versions = core.versions.borrow_mut();
        if versions.by_name(&name).is_some() {
            return Err(Error::already_exists(format!(
                "snapshot \"{name}\": a snapshot or clone of this name exists already; choose another name, or delete it first"
            )));
        }
        versions.next += 1;
        VersionId(versions.next - 1)
    };
    let created = runtime::wall_clock().as_secs();
    let change = Change::Create { version, parent, writable, created, name: name.clone() };
    match core.peers.is_alone() {
        true => {
            // A write that was admitted as an overwrite takes new capacity if the snapshot precedes it, so no
            // write may be in flight.
            let _alone = core.without_writes().await;
            let unsaved = core.unsaved_pages(parent).await?;
            core.admit_version(Planned { parent, writable, unsaved })?;
            core.change(smallvec::smallvec![change], Payload::new(), Durability::Visible).await?;
        }
        false => {
            // In a task, since dropping the call must not leave the gates closed.
            let own = core.clone();
            let create = async move {
                let outcome = create_everywhere(&own, version, change).await;
                outcome.and(own.open_gates().await)
            };
            core.kit().tasks.spawn(create).await?;
        }
    }
    core.flush_committed().await?;
    Ok(json!({ "name": name, "kind": if writable { "clone" } else { "snapshot" }, "created": created }))
}

/// Creates a version on all shards, while none of them writes. The caller opens the gates of the other
/// shards.
async fn create_everywhere(core: &Rc<Core>, version: VersionId, change: Change) -> Result<()> {
    let Change::Create { parent, writable, .. } = change else { return Ok(()) };
    let _alone = core.close_gates().await?;
    let unsaved = core.unsaved_pages(parent).await?;
    core.admit_version(Planned { parent, writable, unsaved })?;
    core.change(smallvec::smallvec![change], Payload::new(), Durability::Visible).await?;
    core.commit_everywhere().await?;
    let unsaved = core.unsaved_pages(version).await?;
    core.set_unsaved(version, unsaved);
    core.publish_images().await
}

async fn delete(core: &Rc<Core>, name: &str) -> Result<Value> {
    let version = find(core, name)?;
    if core.is_viewed(version) {
        return Err(Error::busy(format!(
            "snapshot \"{name}\": it is open as a device; take it out of the stack first"
        )));
    }
    set_leaving(core, version, true);
    // In a task, since dropping the call doesn't cancel the record. If the record fails, the version stays
    // and must be openable again.
    let own = core.clone();
    let deleted = core.kit().tasks.spawn(async move {
        let outcome = change_versions(&own, Change::Delete { version }).await;
        // A record that waits for space may still delete the version.
        if outcome.is_err() && own.kit().space.check().is_ok() {
            set_leaving(&own, version, false);
        }
        outcome
    });
    deleted.await?;
    // The version is deleted in any case. Its blocks are released in pieces; after a stop, when the log is
    // opened.
    core.released(version).await;
    let others = core.peers.each_other(move |core: Rc<Core>| async move {
        core.released(version).await;
        Ok(())
    });
    others.await?;
    Ok(json!({ "deleted": name }))
}

/// Sets whether opening a version is refused because its deletion has begun.
fn set_leaving(core: &Core, version: VersionId, is_leaving: bool) {
    let mut versions = core.versions.borrow_mut();
    versions.list.iter_mut().filter(|it| it.id == version).for_each(|it| it.is_leaving = is_leaving);
}

/// Returns the maps of all versions with the parts of all shards.
async fn whole_maps(core: &Rc<Core>) -> Result<BTreeMap<VersionId, Arc<dyn Map>>> {
    let all: Vec<VersionId> = core.versions.borrow().list.iter().map(|version| version.id).collect();
    let mut maps = BTreeMap::new();
    for id in all {
        // A version may have been deleted meanwhile.
        if let Ok(map) = core.whole_map(id).await {
            maps.insert(id, map);
        }
    }
    Ok(maps)
}

async fn list(core: &Rc<Core>) -> Result<Value> {
    let maps = whole_maps(core).await?;
    let whole = |version: &Version| maps.get(&version.id).cloned();
    let entries: Vec<_> = {
        let versions = core.versions.borrow();
        let named = versions.list.iter().filter(|version| !version.name.is_empty());
        let entries = named.filter_map(|version| {
            let mut parent = version.parent.and_then(|id| versions.get(id));
            while let Some(deleted) = parent.filter(|parent| parent.is_deleted()) {
                parent = deleted.parent.and_then(|id| versions.get(id));
            }
            let parent = parent.map(|parent| parent.name.clone());
            let kind = if version.writable { "clone" } else { "snapshot" };
            let told = json!({
                "name": version.name,
                "kind": kind,
                "created": version.created,
                "parent": parent,
                "blocks": version.blocks,
            });
            let relatives = versions.relatives(version).filter_map(whole).collect::<Vec<_>>();
            Some((told, whole(version)?, relatives, version.blocks))
        });
        entries.collect()
    };
    let mut snapshots = Vec::new();
    for (mut told, map, relatives, blocks) in entries {
        let mut own = vec![0; PAGE_BLOCKS as usize];
        let mut unique: u64 = 0;
        for page in 0..blocks.div_ceil(PAGE_BLOCKS) {
            own_page(&*map, relatives.iter().map(|relative| (&**relative, 0)), page, &mut own);
            unique += own.iter().filter(|entry| **entry != 0).count() as u64;
            if page % PAGES_AT_ONCE == 0 {
                runtime::yield_now().await;
            }
        }
        told["bytes_unique"] = (unique << core.layout.block_size.shift()).into();
        snapshots.push(told);
    }
    Ok(json!({ "snapshots": snapshots }))
}

async fn diff(core: &Rc<Core>, name: &str, other: Option<&str>) -> Result<Value> {
    let id = find(core, name)?;
    let other = match other {
        Some(other) => find(core, other)?,
        None => VersionId::HEAD,
    };
    let map = async |id: VersionId| -> Result<(Arc<dyn Map>, u64)> {
        let map = core.whole_map(id).await?;
        let blocks = core.versions.borrow().get(id).map(|version| version.blocks);
        Ok((map, blocks.ok_or_else(|| not_found(core, name))?))
    };
    let ((one, blocks), (two, others)) = (map(id).await?, map(other).await?);
    let (mut left, mut right) = (vec![0; PAGE_BLOCKS as usize], vec![0; PAGE_BLOCKS as usize]);
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for page in 0..blocks.max(others).div_ceil(PAGE_BLOCKS) {
        let first = page * PAGE_BLOCKS;
        for (map, blocks, entries) in [(&one, blocks, &mut left), (&two, others, &mut right)] {
            match first < blocks {
                true => map.save_page(page, entries),
                false => entries.fill(0),
            }
        }
        for (number, _) in left.iter().zip(&right).enumerate().filter(|(_, (left, right))| left != right) {
            let block = first + number as u64;
            match ranges.last_mut() {
                Some([start, count]) if *start + *count == block => *count += 1,
                _ => ranges.push([block, 1]),
            }
        }
        if ranges.len() > MAX_RANGES {
            ranges.truncate(MAX_RANGES);
            break;
        }
        if page % PAGES_AT_ONCE == 0 {
            runtime::yield_now().await;
        }
    }
    let is_cut = ranges.len() == MAX_RANGES;
    Ok(json!({ "ranges": ranges, "block_size": core.layout.block_size.bytes(), "truncated": is_cut }))
}

async fn resize(core: &Rc<Core>, bytes: u64) -> Result<Value> {
    let block = core.layout.block_size.bytes();
    let now = core.versions.borrow().get(VersionId::HEAD).map_or(0, |head| head.blocks);
    let blocks = bytes / block;
    if !bytes.is_multiple_of(block) || blocks < now || blocks >= u64::from(u32::MAX) {
        return Err(Error::invalid(format!(
            "resize to {bytes} bytes: expected a multiple of {block}, at least {} (the present size) and below 16TiB",
            now * block
        )));
    }
    // In a task, since dropping the call doesn't cancel the record.
    let (own, change) = (core.clone(), Change::Grow { version: VersionId::HEAD, blocks });
    core.kit().tasks.spawn(async move { change_versions(&own, change).await }).await?;
    Ok(json!({ "bytes": bytes, "takes_effect": "when the stack is opened again" }))
}
