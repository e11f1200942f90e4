//! Options of caches that a life draws, for all stacks that have one.

use super::life::Life;
use runtime::Random;
use std::time::Duration;

/// Draws one of these.
pub fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// Options of a write cache with this order of write-back.
pub fn write_cache_options(life: &Life, order: writecache::Order) -> writecache::Options {
    let random = &mut Random::new(life.seed ^ 0x0CAC_4E00);
    let high_watermark = pick(random, &[0, 10, 40, 50, 90, 100]);
    writecache::Options {
        format: life.format,
        high_watermark,
        low_watermark: pick(random, &[0, 5, 45, 100]).min(high_watermark),
        cleaner: random.chance(0.08),
        batch: pick(random, &[1, 4 << 10, 16 << 10, 64 << 10, 1 << 30]),
        timeout: Duration::from_secs(120),
        settings: writecache::Settings {
            jobs: pick(random, &[1, 2, 8, 64]),
            autocommit_blocks: pick(random, &[1, 8, 64, 65536]),
            autocommit_time: Duration::from_millis(pick(random, &[1, 5, 1000])),
            pause: Duration::from_millis(pick(random, &[0, 0, 1, 50])),
            max_age: Some(Duration::from_millis(pick(random, &[1, 5, 20, 1000])))
                .filter(|_| random.chance(0.4)),
            fua: random.chance(0.3),
            order,
            dirty: pick(random, &[1 << 10, 16 << 10, 1 << 20]),
        },
    }
}

/// Options of a cache with one of these modes, and blocks of `block_size` bytes if it is formatted.
pub fn cache_options(life: &Life, modes: &[cache::Mode], block_size: u64) -> cache::Options {
    let random = &mut Random::new(life.seed ^ 0x0CAC_4E01);
    cache::Options {
        format: life.format,
        mode: pick(random, modes),
        block_size,
        settle_every: Duration::from_micros(pick(random, &[1000, 5000, 1_000_000])),
        sequential_threshold: pick(random, &[0, 16 << 10, 4 << 20]),
        migration_threshold: pick(random, &[0, 128, 2048]),
        ..cache::Options::default()
    }
}
