//! Memory that the doors allocate on the path of a request.
//!
//! The counts are of the whole process, so this binary has a single test.

use conformance::allocations::Counting;

#[path = "../integration/vhost/front_end.rs"]
#[allow(dead_code)] // Shared with the integration tests.
mod front_end;
mod fuse;
mod nbd;
mod vhost;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn memory_is_bounded_and_steady_state_allocates_nothing() {
    nbd::requests_allocate_nothing();
    fuse::requests_allocate_nothing();
    vhost::requests_allocate_nothing();
}
