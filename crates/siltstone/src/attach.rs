//! Block device nodes: `siltstone attach`, `list` and `detach`.
//!
//! An attachment consists of a folder in `/run/siltstone`, a *holder* and a *server*. The server opens the stack and answers the
//! kernel. The holder is small and keeps what must outlive the server: the descriptors of `/dev/fuse`, and the node.
//! When the server is killed, the holder starts another one and gives it the descriptors; requests wait in the kernel meanwhile.
//!
//! ```text
//!   attach ──starts──► holder ──starts──► server: stack ─ FUSE door
//!                        │  ◄─descriptors─┘                  ▲
//!   list, detach ──socket┘                                   │ /dev/fuse
//!                        └─ losetup ─► /dev/loopN ─► /run/siltstone/NAME/volume
//! ```
//!
//! Over ublk and NBD the kernel has the node, without a loop device; over NBD the holder passes the server's connections to it.
//!
//! One concept per module: [`folder`] the paths of an attachment, [`record`] what is known of it, [`driver`] what differs from driver to driver,
//! [`machine`] the choice of one, [`node`] the node over any, [`handover`] the messages between holder and server, [`holder`] and [`server`] these two, [`launch`] the start of a server,
//! [`process`] their memory, [`requests`] the messages between operators and holder, [`systemd`] units.

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
