//! A directory with many names in a mount, on several shards: it becomes striped while programs use it, and
//! its server is killed.

#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use siltstone_tests::foreign::{Mount, has_fuse};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// More names than a directory has before it is striped. The limit is 16384 by an estimate from a sample of
/// the hashes. If `n0`, `n1`, … are created in this order, the first high enough estimate is at `n10231`,
/// and others follow from `n11700` on.
const NAMES: u64 = 12_500;
/// Number of names at which listings begin, before the directory is striped.
const LISTED_FROM: u64 = 9_000;
const THREADS: u64 = 4;

/// Lists a directory, and checks that each name is listed once.
fn list(directory: &PathBuf) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.insert(name.clone()), "{name} is listed twice");
    }
    names
}

#[test]
fn a_directory_of_many_names_is_made_listed_changed_killed_and_removed() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]).unmounted().mounted_with(&["--shards", "3"]);
    let big = mount.at("big");
    std::fs::create_dir(&big).unwrap();
    (0..500).for_each(|number| drop(File::create(big.join(format!("early{number}"))).unwrap()));
    // A listing while the directory becomes striped has every name that stays, once.
    let (created, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let lister = scope.spawn(|| {
            let mut listings = 0;
            while created.load(Ordering::Relaxed) < LISTED_FROM && !ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            while !ended.load(Ordering::Relaxed) {
                let found = list(&big);
                assert!((0..500).all(|number| found.contains(&format!("early{number}"))));
                listings += 1;
            }
            listings
        });
        // The next number is that of any thread, so the order is about that of the numbers.
        let make = || {
            while let number = created.fetch_add(1, Ordering::Relaxed)
                && number < NAMES
            {
                File::create(big.join(format!("n{number}"))).unwrap();
            }
        };
        let makers: Vec<_> = (0..THREADS).map(|_| scope.spawn(make)).collect();
        makers.into_iter().for_each(|maker| maker.join().unwrap());
        ended.store(true, Ordering::Relaxed);
        assert!(lister.join().unwrap() > 0);
    });
    assert_eq!(list(&big).len() as u64, NAMES + 500);
    // New files belong to the inode groups of all stripes, and so to all shards.
    let mut shards = BTreeMap::new();
    for number in 0..300 {
        let file = File::create(big.join(format!("late{number}"))).unwrap();
        *shards.entry(file.metadata().unwrap().ino() % 64).or_insert(0) += 1;
    }
    assert!(shards.len() >= 20, "the directory isn't striped: {shards:?}");
    mount.shell(
        "cd big; for i in $(seq 0 40); do mkdir d$i; done; test $(stat -c %h .) = 43
         mv late1 late2; mv late3 ../out; mv ../out d7/in; mv -n d8 d7/below; test $(stat -c %h .) = 42
         ln late4 link; test $(stat -c %h late4) = 2; rm link; rmdir d9; test ! -e late1
         echo data > late5; test $(cat late5) = data; cd d7/below; cd ../..; test -e late6
         if rmdir ../big 2>/dev/null; then exit 1; fi
         chmod 750 .; touch -d @1000 .; test \"$(stat -c '%a %Y' .)\" = '750 1000'; touch x; test $(stat -c %Y .) -gt 1000",
    );
    // A kill in the middle of changes: synced changes are there.
    let synced = AtomicU64::new(0);
    let killed = thread::scope(|scope| {
        for thread in 0..THREADS {
            let (big, synced) = (&big, &synced);
            scope.spawn(move || {
                let directory = File::open(big).unwrap();
                for number in 0.. {
                    let (old, new) =
                        (big.join(format!("k{thread}")), big.join(format!("kill{thread}n{number}")));
                    let done = File::create(&old).and_then(|_| std::fs::rename(&old, &new));
                    if done.is_err() || thread == 0 && directory.sync_all().is_err() {
                        break;
                    }
                    if thread == 0 {
                        synced.store(number + 1, Ordering::Relaxed);
                    }
                }
            });
        }
        thread::sleep(Duration::from_millis(700));
        let noted = synced.load(Ordering::Relaxed);
        (mount.killed(), noted)
    });
    let (mount, noted) = killed;
    assert!(noted > 0);
    let mount = mount.mounted_with(&["--shards", "2"]);
    let found = list(&big);
    assert!((0..noted).all(|number| found.contains(&format!("kill0n{number}"))), "{noted} were synced");
    assert!((0..NAMES).all(|number| found.contains(&format!("n{number}"))));
    let mount = mount.unmounted();
    mount.is_sound();
    let mount = mount.mounted_with(&["--shards", "3"]);
    mount.shell(
        "rm -r big; mkdir big; touch big/n1; test $(ls big) = n1; rm -r big; test $(stat -c %h .) = 2",
    );
    let mount = mount.unmounted();
    mount.is_sound();
}
