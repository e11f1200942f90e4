//! Check that the conditional writes of a store are atomic: writers race for the same object.
//!
//! A second writer is fenced by conditional writes alone. Stores that ignore a condition, or check it before
//! another write that is in flight, let two writers win; PUTs one after the other show only the first fault.

use crate::counts::Kind;
use crate::http::Method;
use crate::objects::{Condition, NONCE, condition_header, etag, new_nonce};
use crate::store::{Call, Store, check_key};
use block::{Data, Error, Result};
use std::cell::Cell;

/// Writers of a race.
pub const RACERS: usize = 16;
/// Races with each condition.
pub const RACES: usize = 3;
/// Races that may end without a result, since requests failed.
const MAX_UNDECIDED: usize = 4;

/// Outcome of a race.
enum Race {
    /// One writer won, with this ETag, and its object is there.
    Won(String),
    /// No writer got a success, and one of them may have written: answers were lost.
    Undecided(Error),
}

impl Store {
    /// Lets [`RACERS`] writers race for objects whose keys begin with `prefix`, to create and to replace
    /// them, and deletes the objects. With fewer connections fewer of them write at the same time.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a store that doesn't have exactly one winner; errors of the store.
    pub async fn probe(&self, prefix: &str) -> Result<()> {
        let mut undecided = 0;
        for _ in 0..RACES {
            let key = format!("{prefix}siltstone-probe-{}", new_nonce());
            check_key(&key)?;
            let mut condition = Condition::Absent;
            let outcome = loop {
                match self.race(&key, &condition).await {
                    Ok(Race::Won(etag)) if condition == Condition::Absent => {
                        condition = Condition::Matches(etag)
                    }
                    Ok(Race::Won(_)) => break Ok(()),
                    // The next race begins with the object of whichever writer won.
                    Ok(Race::Undecided(error)) => {
                        undecided += 1;
                        if undecided > MAX_UNDECIDED {
                            break Err(error);
                        }
                        condition = match self.head(&key).await {
                            Ok(Some(found)) => Condition::Matches(found.etag),
                            Ok(None) => Condition::Absent,
                            Err(error) => break Err(error),
                        };
                    }
                    Err(error) => break Err(error),
                }
            };
            // Without an answer of the store there may be nothing to delete.
            let deleted = match self.0.has_answered.get() {
                true => self.delete(&key).await,
                false => Ok(()),
            };
            outcome?;
            deleted?;
        }
        Ok(())
    }

    async fn race(&self, key: &str, condition: &Condition) -> Result<Race> {
        let racers: Vec<String> = (0..RACERS).map(|_| new_nonce()).collect();
        let expected = crate::objects::expected(condition);
        let writes = racers.iter().map(|nonce| async move {
            let mut call = Call::new(Kind::Put, Method::Put, key, expected);
            call.headers = vec![(NONCE, nonce.clone())];
            call.headers.extend(condition_header(condition));
            call.body = Data::copy_of(nonce.as_bytes()).into();
            call.max_body = crate::connection::MAX_ERROR_BODY;
            // Without retries, whose answers would be about their own earlier attempts.
            let sent = self.0.attempt(&call, self.0.limits.request, &Cell::new(None)).await;
            match sent {
                Ok(response) if response.head.status == 200 => etag(&response.head).map(Some),
                Ok(_) => Ok(None),
                // The store found a concurrent conditional write (409 ConditionalRequestConflict).
                Err(failure) if matches!(failure.error, Error::AlreadyExists(_)) => Ok(None),
                Err(failure) => Err(self.0.explain(&call, &failure.error)),
            }
        });
        let outcomes = runtime::join_all(writes).await;
        let wins = outcomes.iter().zip(&racers).filter_map(|(outcome, nonce)| match outcome {
            Ok(Some(etag)) => Some((etag, nonce)),
            _ => None,
        });
        let wins: Vec<_> = wins.collect();
        let failure = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
        if let ([], Some(error)) = (&wins[..], failure) {
            return Ok(Race::Undecided(error.clone()));
        }
        let found = self.head(key).await?.map(|found| found.nonce).unwrap_or_default();
        match &wins[..] {
            [(etag, nonce)] if **nonce == found => Ok(Race::Won((*etag).clone())),
            // Where a connection was lost, or a proxy sent a request twice, the answer may be that of the
            // second one.
            [] if racers.contains(&found) => Ok(Race::Undecided(self.refuse_race(condition, 0))),
            _ => Err(self.refuse_race(condition, wins.len())),
        }
    }

    /// Error of a race without exactly one winner.
    fn refuse_race(&self, condition: &Condition, wins: usize) -> Error {
        let header = condition_header(condition).map(|(name, value)| format!("{name}: {value}"));
        let header = header.unwrap_or_default();
        let what = match wins {
            1 => "1 writer won, and the object of another one is there".to_owned(),
            _ => format!("{wins} of {RACERS} writers won"),
        };
        self.0.refuse(format_args!(
            "of PUTs at the same time with {header}, {what}; expected exactly one winner: two writers of the same data would both \
             believe to be the only one, and writes that one of them acknowledged would be lost; use a store whose conditional \
             writes are atomic"
        ))
    }
}
