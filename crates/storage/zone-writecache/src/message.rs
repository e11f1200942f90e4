//! Messages of operators to an open write cache of zones.

use crate::core::Core;
use block::Result;
use std::rc::Rc;

stack::messages! {
    /// A message to a write cache of zones.
    Message;
    "flush" => Flush, "upload everything and answer when it is durable at the origin";
    "flush_on_suspend" => FlushOnSuspend, "upload everything before the stack is closed";
}

impl Message {
    /// Carries the message out and returns the answer.
    ///
    /// # Errors
    /// For `flush`: the error of the fast device, or of the origin.
    pub(crate) async fn carry_out(self, core: &Rc<Core>) -> Result<String> {
        Ok(match self {
            Message::Flush => {
                core.flush_fast().await?;
                core.drain().await?;
                "everything that was written is durable at the origin".into()
            }
            Message::FlushOnSuspend => {
                core.demand.on_close.set(true);
                "everything is uploaded before the cache is closed".into()
            }
        })
    }
}
