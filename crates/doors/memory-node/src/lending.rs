//! Admission of writes that need memory: a counter of lent bytes.
//!
//! A task measures the machine at intervals, and so does a write that needs more than the last measurement
//! permits. At most [`STRIDE`] is lent without a measurement, so the reserve covers other programs that
//! allocate meanwhile.

use crate::decision::{Decision, Policy, decide};
use crate::machine::Measurement;
use block::{Error, Result};
use disks::ram::Pool;
use runtime::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most memory that is lent between two measurements, in bytes.
const STRIDE: u64 = 32 << 20;
/// Time for which a refusal is valid without another measurement, which takes about 100 µs.
const REFUSES_FOR: Duration = Duration::from_millis(20);

/// Measures the machine.
pub(crate) type Measure = Box<dyn Fn() -> Result<Measurement> + Send + Sync>;

/// Memory of the machine that is lent. Shared by all shards.
pub(crate) struct Lending {
    policy: Policy,
    measure: Measure,
    /// Bytes that are lent.
    lent: AtomicU64,
    /// Lent bytes above which the machine is measured again.
    measure_at: AtomicU64,
    last: Mutex<Last>,
}

/// The last measurement and its decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Last {
    pub measured: Measurement,
    pub decision: Decision,
    /// Bytes that were lent at the time.
    lent: u64,
    at: Instant,
    /// Number of failed measurements since the last successful one.
    failures: u32,
}

impl std::fmt::Debug for Lending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lending").field("policy", &self.policy).field("lent", &self.lent).finish()
    }
}

impl Lending {
    /// Measures the machine. Nothing is lent yet.
    ///
    /// # Errors
    /// Errors of the measurement.
    pub fn new(policy: Policy, measure: Measure) -> Result<Self> {
        let measured = measure()?;
        let decision = decide(&policy, &measured, 0, &Decision::default());
        let last = Mutex::new(Last { measured, decision, lent: 0, at: runtime::now(), failures: 0 });
        let (lent, measure_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Lending { policy, measure, lent, measure_at, last })
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Bytes that are lent.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
    }

    fn locked(&self) -> MutexGuard<'_, Last> {
        // Nothing panics while the lock is held.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last measurement, adjusted by the bytes that were released and lent since.
    pub fn last(&self) -> Last {
        let mut last = *self.locked();
        let lent = self.lent();
        let reclaim = last.decision.reclaim;
        last.decision.reclaim = reclaim.saturating_sub(last.lent.saturating_sub(lent)).min(lent);
        last.decision.may_lend = last.decision.may_lend.saturating_sub(lent.saturating_sub(last.lent));
        last
    }

    /// Measures the machine, and decides.
    pub fn refresh(&self) {
        self.update(&mut self.locked(), self.lent());
    }

    fn update(&self, last: &mut Last, lent: u64) {
        let decision = match (self.measure)() {
            Ok(measured) => {
                last.measured = measured;
                if std::mem::take(&mut last.failures) > 0 {
                    tracing::info!("this machine can be measured again");
                }
                decide(&self.policy, &measured, lent, &last.decision)
            }
            Err(error) => {
                if last.failures == 0 {
                    tracing::warn!("{error}; nothing is lent until the machine can be measured again");
                }
                last.failures = last.failures.saturating_add(1);
                Decision { may_lend: 0, ..last.decision }
            }
        };
        (last.lent, last.at) = (lent, runtime::now());
        self.log_transition(&last.decision, &decision);
        last.decision = decision;
        let measure_at = if decision.may_lend == 0 { 0 } else { lent + decision.may_lend.min(STRIDE) };
        self.measure_at.store(measure_at, Ordering::Relaxed);
    }

    fn log_transition(&self, before: &Decision, now: &Decision) {
        match (before.reclaim > 0, now.reclaim > 0) {
            (false, true) if now.is_under_pressure => {
                tracing::warn!("tasks of this machine wait for memory: reclaiming {} bytes", now.reclaim);
            }
            (false, true) => {
                tracing::warn!(
                    "less than the reserve of {} bytes is available: reclaiming {} bytes",
                    self.policy.reserve,
                    now.reclaim
                );
            }
            (true, false) => tracing::info!("reclaiming has ended"),
            _ => {}
        }
    }

    /// Measures the machine for `bytes` that are already counted; subtracts them if they can't be lent.
    #[cold]
    fn take_measured(&self, bytes: u64) -> Result<()> {
        let mut last = self.locked();
        let before = self.lent().saturating_sub(bytes);
        let is_refused = last.decision.may_lend < bytes && last.at.elapsed() < REFUSES_FOR;
        // Bytes that were released since the measurement may be lent again.
        let returned = last.lent.saturating_sub(before);
        if !is_refused || returned >= bytes {
            self.update(&mut last, before);
        }
        if last.decision.may_lend >= bytes {
            return Ok(());
        }
        self.give_back(bytes);
        let (policy, decision, available) = (&self.policy, &last.decision, last.measured.available());
        let why = if decision.is_under_pressure {
            "tasks of its machine wait for memory".to_owned()
        } else if before + bytes > policy.capacity {
            format!("that is its capacity of {} bytes", policy.capacity)
        } else {
            let limit = policy.lending_limit();
            format!("its machine has {available} bytes available; lending ends at {limit}, above the reserve")
        };
        Err(Error::no_space(format!(
            "the memory node lends {before} bytes: {why}; discard what isn't needed, or write to another node"
        )))
    }
}

impl Pool for Lending {
    #[inline]
    fn take(&self, bytes: u64) -> Result<()> {
        let lent = self.lent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if lent <= self.measure_at.load(Ordering::Relaxed) { Ok(()) } else { self.take_measured(bytes) }
    }

    fn add(&self, bytes: u64) {
        self.lent.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
    }
}
