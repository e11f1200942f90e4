//! Assembly: decides at opening from the superblocks which legs are used, before anything is written.
//!
//! Promises: a leg that missed changes of the others is never active and never the source. If that can't be
//! decided, or if legs took changes independently of each other (a split brain), opening is refused. Existing
//! data is overwritten only on legs that `rebuild` names.
//!
//! The superblock with the highest event count is authoritative for the state of all slots. A leg with a
//! lower count that is active in it missed an update of the superblocks, and no change was acknowledged that
//! relied on it. Such a leg lacks only chunks whose bit is set, as long as no bit was cleared since
//! ([`Superblock::cleared_events`]); it joins again by the bitmap.

use crate::format::{Slot, SlotState, Superblock, Uuid};
use crate::leg::{Mask, each};
use block::{Error, Result};

/// Contents of a leg that the stack names.
#[derive(Debug, Clone)]
pub enum Found {
    /// A valid superblock.
    Member(Box<Superblock>),
    /// Other contents, described.
    Other(String),
    /// Unreadable, with the error.
    Unreadable(Error),
}

/// Permissions that the stack gives for this opening.
#[derive(Debug, Clone, Default)]
pub struct Permissions {
    /// Whether to start without missing legs.
    pub degraded: bool,
    /// Legs that may be overwritten if they don't belong to the mirror.
    pub rebuild: Mask,
}

/// Legs and slots of the mirror as decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembly {
    /// New state of all slots.
    pub slots: Vec<Slot>,
    /// Slot of each leg; `None` for a leg without one.
    pub slot_of: Vec<Option<usize>>,
    /// Legs that have all data, except in chunks that may differ.
    pub active: Mask,
    /// Legs that lack chunks whose bit is set.
    pub rebuilding: Mask,
    /// Legs of `rebuilding` that lack all data and get a new identity.
    pub lack_all: Mask,
    /// Leg with the authoritative superblock.
    pub authority: usize,
    /// Leg from which chunks that may differ are copied.
    pub source: usize,
    /// Active legs with a valid bitmap; if none, all chunks are dirty.
    pub bitmaps: Mask,
}

/// Decides about the legs; `names` are their names in the stack.
///
/// # Errors
/// An error with the reason why the mirror can't be started, and the remedy.
pub fn assemble(names: &[String], found: &[Found], permissions: &Permissions) -> Result<Assembly> {
    let members: Vec<(usize, &Superblock)> = found
        .iter()
        .enumerate()
        .filter_map(|(leg, found)| match found {
            Found::Member(superblock) => Some((leg, &**superblock)),
            _ => None,
        })
        .collect();
    let (authority, authoritative) = choose_authority(names, found, &members, permissions)?;
    let mut assembly = Assembly {
        slots: authoritative.slots.clone(),
        slot_of: vec![None; names.len()],
        active: 0,
        rebuilding: 0,
        lack_all: 0,
        authority,
        source: authority,
        bitmaps: 0,
    };
    let mut reasons: Vec<String> = Vec::new();
    for (leg, superblock) in &members {
        if superblock.array != authoritative.array {
            if permissions.rebuild & 1 << leg == 0 {
                return Err(of_another_mirror(names, *leg, superblock.array, authority, authoritative.array));
            }
            continue;
        }
        let is_alone = !went_on_with(superblock, authoritative, &members);
        assign_role(
            names,
            &mut assembly,
            (*leg, superblock),
            authoritative,
            is_alone,
            permissions,
            &mut reasons,
        )?;
    }
    join_rebuilt(names, &mut assembly, found, permissions)?;
    settle_missing(names, &mut assembly, found, authoritative, permissions, &reasons)?;
    choose_source(&mut assembly, authoritative);
    Ok(assembly)
}

/// Whether a superblock records the leg of this slot as failed or removed.
fn left_behind(of: &Superblock, slot: usize) -> bool {
    of.slots.get(slot).is_some_and(|slot| matches!(slot.state, SlotState::Failed | SlotState::Removed))
}

/// Active legs, without those that a later superblock left behind while at least one is left.
fn candidates<'a>(members: &[(usize, &'a Superblock)]) -> Vec<(usize, &'a Superblock)> {
    let mut active: Vec<(usize, &Superblock)> =
        members.iter().filter(|(_, it)| it.slots[it.own].state == SlotState::Active).copied().collect();
    // The superblock that records a failed leg may have been written only to a leg that is being rebuilt.
    let is_left_behind = |it: &Superblock| {
        members.iter().any(|(_, other)| {
            other.array == it.array
                && other.events >= it.events
                && left_behind(other, it.own)
                && !left_behind(it, other.own)
        })
    };
    if active.iter().any(|(_, it)| !is_left_behind(it)) {
        active.retain(|(_, it)| !is_left_behind(it));
    }
    active
}

/// Chooses the leg with the authoritative superblock.
fn choose_authority<'a>(
    names: &[String],
    found: &[Found],
    members: &[(usize, &'a Superblock)],
    permissions: &Permissions,
) -> Result<(usize, &'a Superblock)> {
    let is_listed = |leg: usize| permissions.rebuild & 1 << leg != 0;
    let candidates = candidates(members);
    let others = candidates.iter().filter(|(leg, _)| !is_listed(*leg));
    let mut authority = others.max_by_key(|(_, superblock)| superblock.events).copied();
    if let (None, Some((leg, _))) = (authority, candidates.first()) {
        return Err(Error::invalid(format!(
            "rebuild: \"{}\" is the only leg with all data of this mirror; take it out of the list",
            names[*leg]
        )));
    }
    // A `rebuild` list that stays in the stack must not lead to the loss of data that was written since.
    for (leg, superblock) in candidates.iter().filter(|(leg, _)| is_listed(*leg)) {
        let is_older = |of: &Superblock| of.array == superblock.array && of.events < superblock.events;
        let Some((best, authoritative)) = authority.filter(|(_, of)| is_older(of)) else { continue };
        match (left_behind(superblock, authoritative.own), left_behind(authoritative, superblock.own)) {
            // An interrupted update of the superblocks.
            (false, _) => authority = Some((*leg, *superblock)),
            (true, true) => {}
            (true, false) => {
                return Err(Error::invalid(format!(
                    "rebuild: \"{}\" has changes that \"{}\" lacks, because it was used without it; take it out of the list",
                    names[*leg], names[best]
                )));
            }
        }
    }
    authority.ok_or_else(|| no_authority(names, found))
}

/// Error with the reason for which each leg isn't authoritative.
fn no_authority(names: &[String], found: &[Found]) -> Error {
    let mut unreadable = None;
    let whys = names.iter().zip(found).map(|(name, found)| match found {
        Found::Member(_) => format!("\"{name}\" was being rebuilt and lacks data"),
        Found::Other(what) => format!("\"{name}\" holds {what}"),
        Found::Unreadable(error) => {
            unreadable.get_or_insert(error);
            naming(name, error)
        }
    });
    let whys: Vec<String> = whys.collect();
    let whys = format!("no leg has all data of a mirror: {}", whys.join("; "));
    match unreadable {
        Some(error) => error.with_detail(whys),
        None => Error::protocol(format!(
            "{whys}; to create a new mirror and lose the contents of the legs: --format"
        )),
    }
}

fn of_another_mirror(names: &[String], leg: usize, its: Uuid, authority: usize, ours: Uuid) -> Error {
    Error::protocol(format!(
        "leg \"{}\" belongs to mirror {its}, \"{}\" to mirror {ours}; take one out, or name the one to overwrite in rebuild",
        names[leg], names[authority]
    ))
}

/// Whether the slot of `other` belongs to the same leg in both superblocks, with a state in `it` that
/// `is_such` accepts.
fn belongs(it: &Superblock, other: &Superblock, is_such: impl Fn(SlotState) -> bool) -> bool {
    let (seen, own) = (it.slots.get(other.own), other.slots.get(other.own));
    let is_same = |(seen, own): (&Slot, &Slot)| seen.leg == own.leg && is_such(seen.state);
    it.array == other.array && seen.zip(own).is_some_and(is_same)
}

/// Whether the authoritative leg includes all changes of `it`: `it` doesn't record that leg as failed, or
/// this holds transitively for a member of `it` with a later event count. Otherwise each may have changes
/// that the other lacks.
fn went_on_with(it: &Superblock, authoritative: &Superblock, members: &[(usize, &Superblock)]) -> bool {
    let is_member = |state| matches!(state, SlotState::Active | SlotState::Rebuilding);
    let left_behind = |of: &Superblock| {
        let own = of.slots.get(authoritative.own);
        own.is_some_and(|own| matches!(own.state, SlotState::Failed | SlotState::Removed))
    };
    let (mut reached, mut next) = (vec![it], 0);
    while let Some(from) = reached.get(next).copied() {
        if !left_behind(from) {
            return true;
        }
        next += 1;
        for (_, other) in members {
            let is_new = reached.iter().all(|known| known.own != other.own);
            if is_new && other.events >= from.events && belongs(from, other, is_member) {
                reached.push(other);
            }
        }
    }
    false
}

/// Decides the role of a leg that belongs to this mirror.
fn assign_role(
    names: &[String],
    assembly: &mut Assembly,
    (leg, superblock): (usize, &Superblock),
    authoritative: &Superblock,
    went_on_alone: bool,
    permissions: &Permissions,
    reasons: &mut Vec<String>,
) -> Result<()> {
    let (bit, slot) = (1 << leg, superblock.own);
    let may_go = permissions.rebuild & bit != 0;
    let Some(known) =
        authoritative.slots.get(slot).filter(|_| superblock.slots.len() == authoritative.slots.len())
    else {
        return Err(Error::corrupt(format!(
            "legs \"{}\" and \"{}\" of one mirror record different numbers of slots; one of them is damaged",
            names[leg], names[assembly.authority]
        )));
    };
    let is_same = superblock.slots[slot].leg == known.leg;
    if is_same && let Some(twin) = assembly.slot_of.iter().position(|other| *other == Some(slot)) {
        return Err(Error::invalid(format!(
            "\"{}\" and \"{}\" are the same leg of a mirror: one is a copy of the other; take one out",
            names[leg], names[twin]
        )));
    }
    if went_on_alone && !may_go {
        return Err(Error::invalid(format!(
            "\"{}\" and \"{}\" were each used without the other (split brain), so each has changes that the other lacks; \
             take out the one to give up, or name it in rebuild to overwrite it",
            names[leg], names[assembly.authority]
        )));
    }
    if !is_same {
        reasons.push(format!("\"{}\" was replaced by another leg", names[leg]));
        return Ok(());
    }
    assembly.slot_of[leg] = Some(slot);
    let knows_the_rest = superblock.events >= authoritative.cleared_events && !went_on_alone;
    match known.state {
        SlotState::Active if superblock.events == authoritative.events => assembly.active |= bit,
        SlotState::Active | SlotState::Rebuilding if knows_the_rest => assembly.rebuilding |= bit,
        SlotState::Active | SlotState::Rebuilding => {
            reasons.push(format!(
                "\"{}\" is too old for the bitmap: bits were cleared since (its events: {}, cleared at {})",
                names[leg], superblock.events, authoritative.cleared_events
            ));
            assembly.slots[slot].state = SlotState::Failed;
        }
        SlotState::Failed | SlotState::Removed if may_go && knows_the_rest => assembly.rebuilding |= bit,
        SlotState::Failed | SlotState::Removed => {}
    }
    Ok(())
}

/// Gives free slots to legs that `rebuild` names and that don't belong to the mirror.
fn join_rebuilt(
    names: &[String],
    assembly: &mut Assembly,
    found: &[Found],
    permissions: &Permissions,
) -> Result<()> {
    let belong = assembly.active | assembly.rebuilding;
    for leg in each(permissions.rebuild & !belong) {
        if let Found::Unreadable(error) = &found[leg] {
            return Err(error.in_context(format!("rebuild: leg \"{}\" can't be read", names[leg])));
        }
        let is_taken = |slot: usize| {
            each(assembly.active | assembly.rebuilding).any(|leg| assembly.slot_of[leg] == Some(slot))
        };
        let own = assembly.slot_of[leg].filter(|slot| !is_taken(*slot));
        let Some(slot) = own.or_else(|| (0..assembly.slots.len()).find(|slot| !is_taken(*slot))) else {
            let slots = assembly.slots.len();
            return Err(Error::invalid(format!(
                "rebuild: no free slot for \"{}\": all {slots} slots of the mirror have legs; take a leg out",
                names[leg]
            )));
        };
        assembly.slot_of[leg] = Some(slot);
        assembly.rebuilding |= 1 << leg;
        assembly.lack_all |= 1 << leg;
    }
    Ok(())
}

/// Sets the new states of the slots. Refuses if a leg is missing that the authoritative superblock has as
/// active, unless `degraded` allows it; its slot becomes failed then.
fn settle_missing(
    names: &[String],
    assembly: &mut Assembly,
    found: &[Found],
    authoritative: &Superblock,
    permissions: &Permissions,
    reasons: &[String],
) -> Result<()> {
    for slot in 0..assembly.slots.len() {
        let has = |mask: Mask| each(mask).any(|leg| assembly.slot_of[leg] == Some(slot));
        assembly.slots[slot].state = match (has(assembly.active), has(assembly.rebuilding)) {
            (true, _) => SlotState::Active,
            (_, true) => SlotState::Rebuilding,
            _ if authoritative.slots[slot].state == SlotState::Removed => SlotState::Removed,
            _ => SlotState::Failed,
        };
        let is_missed = assembly.slots[slot].state == SlotState::Failed
            && authoritative.slots[slot].state == SlotState::Active;
        if !is_missed || permissions.degraded {
            continue;
        }
        let mut whys = reasons.to_vec();
        for (name, found) in names.iter().zip(found) {
            match found {
                Found::Other(what) => whys.push(format!("\"{name}\" holds {what}")),
                Found::Unreadable(error) => whys.push(naming(name, error)),
                Found::Member(_) => {}
            }
        }
        let whys = if whys.is_empty() { "the stack doesn't name it".to_owned() } else { whys.join("; ") };
        let loses = authoritative.fast_flush && !authoritative.slots[slot].write_mostly;
        let loses = loses
            && each(assembly.active)
                .filter_map(|leg| assembly.slot_of[leg])
                .all(|slot| authoritative.slots[slot].write_mostly);
        let warning = match loses {
            true => {
                "; with flush = \"fast\" the last flushed data may be on the missing leg alone, and would be lost"
            }
            false => "",
        };
        return Err(Error::invalid(format!(
            "leg {slot} of {} of the mirror is missing ({whys}), and may have newer data than the others; bring it back; to \
             start without it: degraded = true; to overwrite a leg in its slot: rebuild = [\"NAME\"]{warning}",
            assembly.slots.len()
        )));
    }
    Ok(())
}

/// Chooses the source: the earlier one if it is active.
fn choose_source(assembly: &mut Assembly, authoritative: &Superblock) {
    let slot_of = |leg: usize| assembly.slot_of[leg];
    let before = each(assembly.active).find(|leg| slot_of(*leg) == Some(authoritative.source));
    let is_fast = |leg: &usize| slot_of(*leg).is_some_and(|slot| !authoritative.slots[slot].write_mostly);
    let fast = each(assembly.active).find(is_fast);
    assembly.source = before.or(fast).unwrap_or(assembly.authority);
    let keeps = |leg: &usize| slot_of(*leg).is_some_and(|slot| authoritative.slots[slot].has_bitmap);
    let bitmaps: Mask = each(assembly.active).filter(keeps).map(|leg| 1 << leg).sum();
    assembly.bitmaps = bitmaps;
}

/// Text of an error of a leg, which names the leg.
pub(crate) fn naming(leg: &str, error: &Error) -> String {
    let (name, detail) = (format!("\"{leg}\""), error.detail());
    match detail.contains(&name) {
        // That of a part of a stack begins with its kind and name.
        true => detail.to_owned(),
        false => format!("{name} can't be read: {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: Uuid = Uuid::from_bytes([9; 16]);

    fn slot(number: u8, state: SlotState) -> Slot {
        Slot {
            leg: Uuid::from_bytes([number; 16]),
            state,
            write_mostly: number == 1,
            has_bitmap: number != 1,
        }
    }

    /// Superblock of leg `own`, with the state of each slot as a letter.
    fn leg(own: usize, events: u64, cleared_events: u64, states: &str) -> Found {
        let state = |letter| match letter {
            'a' => SlotState::Active,
            'r' => SlotState::Rebuilding,
            'f' => SlotState::Failed,
            _ => SlotState::Removed,
        };
        Found::Member(Box::new(Superblock {
            block_size: 4096,
            array: ARRAY,
            events,
            cleared_events,
            data_offset: 1 << 20,
            data_bytes: 1 << 30,
            bitmap_offset: 8192,
            bitmap_chunk: 64 << 20,
            own,
            source: 0,
            fast_flush: false,
            slots: states.chars().zip(0..).map(|(letter, number)| slot(number, state(letter))).collect(),
        }))
    }

    fn blank() -> Found {
        Found::Other("nothing but zeros".to_owned())
    }

    fn assembled(found: &[Found], degraded: bool, rebuild: Mask) -> Result<Assembly> {
        let names: Vec<String> = ["x", "y", "z"].iter().map(|name| (*name).to_owned()).collect();
        assemble(&names[..found.len()], found, &Permissions { degraded, rebuild })
    }

    #[track_caller]
    fn is(
        found: &[Found],
        degraded: bool,
        rebuild: Mask,
        (active, rebuilding, lack_all): (Mask, Mask, Mask),
    ) {
        let assembly = assembled(found, degraded, rebuild).expect("it can be started");
        assert_eq!((assembly.active, assembly.rebuilding, assembly.lack_all), (active, rebuilding, lack_all));
        assert!(active & 1 << assembly.source != 0, "the source has everything");
    }

    #[track_caller]
    fn refused(found: &[Found], degraded: bool, rebuild: Mask, words: &str) {
        let error = assembled(found, degraded, rebuild).expect_err("it can't be started");
        assert!(error.detail().contains(words), "{error}");
    }

    #[test]
    fn legs_that_agree_are_active_in_any_order() {
        is(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa")], false, 0, (0b11, 0, 0));
        let turned = assembled(&[leg(1, 5, 3, "aa"), leg(0, 5, 3, "aa")], false, 0).expect("it starts");
        assert_eq!((turned.source, turned.bitmaps, turned.slot_of), (1, 0b10, vec![Some(1), Some(0)]));
    }

    #[test]
    fn a_leg_that_others_went_on_without_is_left_out() {
        is(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "fa")], false, 0, (0b10, 0, 0));
        // A higher event count that the leg reached alone makes no difference.
        refused(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], false, 0, "each used without the other");
        refused(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], true, 0, "each used without the other");
        is(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], false, 0b01, (0b10, 0b01, 0b01));
    }

    #[test]
    fn a_leg_that_missed_a_note_joins_by_the_bitmap() {
        is(&[leg(0, 6, 5, "aa"), leg(1, 5, 5, "aa")], false, 0, (0b01, 0b10, 0));
        refused(&[leg(0, 6, 6, "aa"), leg(1, 5, 5, "aa")], false, 0, "too old for the bitmap");
        is(&[leg(0, 6, 6, "aa"), leg(1, 5, 5, "aa")], true, 0, (0b01, 0, 0));
        is(&[leg(0, 6, 6, "aa"), leg(1, 5, 5, "aa")], false, 0b10, (0b01, 0b10, 0b10));
    }

    #[test]
    fn a_missing_leg_must_be_known_or_asked_for() {
        refused(&[leg(0, 5, 3, "aa")], false, 0, "leg 1 of 2 of the mirror is missing");
        refused(&[leg(0, 5, 3, "aa"), blank()], false, 0, "\"y\" holds nothing but zeros");
        is(&[leg(0, 5, 3, "aa")], true, 0, (0b1, 0, 0));
        is(&[leg(0, 5, 3, "af")], false, 0, (0b1, 0, 0));
        is(&[leg(0, 5, 3, "ax"), blank()], false, 0, (0b1, 0, 0));
        is(&[leg(0, 5, 3, "aa"), blank()], false, 0b10, (0b01, 0b10, 0b10));
        let assembly = assembled(&[leg(1, 5, 3, "aa")], true, 0).expect("it starts");
        assert_eq!((assembly.slots[0].state, assembly.source, assembly.bitmaps), (SlotState::Failed, 0, 0));
    }

    #[test]
    fn a_leg_that_was_being_rebuilt_is_no_word() {
        refused(&[leg(1, 9, 3, "ar")], true, 0, "was being rebuilt");
        is(&[leg(0, 9, 3, "ar"), leg(1, 9, 3, "ar")], false, 0, (0b01, 0b10, 0));
        is(&[leg(0, 9, 3, "ar")], false, 0, (0b01, 0, 0));
        // A bit was cleared since without the leg.
        is(&[leg(0, 9, 9, "ar"), leg(1, 8, 3, "ar")], false, 0, (0b01, 0, 0));
    }

    #[test]
    fn a_list_that_was_left_as_it_is_costs_nothing() {
        is(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa")], false, 0b10, (0b11, 0, 0));
        refused(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "fa")], false, 0b10, "take it out of the list");
        is(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "aa")], false, 0b10, (0b10, 0b01, 0));
        refused(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa")], false, 0b11, "take it out of the list");
    }

    /// A power cut between the writes of two legs' superblocks.
    #[test]
    fn a_note_that_only_some_have_is_no_fork() {
        // Only the leg that is being rebuilt records that leg 2 failed.
        is(&[leg(0, 6, 3, "ara"), leg(1, 7, 3, "arf"), leg(2, 6, 3, "ara")], false, 0, (0b101, 0b010, 0));
        is(&[leg(0, 6, 3, "aaa"), leg(1, 7, 3, "faf"), leg(2, 6, 3, "aaa")], false, 0, (0b010, 0, 0));
    }

    /// Failures that form a chain: each leg's changes continued on another one.
    #[test]
    fn legs_that_left_each_other_behind_may_have_a_line() {
        is(&[leg(0, 6, 3, "afa"), leg(1, 3, 3, "aaf"), leg(2, 6, 3, "afa")], false, 0, (0b101, 0, 0));
        is(&[leg(0, 9, 3, "arf"), leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")], false, 0, (0b010, 0, 0));
        // Without the leg between them the order is unknown.
        refused(&[leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")], false, 0, "each used without the other");
        refused(
            &[leg(0, 9, 3, "aff"), leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")],
            false,
            0,
            "each used without the other",
        );
    }

    #[test]
    fn copies_and_strangers_are_refused() {
        refused(&[leg(0, 5, 3, "aa"), leg(0, 5, 3, "aa")], false, 0, "are the same leg");
        let mut other = leg(1, 70, 3, "aa");
        if let Found::Member(superblock) = &mut other {
            superblock.array = Uuid::from_bytes([8; 16]);
        }
        refused(&[leg(0, 5, 3, "aa"), other.clone()], false, 0, "belongs to mirror");
        is(&[leg(0, 5, 3, "aa"), other], false, 0b10, (0b01, 0b10, 0b10));
        refused(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa"), blank()], false, 0b100, "no free slot");
        refused(&[blank(), blank()], true, 0, "--format");
        let dead = Found::Unreadable(Error::io("gone"));
        refused(&[leg(0, 5, 3, "aa"), dead.clone()], false, 0b10, "can't be read");
        refused(&[leg(0, 5, 3, "aa"), dead], false, 0, "can't be read");
    }

    /// The same slot, but another leg's identity.
    #[test]
    fn a_leg_that_was_replaced_is_left_out() {
        let mut replaced = leg(1, 9, 3, "aa");
        if let Found::Member(superblock) = &mut replaced {
            superblock.slots[1].leg = Uuid::from_bytes([5; 16]);
        }
        is(&[leg(0, 10, 3, "aa"), replaced, leg(1, 10, 3, "aa")], false, 0, (0b101, 0, 0));
    }
}
