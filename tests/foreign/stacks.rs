//! Stacks of several disks that must survive the death of their server, for every test that kills one.

use std::path::Path;

/// A stack on files of a folder.
#[derive(Debug, Clone, Copy)]
pub struct Killed {
    /// Name in the output of tests.
    pub name: &'static str,
    /// The stack, with placeholders: `A` to `F` are files, `SIZE` is its size in bytes, and `SMALL` a part of
    /// it; `LEG` and `HALF` are the sizes of mirror legs for that size and for half of it.
    line: &'static str,
    /// Whether all acknowledged writes survive the end of the process; otherwise only flushed ones do.
    pub keeps_acknowledged: bool,
}

/// All stacks. State that only the process has is lost with it: a write-back cache updates its table of
/// blocks that the origin lacks only when a client flushes. All other stacks have passed acknowledged data to
/// the kernel.
pub const KILLED: &[Killed] = &[
    Killed {
        name: "a write cache",
        line: "writecache(file(A, size=SIZE), file(B, size=SMALL))",
        keeps_acknowledged: true,
    },
    Killed {
        name: "a cache",
        line: "cache(file(A, size=SIZE), file(B, size=SMALL), mode=writeback, block_size=32KiB)",
        keeps_acknowledged: false,
    },
    Killed {
        name: "a mirror with a leg that lags",
        line: "mirror(file(A, size=LEG), file(B, size=LEG), write_mostly=[1], write_behind=64, bitmap_chunk=64KiB)",
        keeps_acknowledged: true,
    },
    Killed {
        name: "three tiers",
        line: "writecache(cache(file(A, size=SIZE), file(B, size=SMALL), mode=writeback, block_size=32KiB), file(C, size=SMALL))",
        keeps_acknowledged: true,
    },
    Killed {
        name: "RAID10 under two caches",
        line: "writecache(cache(stripe(mirror(file(A, size=HALF), file(B, size=HALF)), mirror(file(C, size=HALF), file(D, size=HALF)), \
               chunk_size=32KiB), file(E, size=SMALL), mode=writethrough, block_size=32KiB), file(F, size=SMALL))",
        keeps_acknowledged: true,
    },
];

impl Killed {
    /// The stack in one line, of `bytes` bytes, on files in this folder.
    pub fn line(&self, folder: &Path, bytes: u64) -> String {
        // Two superblocks and a page of the bitmap.
        let leg = |bytes: u64| (bytes + 3 * 4096).to_string();
        let small = (bytes / 4).max(1 << 20);
        let line = self
            .line
            .replace("SIZE", &bytes.to_string())
            .replace("LEG", &leg(bytes))
            .replace("HALF", &leg(bytes / 2))
            .replace("SMALL", &small.to_string());
        ["A", "B", "C", "D", "E", "F"].iter().fold(line, |line, file| {
            let path = folder.join(format!("{}.img", file.to_lowercase()));
            line.replace(&format!("({file},"), &format!("({},", path.display()))
        })
    }
}
