//! What an operator may tell a cache while it works.

use super::commit::PATIENCE;
use super::core::{Core, Level, Mode};
use super::state::FREE;
use super::status::{Control, Detach};
use super::warm::{self, Warm};
use block::{Error, Result};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// A message that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Mode(Mode),
    MigrationThreshold(u64),
    SequentialThreshold(u64),
    Invalidate(Vec<Range<u32>>),
    Detach,
    Cancel,
    Warm(Warm),
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an unknown one, [`Error::Invalid`] for wrong words behind it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let one = || match rest.as_slice() {
            [word] => Ok(*word),
            _ => Err(Error::invalid(format!("message \"{text}\": expected one word behind \"{verb}\""))),
        };
        let number = || {
            let word = one()?;
            word.parse::<u64>()
                .map_err(|_| Error::invalid(format!("message \"{text}\": \"{word}\" is no whole number")))
        };
        match verb {
            "mode" => {
                let word = one()?;
                Mode::from_name(word).map(Message::Mode).ok_or_else(|| {
                    let known = Mode::NAMES.join(", ");
                    Error::invalid(format!("message \"{text}\": expected one of {known}"))
                })
            }
            "migration_threshold" => Ok(Message::MigrationThreshold(number()?)),
            "sequential_threshold" => Ok(Message::SequentialThreshold(number()?)),
            "invalidate" | "invalidate_cblocks" if !rest.is_empty() => {
                rest.iter().map(|word| range(text, word)).collect::<Result<_>>().map(Message::Invalidate)
            }
            "warm" => Warm::parse(&rest).map(Message::Warm),
            "detach" if rest.is_empty() => Ok(Message::Detach),
            "cancel" if rest.is_empty() => Ok(Message::Cancel),
            _ => Err(Error::unsupported(format!(
                "message \"{text}\": a cache knows \"mode WORD\", \"migration_threshold SECTORS\", \"sequential_threshold \
                 BYTES\", \"invalidate FROM-TO…\", \"detach\", \"cancel\", {}",
                warm::WORDS
            ))),
        }
    }
}

/// As dm-cache has them: one block, or the first one and the one behind the last.
fn range(text: &str, word: &str) -> Result<Range<u32>> {
    let number = |word: &str| word.parse::<u32>().ok();
    let found = match word.split_once('-') {
        Some((from, to)) => number(from).zip(number(to)).map(|(from, to)| from..to),
        None => number(word).and_then(|at| Some(at..at.checked_add(1)?)),
    };
    found.filter(|range| range.start < range.end).ok_or_else(|| {
        Error::invalid(format!(
            "message \"{text}\": \"{word}\": expected a block of the cache, or FROM-TO, where TO is behind the last one"
        ))
    })
}

/// Does it, and says what there is to say about it.
pub(super) async fn carry_out(
    core: &Rc<Core>,
    control: &std::sync::Arc<Control>,
    message: Message,
) -> Result<String> {
    match message {
        Message::Mode(mode) => {
            core.mode.set(mode);
            control.set_mode(mode);
            core.upkeep.notify_all();
            Ok(format!("mode {}", mode.name()))
        }
        Message::MigrationThreshold(sectors) => {
            core.migration_threshold.set(sectors.saturating_mul(512));
            control.migration_threshold.store(sectors, Ordering::Relaxed);
            Ok(format!("migration_threshold {sectors} sectors"))
        }
        Message::SequentialThreshold(bytes) => {
            core.sequential_threshold.set(bytes);
            control.sequential_threshold.store(bytes, Ordering::Relaxed);
            Ok(format!("sequential_threshold {bytes} bytes"))
        }
        Message::Invalidate(ranges) => invalidate(core, &ranges).await,
        Message::Warm(warm) => warm::carry_out(core, warm).await,
        Message::Detach => {
            let before = core.is_detaching.replace(true);
            control.set_detach(Detach::Going);
            core.upkeep.notify_all();
            if !before {
                let (core, control) = (Rc::downgrade(core), control.clone());
                runtime::spawn(async move {
                    if let Some(core) = core.upgrade() {
                        let _call = core.calls.enter();
                        detach(&core, &control).await;
                    }
                })
                .detach();
            }
            let dirty = core.state.borrow().dirty_slots;
            Ok(format!("detaching: {dirty} blocks are to be written back; \"cancel\" ends it"))
        }
        Message::Cancel => {
            let before = core.is_detaching.replace(false);
            control.set_detach(Detach::No);
            core.changed.notify_all();
            Ok(if before { "attached again".into() } else { "there was no detach".into() })
        }
    }
}

/// Lets clean blocks go.
async fn invalidate(core: &Rc<Core>, ranges: &[Range<u32>]) -> Result<String> {
    let slots = core.state.borrow().slots.len() as u32;
    if let Some(range) = ranges.iter().find(|range| range.end > slots) {
        return Err(Error::invalid(format!(
            "invalidate {}-{}: the cache has {slots} blocks",
            range.start, range.end
        )));
    }
    let (mut gone, mut dirty) = (0, 0);
    for slot in ranges.iter().flat_map(Clone::clone) {
        let block = core.state.borrow_mut().slot(slot).block;
        if block == FREE {
            continue;
        }
        match core.make_leave(slot, block).await? {
            true => gone += 1,
            false => dirty += 1,
        }
    }
    match dirty {
        0 => Ok(format!("{gone} blocks invalidated")),
        _ => Ok(format!(
            "{gone} blocks invalidated; {dirty} are dirty and stay: write them back first, by \"detach\""
        )),
    }
}

/// How many slots a detach makes free at once.
const AT_ONCE: usize = 1024;
/// How often a detach asks for slots before it waits: the policy looks at a few at a time.
const PASSES: usize = 16;

/// Waits until all is written back, and lets all blocks go.
async fn detach(core: &Rc<Core>, control: &Control) {
    let waits_for_flush = Cell::new(false);
    while core.is_detaching.get() && !core.is_closed.get() && core.failure.borrow().is_none() {
        let is_clean = core.state.borrow().dirty_slots == 0;
        if !is_clean {
            core.upkeep.notify_all();
            core.changed.notified().await;
            continue;
        }
        let flushed = match waits_for_flush.take() {
            true => core.flush_origin_now().await,
            false => core.flush_origin().await,
        };
        if flushed.is_err() {
            return;
        }
        let may = |number: u32, slot: &super::state::Slot| {
            let may = core.may_leave(number, slot.epoch);
            waits_for_flush.set(waits_for_flush.get() || !may);
            may
        };
        // Blocks that are hot are passed over until they have cooled down.
        let evict = |_| core.state.borrow_mut().evict(AT_ONCE, &may);
        let chosen = (0..PASSES).map(evict).find(|chosen| *chosen > 0).unwrap_or(0);
        if chosen > 0 {
            if core.commit(Level::Marks).await.is_err() {
                return;
            }
            continue;
        }
        if core.state.borrow().is_empty() {
            control.set_detach(Detach::Done);
            return;
        }
        // Where nobody asks for anything nothing changes.
        let _ = runtime::timeout(PATIENCE, core.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read() {
        assert_eq!(Message::parse("mode writeback").unwrap(), Message::Mode(Mode::Writeback));
        assert_eq!(
            Message::parse("invalidate_cblocks 3 5-9").unwrap(),
            Message::Invalidate(vec![3..4, 5..9])
        );
        for wrong in ["mode", "mode fast", "invalidate 9-5", "invalidate x", "migration_threshold -1"] {
            assert!(matches!(Message::parse(wrong), Err(Error::Invalid(_))), "{wrong}");
        }
        assert!(matches!(Message::parse("defrag"), Err(Error::Unsupported(_))));
    }
}
