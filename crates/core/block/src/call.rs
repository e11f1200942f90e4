//! The future that a call on a contract returns. It is boxed, because stacks are composed at run time, and
//! needs no allocation in steady state.
//!
//! The memory of a finished call goes to a free list of the thread, by size, from which the next call takes
//! it: about 3 ns, compared with 13 ns for `Box`. Futures larger than [`LARGEST`] use the allocator.
#![allow(unsafe_code)] // A boxed trait object from memory of our own can't be had otherwise on stable Rust.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Unit of size and alignment of the memory of a call, in bytes.
const UNIT: usize = 64;
/// Largest future that is kept in the free lists, in bytes.
pub const LARGEST: usize = 4096;
/// Limit of free pieces of one size per thread; more are freed.
const KEPT: usize = 1024;

struct FreeLists([Vec<NonNull<u8>>; LARGEST / UNIT]);

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (class, list) in self.0.iter_mut().enumerate() {
            for memory in list.drain(..) {
                // SAFETY: everything in list `class` was allocated by `take` with `class_layout(class)`.
                unsafe { dealloc(memory.as_ptr(), class_layout(class)) }
            }
        }
    }
}

thread_local! {
    static FREE: UnsafeCell<FreeLists> = const { UnsafeCell::new(FreeLists([const { Vec::new() }; LARGEST / UNIT])) };
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align((class + 1) * UNIT, UNIT).expect("a size class is far below the address space")
}

/// Size class of a layout; `None` if it is too large or too strictly aligned.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    (layout.size() <= LARGEST && layout.align() <= UNIT).then(|| layout.size().saturating_sub(1) / UNIT)
}

#[inline]
fn take(layout: Layout) -> NonNull<u8> {
    let class = class_of(layout);
    if let Some(class) = class {
        // SAFETY: the cell belongs to this thread, and no reference into it outlives this closure, which
        // isn't reentered.
        let kept = FREE.try_with(|free| unsafe { (&mut *free.get()).0[class].pop() });
        if let Ok(Some(memory)) = kept {
            return memory;
        }
    }
    let layout = class.map_or(layout, class_layout);
    let layout = if layout.size() == 0 { Layout::new::<u8>() } else { layout };
    // SAFETY: the layout's size isn't zero.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

#[inline]
fn give_back(memory: NonNull<u8>, layout: Layout) {
    let class = class_of(layout);
    if let Some(class) = class {
        // SAFETY: as in `take`; pushing may allocate, which doesn't reenter this function.
        let kept = FREE.try_with(|free| unsafe {
            let list = &mut (&mut *free.get()).0[class];
            let room = list.len() < KEPT;
            if room {
                list.push(memory);
            }
            room
        });
        if kept == Ok(true) {
            return;
        }
    }
    let layout = class.map_or(layout, class_layout);
    let layout = if layout.size() == 0 { Layout::new::<u8>() } else { layout };
    // SAFETY: `take` allocated it with this same layout.
    unsafe { dealloc(memory.as_ptr(), layout) }
}

/// A call in progress on this thread: a boxed, pinned future. Dropping it ends the wait but not the
/// operation: submitted operations complete in the tasks or the ring of their submitter.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'a, T> {
    future: NonNull<dyn Future<Output = T> + 'a>,
    // Owns the future, may borrow for 'a, and isn't sent to another thread, because its memory belongs to
    // this thread's free list.
    owned: PhantomData<Box<dyn Future<Output = T> + 'a>>,
}

impl<'a, T> Call<'a, T> {
    /// Boxes `future` in memory from the thread's free list.
    #[inline]
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> Self {
        let memory = take(Layout::new::<F>()).cast::<F>();
        // SAFETY: the memory is large and aligned enough for F, and nothing else refers to it.
        unsafe { memory.as_ptr().write(future) };
        Call { future: memory, owned: PhantomData }
    }

    /// Returns a call that has completed with this value.
    pub fn ready(value: T) -> Self
    where
        T: 'a,
    {
        Call::new(std::future::ready(value))
    }
}

impl<T> Future for Call<'_, T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // SAFETY: this call owns the future until it is dropped, and the future never moves.
        unsafe { Pin::new_unchecked(self.get_mut().future.as_mut()) }.poll(context)
    }
}

// The future is reached through a pointer, so moving the call doesn't move it.
impl<T> Unpin for Call<'_, T> {}

impl<T> Drop for Call<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // The memory is returned even if the future's own drop unwinds.
        struct Memory(NonNull<u8>, Layout);
        impl Drop for Memory {
            fn drop(&mut self) {
                give_back(self.0, self.1);
            }
        }
        // SAFETY: the future is alive and owned by this call; its layout is that with which the memory was
        // taken.
        unsafe {
            let _memory = Memory(self.future.cast(), Layout::for_value(self.future.as_ref()));
            self.future.as_ptr().drop_in_place();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Waker;

    fn poll_once<T>(call: &mut Call<'_, T>) -> Poll<T> {
        Pin::new(call).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn returns_the_value_of_the_future() {
        let borrowed = String::from("x");
        let mut call = Call::new(async { borrowed.len() });
        assert_eq!(poll_once(&mut call), Poll::Ready(1));
    }

    #[test]
    fn memory_is_used_again_and_futures_of_any_size_fit() {
        let first = Call::new(async { 1 });
        let address = first.future.cast::<u8>();
        drop(first);
        let second = Call::new(async { 2 });
        assert_eq!(second.future.cast::<u8>(), address);
        let large = [7_u8; LARGEST + 1];
        let mut call = Call::new(async move { large.iter().map(|byte| u32::from(*byte)).sum::<u32>() });
        assert_eq!(poll_once(&mut call), Poll::Ready(7 * (LARGEST as u32 + 1)));
        assert_eq!(poll_once(&mut Call::ready(())), Poll::Ready(()));
    }

    #[test]
    fn dropping_drops_what_the_future_holds() {
        let dropped = Rc::new(Cell::new(0));
        struct Count(Rc<Cell<u32>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let count = Count(dropped.clone());
        let mut call = Call::new(async move {
            let _held = count;
            std::future::pending::<()>().await;
        });
        assert!(poll_once(&mut call).is_pending());
        drop(call);
        assert_eq!(dropped.get(), 1);
    }
}
