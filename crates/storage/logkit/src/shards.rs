//! The shards of one log, and the listener by which they wake each other's tasks.
//!
//! The shard that opened the log is its *home*: the cleaner, resets, checkpoints and roots run there. Other
//! shards have streams, lanes and open zones of their own, in the same pool. A task there may wait for a zone
//! that the home frees, and the home's cleaner may wait for users' writes there.

use crate::lane;
use crate::owner::Owner;
use crate::shared::{CLEANER, FAILED, FREED, JOINT, LEFT, SHORT};
use crate::space;
use std::rc::{Rc, Weak};

/// Starts the listener if the log has other shards; they must have joined before.
pub(crate) fn listen<O: Owner>(owner: &Rc<O>) {
    let kit = owner.kit();
    if !kit.shared().has_others() {
        return;
    }
    let (owner, notifications): (Weak<O>, _) = (Rc::downgrade(owner), kit.member().notifications.clone());
    let listener = async move {
        loop {
            let events = notifications.next().await;
            let Some(owner) = owner.upgrade().filter(|_| events & LEFT == 0) else { break };
            let events_here = &owner.kit().events;
            if events & FREED != 0 {
                events_here.freed.here.notify_all();
            }
            if events & CLEANER != 0 {
                events_here.cleaner.here.notify_all();
            }
            if events & JOINT != 0 && owner.kit().failure().is_none() {
                lane::commit(&*owner, owner.kit().settings.user_stream);
            }
            if let (true, Err(error)) = (events & SHORT != 0, owner.kit().space.check()) {
                space::refuse_waiting(&*owner, &error);
            }
            if let (true, Some(failure)) = (events & FAILED != 0, owner.kit().failure()) {
                owner.appender().take_all().iter().for_each(|entry| owner.refuse(entry, &failure));
                events_here.work.notify_all();
                events_here.settled.notify_all();
                events_here.committed.notify_all();
            }
        }
    };
    runtime::spawn(listener).detach();
}
