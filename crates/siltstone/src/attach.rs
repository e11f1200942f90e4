//! Block device nodes: `siltstone attach`, `list` and `detach`.
//!
//! An attachment consists of a folder in `/run/siltstone`, a *holder* and a *server*. The server opens the
//! stack and answers the kernel. The holder is small and keeps what must outlive the server: the descriptors
//! of `/dev/fuse`, and the node. When the server is killed, the holder starts another one and passes the
//! descriptors to it; requests wait in the kernel meanwhile.
//!
//! ```text
//!   attach ──starts──► holder ──starts──► server: stack ─ FUSE door
//!                        │  ◄─descriptors─┘                  ▲
//!   list, detach ──socket┘                                   │ /dev/fuse
//!                        └─ losetup ─► /dev/loopN ─► /run/siltstone/NAME/volume
//! ```
//!
//! With ublk and NBD the kernel owns the node, and there is no loop device. With NBD the holder passes the
//! server's connections to the kernel.
//!
//! One concept per module: [`folder`] paths of an attachment, [`record`] its saved state, [`driver`]
//! differences between the drivers, [`machine`] choice of a driver, [`node`] the node of any driver,
//! [`announcement`] its name for udev,
//! [`handover`] messages between holder and server, [`holder`] and [`server`] these two processes, [`launch`]
//! start of a server, [`process`] their memory, [`requests`] messages between operators and holder,
//! [`systemd`] units.

pub mod announcement;
pub mod driver;
pub mod folder;
pub mod handover;
pub mod holder;
pub mod launch;
pub mod machine;
pub mod node;
pub mod process;
pub mod record;
pub mod requests;
pub mod server;
pub mod systemd;
