//! Calls that complete although their caller no longer waits for them.
//!
//! A call that changes several things in steps (an append that has reserved its offset, a write that goes to
//! two devices) must end even if its caller drops it: otherwise other calls wait forever for its remaining
//! steps. A task per call would cost 110 ns each; here a call becomes a task only if it is dropped before its
//! end.

use crate::task_group::{GroupMember, TaskGroup};
use block::Call;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call that becomes a detached task of this shard if it is dropped after it has begun and before it has
/// ended. Dropped before its first poll, it never begins.
pub fn carry<'a, T: 'static>(future: impl Future<Output = T> + 'static) -> Call<'a, T> {
    Call::new(Carried { call: Some(Call::new(future)), begun: false, member: None })
}

/// As [`carry`], for a call that is a member of a group until it has ended or is dropped before it began.
pub fn carry_in<'a, T: 'static>(group: &TaskGroup, future: impl Future<Output = T> + 'static) -> Call<'a, T> {
    Call::new(Carried { call: Some(Call::new(future)), begun: false, member: Some(group.enter()) })
}

struct Carried<T: 'static> {
    call: Option<Call<'static, T>>,
    begun: bool,
    member: Option<GroupMember>,
}

impl<T: 'static> Future for Carried<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let call = self.call.as_mut().expect("a call is not polled again once it has ended");
        let outcome = Pin::new(call).poll(context);
        if outcome.is_ready() {
            (self.call, self.member) = (None, None);
        }
        outcome
    }
}

impl<T: 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        // A panic ends the shard: no task can carry the call.
        if self.begun
            && !std::thread::panicking()
            && let Some(call) = self.call.take()
        {
            let member = self.member.take();
            crate::spawn(async move {
                let _member = member;
                call.await
            })
            .detach();
        }
    }
}
