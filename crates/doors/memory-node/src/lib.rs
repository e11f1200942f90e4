//! Memory nodes: a service that lends a machine's memory over NBD, and the device that borrows it.
//!
//! # Promises of the node
//! - Memory is allocated when it is written, and released to the machine when it is discarded. Zeros use no
//!   memory.
//! - A write that needs more memory than may be lent fails with "no space" and doesn't change bytes outside
//!   of its range; the node never uses the machine's reserve.
//! - When the machine needs memory, the node asks borrowers to discard a number of bytes. It takes no memory
//!   by force.
//! - The bytes of a borrower are kept until they are discarded, the node ends, or no client was connected for
//!   a configured time.
//!
//! # Structure
//! `machine`: measurements of the machine's memory. `decision`: bytes to lend and to reclaim, computed from
//! them. `lending`: admission of writes that need memory. `borrowers`: exports that are created when they are
//! opened. `status`: the JSON document that borrowers read. `node`: the service. `leaf`: the device of a
//! stack.

mod borrowers;
mod decision;
mod leaf;
mod lending;
mod machine;
mod node;
mod status;

pub use decision::{Decision, Policy, decide, shares};
pub use leaf::{KIND, MemoryNodePart};
pub use machine::{Cgroup, Measurement, measure};
pub use node::{MemoryNode, NodeConfig, PERMISSION, default_reserve};
pub use status::{MAX_BORROWERS, STATUS_BYTES, STATUS_EXPORT, VERSION};
