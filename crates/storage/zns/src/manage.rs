//! Openings, closings, finishes, resets, flushes and the clean stop: operations that own a zone or wait for
//! its programs.

use crate::drive::{Access, Drive, lock};
use crate::machine::{Command, State, ZoneStatus};
use crate::profile::Finish;
use block::{Buffer, Data, Durability, EraseGuarantee, Error, Result, ZoneIndex};
use runtime::Random;
use runtime::file::File;
use std::sync::atomic::Ordering;

/// Bytes of one write when a zone of a file is erased.
const ERASE_STEP: u64 = 1 << 20;

impl Drive {
    /// Opens an empty zone: erases its stale cells, draws a key, and records on the medium that the zone is
    /// begun.
    pub(crate) async fn begin(&self, access: &Access, zone: ZoneIndex, explicit: bool) -> Result<()> {
        let stale = {
            let mut guard = self.lock_unowned(zone, access.epoch).await?;
            if guard.machine.state != State::Empty {
                return Ok(());
            }
            let mut resources = lock(&self.resources);
            let opened = guard.machine.apply(Command::Open, self.lengths(), &mut resources);
            if let Err(status) = opened {
                return Err(self.refusal(zone, &guard, status, 0, None));
            }
            drop(resources);
            if !explicit {
                guard.machine.state = State::ImplicitlyOpened;
            }
            guard.owned = true;
            guard.stale
        };
        let began = async {
            let key = self.draw_key().await?;
            if stale {
                self.erase(access, zone, false).await?;
            }
            {
                let mut guard = self.slot(zone).lock();
                self.check_alive(access.epoch)?;
                (guard.key, guard.begun) = (key, self.clock());
                if access.file.is_none() && guard.cells.capacity() == 0 {
                    guard.cells.reserve_exact(self.geometry.zone_capacity as usize);
                }
            }
            self.write_header(access, zone).await
        };
        let began = began.await;
        if let Err(error) = &began {
            self.interrupt(zone, access.epoch, error);
        }
        self.release(zone, access.epoch);
        began
    }

    async fn draw_key(&self) -> Result<[u8; 32]> {
        let mut key = [0; 32];
        if !lock(&self.superblock).encrypted {
            return Ok(key);
        }
        if runtime::is_simulated() {
            Random::new(runtime::random_u64()).fill(&mut key);
            return Ok(key);
        }
        let source = File::open("/dev/urandom".as_ref(), runtime::file::OpenOptions::default()).await?;
        let (read, bytes) = source.read_exact_at(0, Buffer::new(32)).await;
        read?;
        key.copy_from_slice(bytes.filled());
        Ok(key)
    }

    /// Erases the blocks of a zone that the caller owns. With `wipe` a file's bytes are overwritten;
    /// otherwise they are deallocated.
    async fn erase(&self, access: &Access, index: ZoneIndex, wipe: bool) -> Result<()> {
        let (deadline, failed) = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let zone = &mut *guard;
            let now = self.now();
            let (mut deadline, mut failed) = (now, None);
            let mut timing = lock(&self.timing);
            timing.schedule.advance(now);
            for lane in 0..self.layout.lanes {
                let die = self.layout.die(index.0, lane);
                let block = &mut zone.blocks[lane as usize];
                block.erases += 1;
                block.reads = 0;
                if self.timed {
                    deadline = deadline.max(timing.schedule.erase(&self.profile, die, now).1);
                }
                let row = self.layout.place(index.0, 0).block;
                let worn = block.erases > zone.last_erases[lane as usize]
                    && !self.reliability.fails_in_program(die, row);
                if worn || (self.faults.erase > 0.0 && timing.random.chance(self.faults.erase)) {
                    block.failed = true;
                    failed = Some(format!(
                        "block {row} of die {die} failed to erase after {} erases",
                        block.erases
                    ));
                }
            }
            drop(timing);
            self.counters.erases.fetch_add(u64::from(self.layout.lanes), Ordering::Relaxed);
            zone.erasing = Some((now, deadline));
            if let Some(why) = &failed {
                self.fail_zone(zone, State::Offline, why.clone());
            }
            (deadline, failed)
        };
        if let Some(why) = failed {
            self.write_header(access, index).await?;
            return Err(Error::io(format!("erasing zone {index}: {why}; the zone is offline")));
        }
        self.until(deadline).await;
        let request = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            guard.erasing = None;
            guard.cells.fill(0xFF);
            guard.cells.clear();
            self.request()
        };
        if let Some(file) = &access.file {
            self.erase_file(file, index, wipe).await?;
        }
        drop(request);
        let mut guard = self.slot(index).lock();
        self.check_alive(access.epoch)?;
        guard.stale = false;
        Ok(())
    }

    async fn erase_file(&self, file: &File, zone: ZoneIndex, wipe: bool) -> Result<()> {
        let (start, capacity) = (self.cells_at(zone), self.geometry.zone_capacity);
        if wipe {
            let ones = Data::copy_of(&vec![0xFF; ERASE_STEP.min(capacity) as usize]);
            let mut at = 0;
            while at < capacity {
                let length = ERASE_STEP.min(capacity - at);
                let payload = ones.slice(0..length as usize).into();
                file.write_at(start + at, payload, Durability::Visible).await?;
                at += length;
            }
            file.sync_data().await?;
        }
        file.punch_hole(start, capacity).await?;
        file.sync_data().await
    }

    pub(crate) async fn open(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        {
            let mut guard = self.lock_unowned(index, access.epoch).await?;
            if guard.interrupted {
                return Err(Self::interrupted(index, &guard));
            }
            if guard.machine.state != State::Empty {
                let mut resources = lock(&self.resources);
                let opened = guard.machine.apply(Command::Open, self.lengths(), &mut resources);
                return opened.map(drop).map_err(|status| self.refusal(index, &guard, status, 0, None));
            }
        }
        self.begin(access, index, true).await
    }

    pub(crate) async fn close(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        let mut guard = self.lock_unowned(index, access.epoch).await?;
        if guard.interrupted {
            return Err(Self::interrupted(index, &guard));
        }
        let mut resources = lock(&self.resources);
        let closed = guard.machine.apply(Command::Close, self.lengths(), &mut resources);
        closed.map(drop).map_err(|status| self.refusal(index, &guard, status, 0, None))
    }

    /// Programs the rest of a zone's buffer, and waits for all its programs.
    async fn drain(&self, access: &Access, index: ZoneIndex, pad: bool) -> Result<()> {
        let (deadline, reached) = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let zone = &mut *guard;
            let now = self.now();
            let mut timing = lock(&self.timing);
            timing.schedule.advance(now);
            let end = zone.machine.write_pointer;
            if zone.programmed < end {
                let from = zone.programmed;
                self.program(index, zone, &mut timing, from, end, now)?;
                // A partial unit is programmed again, together with its rest, when that has arrived.
                zone.programmed = if pad { end } else { end / self.layout.unit * self.layout.unit };
            }
            let mut deadline = zone.programs.iter().map(|program| program.end).max().unwrap_or(now);
            if pad && self.timed && self.profile.finish == Finish::Pad {
                let mut from = end.next_multiple_of(self.layout.unit);
                while from < self.geometry.zone_capacity {
                    let die = self.layout.place(index.0, from).die;
                    let bytes = self.layout.unit;
                    let (_, done) = timing.schedule.program(&self.profile, &self.layout, die, now, bytes);
                    deadline = deadline.max(done);
                    from += bytes;
                }
            }
            (deadline, end)
        };
        self.until(deadline).await;
        if let Some(file) = &access.file {
            let _request = self.request();
            file.sync_data().await?;
        }
        let mut guard = self.slot(index).lock();
        self.check_alive(access.epoch)?;
        guard.durable = guard.durable.max(reached);
        Ok(())
    }

    /// Makes the appends to a zone durable.
    pub(crate) async fn flush(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        {
            let guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let state = guard.machine.state;
            let is_durable = access.file.is_none() && guard.durable >= guard.machine.write_pointer;
            if matches!(state, State::Empty | State::ReadOnly | State::Offline) || guard.sealed || is_durable
            {
                return Ok(());
            }
        }
        if self.profile.protected {
            if let Some(file) = &access.file {
                let _request = self.request();
                file.sync_data().await?;
            }
            return Ok(());
        }
        self.drain(access, index, false).await
    }

    pub(crate) async fn finish(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        {
            let guard = self.lock_unowned(index, access.epoch).await?;
            match guard.machine.state {
                State::Full if guard.sealed => return Ok(()),
                State::ReadOnly | State::Offline => {
                    return Err(self.refusal(index, &guard, ZoneStatus::InvalidTransition, 0, None));
                }
                _ => {}
            }
        }
        self.own(index, access.epoch).await?;
        let finished = async {
            self.drain(access, index, true).await?;
            {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                let mut resources = lock(&self.resources);
                let done = guard.machine.apply(Command::Finish, self.lengths(), &mut resources);
                drop(resources);
                done.map_err(|status| self.refusal(index, &guard, status, 0, None))?;
                (guard.interrupted, guard.sealed, guard.trouble) = (false, true, None);
            }
            self.write_header(access, index).await
        };
        let finished = finished.await;
        if let Err(error) = &finished {
            self.slot(index).lock().sealed = false;
            self.interrupt(index, access.epoch, error);
        }
        self.release(index, access.epoch);
        finished.map_err(|error| error.in_context(format!("finishing zone {index}")))
    }

    pub(crate) async fn reset(
        &self,
        access: &Access,
        index: ZoneIndex,
        erase: EraseGuarantee,
    ) -> Result<u64> {
        if erase > self.geometry.erase {
            return Err(Error::unsupported(format!(
                "resetting zone {index} with the guarantee \"{erase}\": this drive gives at most \"{}\"; encrypted = true gives \
                 \"key\"",
                self.geometry.erase
            )));
        }
        {
            let guard = self.lock_unowned(index, access.epoch).await?;
            if matches!(guard.machine.state, State::ReadOnly | State::Offline) {
                return Err(self.refusal(index, &guard, ZoneStatus::InvalidTransition, 0, None));
            }
        }
        self.own(index, access.epoch).await?;
        let emptied = async {
            {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                guard.stale |= guard.machine.state != State::Empty;
            }
            if erase == EraseGuarantee::Erased && self.slot(index).lock().stale {
                self.erase(access, index, true).await?;
            }
            let generation = {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                let mut resources = lock(&self.resources);
                let reset = guard.machine.apply(Command::Reset, self.lengths(), &mut resources);
                drop(resources);
                reset.map_err(|status| self.refusal(index, &guard, status, 0, None))?;
                guard.emptied();
                guard.generation += 1;
                if erase >= EraseGuarantee::Erased {
                    guard.key = [0; 32];
                }
                guard.generation
            };
            self.write_header(access, index).await.map(|()| generation)
        };
        let emptied = emptied.await;
        if let Err(error) = &emptied {
            self.interrupt(index, access.epoch, error);
        }
        self.release(index, access.epoch);
        self.counters.resets.fetch_add(1, Ordering::Relaxed);
        emptied.map_err(|error| error.in_context(format!("resetting zone {index}")))
    }

    /// Makes everything durable and records a clean stop.
    pub(crate) async fn stop(&self, access: &Access) -> Result<()> {
        for index in (0..self.geometry.zones).map(ZoneIndex) {
            let (begun, touched) = {
                let guard = self.slot(index).lock();
                let active =
                    guard.machine.state.is_active() || (guard.machine.state == State::Full && !guard.sealed);
                (active, active || guard.blocks.iter().any(|block| block.reads > 0))
            };
            if !touched {
                continue;
            }
            if begun {
                self.own(index, access.epoch).await?;
                let drained = self.drain(access, index, false).await;
                {
                    let mut guard = self.slot(index).lock();
                    guard.sealed |= guard.machine.state == State::Full && drained.is_ok();
                }
                self.release(index, access.epoch);
                drained?;
            }
            self.write_header(access, index).await?;
        }
        if let Some(file) = &access.file {
            self.write_superblock(file, true).await?;
        }
        self.stopped.store(true, Ordering::Release);
        Ok(())
    }
}
