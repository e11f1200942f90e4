//! Memory nodes: a service that lends a machine's memory over NBD, and the device that borrows it.
//!
//! # Promises of the node
//! - Memory is taken when it is written, and given back to the machine when it is discarded. Zeros take none.
//! - A write that needs more memory than may be lent fails with "no space" and changes nothing outside of its own range; the node never takes
//!   the memory that its machine keeps in reserve.
//! - When the machine needs memory, the node says how much it wants back, and from whom. It takes none away by force: borrowers discard.
//! - The bytes of a borrower stay until they are discarded, the node ends, or no client was connected for a stated time.
//!
//! # Structure
//! `machine`: measurements of the machine's memory. `decision`: what may be lent and is wanted back, as a function of them. `lending`: the
//! counter that writes ask. `borrowers`: exports that come into being when they are opened. `status`: the document that borrowers read.
//! `node`: the service. `leaf`: the device of a stack.

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
pub use node::{MemoryNode, NodeConfig, check_address, default_reserve};
pub use status::{MOST_BORROWERS, STATUS_BYTES, STATUS_EXPORT, VERSION};
