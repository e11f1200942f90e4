//! Appending records: lanes of users' writes, each with its own open zones and one append on its way at a time.
//!
//! Writes gather while the appends of all lanes are on their way; a lane that has landed takes its share of what has
//! gathered as the next record. Two lanes keep the disk busy while the client is told of one record and sends its next
//! writes; one would leave the disk idle meanwhile, and three make records small.

use crate::core::{Core, Group, Item, count};
use crate::format::USER;
use crate::open_zone::OpenZone;
use block::{Buffer, Error, Payload, Result};
use std::rc::Rc;
use logkit::record::{Header, StreamIndex, sum_of};

/// After so many failed appends of one record, in as many zones, the log takes no more writes.
const MOST_ATTEMPTS: usize = 4;

/// Memory that a lane uses again for each record.
#[derive(Debug, Default)]
pub struct Scratch {
    sums: Vec<u32>,
    meta: Vec<u8>,
    header: Vec<u8>,
}

/// Starts the lanes of users' writes.
pub fn start(core: &Rc<Core>) {
    for _ in 0..core.settings.appends_in_flight {
        core.tasks.spawn(lane(core.clone())).detach();
    }
}

async fn lane(core: Rc<Core>) {
    let classes = usize::from(core.policy.borrow().classes());
    let mut zones: Vec<Option<OpenZone>> = (0..classes).map(|_| None).collect();
    let mut scratch = Scratch::default();
    loop {
        let Some(class) = core.ready_class() else {
            if core.is_closing.get() && !core.has_work() || core.failure().is_some() {
                break;
            }
            core.work.notified().await;
            // Whoever was told of the same completion, or arrives in the same turn, comes along.
            runtime::yield_now().await;
            continue;
        };
        let zone = match zones[usize::from(class)].take() {
            Some(zone) => zone,
            None => match core.open_zone_for_users(class).await {
                Ok(Some(zone)) => zone,
                Ok(None) => continue,
                Err(error) => {
                    let is_short = core.space.is_short();
                    let acknowledged = is_short && core.has_acknowledged(class);
                    zones[usize::from(class)] = match acknowledged.then(|| core.try_open_zone(class, 1)) {
                        Some(Some(zone)) => Some(zone),
                        None if is_short => {
                            core.write_without_data(class, &mut scratch, &error).await;
                            None
                        }
                        _ => core.refuse_queued(class, &error),
                    };
                    continue;
                }
            },
        };
        let group = core.take_group(class, &zone);
        if group.items.is_empty() {
            core.recycle(group.items);
            // Another lane may have taken everything; else the zone has no room for what is first.
            match core.queue_is_empty(class) || zone.position == 0 {
                true => zones[usize::from(class)] = Some(zone),
                false => core.seal(zone).await,
            }
            continue;
        }
        let items = group.items.len();
        core.took_off(items);
        zones[usize::from(class)] = write_group(&core, USER, group, zone, &mut scratch).await.zone;
        core.landed(items);
        runtime::yield_now().await;
    }
    // Nothing is queued any more, for which the others and the cleaner may have waited.
    core.work.notify_all();
    core.cleaner.notify_all();
    core.freed.notify_all();
    for zone in zones.into_iter().flatten() {
        core.seal_now(zone).await;
    }
    core.seal_filler().await;
}

/// What became of a record.
#[derive(Debug, Default)]
pub struct Written {
    /// The zone, if it can take more.
    pub zone: Option<OpenZone>,
    /// Why its data wasn't written, where the device below had no space for it.
    pub refused: Option<Error>,
}

/// Writes a record and lets it commit. Of one for which the device below has no space, the data is refused. One that can't
/// be written anywhere for another reason makes the log fail.
pub async fn write_group(
    core: &Rc<Core>,
    stream: StreamIndex,
    mut group: Group,
    zone: OpenZone,
    scratch: &mut Scratch,
) -> Written {
    let sequence = core.streams[usize::from(stream.0)].borrow_mut().issue();
    let mut zone = zone;
    scratch.prepare(&group, core.layout.block_bytes());
    let mut attempts = 0;
    loop {
        attempts += 1;
        let position = zone.position + 1;
        let error = match append(core, stream, sequence, &group, &mut zone, scratch).await {
            Ok(()) => {
                (group.zone, group.position) = (zone.zone, position);
                core.note_space();
                core.written(stream, sequence, group);
                return Written { zone: Some(zone), refused: None };
            }
            Err(error) => error,
        };
        tracing::warn!("a record could not be written to zone {}: {error}", zone.zone);
        let class = zone.class;
        core.abandon(zone.zone, zone.position).await;
        core.note_no_space(&error);
        // What was acknowledged can't be refused.
        if matches!(error, Error::NoSpace(_)) && group.items.iter().all(|item| item.ticket == 0) {
            core.refuse_record(stream, sequence, group, scratch, &error).await;
            return Written { zone: None, refused: Some(error) };
        }
        // The number has been given: it must be filled, elsewhere, or nothing behind it can count.
        let another = match attempts < MOST_ATTEMPTS {
            true => core.try_open_zone(class, 1),
            false => None,
        };
        match another {
            Some(another) => zone = another,
            None => {
                group.items.iter().for_each(|item| core.item_done(item, Err(error.clone())));
                core.fail(&error.in_context(format!("record {sequence} can't be written")));
                return Written::default();
            }
        }
    }
}

/// Appends a record, for which scratch was prepared, to a zone.
///
/// # Errors
/// What appending says. The zone must not be appended to afterwards.
pub async fn append(
    core: &Rc<Core>,
    stream: StreamIndex,
    sequence: u64,
    group: &Group,
    zone: &mut OpenZone,
    scratch: &mut Scratch,
) -> Result<()> {
    let blocks = scratch.sums.len() as u32;
    core.table.change(zone.zone, |entry| {
        entry.last[usize::from(stream.0)] = entry.last[usize::from(stream.0)].max(sequence);
        entry.written += blocks;
    });
    let payload = scratch.encode(core, stream, sequence, &group.items, zone);
    let outcome = zone.append(&*core.zones, &core.layout, &scratch.header, payload).await;
    core.flusher.appended(zone.zone);
    if outcome.is_ok() {
        count(&core.counters.overhead_blocks, 1);
        core.since_checkpoint.set(core.since_checkpoint.get() + u64::from(blocks) + 1);
    }
    outcome
}

impl Scratch {
    /// Length of what the record says beside its data, in bytes.
    pub fn meta_length(&self) -> usize {
        self.meta.len()
    }

    /// Computes what doesn't depend on the zone.
    pub fn prepare(&mut self, group: &Group, block: usize) {
        self.sums.clear();
        self.meta.clear();
        for Item { change, payload, .. } in &group.items {
            change.encode(&mut self.meta);
            let whole = payload.slices().iter().all(|slice| slice.len().is_multiple_of(block));
            if whole {
                for slice in payload.slices() {
                    self.sums.extend(slice.chunks_exact(block).map(sum_of));
                }
            } else {
                self.sums.extend(payload.to_data().chunks_exact(block).map(sum_of));
            }
        }
    }

    fn encode(
        &mut self,
        core: &Core,
        stream: StreamIndex,
        sequence: u64,
        items: &[Item],
        zone: &OpenZone,
    ) -> Payload {
        let header = Header {
            stream,
            class: zone.class,
            epoch: core.epoch,
            sequence,
            // What is moved had been committed when it was chosen.
            after: core.streams[usize::from(USER.0)].borrow().committed(),
            durable: core.streams[usize::from(stream.0)].borrow().durable(),
            clock: core.clock.get(),
            zone: zone.zone,
            generation: zone.generation,
            position: zone.position,
            blocks: self.sums.len() as u32,
        };
        let mut buffer = Buffer::zeroed(core.layout.block_bytes());
        let length = header.encode(&core.identity, &self.sums, &self.meta, buffer.filled_mut());
        self.header.clear();
        self.header.extend_from_slice(&buffer.filled()[..length]);
        // The data goes to the disk from where it is.
        let mut payload =
            Payload::with_room(1 + items.iter().map(|item| item.payload.slices().len()).sum::<usize>());
        payload.push(buffer.freeze());
        for slice in items.iter().flat_map(|item| item.payload.slices()) {
            payload.push(slice.clone());
        }
        payload
    }
}
