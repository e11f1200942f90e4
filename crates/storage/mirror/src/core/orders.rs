//! Messages of operators, carried out.

use super::Core;
use crate::assembly::Found;
use crate::examine::examine;
use crate::format::{SlotState, draw_uuid};
use crate::message::{Message, number_of};
use block::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

/// Longest wait of `fail` for copies in flight from the leg.
const COPIES: Duration = Duration::from_secs(5);

impl Core {
    /// Carries a message out. Returns the answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown leg; [`Error::Busy`] or [`Error::Invalid`] if the leg's state
    /// doesn't allow it.
    pub async fn carry_out(self: Rc<Self>, message: Message) -> Result<String> {
        let core = &self;
        match message {
            Message::Fail(name) => {
                let leg = find(core, &name)?;
                // Copies of data that was read from the source may still be in flight to the others, which
                // need them once the source is faulty. The wait is bounded because the leg may not answer any
                // more.
                let all = core.all_blocks();
                let _held = match core.chunks.differ() > 0 || core.copies.are_in_flight() {
                    true => runtime::timeout(COPIES, core.locks.ask(all)).await.ok(),
                    false => None,
                };
                if core.members.active() == 1 << leg {
                    return Err(Error::busy(format!(
                        "fail {name}: it is the only active leg; wait for the rebuild of another one"
                    )));
                }
                core.fail(leg, Error::io("message \"fail\" of an operator")).await?;
                Ok(format!("{name} is faulty"))
            }
            Message::Remove(name) => {
                let leg = find(core, &name)?;
                let slot = core.legs[leg].slot.get();
                check_there(core, leg, "remove")?;
                let state = slot.map(|slot| core.members.slots()[slot].state);
                if state != Some(SlotState::Failed) || core.members.has(leg) {
                    return Err(Error::busy(format!("remove {name}: the leg isn't faulty; fail it first")));
                }
                core.set_state(leg, SlotState::Removed);
                core.superblocks_changed();
                core.write_superblocks().await?;
                Ok(format!("{name} is removed"))
            }
            Message::ReAdd(name) => re_add(core, &name).await,
            Message::Add(name) => add(core, &name).await,
            Message::Check => core.begin_scrub(false).map(|()| "checking".to_owned()),
            Message::Repair => core.begin_scrub(true).map(|()| "repairing".to_owned()),
            Message::Idle => {
                let ended = core.upkeep.end_scrub();
                core.summarize();
                Ok(match ended {
                    Some(scrub) => format!("the {} has ended", scrub.word()),
                    None => "no check or repair in progress; a resync continues".to_owned(),
                })
            }
        }
    }
}

/// Returns the leg with this name, or with this number in the stack.
fn find(core: &Core, name: &str) -> Result<usize> {
    number_of(core.legs.iter().map(|leg| leg.name.as_str()), name)
}

/// Whether a member has this slot.
fn is_taken(core: &Core, slot: usize) -> bool {
    (0..core.legs.len()).any(|leg| core.members.has(leg) && core.legs[leg].slot.get() == Some(slot))
}

/// Refuses a leg that couldn't be opened with the mirror.
fn check_there(core: &Core, leg: usize, what: &str) -> Result<()> {
    let leg = &core.legs[leg];
    leg.missing.as_ref().map_or(Ok(()), |error| {
        Err(error.with_detail(format!(
            "{what} {}: the leg couldn't be opened with the mirror ({}); mend that, and start the stack again",
            leg.name,
            error.detail()
        )))
    })
}

async fn re_add(core: &Rc<Core>, name: &str) -> Result<String> {
    let leg = find(core, name)?;
    if core.members.has(leg) {
        return Err(Error::busy(format!("re-add {name}: it is a member of the mirror already")));
    }
    check_there(core, leg, "re-add")?;
    let refuse = |why: String| {
        Err(Error::invalid(format!("re-add {name}: {why}; \"add {name}\" overwrites all of it")))
    };
    let found = match examine(&core.legs[leg].device, core.setup.layout.block_size).await {
        Found::Member(found) => found,
        Found::Other(what) => return refuse(format!("it holds {what}")),
        Found::Unreadable(error) => {
            return Err(error.in_context(format!("re-add {name}: the leg can't be read")));
        }
    };
    let slot = found.own;
    let own = core.members.slots().get(slot).copied();
    if found.array != core.setup.array || own.map(|own| own.leg) != Some(found.slots[slot].leg) {
        return refuse("it isn't a leg of this mirror, or was replaced".to_owned());
    }
    if is_taken(core, slot) {
        return refuse("another leg has its slot".to_owned());
    }
    let (its, ours) = (found.slots.len(), core.members.slots().len());
    if its != ours {
        return refuse(format!("its superblock has {its} slots; expected {ours}"));
    }
    let source = core.legs[core.members.source()].slot.get().unwrap_or(0);
    let state = found.slots[source].state;
    if matches!(state, SlotState::Failed | SlotState::Removed) {
        return refuse("it was used without the others (split brain)".to_owned());
    }
    if found.events < core.superblocks.cleared_events() {
        return refuse(format!(
            "it is too old for the bitmap: bits were cleared since (its events: {}, cleared at {})",
            found.events,
            core.superblocks.cleared_events()
        ));
    }
    core.join(leg, slot, false).await?;
    Ok(format!("{name} joins again; {} chunks are to be copied", core.chunks.lacking()))
}

async fn add(core: &Rc<Core>, name: &str) -> Result<String> {
    let leg = find(core, name)?;
    if core.members.has(leg) {
        return Err(Error::busy(format!("add {name}: it is a member of the mirror; fail it first")));
    }
    check_there(core, leg, "add")?;
    let (has, needs) = (core.legs[leg].bytes, core.setup.layout.leg_bytes());
    if has < needs {
        return Err(Error::invalid(format!(
            "add {name}: {has} bytes; expected at least {needs}; take a larger device"
        )));
    }
    let slots = core.members.slots().len();
    let own = core.legs[leg].slot.get().filter(|slot| !is_taken(core, *slot));
    let Some(slot) = own.or_else(|| (0..slots).find(|slot| !is_taken(core, *slot))) else {
        return Err(Error::busy(format!(
            "add {name}: all {slots} slots have legs; fail and remove one first"
        )));
    };
    core.legs[leg].device.wipe().await?;
    core.members.set_leg(slot, draw_uuid());
    core.join(leg, slot, true).await?;
    Ok(format!("{name} is overwritten with all data of the mirror"))
}
