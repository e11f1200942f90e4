//! Opening: the log is read, the origin's last writer is compared with the one that the fast device knows,
//! and only then the origin is claimed.
//!
//! 1. The log is read. Nothing is written, neither on the fast device nor at the origin.
//! 2. The origin's last claim must be one of this cache: its token has the cache's identity, and a number of
//!    claims that the fast device has noted. Another writer's claim is refused ([`check_writer`]), unless
//!    the operator names it.
//! 3. The number of the next claim is noted durably. A claim whose answer is lost, or that arrives late, is
//!    known at the next start.
//! 4. The origin is claimed, on condition that the claim of step 2 is still its last one.
//! 5. Its zones are compared with the log, and the epoch begins.

use crate::core::Core;
use crate::format::{Action, Superblock};
use crate::layout::Layout;
use crate::pending::PendingList;
use crate::recovery::{self, NewCache, ReadLog, Recovered};
use crate::settings::Options;
use crate::superblock;
use block::{Claim, ClaimToken, Device, Error, Result, ZoneGeometry, Zones, ZonesPart};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;
use zones::record::Identity;

/// Opens or creates the cache, and claims the origin.
///
/// # Errors
/// Errors of both; [`Error::Busy`] for an origin that another writer has claimed.
pub async fn open(
    fast: &dyn Device,
    origin: &dyn ZonesPart,
    geometry: &ZoneGeometry,
    options: &Options,
) -> Result<(Recovered, Rc<dyn Zones>)> {
    if options.format {
        return create(fast, origin, geometry, options, None).await;
    }
    if options.new_fast && superblock::is_empty(fast).await? {
        let created = create(fast, origin, geometry, options, None).await?;
        tracing::warn!(
            "the write cache of zones begins with an empty fast device: users continue with the state that was durable at \
             the origin; appends, flushes and resets that only the former fast device had are lost, up to the limit \
             max_lag of its stack"
        );
        return Ok(created);
    }
    let mut found = recovery::read(fast, geometry, options).await?;
    let last = origin.last_claim().await?;
    let unsent = Unsent::of(&found.pending);
    if check_writer(last.as_ref(), &found.superblock, &unsent, options.take_over)? == LastWriter::Named {
        let created = create(fast, origin, geometry, options, Some(&found.superblock)).await?;
        tracing::warn!(
            "the write cache of zones has claimed its origin from another writer, as take_over permits: users continue with that \
             writer's state, and what only this fast device had is discarded: {unsent}"
        );
        return Ok(created);
    }
    let claim = match last {
        None => None,
        Some(_) => {
            let token = token(&mut found, fast).await?;
            origin.claim(token).await?
        }
    };
    let zones = origin.open().await?;
    let reports = Core::origin_reports(&*zones).await?;
    Ok((found.begin(fast, &reports, claim.as_ref()).await?, zones))
}

/// Token of the next claim, whose number is made durable on the fast device first.
async fn token(found: &mut ReadLog, fast: &dyn Device) -> Result<ClaimToken> {
    let count = found.begin_claim(fast).await?;
    Ok(ClaimToken { owner: found.superblock.identity.uuid.into_bytes(), count })
}

/// Creates the cache over the present state of the origin, which is claimed. `former` is the superblock of
/// the cache on the fast device, which stays readable until the new one is complete.
async fn create(
    fast: &dyn Device,
    origin: &dyn ZonesPart,
    geometry: &ZoneGeometry,
    options: &Options,
    former: Option<&Superblock>,
) -> Result<(Recovered, Rc<dyn Zones>)> {
    // A device that doesn't fit is refused before the claim, which would fence the origin's writer.
    Layout::for_device(fast.geometry(), geometry, options.max_lag.bytes, options.read_cache)?;
    let identity = Identity::draw();
    // The device gets this identity after the claim. A crash between them leaves the former cache, and the
    // next start needs `take_over` or `new_fast` again.
    let claim = origin.claim(ClaimToken { owner: identity.uuid.into_bytes(), count: 1 }).await?;
    let zones = origin.open().await?;
    let reports = Core::origin_reports(&*zones).await?;
    let new = NewCache { identity, claim: claim.as_ref(), former };
    recovery::format(fast, geometry, &reports, options, &new).await?;
    let found = recovery::read(fast, geometry, options).await?;
    Ok((found.begin(fast, &reports, claim.as_ref()).await?, zones))
}

/// Changes that only a fast device has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Appends, finishes and resets.
    changes: usize,
    /// Bytes of the appends.
    bytes: u64,
    /// Age of the oldest change.
    age: Duration,
}

impl Unsent {
    /// Changes among the pending operations, at the present time.
    pub fn of(pending: &PendingList) -> Self {
        let is_change = |action| matches!(action, Action::Append | Action::Finish | Action::Reset);
        let mut changes = pending.iter().filter(|pending| is_change(pending.entry.action)).peekable();
        let now = runtime::wall_clock().as_millis() as u64;
        let oldest = changes.peek().map_or(now, |oldest| oldest.written);
        Unsent {
            age: Duration::from_millis(now.saturating_sub(oldest)),
            changes: changes.count(),
            bytes: pending.bytes(),
        }
    }

    /// Whether everything was uploaded.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }
}

impl fmt::Display for Unsent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unsent { changes, bytes, age } = self;
        match changes {
            0 => write!(formatter, "nothing, as everything was uploaded"),
            _ => write!(
                formatter,
                "{changes} changes with {bytes} bytes, the oldest {:.1} s old",
                age.as_secs_f64()
            ),
        }
    }
}

/// Result of the comparison of writers.
#[derive(Debug, PartialEq, Eq)]
pub enum LastWriter {
    /// The last writer of the origin is this cache.
    Own,
    /// The last claim is another writer's, and the operator has named it: the cache is created again over
    /// that writer's state.
    Named,
}

/// Compares the last claim of the origin with those that the fast device knows. `take_over` is the claim that
/// the operator names.
///
/// # Errors
/// [`Error::Busy`] with both writers for another one's claim.
pub fn check_writer(
    last: Option<&Claim>,
    known: &Superblock,
    unsent: &Unsent,
    take_over: Option<u64>,
) -> Result<LastWriter> {
    let Some(last) = last else { return Ok(LastWriter::Own) };
    let is_ours = |token: &ClaimToken| token.owner == known.identity.uuid.into_bytes();
    let ours = last.token.filter(is_ours);
    // A device of a version without claims, and an origin whose last writer had no token either.
    let is_older = known.claims == 0 && last.token.is_none();
    if is_older || ours.is_some_and(|token| token.count <= known.claims) {
        return Ok(LastWriter::Own);
    }
    if take_over == Some(last.number) {
        return Ok(LastWriter::Named);
    }
    let now = runtime::wall_clock().as_millis() as u64;
    let ago = now.saturating_sub(last.time) / 1000;
    let (writer, number) = (last.writer.escape_debug(), last.number);
    let known = match known.claim {
        0 => "this fast device, which never had it".to_owned(),
        claim => format!("claim {claim} by \"{}\", which this fast device knows", known.writer),
    };
    let found = match ours {
        // The current device has changes that this one lacks.
        Some(_) => "this is an older copy of the fast device: the origin was used with a later one, by",
        None => "the origin has another writer:",
    };
    Err(Error::busy(format!(
        "{found} \"{writer}\" with claim {number}, made {ago} s ago, after {known}; nothing was changed; only on this fast \
         device: {unsent}; use the origin there, or stop that writer, and open once with take_over={number} here, which \
         discards what only this fast device has"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Position, WriterName};

    fn superblock(claims: u64, claim: u64) -> Superblock {
        Superblock {
            block_size: 4096,
            identity: Identity { uuid: zones::on_device::format::Uuid::from_bytes([1; 16]), key: 2 },
            sequence: 0,
            zones: 4,
            zone_capacity: 1 << 20,
            ring: 1 << 24,
            epoch: 3,
            first_of_epoch: 1,
            checkpoint: 0,
            checkpoint_at: Position::default(),
            tail: Position::default(),
            durable: 0,
            clean: true,
            claims,
            claim,
            writer: WriterName::new("here, process 1"),
        }
    }

    fn claim(number: u64, token: Option<(u8, u64)>) -> Claim {
        let token = token.map(|(owner, count)| ClaimToken { owner: [owner; 16], count });
        Claim { number, writer: "there, process 2".to_owned(), time: 0, token }
    }

    /// Outcome for a cache that has begun 5 claims, and knows claim 7 as its last one.
    fn outcome(last: Option<Claim>, take_over: Option<u64>) -> Result<LastWriter> {
        let unsent = Unsent { changes: 3, bytes: 12_288, age: Duration::from_millis(3200) };
        let main = move || async move { check_writer(last.as_ref(), &superblock(5, 7), &unsent, take_over) };
        runtime::simulate(runtime::Simulation::new(1), main).expect("it ends").value
    }

    #[test]
    fn own_claims_are_known_by_their_token_with_and_without_an_answer() {
        assert_eq!(outcome(None, None), Ok(LastWriter::Own), "an origin without claims");
        for (number, count) in [(7, 5), (7, 4), (8, 5), (9, 1)] {
            assert_eq!(outcome(Some(claim(number, Some((1, count)))), None), Ok(LastWriter::Own));
            assert_eq!(outcome(Some(claim(number, Some((1, count)))), Some(number)), Ok(LastWriter::Own));
        }
    }

    #[test]
    fn another_writer_is_refused_unless_the_operator_names_its_claim() {
        for (token, what) in [
            (None, "the origin has another writer"),
            (Some((2, 1)), "the origin has another writer"),
            (Some((1, 6)), "an older copy of the fast device"),
        ] {
            for take_over in [None, Some(7), Some(9)] {
                let error = outcome(Some(claim(8, token)), take_over).expect_err("it is another's");
                assert!(matches!(error, Error::Busy(_)), "{error}");
                for said in [what, "there, process 2", "here, process 1", "claim 8", "claim 7", "take_over=8"]
                {
                    assert!(error.detail().contains(said), "{said}: {error}");
                }
                assert!(
                    error.detail().contains("3 changes with 12288 bytes, the oldest 3.2 s old"),
                    "{error}"
                );
            }
            assert_eq!(outcome(Some(claim(8, token)), Some(8)), Ok(LastWriter::Named));
        }
    }
}
