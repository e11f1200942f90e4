//! State of a server on each shard: opened on every shard, used where it was opened, closed on every shard.
//!
//! The state isn't `Send`: it holds device handles, connections, tasks. A [`PerShard`] is, and returns the
//! state of the calling shard. A shard's state is dropped on its shard, after [`PerShard::close`] has ended
//! it and its last user has released it.

use crate::ShardIndex;
use block::Result;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// By identifier and shard: under simulation all shards share a thread.
    static STATES: RefCell<BTreeMap<(u64, usize), Rc<dyn Any>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Key of this shard's state.
fn key(id: u64) -> (u64, usize) {
    (id, crate::current_shard().0)
}

/// State of type `T` on each shard.
pub struct PerShard<T> {
    id: u64,
    state: PhantomData<fn() -> T>,
}

impl<T: 'static> PerShard<T> {
    /// Returns a `PerShard` without any state.
    #[allow(clippy::new_without_default)] // Each one has an identity.
    pub fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        PerShard { id: LAST.fetch_add(1, Ordering::Relaxed), state: PhantomData }
    }

    /// Creates the state of every shard, by `make` on that shard, one shard after the other.
    ///
    /// # Errors
    /// The first error of `make`; then no shard has a state. Errors of the runtime.
    pub async fn open<M, F>(&self, make: M) -> Result<()>
    where
        M: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = Result<T>> + 'static,
    {
        for shard in 0..crate::shard_count() {
            let (make, id) = (make.clone(), self.id);
            let opened = crate::spawn_on(ShardIndex(shard), move || async move {
                let state: Rc<dyn Any> = Rc::new(make().await?);
                STATES.with(|states| states.borrow_mut().insert(key(id), state));
                Ok(())
            });
            if let Err(error) = opened.await.and_then(|opened| opened) {
                self.close(async |_| ()).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the state of this shard; `None` before [`open`](Self::open) and after [`close`](Self::close).
    pub fn here(&self) -> Option<Rc<T>> {
        let state = STATES.with(|states| states.borrow().get(&key(self.id)).cloned())?;
        state.downcast().ok()
    }

    /// Ends the state of every shard, by `end` on that shard, all shards at once. [`here`](Self::here)
    /// returns it until `end` has returned.
    pub async fn close<E>(&self, end: E)
    where
        E: AsyncFn(&T) + Clone + Send + 'static,
    {
        let closing = (0..crate::shard_count()).map(|shard| {
            let (end, this) = (end.clone(), PerShard { id: self.id, state: PhantomData::<fn() -> T> });
            crate::spawn_on(ShardIndex(shard), move || async move {
                let Some(state) = this.here() else { return };
                end(&state).await;
                STATES.with(|states| states.borrow_mut().remove(&key(this.id)));
            })
        });
        for closed in crate::join_all(closing.collect::<Vec<_>>()).await {
            if let Err(error) = closed {
                tracing::warn!("closing the server's state on a shard: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn on_three_shards<T: Send + 'static, F: Future<Output = T> + 'static>(
        test: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        let config = crate::Config { shards: 3, ..crate::Config::default() };
        crate::run(config, test).expect("the runtime runs")
    }

    #[test]
    fn each_shard_has_its_own_state_until_it_is_closed() {
        let sum = on_three_shards(|| async {
            let states = Arc::new(PerShard::<Cell<usize>>::new());
            assert!(states.here().is_none());
            states.open(async || Ok(Cell::new(crate::current_shard().0))).await.expect("opened");
            for shard in 0..3 {
                let states = states.clone();
                let seen = crate::spawn_on(ShardIndex(shard), move || async move {
                    let state = states.here().expect("it is open");
                    state.replace(state.get() + 10)
                });
                assert_eq!(seen.await.expect("it runs"), shard);
            }
            let sum = Arc::new(AtomicUsize::new(0));
            let ended = sum.clone();
            states
                .close(async move |state: &Cell<usize>| {
                    ended.fetch_add(state.get(), Ordering::SeqCst);
                })
                .await;
            assert!(states.here().is_none());
            sum.load(Ordering::SeqCst)
        });
        assert_eq!(sum, 10 + 11 + 12);
    }

    #[test]
    fn a_shard_that_fails_leaves_no_state_anywhere() {
        on_three_shards(|| async {
            let states = PerShard::<()>::new();
            let failed = states.open(async || match crate::current_shard().0 {
                1 => Err(Error::io("broken")),
                _ => Ok(()),
            });
            assert!(matches!(failed.await, Err(Error::Io(_))));
            assert!(states.here().is_none());
            states.open(async || Ok(())).await.expect("it may be opened again");
        });
    }
}
