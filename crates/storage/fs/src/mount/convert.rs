//! Conversion of attributes between FUSE and the file system.

use crate::format::BLOCK;
use crate::metadata::change::Attributes;
use crate::metadata::inode::{Inode, InodeNumber, Time};
use fuse::{SetAttributes, SetTime, Timestamp};
use std::time::Duration;

/// Time for which the kernel may cache names, absent names and attributes. Only the kernel changes them.
pub const CACHED: Duration = Duration::from_secs(24 * 3600);
/// Time for which the kernel may cache attributes of regular files: the number of blocks changes when it
/// writes back its cache.
pub const CACHED_REGULAR: Duration = Duration::from_secs(1);

const SECOND: i64 = 1_000_000_000;

/// Converts a time for the kernel.
pub fn timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.div_euclid(SECOND), nanoseconds: time.rem_euclid(SECOND) as u32 }
}

/// Converts a time of the kernel, clamped to the range from 1677 to 2262.
pub fn time(timestamp: Timestamp) -> Time {
    let time = i128::from(timestamp.seconds) * i128::from(SECOND) + i128::from(timestamp.nanoseconds);
    // The smallest value is reserved for unchanged times.
    time.clamp(i128::from(Time::MIN + 1), i128::from(Time::MAX)) as Time
}

/// Converts the attributes of an inode for the kernel; `block_size` is the preferred size of requests in
/// bytes.
pub fn attributes(number: InodeNumber, inode: &Inode, block_size: u64) -> fuse::Attributes {
    fuse::Attributes {
        node: number,
        size: inode.size,
        blocks: inode.blocks.saturating_mul(BLOCK / 512),
        accessed: timestamp(inode.accessed),
        modified: timestamp(inode.modified),
        changed: timestamp(inode.changed),
        mode: inode.mode,
        links: inode.links,
        uid: inode.uid,
        gid: inode.gid,
        device: inode.device,
        block_size: block_size as u32,
    }
}

/// Time for which the kernel may cache the attributes of an inode. When space is short, it requests those of
/// a regular file before each write(2).
pub fn cached_for(inode: &Inode, is_short: bool) -> Duration {
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG if is_short => Duration::ZERO,
        libc::S_IFREG => CACHED_REGULAR,
        _ => CACHED,
    }
}

/// Whether a request clears a file's privileges: setuid and setgid bits, and capabilities. A change of the
/// owner always does. So does one to the present owner, which arrives as a request that only sets the time of
/// the last change of the inode.
pub fn takes_privileges(old: &Inode, set: &SetAttributes) -> bool {
    let SetAttributes { mode, uid, gid, size, accessed, modified, .. } = *set;
    let is_kept = uid.is_none() && gid.is_none();
    let sets_other = mode.is_some() || size.is_some() || accessed.is_some() || modified.is_some();
    let is_chown = !is_kept || !sets_other;
    let is_given_away = is_chown && !old.is_directory();
    set.clear_set_id || is_given_away
}

/// Returns a mode without the bits that a write or a change of the owner clears: setuid, and setgid if the
/// group may execute the file. Without this permission, setgid means mandatory locking.
pub fn without_privileges(mode: u32) -> u32 {
    match mode & libc::S_IXGRP {
        0 => mode & !libc::S_ISUID,
        _ => mode & !(libc::S_ISUID | libc::S_ISGID),
    }
}

/// Returns the attributes that a request of the kernel sets, without the size; `None` if it sets none.
///
/// The time of the last change of the inode is that of the kernel if the request has one.
pub fn changes(old: &Inode, set: &SetAttributes, now: Time) -> Option<Attributes> {
    let mut mode = set.mode.map_or(old.mode, |mode| old.mode & libc::S_IFMT | mode & 0o7777);
    if takes_privileges(old, set) {
        mode = without_privileges(mode);
    }
    let at = |time_to_set: SetTime| match time_to_set {
        SetTime::Now => now,
        SetTime::At(timestamp) => time(timestamp),
    };
    let attributes = Attributes {
        mode: (mode != old.mode).then_some(mode),
        uid: set.uid,
        gid: set.gid,
        accessed: set.accessed.map(at),
        modified: set.modified.map(at),
        changed: set.changed.map(time),
        ..Attributes::default()
    };
    // Setting the size has already set the times. A chown or chmod that changes nothing still sets the time.
    match attributes == Attributes::default() && set.size.is_some() {
        true => None,
        false => Some(Attributes { changed: attributes.changed.or(Some(now)), ..attributes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Inode {
        Inode {
            mode,
            links: 1,
            uid: 1000,
            gid: 1000,
            size: 5000,
            blocks: 2,
            accessed: -1,
            modified: 1_500_000_000,
            changed: 0,
            created: 0,
            device: 0,
            parent: 0,
        }
    }

    #[test]
    fn times_are_the_same_on_both_sides() {
        for nanoseconds in [0, -1, 1, -SECOND, 1_500_000_000, Time::MAX, Time::MIN + 1] {
            assert_eq!(time(timestamp(nanoseconds)), nanoseconds);
            assert!(timestamp(nanoseconds).nanoseconds < SECOND as u32);
        }
        assert_eq!(timestamp(-1), Timestamp { seconds: -1, nanoseconds: 999_999_999 });
        assert_eq!(time(Timestamp { seconds: i64::MAX, nanoseconds: 5 }), Time::MAX);
        assert!(time(Timestamp { seconds: i64::MIN, nanoseconds: 0 }) > crate::metadata::change::KEEP_TIMES);
    }

    #[test]
    fn blocks_are_counted_in_units_of_512_bytes() {
        let attributes = attributes(9, &file(libc::S_IFREG | 0o644), 65536);
        assert_eq!((attributes.node, attributes.blocks, attributes.block_size), (9, 16, 65536));
    }

    #[test]
    fn a_new_owner_and_a_write_take_privileges_as_linux_does() {
        let (now, uid) = (77, Some(0));
        let chown = SetAttributes { uid, ..SetAttributes::default() };
        let mode = |old: u32, set| changes(&file(old), &set, now).and_then(|it| it.mode);
        let regular = libc::S_IFREG;
        assert_eq!(mode(regular | 0o6755, chown), Some(regular | 0o755));
        // If the group may not execute the file, setgid means mandatory locking.
        assert_eq!(mode(regular | 0o6745, chown), Some(regular | 0o2745));
        assert_eq!(mode(libc::S_IFDIR | 0o6755, chown), None, "another meaning for directories");
        assert_eq!(mode(regular | 0o6755, SetAttributes::default()), Some(regular | 0o755), "chown(-1, -1)");
        let utimes = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };
        assert_eq!(mode(regular | 0o6755, utimes), None);
        let cleared = SetAttributes { clear_set_id: true, size: Some(0), ..SetAttributes::default() };
        assert_eq!(mode(regular | 0o6755, cleared), Some(regular | 0o755));
        let chmod = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
        assert_eq!(mode(regular | 0o600, chmod), Some(regular | 0o6755));
    }

    #[test]
    fn the_kernel_sets_the_time_of_the_change_if_it_sends_one() {
        let old = file(libc::S_IFREG | 0o644);
        let changed = Some(Timestamp { seconds: 3, nanoseconds: 4 });
        let flushed = SetAttributes { modified: Some(SetTime::Now), changed, ..SetAttributes::default() };
        let set = changes(&old, &flushed, 9).expect("times");
        assert_eq!((set.modified, set.changed, set.mode), (Some(9), Some(3_000_000_004), None));
        let nothing = changes(&old, &SetAttributes::default(), 9).expect("a chown of nothing");
        assert_eq!(nothing, Attributes { changed: Some(9), ..Attributes::default() });
        let truncated = SetAttributes { size: Some(1), ..SetAttributes::default() };
        assert_eq!(changes(&old, &truncated, 9), None);
    }
}
