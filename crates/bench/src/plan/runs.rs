//! The list of what a plan runs, in order.
//!
//! Repetitions are interleaved: within one, every workload is done by all its subjects one right after the
//! other, so that a pair meets the machine in the same state; and from one repetition to the next the order of
//! the subjects turns round, so that nobody is always the first. Where a matrix has one setup, each subject does all
//! of its points before the next subject begins.

use super::{Filling, Plan, RateShare, StackSubject, Workload};
use crate::job::{Amount, BlockSizes, Job, PerDirection, ReadWrite};
use crate::peer::Peer;

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Writes a stack from start to end, so that reads meet data. Not measured.
    Fill,
    /// Finds the rate that a workload's `rate_iops` is a share of. Not part of the results.
    Calibration,
    /// A measurement.
    Measured,
}

/// Who runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Subject<'a> {
    /// A stack, by our engine.
    Stack(&'a StackSubject),
    /// A peer.
    Peer(&'a Peer),
}

impl Subject<'_> {
    /// Its name in the plan.
    pub fn name(&self) -> &str {
        match self {
            Subject::Stack(stack) => &stack.name,
            Subject::Peer(peer) => &peer.name,
        }
    }

    /// Whether it is somebody else's, whatever measures it.
    pub fn is_peer(&self) -> bool {
        match self {
            Subject::Stack(stack) => !stack.ours,
            Subject::Peer(peer) => !peer.ours,
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<'a> {
    /// What it is for.
    pub role: Role,
    /// Who runs.
    pub subject: Subject<'a>,
    /// The workload's name.
    pub workload: String,
    /// What is done. Where `rate_share` is set, [`RateShare::apply`] gives the job that is done.
    pub job: Job,
    /// Which repetition, from 1; 0 where nothing is measured.
    pub repetition: u32,
    /// Whether it goes on with what the run before it has built.
    pub continues: bool,
    /// The share of the rate that the [`Role::Calibration`] run of the same workload has found.
    pub rate_share: Option<RateShare>,
}

impl Run<'_> {
    /// Subject, workload and repetition in one word.
    pub fn name(&self) -> String {
        let subject = self.subject.name();
        match self.role {
            Role::Fill => format!("{subject}/fill"),
            Role::Calibration => format!("{subject}/{}/calibration", self.workload),
            Role::Measured => format!("{subject}/{}/{}", self.workload, self.repetition),
        }
    }
}

/// How a stack is filled: large sequential writes.
fn fill_job() -> Job {
    let mut job = Job::new("fill");
    job.rw = ReadWrite::Write;
    job.block_size = PerDirection::all(BlockSizes::fixed(1 << 20));
    job.iodepth = 8;
    job.size = Some(Amount::Percent(100));
    job
}

impl Plan {
    /// Everything that is to be run, in order.
    pub fn runs(&self) -> Vec<Run<'_>> {
        let filled = self.stacks.iter().filter(|stack| stack.fill != Filling::No);
        let mut runs: Vec<Run<'_>> = filled
            .map(|stack| Run {
                role: Role::Fill,
                subject: Subject::Stack(stack),
                workload: "fill".into(),
                job: fill_job(),
                repetition: 0,
                continues: false,
                rate_share: None,
            })
            .collect();
        runs.extend(self.workloads.iter().filter_map(|workload| {
            let share = workload.rate_share.as_ref()?;
            Some(Run {
                role: Role::Calibration,
                subject: self.subject(&share.of)?,
                workload: workload.name.clone(),
                job: workload.job.clone(),
                repetition: 0,
                continues: false,
                rate_share: None,
            })
        }));
        let most = self.workloads.iter().map(|workload| workload.repetitions).max().unwrap_or(0);
        for repetition in 1..=most {
            let due: Vec<&Workload> =
                self.workloads.iter().filter(|workload| repetition <= workload.repetitions).collect();
            for group in due.chunk_by(|one, next| one.one_setup && one.section == next.section) {
                let mut subjects: Vec<_> =
                    group[0].subjects.iter().filter_map(|name| self.subject(name)).collect();
                if repetition % 2 == 0 {
                    subjects.reverse();
                }
                for subject in subjects {
                    runs.extend(group.iter().enumerate().map(|(index, workload)| Run {
                        role: Role::Measured,
                        subject,
                        workload: workload.name.clone(),
                        job: workload.job.clone(),
                        repetition,
                        continues: index > 0 && matches!(subject, Subject::Stack(_)),
                        rate_share: workload.rate_share.clone(),
                    }));
                }
            }
        }
        runs
    }

    fn subject(&self, name: &str) -> Option<Subject<'_>> {
        let stack = self.stacks.iter().find(|stack| stack.name == name).map(Subject::Stack);
        stack.or_else(|| self.peers.iter().find(|peer| peer.name == name).map(Subject::Peer))
    }
}
