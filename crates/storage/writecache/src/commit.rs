//! The committer: flushes the cache device without a client's flush, as [`Autocommit`] requests it.
//!
//! [`Autocommit`]: crate::autocommit::Autocommit

use crate::core::Core;
use std::rc::Rc;

/// Flushes the cache device whenever a flush is due, until the cache is closed.
pub async fn run(core: Rc<Core>) {
    while !core.health.is_closing() {
        if core.autocommit.wait().await && !core.health.has_failed() {
            // The error is logged and kept as the failure of the cache device.
            let _ = core.commit().await;
        }
    }
}
