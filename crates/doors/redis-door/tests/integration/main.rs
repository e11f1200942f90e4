//! The redis door of a store on zones in memory, and the kind `kv` in stacks.

#![allow(clippy::unwrap_used)]

mod client;
mod foreign;
mod kind;
mod replies;
mod server;
mod users;

/// Runs `main` on `shards` simulated shards.
fn simulate<F: Future<Output = ()> + 'static>(
    seed: u64,
    shards: usize,
    main: impl FnOnce() -> F + Send + 'static,
) {
    let world = runtime::Simulation { shards, ..runtime::Simulation::new(seed) };
    runtime::simulate(world, main).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}
