//! Objects that belong to one shard and are used from all of them.
//!
//! Mutable state that isn't lock-free belongs to one shard, its *home*. An operation on it is sent there as a
//! whole, as a message. A [`Home`] is the address: it can be sent and shared, and resolves to the object on
//! the home shard.

use crate::config::ShardIndex;
use crate::shard::current_shard;
use crate::task::{JoinHandle, spawn};
use block::{Call, Error, Result, Status};
use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Objects whose home is this shard.
    static HERE: RefCell<Vec<Resident>> = const { RefCell::new(Vec::new()) };
}

/// A task holds the object, so that an object that isn't forgotten is dropped with the shard's tasks: a
/// thread-local would be dropped after other thread-locals that the object may use.
struct Resident {
    number: u64,
    thing: Weak<dyn Any>,
    keeper: JoinHandle<()>,
}

/// Address of a `T` on its home shard.
pub struct Home<T> {
    shard: ShardIndex,
    number: u64,
    /// Type of the object, without owning it: a home can be sent to any shard.
    thing: PhantomData<fn() -> T>,
}

impl<T> Clone for Home<T> {
    fn clone(&self) -> Self {
        Home { shard: self.shard, number: self.number, thing: PhantomData }
    }
}

impl<T> std::fmt::Debug for Home<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Home({} on shard {})", self.number, self.shard)
    }
}

impl<T: 'static> Home<T> {
    /// Makes this shard the home of `thing`, until it is forgotten or the shard ends.
    pub fn here(thing: Rc<T>) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let weak = Rc::downgrade(&thing);
        let keeper = spawn(async move {
            let _thing = thing;
            std::future::pending::<()>().await;
        });
        HERE.with_borrow_mut(|all| all.push(Resident { number, thing: weak, keeper }));
        Home { shard: current_shard(), number, thing: PhantomData }
    }

    /// The home shard.
    pub fn shard(&self) -> ShardIndex {
        self.shard
    }

    /// Whether the current shard is the home shard.
    pub fn is_here(&self) -> bool {
        current_shard() == self.shard
    }

    /// Whether both are addresses of the same object.
    pub fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Returns the object, on its home shard.
    ///
    /// # Errors
    /// [`Error::Closed`] once it has been forgotten, or on another shard.
    pub fn get(&self) -> Result<Rc<T>> {
        let found = HERE.with_borrow(|all| {
            all.iter().find(|it| it.number == self.number).and_then(|resident| resident.thing.upgrade())
        });
        found.and_then(|thing| thing.downcast().ok()).ok_or_else(|| Error::closed("it is closed"))
    }

    /// Runs `work` on the object, on its home shard.
    ///
    /// # Errors
    /// Errors of `work`; [`Error::Closed`] once the object has been forgotten.
    pub async fn with<R, Fut>(&self, work: impl FnOnce(Rc<T>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        if self.is_here() {
            return work(self.get()?).await;
        }
        let home = self.clone();
        crate::spawn_on(self.shard, move || async move { work(home.get()?).await }).await?
    }

    /// Runs `work` on the home shard, with the object or with [`Error::Closed`]: for work that has to return
    /// something in either case, such as a buffer.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the home shard has ended.
    pub async fn visit<R, Fut>(&self, work: impl FnOnce(Result<Rc<T>>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        if self.is_here() {
            return Ok(work(self.get()).await);
        }
        let home = self.clone();
        crate::spawn_on(self.shard, move || async move { work(home.get()).await }).await
    }

    /// Status of the object, computed on its home shard; a status with only `error` once it has been
    /// forgotten or its shard has ended.
    pub fn status(&self, of: impl FnOnce(&T) -> Status + Send + 'static) -> Call<'_, Status> {
        Call::new(async move {
            let taken = self.with(move |thing| async move { Ok(of(&thing)) }).await;
            taken.unwrap_or_else(|error| Status::from_iter([("error".to_owned(), error.to_string().into())]))
        })
    }

    /// Runs `close` on the object, on its home shard, and releases the object.
    ///
    /// # Errors
    /// Errors of `close`; those of [`forget`](Self::forget).
    pub async fn close<Fut>(&self, close: impl FnOnce(Rc<T>) -> Fut + Send + 'static) -> Result<()>
    where
        Fut: Future<Output = Result<()>> + 'static,
    {
        let closed = self.with(close).await;
        self.forget().await?;
        closed
    }

    /// Releases the object: later calls fail with [`Error::Closed`]. Existing references keep it alive.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if the home shard has ended.
    pub async fn forget(&self) -> Result<()> {
        if self.is_here() {
            self.forget_here();
            return Ok(());
        }
        let home = self.clone();
        crate::spawn_on(self.shard, move || async move { home.forget_here() }).await
    }

    fn forget_here(&self) {
        let found = HERE.with_borrow_mut(|all| {
            let place = all.iter().position(|it| it.number == self.number)?;
            Some(all.swap_remove(place))
        });
        if let Some(resident) = found {
            resident.keeper.abort();
        }
    }
}
