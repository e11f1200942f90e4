//! Time since the process began: from the processor's cycle counter if it is steady (about 9 ns a reading,
//! against 24 ns for the vDSO's clock), and virtual under simulation.
#![allow(unsafe_code)] // The cycle counter and clock_gettime.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};
use std::sync::OnceLock;
use std::time::Duration;

/// Point in time: nanoseconds since an arbitrary origin, the same for all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// Point in time from nanoseconds since the origin.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Instant(nanoseconds)
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Time from this point until now; zero for points in the future.
    pub fn elapsed(self) -> Duration {
        now() - self
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Time from `other` to this point; zero if `other` is later.
    #[inline]
    fn sub(self, other: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(other.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

thread_local! {
    /// Virtual time of the simulation that runs on this thread.
    static VIRTUAL: Cell<Option<u64>> = const { Cell::new(None) };
    /// Steps of the system clock of that simulation, in seconds.
    static STEPS: Cell<i64> = const { Cell::new(0) };
}

/// Sets, or with `None` ends, virtual time on this thread.
pub(crate) fn set_virtual(nanoseconds: Option<u64>) {
    if nanoseconds.is_none() {
        STEPS.set(0);
    }
    VIRTUAL.set(nanoseconds);
}

/// Steps the [system clock](wall_clock) of the simulation on this thread by `seconds`, forward or back, as an
/// operator does. Has no effect outside of a simulation.
pub fn step_simulated_wall_clock(seconds: i64) {
    if VIRTUAL.get().is_some() {
        STEPS.set(STEPS.get() + seconds);
    }
}

/// Current time.
#[inline]
pub fn now() -> Instant {
    match VIRTUAL.get() {
        Some(nanoseconds) => Instant(nanoseconds),
        None => Instant(scale().nanoseconds()),
    }
}

/// Time since 1970 by the system clock, which can be set back. Under simulation, a fixed day plus virtual
/// time.
pub fn wall_clock() -> Duration {
    const SIMULATED_DAY: Duration = Duration::from_secs(1_700_000_000);
    match VIRTUAL.get() {
        Some(nanoseconds) => {
            let day = SIMULATED_DAY.as_secs().saturating_add_signed(STEPS.get());
            Duration::from_secs(day) + Duration::from_nanos(nanoseconds)
        }
        None => Duration::from_nanos(clock_nanoseconds(libc::CLOCK_REALTIME)),
    }
}

/// Time since the machine was started, including time in suspend; it can't be set. Virtual time under
/// simulation.
pub fn boot_clock() -> Duration {
    Duration::from_nanos(VIRTUAL.get().unwrap_or_else(|| clock_nanoseconds(libc::CLOCK_BOOTTIME)))
}

/// CPU time of this thread, user and system; zero under simulation.
pub fn thread_cpu_time() -> Duration {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the whole process, user and system; zero under simulation.
pub fn process_cpu_time() -> Duration {
    cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu_time(clock: libc::clockid_t) -> Duration {
    match VIRTUAL.get() {
        Some(_) => Duration::ZERO,
        None => Duration::from_nanos(clock_nanoseconds(clock)),
    }
}

fn clock_nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is a local variable.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Conversion of cycles to nanoseconds: `monotonic + (cycles - start) * multiplier / 2^32`.
struct Scale {
    start_cycles: u64,
    /// 0 if the cycle counter can't be used.
    multiplier: u64,
    start_nanoseconds: u64,
}

impl Scale {
    #[inline]
    fn nanoseconds(&self) -> u64 {
        if self.multiplier == 0 {
            return clock_nanoseconds(libc::CLOCK_MONOTONIC);
        }
        let cycles = cycle_counter().saturating_sub(self.start_cycles);
        self.start_nanoseconds + ((u128::from(cycles) * u128::from(self.multiplier)) >> 32) as u64
    }

    /// Measures the counter against the monotonic clock for 10 ms: an error of about 5 in a million.
    fn measure() -> Scale {
        let unusable = Scale { start_cycles: 0, multiplier: 0, start_nanoseconds: 0 };
        if !counter_is_steady() {
            return unusable;
        }
        let (start_cycles, start_nanoseconds) = paired_reading();
        while clock_nanoseconds(libc::CLOCK_MONOTONIC) < start_nanoseconds + 10_000_000 {
            std::hint::spin_loop();
        }
        let (end_cycles, end_nanoseconds) = paired_reading();
        let cycles = end_cycles.saturating_sub(start_cycles);
        if cycles == 0 {
            return unusable;
        }
        let multiplier = (u128::from(end_nanoseconds - start_nanoseconds) << 32) / u128::from(cycles);
        Scale { start_cycles, multiplier: multiplier as u64, start_nanoseconds }
    }
}

fn scale() -> &'static Scale {
    static SCALE: OnceLock<Scale> = OnceLock::new();
    SCALE.get_or_init(Scale::measure)
}

/// Reads the counter and the clock at the same moment: of several readings, the fastest.
fn paired_reading() -> (u64, u64) {
    let readings = (0..16).map(|_| {
        let before = cycle_counter();
        let nanoseconds = clock_nanoseconds(libc::CLOCK_MONOTONIC);
        let after = cycle_counter();
        (after.saturating_sub(before), before + after.saturating_sub(before) / 2, nanoseconds)
    });
    let best = readings.min_by_key(|reading| reading.0).expect("there are 16 readings");
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn cycle_counter() -> u64 {
    // SAFETY: every x86-64 has the instruction; it reads a register.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycle_counter() -> u64 {
    0
}

/// Whether the counter runs at one rate, in sleep states too: CPUID 8000_0007h, EDX bit 8 ("invariant TSC",
/// Intel SDM volume 3, 18.17.1; AMD APM volume 3, E.4.7).
#[cfg(target_arch = "x86_64")]
fn counter_is_steady() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_steady() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_monotonic_clock() {
        let (ours, theirs) = (now().nanoseconds(), clock_nanoseconds(libc::CLOCK_MONOTONIC));
        while clock_nanoseconds(libc::CLOCK_MONOTONIC) < theirs + 50_000_000 {}
        let (ours, theirs) = (now().nanoseconds() - ours, clock_nanoseconds(libc::CLOCK_MONOTONIC) - theirs);
        // A preemption between the two readings would fail a tighter bound.
        assert!(ours.abs_diff(theirs) < 20_000_000, "{ours} ns by the counter, {theirs} ns by the clock");
    }

    #[test]
    fn subtraction_saturates() {
        assert_eq!(Instant(1) - Instant(2), Duration::ZERO);
        assert_eq!(Instant(u64::MAX) + Duration::from_secs(1), Instant(u64::MAX));
    }
}
