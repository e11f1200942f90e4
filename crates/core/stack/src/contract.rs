//! Contracts of parts with their users, and parts that are built.

use crate::warning::FullnessWarning;
use block::{Call, DevicePart, Part, Result, ZonesPart};
use std::fmt;
use std::sync::Arc;

/// Contract of a part for its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contract {
    /// Blocks, read and written in place: a `[device.NAME]`.
    Device,
    /// Append-only zones: a `[zones.NAME]`.
    Zones,
    /// Access to the stack for other programs; no part is above it: a `[door.NAME]`.
    Door,
}

impl Contract {
    /// All contracts, in the order of a stack file.
    pub const ALL: [Contract; 3] = [Contract::Device, Contract::Zones, Contract::Door];

    /// First half of a section's name in TOML: `device`, `zones`, `door`.
    pub fn section(self) -> &'static str {
        match self {
            Contract::Device => "device",
            Contract::Zones => "zones",
            Contract::Door => "door",
        }
    }

    /// Noun for a sentence: `a device`, `zones`, `a door`.
    pub fn noun(self) -> &'static str {
        match self {
            Contract::Device => "a device",
            Contract::Zones => "zones",
            Contract::Door => "a door",
        }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.section())
    }
}

/// A door: a part that gives other programs access.
pub trait Door: Part {
    /// Starts serving; returns once clients can connect.
    fn start(&self) -> Call<'_, Result<()>>;

    /// Stops serving: accepts no new clients, finishes the current ones, drops the handles. Does nothing if
    /// the door isn't serving.
    fn stop(&self) -> Call<'_, Result<()>>;

    /// Addresses for clients, in their syntax (`nbd+unix:///vol?socket=vol.sock`), one per export.
    fn addresses(&self) -> Vec<String>;

    /// Informs the door of devices that may have grown. Called after each message that a part of the stack
    /// has executed, on any shard; doesn't wait.
    fn refresh(&self) {}

    /// Whether the door is a mount or a block device of this machine's kernel: without its server every
    /// access to it would fail or wait.
    fn serves_kernel(&self) -> bool {
        false
    }

    /// Whether the door's end waits until its storage has space.
    fn is_waiting_for_space(&self) -> bool {
        false
    }

    /// Removes the mount without its storage: requests of its users fail. For a server that ends although
    /// [`stop`](Self::stop) or closing hasn't returned.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn abort(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    /// Waits until the door is ended otherwise than by [`stop`](Self::stop), as umount(8) does with a mount.
    /// Never returns for a door that can't be ended otherwise.
    ///
    /// # Errors
    /// The reason for any other end of a mount.
    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(std::future::pending())
    }
}

/// Result of [`Kind::build`](crate::Kind::build), of the contract that the kind declares.
#[derive(Clone)]
pub enum Built {
    /// A device.
    Device(Arc<dyn DevicePart>),
    /// Zones.
    Zones(Arc<dyn ZonesPart>),
    /// A door, not started yet.
    Door(Arc<dyn Door>),
}

impl Built {
    /// Contract of the part.
    pub fn contract(&self) -> Contract {
        match self {
            Built::Device(_) => Contract::Device,
            Built::Zones(_) => Contract::Zones,
            Built::Door(_) => Contract::Door,
        }
    }

    /// The part, through the trait of all parts.
    pub fn part(&self) -> &dyn Part {
        match self {
            Built::Device(part) => part.as_ref(),
            Built::Zones(part) => part.as_ref(),
            Built::Door(door) => door.as_ref(),
        }
    }
}

impl fmt::Debug for Built {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Built({} {})", self.contract(), self.part().kind())
    }
}

/// One part of a built stack.
#[derive(Debug, Clone)]
pub struct BuiltPart {
    /// Name in the stack.
    pub name: String,
    /// Name of its kind.
    pub kind: &'static str,
    /// The part itself.
    pub built: Built,
    /// Levels of the key `warn_at` that it has reached; `None` for a kind without the key.
    pub warning: Option<Arc<FullnessWarning>>,
}
