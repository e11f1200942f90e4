//! Memory that the log allocates on the path of a request, and memory of its maps.
//!
//! The counts are of the whole process, so this binary has a single test.

use conformance::allocations::Counting;

mod maps;
mod writes;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn memory_is_bounded_and_steady_state_allocates_nothing() {
    writes::writes_and_reads_allocate_nothing();
    maps::memory_is_what_maps_say_and_within_the_budget();
}
