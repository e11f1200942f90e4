//! Stacks of several disks that are to survive the death of their server, for every test that kills one.

use std::path::Path;

/// A stack on files of a folder.
#[derive(Debug, Clone, Copy)]
pub struct Killed {
    /// For people.
    pub name: &'static str,
    /// `A`, `B` and `C` are files, `SIZE` is how large it is, and `SMALL` a part of it.
    line: &'static str,
    /// Whether all that was acknowledged is there after the end of its process; else what was flushed.
    pub keeps_acknowledged: bool,
}

/// What is known only to the process is lost with it: the write-back cache tells its table of blocks that the origin lacks when a
/// client flushes. Everything else has given what it acknowledged to the kernel.
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
];

impl Killed {
    /// The stack in one line, of so many bytes, on files in this folder.
    pub fn line(&self, folder: &Path, bytes: u64) -> String {
        let at = |name: &str| folder.join(name).display().to_string();
        // Two superblocks and a page of the bitmap.
        let leg = bytes + 3 * 4096;
        let small = (bytes / 4).max(1 << 20);
        self.line
            .replace("SIZE", &bytes.to_string())
            .replace("LEG", &leg.to_string())
            .replace("SMALL", &small.to_string())
            .replace("(A,", &format!("({},", at("a.img")))
            .replace("(B,", &format!("({},", at("b.img")))
            .replace("(C,", &format!("({},", at("c.img")))
    }
}
