//! Ordered list of the runs of a plan.
//!
//! Repetitions are interleaved: within a repetition, all subjects run a workload one right after the other,
//! so that the state of the machine is the same for a pair. The order of the subjects rotates from one
//! repetition to the next, so that each one is first. If a matrix has one setup, each subject runs all of its
//! points before the next subject begins.

use super::{Filling, Plan, RateShare, StackSubject, Workload};
use crate::job::{Amount, BlockSizes, Job, PerDirection, ReadWrite};
use crate::peer::Peer;

/// Purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Writes a stack from start to end, so that reads find data. Not measured.
    Fill,
    /// Measures the rate of which a workload's `rate_iops` is a share. Not part of the results.
    Calibration,
    /// A measurement.
    Measured,
}

/// Subject of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Subject<'a> {
    /// A stack, run by the engine.
    Stack(&'a StackSubject),
    /// A peer.
    Peer(&'a Peer),
}

impl Subject<'_> {
    /// Name in the plan.
    pub fn name(&self) -> &str {
        match self {
            Subject::Stack(stack) => &stack.name,
            Subject::Peer(peer) => &peer.name,
        }
    }

    /// Whether the measured program isn't part of Siltstone.
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
    /// Purpose.
    pub role: Role,
    /// Subject.
    pub subject: Subject<'a>,
    /// Name of the workload.
    pub workload: String,
    /// Job to run. With `rate_share`, [`RateShare::apply`] returns the actual job.
    pub job: Job,
    /// Number of the repetition, from 1; 0 for runs without a measurement.
    pub repetition: u32,
    /// Whether the run uses the stack that the previous run has built.
    pub continues: bool,
    /// Share of the rate that the [`Role::Calibration`] run of the same workload has measured.
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

/// Job that fills a stack: large sequential writes.
fn fill_job() -> Job {
    let mut job = Job::new("fill");
    job.rw = ReadWrite::Write;
    job.block_size = PerDirection::all(BlockSizes::fixed(1 << 20));
    job.iodepth = 8;
    job.size = Some(Amount::Percent(100));
    job
}

impl Plan {
    /// Returns all runs, in order.
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
