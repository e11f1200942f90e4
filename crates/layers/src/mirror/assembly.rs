//! Which legs a mirror is made of when it is opened: decided from what their superblocks say, before anything is written.
//!
//! Promises: a leg that others went on without is never active, and never the source; where that can't be told, or where legs
//! went on each without the other, opening is refused. What is there is overwritten only on legs that `rebuild` names.
//!
//! The superblock with most events is the word on all places. A leg that has fewer, and that it calls active, missed a note of
//! which nobody made use; it lacks no more than what the bitmap says as long as no bit was cleared since
//! ([`Superblock::cleared_events`]), and joins again by that.

use super::format::{Slot, SlotState, Superblock, Uuid};
use super::leg::{Mask, each};
use block::{Error, Result};

/// What was found on a leg that the stack gives.
#[derive(Debug, Clone)]
pub enum Found {
    /// A superblock.
    Member(Box<Superblock>),
    /// Something else, in words.
    Other(String),
    /// Nothing, for want of an answer.
    Unreadable(Error),
}

/// What the stack asks for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Whether to go on without legs that are missing.
    pub degraded: bool,
    /// Legs that may be overwritten where they don't belong.
    pub rebuild: Mask,
}

/// What the mirror is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assembly {
    /// The word on all places, as it is from now on.
    pub slots: Vec<Slot>,
    /// The place of each leg that has one.
    pub places: Vec<Option<usize>>,
    /// Legs that have everything, but for what differs.
    pub active: Mask,
    /// Legs that lack what the bitmap says.
    pub rebuilding: Mask,
    /// Those of them that lack everything, and are to get an identity of their own.
    pub lack_all: Mask,
    /// The leg whose superblock had most events.
    pub word: usize,
    /// The leg from which what differs is copied.
    pub source: usize,
    /// Active legs whose bitmap counts; none: all chunks are dirty.
    pub bitmaps: Mask,
}

/// Decides; `names` are those of the legs.
///
/// # Errors
/// Why it can't be, and what to do.
pub fn assemble(names: &[String], found: &[Found], wishes: &Wishes) -> Result<Assembly> {
    let members: Vec<(usize, &Superblock)> = found
        .iter()
        .enumerate()
        .filter_map(|(leg, found)| match found {
            Found::Member(superblock) => Some((leg, &**superblock)),
            _ => None,
        })
        .collect();
    let (word, said) = the_word(names, found, &members, wishes)?;
    let mut assembly = Assembly {
        slots: said.slots.clone(),
        places: vec![None; names.len()],
        active: 0,
        rebuilding: 0,
        lack_all: 0,
        word,
        source: word,
        bitmaps: 0,
    };
    let mut reasons: Vec<String> = Vec::new();
    for (leg, superblock) in &members {
        if superblock.array != said.array {
            if wishes.rebuild & 1 << leg == 0 {
                return Err(of_another_mirror(names, *leg, superblock.array, word, said.array));
            }
            continue;
        }
        let is_alone = !went_on_with(superblock, said, &members);
        place(names, &mut assembly, (*leg, superblock), said, is_alone, wishes, &mut reasons)?;
    }
    join_wished(names, &mut assembly, found, wishes)?;
    without_the_missing(names, &mut assembly, found, said, wishes, &reasons)?;
    choose_source(&mut assembly, said);
    Ok(assembly)
}

/// The leg whose superblock counts.
fn the_word<'a>(
    names: &[String],
    found: &[Found],
    members: &[(usize, &'a Superblock)],
    wishes: &Wishes,
) -> Result<(usize, &'a Superblock)> {
    let left_behind = |of: &Superblock, slot: usize| {
        of.slots.get(slot).is_some_and(|slot| matches!(slot.state, SlotState::Failed | SlotState::Removed))
    };
    let is_listed = |leg: usize| wishes.rebuild & 1 << leg != 0;
    let mut candidates: Vec<(usize, &Superblock)> =
        members.iter().filter(|(_, it)| it.slots[it.own].state == SlotState::Active).copied().collect();
    // A note that a leg was left behind may have come to a leg that is being rebuilt alone.
    let is_left_behind = |it: &Superblock| {
        members.iter().any(|(_, other)| {
            other.array == it.array
                && other.events >= it.events
                && left_behind(other, it.own)
                && !left_behind(it, other.own)
        })
    };
    if candidates.iter().any(|(_, it)| !is_left_behind(it)) {
        candidates.retain(|(_, it)| !is_left_behind(it));
    }
    let others = candidates.iter().filter(|(leg, _)| !is_listed(*leg));
    let mut word = others.max_by_key(|(_, superblock)| superblock.events).copied();
    if let (None, Some((leg, _))) = (word, candidates.first()) {
        return Err(Error::invalid(format!(
            "rebuild: no leg but \"{}\" holds all data of this mirror: take it out of the list",
            names[*leg]
        )));
    }
    // A list that was left as it is must not cost what was written since.
    for (leg, superblock) in candidates.iter().filter(|(leg, _)| is_listed(*leg)) {
        let Some((best, said)) = word.filter(|(_, said)| said.array == superblock.array) else { continue };
        if superblock.events <= said.events {
            continue;
        }
        match (left_behind(superblock, said.own), left_behind(said, superblock.own)) {
            // An unfinished note.
            (false, _) => word = Some((*leg, *superblock)),
            (true, true) => {}
            (true, false) => {
                return Err(Error::invalid(format!(
                    "rebuild: \"{}\" has data that \"{}\" lacks, because it went on alone: take it out of the list",
                    names[*leg], names[best]
                )));
            }
        }
    }
    word.ok_or_else(|| {
        let mut whys = Vec::new();
        let mut unreadable = None;
        for (name, found) in names.iter().zip(found) {
            whys.push(match found {
                Found::Member(_) => format!("\"{name}\" was being rebuilt and lacks data"),
                Found::Other(what) => format!("\"{name}\" holds {what}"),
                Found::Unreadable(error) => {
                    unreadable.get_or_insert(error);
                    format!("\"{name}\" can't be read: {error}")
                }
            });
        }
        let whys = format!("no leg of a mirror that could be started: {}", whys.join("; "));
        match unreadable {
            Some(error) => error.with_detail(whys),
            None => Error::protocol(format!(
                "{whys}; if what is there may go, make a mirror of them with --format"
            )),
        }
    })
}

fn of_another_mirror(names: &[String], leg: usize, its: Uuid, word: usize, ours: Uuid) -> Error {
    Error::protocol(format!(
        "\"{}\" belongs to mirror {its}, \"{}\" to mirror {ours}: take one of them out, or name the one that may be \
         overwritten in rebuild",
        names[leg], names[word]
    ))
}

/// Whether `other` has such a place in what `it` says.
fn belongs(it: &Superblock, other: &Superblock, is_such: impl Fn(SlotState) -> bool) -> bool {
    let (seen, own) = (it.slots.get(other.own), other.slots.get(other.own));
    let is_same = |(seen, own): (&Slot, &Slot)| seen.leg == own.leg && is_such(seen.state);
    it.array == other.array && seen.zip(own).is_some_and(is_same)
}

/// Whether what a leg has went on in the one whose word counts: that one belongs to it, or to one that went on after it and
/// belongs to it, and so on. Else each may have what the other lacks.
fn went_on_with(it: &Superblock, said: &Superblock, members: &[(usize, &Superblock)]) -> bool {
    let is_member = |state| matches!(state, SlotState::Active | SlotState::Rebuilding);
    let left_behind = |of: &Superblock| {
        let own = of.slots.get(said.own);
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

/// Finds out what a member of this mirror is worth.
fn place(
    names: &[String],
    assembly: &mut Assembly,
    (leg, superblock): (usize, &Superblock),
    said: &Superblock,
    went_on_alone: bool,
    wishes: &Wishes,
    reasons: &mut Vec<String>,
) -> Result<()> {
    let (bit, slot) = (1 << leg, superblock.own);
    let may_go = wishes.rebuild & bit != 0;
    let Some(place) = said.slots.get(slot).filter(|_| superblock.slots.len() == said.slots.len()) else {
        return Err(Error::corrupt(format!(
            "\"{}\" and \"{}\" are of one mirror and name different numbers of legs",
            names[leg], names[assembly.word]
        )));
    };
    let is_same = superblock.slots[slot].leg == place.leg;
    if is_same && let Some(twin) = assembly.places.iter().position(|other| *other == Some(slot)) {
        return Err(Error::invalid(format!(
            "\"{}\" and \"{}\" are the same leg of a mirror: one is a copy of the other, take it out",
            names[leg], names[twin]
        )));
    }
    if went_on_alone && !may_go {
        return Err(Error::invalid(format!(
            "\"{}\" and \"{}\" each went on without the other, so each has data that the other lacks: take out the one \
             that is to go, and name it in rebuild to have it overwritten",
            names[leg], names[assembly.word]
        )));
    }
    if !is_same {
        reasons.push(format!("\"{}\" was replaced by another leg", names[leg]));
        return Ok(());
    }
    assembly.places[leg] = Some(slot);
    let knows_the_rest = superblock.events >= said.cleared_events && !went_on_alone;
    match place.state {
        SlotState::Active if superblock.events == said.events => assembly.active |= bit,
        SlotState::Active | SlotState::Rebuilding if knows_the_rest => assembly.rebuilding |= bit,
        SlotState::Active | SlotState::Rebuilding => {
            reasons.push(format!(
                "\"{}\" is older than what was cleared from the bitmap (events {}, cleared at {})",
                names[leg], superblock.events, said.cleared_events
            ));
            assembly.slots[slot].state = SlotState::Failed;
        }
        SlotState::Failed | SlotState::Removed if may_go && knows_the_rest => assembly.rebuilding |= bit,
        SlotState::Failed | SlotState::Removed => {}
    }
    Ok(())
}

/// Legs that may be overwritten and don't belong take places that are free.
fn join_wished(names: &[String], assembly: &mut Assembly, found: &[Found], wishes: &Wishes) -> Result<()> {
    let belong = assembly.active | assembly.rebuilding;
    for leg in each(wishes.rebuild & !belong) {
        if let Found::Unreadable(error) = &found[leg] {
            return Err(error.in_context(format!("rebuild: \"{}\" can't be read", names[leg])));
        }
        let is_taken = |slot: usize| {
            each(assembly.active | assembly.rebuilding).any(|leg| assembly.places[leg] == Some(slot))
        };
        let own = assembly.places[leg].filter(|slot| !is_taken(*slot));
        let Some(slot) = own.or_else(|| (0..assembly.slots.len()).find(|slot| !is_taken(*slot))) else {
            let places = assembly.slots.len();
            return Err(Error::invalid(format!(
                "rebuild: the mirror has {places} places, and \"{}\" would be one more: take a leg out",
                names[leg]
            )));
        };
        assembly.places[leg] = Some(slot);
        assembly.rebuilding |= 1 << leg;
        assembly.lack_all |= 1 << leg;
    }
    Ok(())
}

/// Refuses where legs are missing that nobody knows to be gone, unless that is asked for; then they are known to be.
fn without_the_missing(
    names: &[String],
    assembly: &mut Assembly,
    found: &[Found],
    said: &Superblock,
    wishes: &Wishes,
    reasons: &[String],
) -> Result<()> {
    for slot in 0..assembly.slots.len() {
        let has = |mask: Mask| each(mask).any(|leg| assembly.places[leg] == Some(slot));
        assembly.slots[slot].state = match (has(assembly.active), has(assembly.rebuilding)) {
            (true, _) => SlotState::Active,
            (_, true) => SlotState::Rebuilding,
            _ if said.slots[slot].state == SlotState::Removed => SlotState::Removed,
            _ => SlotState::Failed,
        };
        let is_missed =
            assembly.slots[slot].state == SlotState::Failed && said.slots[slot].state == SlotState::Active;
        if !is_missed || wishes.degraded {
            continue;
        }
        let mut whys = reasons.to_vec();
        for (name, found) in names.iter().zip(found) {
            match found {
                Found::Other(what) => whys.push(format!("\"{name}\" holds {what}")),
                Found::Unreadable(error) => whys.push(format!("\"{name}\" can't be read: {error}")),
                Found::Member(_) => {}
            }
        }
        let whys = if whys.is_empty() { "the stack doesn't name it".to_owned() } else { whys.join("; ") };
        let loses = said.fast_flush && !said.slots[slot].write_mostly;
        let loses = loses
            && each(assembly.active)
                .filter_map(|leg| assembly.places[leg])
                .all(|slot| said.slots[slot].write_mostly);
        let warning = match loses {
            true => {
                "; with flush = \"fast\" what was flushed last may be on the missing leg alone, and is lost then"
            }
            false => "",
        };
        return Err(Error::invalid(format!(
            "leg {slot} of {} of the mirror is missing ({whys}), and it may have newer data than those that are there: \
             bring it back; to go on without it: degraded = true; to have a leg overwritten in its place: rebuild = \
             [\"NAME\"]{warning}",
            assembly.slots.len()
        )));
    }
    Ok(())
}

/// The source is the one that it was, as long as that is there.
fn choose_source(assembly: &mut Assembly, said: &Superblock) {
    let slot_of = |leg: usize| assembly.places[leg];
    let before = each(assembly.active).find(|leg| slot_of(*leg) == Some(said.source));
    let is_fast = |leg: &usize| slot_of(*leg).is_some_and(|slot| !said.slots[slot].write_mostly);
    let fast = each(assembly.active).find(is_fast);
    assembly.source = before.or(fast).unwrap_or(assembly.word);
    let keeps = |leg: &usize| slot_of(*leg).is_some_and(|slot| said.slots[slot].has_bitmap);
    let bitmaps: Mask = each(assembly.active).filter(keeps).map(|leg| 1 << leg).sum();
    assembly.bitmaps = bitmaps;
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

    /// Of leg `own` of so many, with what it says of them: a letter each.
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
        assemble(&names[..found.len()], found, &Wishes { degraded, rebuild })
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
        assert_eq!((turned.source, turned.bitmaps, turned.places), (1, 0b10, vec![Some(1), Some(0)]));
    }

    #[test]
    fn a_leg_that_others_went_on_without_is_left_out() {
        is(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "fa")], false, 0, (0b10, 0, 0));
        // However much it counted since, on its own.
        refused(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], false, 0, "each went on without the other");
        refused(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], true, 0, "each went on without the other");
        is(&[leg(0, 50, 3, "af"), leg(1, 6, 3, "fa")], false, 0b01, (0b10, 0b01, 0b01));
    }

    #[test]
    fn a_leg_that_missed_a_note_joins_by_the_bitmap() {
        is(&[leg(0, 6, 5, "aa"), leg(1, 5, 5, "aa")], false, 0, (0b01, 0b10, 0));
        refused(&[leg(0, 6, 6, "aa"), leg(1, 5, 5, "aa")], false, 0, "older than what was cleared");
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
        // It was cleared without it since.
        is(&[leg(0, 9, 9, "ar"), leg(1, 8, 3, "ar")], false, 0, (0b01, 0, 0));
    }

    #[test]
    fn a_list_that_was_left_as_it_is_costs_nothing() {
        is(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa")], false, 0b10, (0b11, 0, 0));
        refused(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "fa")], false, 0b10, "take it out of the list");
        is(&[leg(0, 5, 3, "aa"), leg(1, 6, 3, "aa")], false, 0b10, (0b10, 0b01, 0));
        refused(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa")], false, 0b11, "take it out of the list");
    }

    /// A power cut came between the legs.
    #[test]
    fn a_note_that_only_some_have_is_no_fork() {
        // That leg 2 failed is known to the one that is being rebuilt alone.
        is(&[leg(0, 6, 3, "ara"), leg(1, 7, 3, "arf"), leg(2, 6, 3, "ara")], false, 0, (0b101, 0b010, 0));
        is(&[leg(0, 6, 3, "aaa"), leg(1, 7, 3, "faf"), leg(2, 6, 3, "aaa")], false, 0, (0b010, 0, 0));
    }

    /// What each has went on in another one.
    #[test]
    fn legs_that_left_each_other_behind_may_have_a_line() {
        is(&[leg(0, 6, 3, "afa"), leg(1, 3, 3, "aaf"), leg(2, 6, 3, "afa")], false, 0, (0b101, 0, 0));
        is(&[leg(0, 9, 3, "arf"), leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")], false, 0, (0b010, 0, 0));
        // Without the one between them nobody knows.
        refused(&[leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")], false, 0, "each went on without the other");
        refused(
            &[leg(0, 9, 3, "aff"), leg(1, 10, 3, "faf"), leg(2, 6, 3, "afa")],
            false,
            0,
            "each went on without the other",
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
        refused(&[leg(0, 5, 3, "aa"), leg(1, 5, 3, "aa"), blank()], false, 0b100, "would be one more");
        refused(&[blank(), blank()], true, 0, "--format");
        let dead = Found::Unreadable(Error::io("gone"));
        refused(&[leg(0, 5, 3, "aa"), dead.clone()], false, 0b10, "can't be read");
        refused(&[leg(0, 5, 3, "aa"), dead], false, 0, "can't be read");
    }

    /// The same leg by number, but not by name.
    #[test]
    fn a_leg_that_was_replaced_is_left_out() {
        let mut replaced = leg(1, 9, 3, "aa");
        if let Found::Member(superblock) = &mut replaced {
            superblock.slots[1].leg = Uuid::from_bytes([5; 16]);
        }
        is(&[leg(0, 10, 3, "aa"), replaced, leg(1, 10, 3, "aa")], false, 0, (0b101, 0, 0));
    }
}
