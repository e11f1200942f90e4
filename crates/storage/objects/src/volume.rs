//! A volume that was found, and the writer that claims it: the first handle, a layer above with a token, or a
//! message.
//!
//! # Promises
//! - Until the claim nothing in the bucket is changed, and its writer continues.
//! - The volume is claimed once, and a claim that has begun is carried out to its end. After an error of the
//!   store the next call tries again; after any other the part has to be opened again.
//!
//! Left to others: finding and claiming (`opening`), the zones (`core`).

use crate::core::{Core, Settings};
use crate::encryption::{self, Encryption};
use crate::format::Writer;
use crate::key_store::KeyStore;
use crate::manifests::Manifests;
use crate::opening::{self, Found, Loaded, NewZones, Proof};
use crate::table::Table;
use block::{Claim, ClaimToken, Error, Result};
use runtime::Home;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Number and size of zones that an existing volume must have.
type Expected = (Option<u32>, Option<u64>);

/// Zones and keys that an existing volume must have.
pub(crate) struct Existing {
    pub zones: Expected,
    pub encryption: Option<Encryption>,
    /// The key store as it was found.
    pub secrets: Option<KeyStore>,
}

/// A volume, on its home shard.
pub(crate) struct Volume {
    manifests: Manifests,
    writer: String,
    existing: Existing,
    settings: Settings,
    /// Last epoch when it was found.
    epoch: u32,
    /// Zones of the volume, or those to create.
    pub zones: NewZones,
    /// Zones to create.
    new: Option<NewZones>,
    state: RefCell<ClaimState>,
    /// Whether changes are to become durable in order.
    is_ordered: Cell<bool>,
    changed: Notify,
}

enum ClaimState {
    Found(Box<Found>),
    /// A claim is in flight.
    Claiming,
    Claimed(Home<Core>, Claim),
    /// The claim failed. If only the way to the store did, the next call tries again; else the part has to be
    /// opened again.
    Failed(Error),
}

/// Refuses a table of other zones than the keys of a stack have.
pub(crate) fn check_expected(expected: (Option<u32>, Option<u64>), table: &Table) -> Result<()> {
    let found = (table.zones.len() as u32, table.zone_size);
    let (zones, size) = (expected.0.unwrap_or(found.0), expected.1.unwrap_or(found.1));
    match (zones, size) == found {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "zones and zone_size: the stack has {zones} zones of {size} bytes; expected {} zones of {} bytes, as the volume in the \
             bucket has: correct zones, size and zone_size or leave them out, or replace the volume by --format",
            found.0, found.1
        ))),
    }
}

impl Existing {
    /// Refuses a volume of other zones or keys than expected.
    fn check(&self, loaded: &Loaded, proof: Proof, settings: &Settings) -> Result<()> {
        let table = &loaded.table;
        check_expected(self.zones, table)?;
        settings.geometry(table.zones.len() as u32, table.zone_size)?;
        let Some(secrets) = &self.secrets else { return Ok(()) };
        secrets.check_volume(&loaded.manifest.volume, table)?;
        if proof == Proof::Fenced { secrets.check_age(table) } else { Ok(()) }
    }
}

/// Whether an error is of the way to the store or of its answer, not of what is there.
fn is_of_store(error: &Error) -> bool {
    matches!(error, Error::Io(_) | Error::TimedOut(_) | Error::Disconnected(_))
}

impl Volume {
    /// Finds a volume, or prepares to create one, and changes nothing.
    ///
    /// # Errors
    /// As [`opening::find`]; [`Error::Invalid`] for other zones than expected.
    pub async fn find(
        manifests: Manifests,
        writer: String,
        format: Option<NewZones>,
        existing: Existing,
        settings: Settings,
    ) -> Result<Rc<Volume>> {
        let check = |loaded: &Loaded, proof| existing.check(loaded, proof, &settings);
        let found = opening::find(&manifests, format, &check).await?;
        Ok(Rc::new(Volume {
            manifests,
            writer,
            existing,
            settings,
            epoch: found.epoch,
            zones: found.zones,
            new: format,
            state: RefCell::new(ClaimState::Found(Box::new(found))),
            is_ordered: Cell::new(false),
            changed: Notify::new(),
        }))
    }

    /// Zones of the writer; `None` before the claim.
    pub fn core(&self) -> Option<Rc<Core>> {
        match &*self.state.borrow() {
            ClaimState::Claimed(core, _) => core.get().ok(),
            _ => None,
        }
    }

    fn is_found(&self) -> bool {
        matches!(&*self.state.borrow(), ClaimState::Found(_))
    }

    /// Error of a claim that failed.
    pub fn failure(&self) -> Option<Error> {
        match &*self.state.borrow() {
            ClaimState::Failed(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Number of the last epoch that was found.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the last claim: the one that was found, or its own.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged one; errors of the store.
    pub async fn last_claim(self: Rc<Self>) -> Result<Option<Claim>> {
        if let ClaimState::Claimed(_, claim) = &*self.state.borrow() {
            return Ok(Some(claim.clone()));
        }
        opening::last_claim(&self.manifests, self.epoch).await
    }

    /// Claims the volume with a token.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is claimed already, or another writer was faster; errors of the store.
    pub async fn claim(self: Rc<Self>, token: ClaimToken) -> Result<Claim> {
        if !self.is_found() {
            return Err(Error::busy(format!(
                "the volume below the prefix \"{}\" of the bucket \"{}\" is claimed already by this program, as epoch {}; expected a \
                 claim before its first use: open it again",
                self.manifests.names.prefix(),
                self.manifests.store.name(),
                self.epoch.saturating_add(1)
            )));
        }
        self.get_or_claim(Some(token)).await.map(|(_, claim)| claim)
    }

    /// Returns the zones of this writer, which claims the volume if it hasn't yet. A claim that has begun is
    /// carried out to its end.
    ///
    /// # Errors
    /// Errors of the claim.
    pub async fn get_or_claim(self: Rc<Self>, token: Option<ClaimToken>) -> Result<(Home<Core>, Claim)> {
        loop {
            let begun = {
                let mut state = self.state.borrow_mut();
                match std::mem::replace(&mut *state, ClaimState::Claiming) {
                    ClaimState::Found(found) => Some(Some(*found)),
                    ClaimState::Claiming => None,
                    ClaimState::Claimed(core, claim) => {
                        *state = ClaimState::Claimed(core.clone(), claim.clone());
                        return Ok((core, claim));
                    }
                    ClaimState::Failed(error) if is_of_store(&error) => Some(None),
                    ClaimState::Failed(error) => {
                        *state = ClaimState::Failed(error.clone());
                        return Err(error);
                    }
                }
            };
            match begun {
                Some(found) => {
                    let own = self.clone();
                    runtime::carry(async move { own.run_claim(found, token).await }).await;
                    if let Some(error) = self.failure() {
                        return Err(error);
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Makes changes durable in the order in which they begin, from now on.
    pub fn keep_order(&self) -> bool {
        self.is_ordered.set(true);
        if let ClaimState::Claimed(core, _) = &*self.state.borrow() {
            return core.get().map(|core| core.keep_order()).is_ok();
        }
        true
    }

    /// Claims the volume as it was `found`; `None` looks at it again first.
    async fn run_claim(self: Rc<Self>, found: Option<Found>, token: Option<ClaimToken>) {
        let claimed = self.open_found(found, token).await;
        let state = match claimed {
            Ok((core, claim)) => {
                if self.is_ordered.get() {
                    core.keep_order();
                }
                ClaimState::Claimed(Home::here(core), claim)
            }
            Err(error) => ClaimState::Failed(error),
        };
        self.state.replace(state);
        self.changed.notify_all();
    }

    async fn open_found(&self, found: Option<Found>, token: Option<ClaimToken>) -> Result<(Rc<Core>, Claim)> {
        let writer = Writer::new(self.writer.clone());
        let check = |loaded: &Loaded, proof| self.existing.check(loaded, proof, &self.settings);
        let found = match found {
            Some(found) => found,
            None => opening::find(&self.manifests, self.new, &check).await?,
        };
        let opened = opening::claim_found(&self.manifests, found, writer, token, &check).await?;
        if opened.was_unclean {
            tracing::info!("zones in an object store: opened after an unclean stop of their writer");
        }
        let claim = opened.claim.clone();
        let (volume, encryption) = (opened.identity.volume, self.existing.encryption.as_ref());
        let secrets = encryption::complete(encryption, self.new.is_some(), volume, &opened.table).await?;
        Ok((Core::new(self.manifests.clone(), self.settings, opened, secrets.map(Rc::new))?, claim))
    }

    /// Returns the zones to close; `None` if nothing was claimed. A volume to format is created, unless
    /// another one is there: that one is replaced only for a user.
    ///
    /// # Errors
    /// Errors of creating it.
    pub async fn core_to_close(self: Rc<Self>) -> Result<Option<Home<Core>>> {
        match self.failure() {
            Some(_) => Ok(None),
            None if self.is_found() && !(self.new.is_some() && self.epoch == 0) => {
                if self.new.is_some() {
                    tracing::warn!(
                        "zones in an object store: the volume there wasn't replaced, since nothing opened the new one"
                    );
                }
                Ok(None)
            }
            None => self.get_or_claim(None).await.map(|(core, _)| Some(core)),
        }
    }
}
