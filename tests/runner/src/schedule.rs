//! Order of the tests: those that mostly wait beside the others, long ones first, with a limit on tests that
//! share a resource of the machine.

use crate::attempt::{self, Finished, Limits, Outcome};
use crate::programs::Test;
use std::sync::{Condvar, Mutex, PoisonError};

/// Tests that share a resource of the machine: beginning of their names, and how many run at the same time.
pub const GROUPS: [(&str, usize); 2] = [
    // Each is an emulated machine, which keeps a processor busy.
    ("guest_", 2),
    // The kernel's swap space belongs to all programs.
    ("swap_remote", 1),
];

/// Beginnings of the names of tests that wait for much of their time, for a timer or for a program that
/// waits: they run from the start, two at a time beside the others, which keep the processors busy. The
/// longest are first.
const WAITING: [&str; 9] = [
    "foreign_attach::a_detach_reports",
    "swap_remote",
    "flashrom::",
    "foreign_objects::programs",
    "fs_mount_stuck",
    "stuck::",
    "foreign_attach::a_stopped_holder",
    "foreign_attach",
    "fs_mount_programs::postgresql",
];

/// Beginnings of the names of the longest other tests, the longest first: none of them runs alone at the end.
const LONG: [&str; 10] = [
    "guest_swap",
    "guest_vhost_cuts",
    "guest_",
    "fs_mount_large",
    "fs_mount_programs::git_clones",
    "damage::what_can_be_read",
    "broken::",
    "crash_engine",
    "worlds_",
    "crash_",
];

fn begins_with(name: &str, beginning: &str) -> bool {
    name.starts_with(beginning) || name.contains(&format!("::{beginning}"))
}

/// Group of a test, as an index in [`GROUPS`].
fn group_of(name: &str) -> Option<usize> {
    GROUPS.iter().position(|(beginning, _)| begins_with(name, beginning))
}

/// Place of a test in the order of `beginnings`; after all of them if it has none.
fn place(beginnings: &[&str], name: &str) -> usize {
    beginnings.iter().position(|beginning| begins_with(name, beginning)).unwrap_or(beginnings.len())
}

fn waits(name: &str) -> bool {
    place(&WAITING, name) < WAITING.len()
}

/// Place of a test in the order: a smaller one begins earlier. Tests that wait are last, as others take them
/// only when there is nothing else.
fn rank(name: &str) -> usize {
    if waits(name) { LONG.len() + 1 + place(&WAITING, name) } else { place(&LONG, name) }
}

/// Waiting tests, and the number of running ones of each group.
struct Queue {
    /// The last one is the next to run.
    waiting: Vec<usize>,
    running: [usize; GROUPS.len()],
}

impl Queue {
    /// Takes the next test whose group has a place, of those that wait if `is_waiter`; `names` by index.
    fn take(&mut self, names: &[&str], is_waiter: bool) -> Option<usize> {
        let fits = |&test: &usize| {
            let name = names[test];
            (!is_waiter || waits(name))
                && group_of(name).is_none_or(|group| self.running[group] < GROUPS[group].1)
        };
        let place = self.waiting.iter().rposition(fits)?;
        let test = self.waiting.remove(place);
        if let Some(group) = group_of(names[test]) {
            self.running[group] += 1;
        }
        Some(test)
    }

    /// Whether a test is left for a worker of this kind.
    fn has_more(&self, names: &[&str], is_waiter: bool) -> bool {
        self.waiting.iter().any(|test| !is_waiter || waits(names[*test]))
    }

    fn give_back(&mut self, name: &str) {
        if let Some(group) = group_of(name) {
            self.running[group] -= 1;
        }
    }
}

/// Runs all tests, `jobs` at a time and `waiters` that wait beside them. Prints a line for each that fails,
/// and for each hundredth that ends; calls `note` with every test that has ended.
pub fn run_all(
    tests: &[Test<'_>],
    (jobs, waiters): (usize, usize),
    limits: Limits,
    note: &(dyn Fn(&Finished) + Sync),
) -> Vec<Finished> {
    let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
    let mut waiting: Vec<usize> = (0..tests.len()).collect();
    waiting.sort_by_key(|&test| std::cmp::Reverse((rank(names[test]), test)));
    let queue = Mutex::new(Queue { waiting, running: [0; GROUPS.len()] });
    let (ended, results) = (Condvar::new(), Mutex::new(Vec::new()));
    let work = |is_waiter: bool| {
        let mut guard = queue.lock().unwrap_or_else(PoisonError::into_inner);
        while guard.has_more(&names, is_waiter) {
            let Some(test) = guard.take(&names, is_waiter) else {
                guard = ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(guard);
            let finished = attempt::run(&tests[test], limits);
            let mut list = results.lock().unwrap_or_else(PoisonError::into_inner);
            report(&finished, list.len() + 1, tests.len());
            note(&finished);
            list.push(finished);
            drop(list);
            guard = queue.lock().unwrap_or_else(PoisonError::into_inner);
            guard.give_back(names[test]);
            ended.notify_all();
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        for number in 0..jobs + waiters {
            scope.spawn(move || work(number >= jobs));
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Lines of a failed test's output that are shown: its end, where a panic is.
const LINES: usize = 60;
/// Bytes of a line that are shown.
const BYTES: usize = 1000;

fn report(finished: &Finished, number: usize, of: usize) {
    if let Outcome::Failed(reason) = &finished.outcome {
        println!("---- {} failed after {:.1} s", finished.title, finished.took.as_secs_f64());
        let lines: Vec<&str> = finished.output.lines().collect();
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            println!("{}", line.chars().take(BYTES).collect::<String>());
        }
        println!("---- {}", reason.as_deref().unwrap_or("end of its output"));
    }
    if number.is_multiple_of(100) || number == of {
        println!("{number} of {of} tests have run");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_limited_and_others_overtake() {
        let names = ["guest_dm::a", "guest_dm::b", "guest_nbd::c", "tests::d"];
        let mut queue = Queue { waiting: vec![3, 2, 1, 0], running: [0; GROUPS.len()] };
        assert_eq!(queue.take(&names, false), Some(0));
        assert_eq!(queue.take(&names, false), Some(1));
        assert_eq!(queue.take(&names, false), Some(3), "a third guest waits, another test doesn't");
        assert_eq!(queue.take(&names, false), None);
        queue.give_back(names[0]);
        assert_eq!(queue.take(&names, false), Some(2));
    }

    #[test]
    fn tests_that_wait_run_beside_the_others_which_have_them_last() {
        let names = ["tests::a", "flashrom::b", "fs_mount_stuck::c"];
        let mut queue = Queue { waiting: vec![2, 1, 0], running: [0; GROUPS.len()] };
        assert_eq!(queue.take(&names, true), Some(1));
        assert_eq!(queue.take(&names, false), Some(0));
        assert!(queue.has_more(&names, true));
        assert_eq!(queue.take(&names, false), Some(2), "nothing else is left");
        assert!(!queue.has_more(&names, true));
        assert_eq!(queue.take(&names, true), None);
    }

    #[test]
    fn long_tests_begin_first() {
        assert!(rank("integration::fs_mount_large::x") < rank("crash_log::x"));
        assert!(rank("crash_log::x") < rank("tests::x"));
        assert!(rank("tests::x") < rank("flashrom::x"));
    }
}
