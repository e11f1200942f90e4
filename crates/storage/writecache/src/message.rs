//! Messages of operators to an open write cache.

use crate::core::Core;
use block::Result;
use std::rc::Rc;

stack::messages! {
    /// A message to a write cache.
    Message;
    "flush" => Flush, "write everything back and answer when that is done";
    "flush_on_suspend" => FlushOnSuspend, "write everything back before the stack is closed";
    "clear_stats" => ClearStats, "reset the counters to zero";
    "cleaner" => Cleaner, "write everything back; once nothing is cached, send writes to the origin";
    "give_up_rotten" => GiveUpRotten,
        "write back blocks with wrong checksums as they are; drop known unreadable ones if they still can't be read";
}

impl Message {
    /// Carries the message out and returns the answer.
    ///
    /// # Errors
    /// For `flush`: the error of the cache device, or of write-back.
    pub(crate) async fn carry_out(self, core: &Rc<Core>) -> Result<String> {
        Ok(match self {
            Message::Flush => {
                core.make_durable().await?;
                core.write_back_all().await?;
                "everything that was cached is on the origin".into()
            }
            Message::FlushOnSuspend => {
                core.demand.set_on_close();
                "everything is written back before the cache is closed".into()
            }
            Message::ClearStats => {
                core.counters.clear();
                "cleared".into()
            }
            Message::Cleaner => {
                core.begin_cleaning();
                "what is cached is written back; writes go to the origin once nothing is".into()
            }
            Message::GiveUpRotten => {
                let unreadable = core.damage.accept_loss();
                let said = "blocks with wrong checksums are written back as they are";
                let said = match unreadable {
                    0 => said.into(),
                    count => {
                        format!("{said}; {count} that can't be read are lost if they are still unreadable")
                    }
                };
                core.demand.wake();
                said
            }
        })
    }
}
