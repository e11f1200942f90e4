//! Real programs against the real server: helpers for the tests with foreign clients.
//!
//! Promises: every program and server has a deadline and is ended by its own process id, even if a test
//! fails; a failure shows the program's output. Left to the tests: which programs they need
//! ([`need!`](crate::need)).

mod attached;
mod fuse;
mod mount;
mod process;
mod promised;
mod raw_client;
mod server;
mod stacks;
mod swap;

pub use attached::{Attached, can_attach};
pub use fuse::{Fuse, can_mount_loop, has_fuse};
pub use mount::Mount;
pub use process::{Finished, PATTERN_CHUNK, is_installed, is_root, random_file, run, run_shell, run_within};
pub use promised::Promised;
pub use raw_client::{Command, RawClient, option, request};
pub use server::{Background, Server, binary};
pub use stacks::{KILLED, Killed};
pub use swap::{SWAP_PRIORITY, lock_swap};

/// Reports that the running test is skipped, in the form that `scripts/test` counts.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    println!("SKIPPED: {}: {reason}", thread.name().unwrap_or("a test"));
}

/// Ends the test as skipped unless all of these programs are installed.
#[macro_export]
macro_rules! need {
    ($($program:expr),+ $(,)?) => {
        $(if !$crate::foreign::is_installed($program) {
            $crate::foreign::skip(concat!($program, " is not installed"));
            return;
        })+
    };
}

/// Ends the test as skipped unless it runs as root.
#[macro_export]
macro_rules! need_root {
    ($why:expr) => {
        if !$crate::foreign::is_root() {
            $crate::foreign::skip(concat!("only root can ", $why));
            return;
        }
    };
}
