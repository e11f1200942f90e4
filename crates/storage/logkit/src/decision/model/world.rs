//! Scheduler of the abstract log's steps, and requests of users and operators.

use super::*;

/// Most steps until a log whose users only wait comes to rest.
const MAX_STEPS: u32 = 3000;
/// Most consecutive actions of the cleaner without progress towards a free zone.
const MAX_IN_VAIN: u32 = 24;

impl Model {
    /// Carries out one runnable step, in random, fair order. Returns false if no step can run.
    pub fn step(&mut self) -> bool {
        if matches!(self.driver, Driver::Waits { .. }) && self.is_woken {
            self.driver = Driver::Runs;
        }
        let mut runnable = [0; 9];
        let mut count = 0;
        let mut add = |number: usize, can_run: bool| {
            runnable[count] = number;
            count += usize::from(can_run);
        };
        (0..3).for_each(|task| add(task, self.tasks[task].progress == Progress::Running));
        (0..2).for_each(|lane| add(3 + lane, self.can_append(lane)));
        add(5, !self.in_flight.is_empty());
        add(6, !self.sealing.is_empty());
        add(7, self.driver == Driver::Runs);
        // Time passes only when no step can run.
        if count == 0 && self.driver == (Driver::Waits { until_timeout: true }) {
            self.driver = Driver::Runs;
            return true;
        }
        if count == 0 {
            return false;
        }
        match runnable[self.random.below(count as u32) as usize] {
            task @ 0..=2 => self.advance(task),
            lane @ 3..=4 => self.append(lane - 3),
            5 => self.commit(),
            6 => self.seal(),
            _ => self.clean(),
        }
        true
    }

    /// A random request or event: writes, a deletion, a reservation, failures, a close.
    pub fn disturb(&mut self) {
        match self.random.below(64) {
            0 | 1 if self.stuck || !self.is_closing => {
                self.deleted += 1;
                self.look_again();
            }
            2 => self.unreserved = 1,
            3 => self.faults += self.random.below(4),
            4 => self.kill_any(),
            5 if self.random.once_in(16) => self.close(),
            6 if self.random.once_in(64) => self.fail(),
            _ if !self.is_closing && !self.has_failed => self.queued += 1 + self.random.below(3),
            _ => {}
        }
    }

    fn close(&mut self) {
        self.is_closing = true;
        self.wake_cleaner();
        self.wake_writers();
    }

    fn fail(&mut self) {
        (self.has_failed, self.queued) = (true, 0);
        self.wake_cleaner();
        self.wake_writers();
    }

    /// Runs, without new requests, until no step can run.
    ///
    /// # Errors
    /// A writer waits forever or is refused wrongly, the log doesn't come to rest, or the cleaner doesn't end
    /// with the log.
    pub fn drain(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            if let Some(mistake) = self.mistake.take() {
                return Err(mistake);
            }
            if steps >= MAX_STEPS || self.in_vain >= MAX_IN_VAIN {
                return Err(format!(
                    "no rest after {steps} steps, {} actions in vain: {self:?}",
                    self.in_vain
                ));
            }
            if self.driver != Driver::Runs {
                self.in_vain = 0;
            }
        }
        if self.queued > 0 {
            return Err(format!("a writer waits for ever: {self:?}"));
        }
        match (self.driver == Driver::Stopped) == self.has_ended() {
            true => Ok(()),
            false => Err(format!("the cleaner ends with the log: {self:?}")),
        }
    }

    /// Whether the log takes no more requests.
    pub fn has_ended(&self) -> bool {
        self.is_closing || self.has_failed
    }
}
