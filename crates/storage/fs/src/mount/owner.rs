//! A mount whose files all belong to one user or group, as by the options `uid` and `gid` of mount(8).
//!
//! The kernel checks permissions against the owner that is shown, so that this user may read and write what
//! the owner of a file may. The owner on the medium doesn't change, except by chown.

use block::{Call, Result};
use fuse::protocol::init_flag;
use fuse::{Context, FileSystem, FileSystemPart, Operation, Reply};
use std::rc::Rc;
use std::sync::Arc;

/// Returns the part with its files shown as those of a user and a group, if one is given.
pub(super) fn shown(
    part: impl FileSystemPart + 'static,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Arc<dyn FileSystemPart> {
    if uid.is_none() && gid.is_none() {
        return Arc::new(part);
    }
    Arc::new(Owned { below: Arc::new(part) as Arc<dyn FileSystemPart>, uid, gid })
}

/// A part, or what it opens, and the shown owner.
struct Owned<B> {
    uid: Option<u32>,
    gid: Option<u32>,
    below: B,
}

impl FileSystemPart for Owned<Arc<dyn FileSystemPart>> {
    /// Without READDIRPLUS, whose attributes are encoded by the part itself.
    fn capabilities(&self) -> u64 {
        self.below.capabilities() & !(init_flag::DO_READDIRPLUS | init_flag::READDIRPLUS_AUTO)
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>> {
        Call::new(async move {
            let below = self.below.open().await?;
            Ok(Rc::new(Owned { below, uid: self.uid, gid: self.gid }) as Rc<dyn FileSystem>)
        })
    }
}

impl FileSystem for Owned<Rc<dyn FileSystem>> {
    fn serve<'a>(&'a self, context: Context, operation: Operation<'a>) -> Call<'a, Result<Reply>> {
        Call::new(async move {
            let mut reply = self.below.serve(context, operation).await?;
            if let Some(attributes) = reply.attributes_mut() {
                attributes.uid = self.uid.unwrap_or(attributes.uid);
                attributes.gid = self.gid.unwrap_or(attributes.gid);
            }
            Ok(reply)
        })
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.below.forget(node, lookups);
    }

    fn interrupt(&self, unique: u64) {
        self.below.interrupt(unique);
    }

    fn destroy(&self) {
        self.below.destroy();
    }
}
