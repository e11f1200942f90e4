//! Batches for several shards: one record that is a member of the streams of all of them, so that after a
//! crash either all of the batch is there or nothing.
//!
//! The home writes them; a batch may be conditional on the absence of all its keys. Each shard first writes
//! earlier acknowledged writes, and holds its slots of the gate until the record has taken effect on all
//! shards. A snapshot of all shards is taken between two such batches.

use crate::batch::Batch;
use crate::core::snapshot::Snapshot;
use crate::core::{Core, WRITE_CLASS};
use crate::log_entry::{KvEntry, Part, encode_parts};
use crate::settings::Acknowledge;
use crate::tree::manifest::write_stream;
use block::Result;
use logkit::lane;
use runtime::Home;
use runtime::sync::oneshot;
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// Condition under which a batch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchCondition {
    /// Unconditional.
    Always,
    /// None of the batch's keys exists. The batch deletes no range.
    AllAbsent,
}

/// Writes of a batch by shard, in ascending order of the shards.
pub(crate) type Parts = Vec<(u16, Batch)>;

impl Core {
    /// Enters the gate for a batch of several shards, until [`leave`](super::gate::KeyGate::leave). Returns
    /// whether the batch's condition is met.
    async fn enter(self: Rc<Self>, number: u64, batch: Batch, condition: BatchCondition) -> Result<bool> {
        // Stalls before it enters: a batch in the gate delays other writes.
        self.stall(batch.only_deletes(), batch.bytes().len()).await?;
        let entered = match condition {
            BatchCondition::Always => self.gate.enter(&batch).await,
            BatchCondition::AllAbsent => self.gate.enter_alone(batch.keys().into_iter()).await,
        };
        self.gate.hold(number, entered);
        self.settle().await?;
        match condition {
            BatchCondition::Always => Ok(true),
            BatchCondition::AllAbsent => self.are_absent(&batch).await,
        }
    }

    /// Whether none of the batch's keys exists.
    async fn are_absent(&self, batch: &Batch) -> Result<bool> {
        for key in batch.keys() {
            if self.get(key, None).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes a batch of this shard if none of its keys exists; returns whether it was written.
    pub(crate) async fn write_if_absent(
        self: &Rc<Self>,
        batch: Batch,
        acknowledge: Acknowledge,
    ) -> Result<bool> {
        let entered = self.gate.enter_alone(batch.keys().into_iter()).await;
        let are_absent = self.are_absent(&batch).await?;
        if are_absent {
            self.write_entered(batch, acknowledge).await?;
        }
        drop(entered);
        self.flush_for(acknowledge).await?;
        Ok(are_absent)
    }

    /// Writes a batch of several shards; returns whether its condition was met. Runs on the home, and
    /// completes even if the caller is dropped.
    pub(crate) async fn write_cross_shard(
        self: &Rc<Self>,
        parts: Parts,
        condition: BatchCondition,
    ) -> Result<bool> {
        let (permit, number) = self.gate.begin_batch().await;
        let (sender, mut receiver) = oneshot();
        let core = self.clone();
        let task = async move {
            let outcome = core.write_cross_shard_entered(number, parts, condition).await;
            drop(permit);
            // A dropped caller needs no result.
            let _gone = sender.send(outcome);
        };
        self.kit.tasks.spawn(task).detach();
        receiver.receive().await.unwrap_or_else(|| Err(block::Error::closed("the store is closed")))
    }

    async fn write_cross_shard_entered(
        self: &Rc<Self>,
        number: u64,
        parts: Parts,
        condition: BatchCondition,
    ) -> Result<bool> {
        let mut outcome = Ok(true);
        for (shard, batch) in &parts {
            let batch = batch.clone();
            let enter = move |core: Rc<Core>| core.enter(number, batch, condition);
            outcome = self.peers.at(*shard).with(enter).await;
            if outcome != Ok(true) {
                break;
            }
        }
        if outcome == Ok(true) {
            let frees = parts.iter().all(|(_, batch)| batch.only_deletes());
            let append = async || self.append_cross_shard(&parts, frees).await;
            outcome = self.until_there_is_space(frees, append).await.map(|()| true);
        }
        for (shard, _) in &parts {
            let leave = move |core: Rc<Core>| async move {
                // The record may not have been committed on that shard yet.
                lane::commit(&*core, write_stream(core.peers.shard));
                core.gate.leave(number);
                // A batch that wasn't written no longer counts.
                core.note_unwritten(0);
                Ok(())
            };
            let left = self.peers.at(*shard).with(leave).await;
            outcome = outcome.and_then(|is_met| left.map(|()| is_met));
        }
        outcome
    }

    async fn append_cross_shard(&self, parts: &Parts, frees: bool) -> Result<()> {
        self.check_open()?;
        self.submit();
        let all = parts.iter().map(|(shard, batch)| Part { shard: *shard, bytes: batch.bytes() });
        let others = parts
            .iter()
            .map(|(shard, _)| *shard)
            .filter(|shard| *shard != self.peers.shard)
            .map(write_stream);
        let others: SmallVec<[_; 1]> = others.collect();
        let body = encode_parts(all);
        // The batch must fit into one record.
        let layout = &self.kit.layout;
        let most = (layout.max_append - 1).min(layout.zone_blocks - layout.zone_blocks / 8) as usize
            * layout.block_bytes();
        if body.len() > most {
            return Err(block::Error::invalid(format!(
                "writes of {} bytes of keys and values that take effect together on several shards; expected up to {most} bytes: divide them, or \
                 write each key by itself",
                body.len()
            )));
        }
        if !frees {
            // Batches of other clients were admitted beside this one.
            self.admit_puts(body.len()).await?;
            self.check_open()?;
        }
        let request = self.commit.requests.begin(1, None);
        let requests = SmallVec::from_slice(&[request]);
        self.commit.pushed(body.len() as u64);
        let log_entry = KvEntry::writes(body, others, requests, false, layout.block_bytes()).freeing(frees);
        lane::push(self, WRITE_CLASS, log_entry);
        self.kit.events.work.notify_one();
        self.commit.requests.wait(request).await
    }

    /// Takes a snapshot of all shards. Runs on the home, and completes even if the caller is dropped; the
    /// snapshot is then released.
    pub(crate) async fn take_snapshot(self: Rc<Self>, homes: Arc<[Home<Core>]>) -> Result<Snapshot> {
        let task = async move {
            // Excludes batches of several shards meanwhile.
            let _alone = self.gate.exclude_batches().await;
            let mut snapshot = Snapshot::of(homes.clone());
            for home in homes.iter() {
                let hold = |core: Rc<Core>| async move {
                    let sequence = core.buffers.sequence();
                    core.tables.snapshots.hold(sequence);
                    Ok(sequence)
                };
                snapshot.add(home.with(hold).await?);
            }
            Ok(snapshot)
        };
        runtime::spawn(task).await
    }
}
