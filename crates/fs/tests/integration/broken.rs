//! Rules that are broken on purpose, each of which the lives must notice.

use crate::lives::lives;
use crate::world::Setup;
use fs::core::Broken;
use runtime::Random;
use std::ops::Range;

/// Breaks a rule, which must be noticed with one of these seeds.
fn is_caught(broken: Broken, seeds: Range<u64>, draw: impl Fn(&mut Random) -> Setup) {
    let draw = |random: &mut Random| Setup { broken: Some(broken), ..draw(random) };
    for seed in seeds.clone() {
        if let Err(error) = lives(seed, draw, false) {
            println!("{broken:?}: {error}");
            return;
        }
    }
    panic!("{broken:?} isn't noticed with the seeds {seeds:?}");
}

#[test]
fn syncs_that_return_at_once_are_noticed() {
    is_caught(Broken::NeverFlushes, 1..50, Setup::draw);
}

#[test]
fn blocks_that_die_when_an_operation_is_submitted_are_noticed() {
    is_caught(Broken::DiesWhenSubmitted, 1..400, Setup::draw_dying);
}

#[test]
fn pages_that_die_before_the_next_checkpoint_is_durable_are_noticed() {
    is_caught(Broken::FreesPagesEarly, 140..400, Setup::draw_busy);
}

#[test]
fn replaying_what_the_checkpoint_shows_is_noticed() {
    is_caught(Broken::ReplaysShown, 1..100, Setup::draw_busy);
}

#[test]
fn lost_blocks_that_are_not_counted_are_noticed() {
    is_caught(Broken::ForgetsLost, 1..50, Setup::draw);
}

#[test]
fn files_without_names_that_stay_are_noticed() {
    is_caught(Broken::KeepsOrphans, 1..100, Setup::draw_full);
}
