//! Groups of tasks and calls of one shard whose end can be awaited: a part's close waits for its group.
//!
//! A member is counted from [`TaskGroup::enter`] until its guard is dropped: at the end of a task, or with
//! the future that owns the guard. A handle that a client may keep without limit must not be a member: the
//! close would never end.

use crate::sync::Notify;
use crate::task::JoinHandle;
use std::cell::Cell;
use std::rc::Rc;

#[derive(Debug, Default)]
struct Group {
    members: Cell<usize>,
    is_empty: Notify,
}

/// Group of tasks and calls. Clones are the same group.
#[derive(Debug, Clone, Default)]
pub struct TaskGroup(Rc<Group>);

impl TaskGroup {
    /// Adds a member, until the guard is dropped.
    #[inline]
    pub fn enter(&self) -> GroupMember {
        self.0.members.set(self.0.members.get() + 1);
        GroupMember(self.0.clone())
    }

    /// Starts a task of this shard that is a member until it has ended.
    pub fn spawn<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let member = self.enter();
        crate::spawn(async move {
            let _member = member;
            task.await
        })
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.0.members.get() == 0
    }

    /// Waits until there is no member, including members that are added meanwhile: the caller ensures that
    /// the additions end.
    pub async fn ended(&self) {
        while !self.is_empty() {
            self.0.is_empty.notified().await;
        }
    }
}

/// Membership in a [`TaskGroup`]; ends when dropped.
#[derive(Debug)]
#[must_use = "the task is a member as long as this lives"]
pub struct GroupMember(Rc<Group>);

impl Drop for GroupMember {
    #[inline]
    fn drop(&mut self) {
        let members = self.0.members.get() - 1;
        self.0.members.set(members);
        if members == 0 {
            self.0.is_empty.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn a_group_ends_with_its_last_member() {
        let group = TaskGroup::default();
        let poll = |ended: std::pin::Pin<&mut dyn Future<Output = ()>>| {
            ended.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(poll(pin!(group.ended())), "it is empty");
        let (first, second) = (group.enter(), group.clone().enter());
        let mut ended = pin!(group.ended());
        assert!(!poll(ended.as_mut()));
        drop(first);
        assert!(!poll(ended.as_mut()));
        // Another member enters before the last one leaves.
        let third = group.enter();
        drop(second);
        assert!(!poll(ended.as_mut()));
        drop(third);
        assert!(poll(ended.as_mut()) && group.is_empty());
    }

    #[test]
    fn tasks_and_carried_calls_are_waited_for() {
        for seed in 0..20 {
            let main = || async {
                let group = TaskGroup::default();
                let done = Rc::new(Cell::new(0));
                let work = |micros: u64| {
                    let done = done.clone();
                    async move {
                        crate::sleep(std::time::Duration::from_micros(micros)).await;
                        done.set(done.get() + 1);
                    }
                };
                for micros in [5, 3, 9] {
                    group.spawn(work(micros)).detach();
                }
                // A call that is dropped before its end continues as a task, and remains a member until its
                // end.
                let call = crate::carry_in(&group, work(20));
                assert!(crate::timeout(std::time::Duration::from_micros(1), call).await.is_err());
                // A call that never began isn't a member.
                drop(crate::carry_in(&group, work(1)));
                assert_eq!(group.0.members.get(), 4);
                group.ended().await;
                assert_eq!(done.get(), 4);
            };
            crate::simulate(crate::Simulation::new(seed), main).expect("it ends");
        }
    }
}
