//! Memory that the doors allocate on the path of a request.
//!
//! The counts are of the whole process, so this binary has a single test.

use conformance::allocations::Counting;

mod fuse;
mod nbd;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn memory_is_bounded_and_steady_state_allocates_nothing() {
    nbd::requests_allocate_nothing();
    fuse::requests_allocate_nothing();
}
