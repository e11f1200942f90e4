//! Decides which rules fire at an operation.
//!
//! Each shard handle counts, per rule, the operations that the rule matches. Whether the rule fires at the
//! n-th of them depends only on the seed, the shard, the rule's index and n. So the same operations in the
//! same order on a shard get the same faults, and appending a rule doesn't affect the others. Concurrent
//! operations are ordered by the first poll of their calls.

use super::Message;
use super::rule::{Action, Operation, Rule};
use block::{Error, Status};
use runtime::Random;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Rules of a part, shared by its handles.
pub(super) struct Faults {
    pub rules: Vec<Rule>,
    pub seed: u64,
    on: AtomicBool,
    injected: Vec<AtomicU64>,
}

impl Faults {
    pub fn new(rules: Vec<Rule>, seed: u64) -> Arc<Self> {
        let injected = rules.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(Faults { rules, seed, on: AtomicBool::new(true), injected })
    }

    pub fn status(&self) -> Status {
        let rules = self.rules.iter().zip(&self.injected).map(|(rule, injected)| {
            serde_json::json!({ "rule": rule.text, "injected": injected.load(Ordering::Relaxed) })
        });
        let mut status = Status::new();
        status.insert("rules_on".into(), self.on.load(Ordering::Relaxed).into());
        status.insert("seed".into(), self.seed.into());
        status.insert("rules".into(), rules.collect());
        status
    }

    pub fn tell(&self, message: Message) -> String {
        let on = message == Message::RulesOn;
        self.on.store(on, Ordering::Relaxed);
        format!("rules {}", if on { "on" } else { "off" })
    }

    /// Creates the decider of another shard handle.
    pub fn open(self: &Arc<Self>) -> Decider {
        let counters = self.rules.iter().map(|_| (Cell::new(0), Cell::new(0))).collect();
        Decider { faults: self.clone(), shard: runtime::current_shard().0 as u64, counters }
    }
}

/// Decides about the operations of one shard handle.
pub(super) struct Decider {
    faults: Arc<Faults>,
    shard: u64,
    /// Per rule: number of matched operations, number of injected faults.
    counters: Box<[(Cell<u64>, Cell<u64>)]>,
}

/// Faults of one operation.
pub(super) struct Plan {
    pub delay: Duration,
    pub action: Option<Action>,
    pub error: Option<Error>,
    pub random: Random,
}

/// Range that an operation touches: bytes of a device, or zones.
pub(super) type Touched = Option<Range<u64>>;

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Decider {
    /// Returns another decider of the same shard, with counters of its own.
    pub fn again(&self) -> Decider {
        self.faults.open()
    }

    /// Whether there are no rules, so that calls pass through.
    pub fn is_idle(&self) -> bool {
        self.counters.is_empty()
    }

    /// Decides about the next operation. Delays of several rules add up; rules after the first one that fires
    /// with an action or an error are ignored.
    pub fn decide(&self, operation: Operation, touched: Touched) -> Option<Plan> {
        if !self.faults.on.load(Ordering::Relaxed) {
            return None;
        }
        let mut plan: Option<Plan> = None;
        for (index, rule) in self.faults.rules.iter().enumerate() {
            let Some(mut random) = self.fires(index, rule, operation, &touched) else { continue };
            self.faults.injected[index].fetch_add(1, Ordering::Relaxed);
            let delay = rule.delay.map_or(Duration::ZERO, |(least, most)| {
                let spread = u64::try_from((most - least).as_nanos()).unwrap_or(u64::MAX - 1);
                least + Duration::from_nanos(random.below(spread + 1))
            });
            let before = plan.as_ref().map_or(Duration::ZERO, |plan| plan.delay);
            plan = Some(Plan { delay: before + delay, action: rule.action, error: rule.error(), random });
            if rule.action.is_some() || rule.error.is_some() {
                break;
            }
        }
        plan
    }

    fn fires(&self, index: usize, rule: &Rule, operation: Operation, touched: &Touched) -> Option<Random> {
        if !rule.operations.contains(operation) {
            return None;
        }
        if let Some(range) = rule.bytes.as_ref().or(rule.zones.as_ref())
            && !touched.as_ref().is_some_and(|touched| overlap(range, touched))
        {
            return None;
        }
        let (matched, injected) = &self.counters[index];
        matched.set(matched.get() + 1);
        let ordinal = matched.get();
        if ordinal <= rule.after || rule.times.is_some_and(|times| injected.get() >= times) {
            return None;
        }
        if rule.every.is_some_and(|every| !(ordinal - rule.after).is_multiple_of(every)) {
            return None;
        }
        let mut random = self.random(index as u64, ordinal);
        if rule.probability.is_some_and(|probability| random.unit() >= probability) {
            return None;
        }
        injected.set(injected.get() + 1);
        Some(random)
    }

    fn random(&self, rule: u64, ordinal: u64) -> Random {
        let mut mixed = self.faults.seed;
        for part in [self.shard, rule, ordinal] {
            mixed = Random::new(mixed ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15)).next_u64();
        }
        Random::new(mixed)
    }
}

/// Flips bits at random positions; a position may be drawn twice, which undoes the flip.
pub(super) fn flip_bits(bytes: &mut [u8], bits: u64, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..bits {
        let bit = random.below(bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

/// Returns the number of bytes of a torn write that are written: less than `length`.
pub(super) fn torn_length(at: Option<u64>, length: u64, random: &mut Random) -> u64 {
    match at {
        Some(at) => at.min(length.saturating_sub(1)),
        None => random.below(length.div_ceil(512).max(1)) * 512,
    }
}
