//! Distributions of users' overwrites.

use runtime::Random;

/// A distribution of overwrites.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Workload {
    /// All blocks are equally likely.
    Uniform,
    /// The block of rank r has a probability in proportion to r^-theta; ranks are assigned at random.
    Zipf(f64),
    /// A share of the blocks gets a share of the writes: 90/10 is `HotCold { blocks: 0.1, writes: 0.9 }`.
    HotCold { blocks: f64, writes: f64 },
}

impl Workload {
    pub fn name(self) -> String {
        match self {
            Workload::Uniform => "uniform".to_owned(),
            Workload::Zipf(theta) => format!("zipf {theta}"),
            Workload::HotCold { blocks, writes } => {
                format!("hot/cold {:.0}/{:.0}", writes * 100.0, blocks * 100.0)
            }
        }
    }
}

/// Draws blocks; the same seed draws the same blocks.
pub struct Draw {
    random: Random,
    workload: Workload,
    /// Block of each rank.
    order: Vec<u32>,
    /// For zipf: probability of this rank or a lower one, up to a constant factor.
    cumulated: Vec<f64>,
}

impl Draw {
    pub fn new(workload: Workload, blocks: u32, seed: u64) -> Draw {
        let mut random = Random::new(seed);
        let mut order: Vec<u32> = (0..blocks).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut sum = 0.0;
        let cumulated = match workload {
            Workload::Zipf(theta) => (1..=blocks)
                .map(|rank| {
                    sum += f64::from(rank).powf(-theta);
                    sum
                })
                .collect(),
            _ => Vec::new(),
        };
        Draw { random, workload, order, cumulated }
    }

    pub fn next(&mut self) -> u32 {
        let blocks = self.order.len() as u64;
        let rank = match self.workload {
            Workload::Uniform => self.random.below(blocks),
            Workload::Zipf(_) => {
                let at = self.random.unit() * self.cumulated[self.cumulated.len() - 1];
                (self.cumulated.partition_point(|sum| *sum < at) as u64).min(blocks - 1)
            }
            Workload::HotCold { blocks: share, writes } => {
                let hot = (blocks as f64 * share) as u64;
                if self.random.chance(writes) {
                    self.random.below(hot)
                } else {
                    hot + self.random.below(blocks - hot)
                }
            }
        };
        self.order[rank as usize]
    }
}
