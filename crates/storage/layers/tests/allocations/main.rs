//! Memory that the layers allocate on the path of a request.
//!
//! The counts are of the whole process, so this binary has a single test.

use conformance::allocations::Counting;

mod cache;
mod mirror;
mod writecache;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn memory_is_bounded_and_steady_state_allocates_nothing() {
    cache::hits_allocate_nothing();
    mirror::writes_and_reads_allocate_nothing();
    writecache::writes_and_reads_allocate_nothing();
}
