//! Seeds of a test that tries many: those that its budget allows, or those that the environment names.

use crate::budget::Budget;

/// Number in an environment variable.
fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.trim().parse().unwrap_or_else(|_| panic!("{name}={text}: expected a whole number")))
}

/// Seeds in ascending order. Each is printed when it is taken, so that a failure can be repeated.
///
/// `SILTSTONE_SEED` is the first one, and `SILTSTONE_SEEDS` their number, which is 1 without it: all of these
/// are tried. Without either of them they begin with 1.
#[derive(Debug)]
pub struct Seeds {
    next: u64,
    end: u64,
    /// Limit of the time; `None` where all seeds are tried.
    budget: Option<Budget>,
}

impl Seeds {
    /// At most `most` seeds, as many as fit into these shares of the [budget](crate::budget).
    ///
    /// # Panics
    /// A variable of the environment is no whole number.
    pub fn within(shares: u32, most: u64) -> Self {
        Seeds::asked().unwrap_or_else(|| Seeds { next: 1, end: 1 + most, budget: Some(Budget::of(shares)) })
    }

    /// A fixed number of seeds.
    ///
    /// # Panics
    /// A variable of the environment is no whole number.
    pub fn of(count: u64) -> Self {
        Seeds::asked().unwrap_or(Seeds { next: 1, end: 1 + count, budget: None })
    }

    /// Seeds that the environment names.
    fn asked() -> Option<Self> {
        let (first, count) = (from_environment("SILTSTONE_SEED"), from_environment("SILTSTONE_SEEDS"));
        let next = first.unwrap_or(1);
        (first.is_some() || count.is_some()).then(|| Seeds {
            next,
            end: next.saturating_add(count.unwrap_or(1)),
            budget: None,
        })
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let seed = self.next;
        let is_allowed = |budget: &Budget| budget.allows_more(self.end - 1);
        if seed == self.end || !self.budget.as_ref().is_none_or(is_allowed) {
            return None;
        }
        println!("SILTSTONE_SEED={seed}");
        self.next += 1;
        Some(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_those_of_the_budget_or_of_the_environment() {
        // The environment belongs to all tests of the process, so only its absence is tested.
        if Seeds::asked().is_some() {
            return;
        }
        assert_eq!(Seeds::of(3).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(Seeds::of(0).next(), None);
        let budget = Some(Budget::unlimited());
        assert_eq!(Seeds { next: 1, end: 4, budget }.collect::<Vec<_>>(), [1, 2, 3]);
    }
}
