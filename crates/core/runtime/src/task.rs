//! Tasks of one shard.

use crate::mailbox::{Letter, Mailbox, Runnable};
use crate::shard::{self, Shard};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Future of a task, boxed so that all tasks with one type of result share their code. Compiled for each type
/// of future, that code was a third of the program.
pub(crate) type TaskFuture<T> = Pin<Box<dyn Future<Output = T>>>;

type Task<T> = async_task::Task<T, Arc<Mailbox>>;

/// Puts a woken task into its shard's queue, from any thread.
#[inline]
fn schedule(runnable: Runnable) {
    if shard::is_current(runnable.metadata()) {
        shard::with_current(|shard| shard.queue.borrow_mut().push_back(runnable));
    } else {
        // The task may run and free its metadata before the shard is woken, so the mailbox is cloned.
        let mailbox = runnable.metadata().clone();
        mailbox.post(Letter::Run(runnable));
    }
}

/// Creates a task. The mailbox is the task's metadata, because a scheduling function with captured variables
/// would make async-task count one more reference at each wake, in three atomic operations.
fn create<T: 'static>(shard: &Shard, future: impl Future<Output = T> + 'static) -> (Runnable, Task<T>) {
    let builder = async_task::Builder::new().metadata(shard.mailbox.clone());
    builder.spawn_local(|_| future, schedule)
}

/// Handle of a task of this shard. Awaiting it returns the task's result; dropping it detaches the task.
#[must_use = "dropping the handle detaches the task; say so with `detach`"]
pub struct JoinHandle<T>(Option<Task<T>>);

impl<T> JoinHandle<T> {
    /// Detaches the task, which continues.
    pub fn detach(self) {}

    /// Drops the task at its current await point. Its submitted operations end as those of any dropped
    /// future.
    pub fn abort(mut self) {
        drop(self.0.take());
    }

    /// Whether the task has returned.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(Task::is_finished)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let task = self.0.as_mut().expect("an aborted handle is consumed");
        Pin::new(task).poll(context)
    }
}

/// Starts a task on this shard. A panic in it ends the whole [`run`](crate::run) with that panic.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
    spawn_boxed(Box::pin(future))
}

fn spawn_boxed<T: 'static>(future: TaskFuture<T>) -> JoinHandle<T> {
    shard::with_current(|shard| spawn_in(shard, future))
}

pub(crate) fn spawn_in<T: 'static>(shard: &Rc<Shard>, future: TaskFuture<T>) -> JoinHandle<T> {
    let entry = shard.tasks.borrow_mut().insert(None);
    let listed = ListedTask { future, _entry: Listed { shard: shard.clone(), entry } };
    let (runnable, task) = create(shard, listed);
    shard.tasks.borrow_mut()[entry] = Some(runnable.waker());
    runnable.schedule();
    JoinHandle(Some(task))
}

/// Future with its entry in the shard's list. The future is dropped first.
struct ListedTask<T> {
    future: TaskFuture<T>,
    _entry: Listed,
}

impl<T> Future for ListedTask<T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.future.as_mut().poll(context)
    }
}

/// Keeps a task in its shard's list while its future lives, so that the end of the shard finds it.
struct Listed {
    shard: Rc<Shard>,
    entry: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let waker = self.shard.tasks.borrow_mut().try_remove(self.entry);
        drop(waker);
    }
}

/// Goes once through the run queue: every other ready task runs first.
pub fn yield_now() -> YieldNow {
    YieldNow(false)
}

/// Future of [`yield_now`].
#[derive(Debug)]
#[must_use = "a yield does nothing until it is awaited"]
pub struct YieldNow(bool);

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Runs all futures concurrently and returns their results in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    std::future::poll_fn(move |context| {
        let mut all_done = true;
        for (future, output) in &mut waiting {
            let Some(running) = future else { continue };
            match running.as_mut().poll(context) {
                Poll::Ready(value) => (*future, *output) = (None, Some(value)),
                Poll::Pending => all_done = false,
            }
        }
        if !all_done {
            return Poll::Pending;
        }
        Poll::Ready(waiting.drain(..).map(|(_, output)| output.expect("every future has returned")).collect())
    })
    .await
}

/// As [`join_all`], with at most `limit` futures at a time: the next one is taken from the iterator when one
/// has returned.
pub async fn join_limited<F: Future>(limit: usize, futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures = futures.into_iter().fuse();
    let mut outputs: Vec<Option<F::Output>> = Vec::new();
    let mut running: Vec<(usize, std::pin::Pin<Box<F>>)> = Vec::new();
    std::future::poll_fn(move |context| {
        let mut at = 0;
        loop {
            while running.len() < limit.max(1) {
                let Some(future) = futures.next() else { break };
                running.push((outputs.len(), Box::pin(future)));
                outputs.push(None);
            }
            // Futures that were added in this turn haven't been polled.
            let Some((number, future)) = running.get_mut(at) else { break };
            match future.as_mut().poll(context) {
                Poll::Ready(value) => {
                    outputs[*number] = Some(value);
                    running.swap_remove(at);
                }
                Poll::Pending => at += 1,
            }
        }
        if !running.is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(outputs.drain(..).map(|output| output.expect("every future has returned")).collect())
    })
    .await
}

/// Drops a value in a task of its own, while no state of the shard is borrowed.
pub(crate) fn drop_later<T: 'static>(shard: &Shard, value: T) {
    let (runnable, task) = create(shard, async move { drop(value) });
    runnable.schedule();
    task.detach();
}
