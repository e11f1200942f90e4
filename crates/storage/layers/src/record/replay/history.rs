//! Operations of one device of a timeline.

use crate::record::format::{Content, Submission};
use crate::record::timeline::{EventKind, Timeline};
use block::{DeviceGeometry, Durability, Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// An operation that changes data.
#[derive(Debug)]
pub struct Operation {
    /// Event of the submission.
    pub submitted: u64,
    /// Event of the completion, if there is one.
    pub completed: Option<u64>,
    /// Whether the operation completed without error.
    pub succeeded: bool,
    /// Bytes of the device that the operation changes.
    pub range: Range<u64>,
    /// Whether FUA is set.
    pub durable: bool,
    /// Written data; `None` for zeros.
    content: Option<Content>,
}

impl Operation {
    /// Whether this operation completed before the other one was submitted.
    pub fn is_before(&self, other: &Operation) -> bool {
        self.completed.is_some_and(|completed| completed < other.submitted)
    }

    /// Whether the operation writes zeros or discards.
    pub fn is_zeros(&self) -> bool {
        self.content.is_none()
    }

    /// Copies the operation's bytes at `offset` of the device to `target`; the operation covers all of them.
    pub fn copy_to(&self, offset: u64, target: &mut [u8]) {
        match &self.content {
            Some(content) => content.copy_to(offset - self.range.start, target),
            None => target.fill(0),
        }
    }
}

/// Effect of one event on the device.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Submit(usize),
    Complete(usize),
    /// Completion of a flush that began with this event.
    Flushed {
        began: u64,
    },
}

/// Operations of one device.
#[derive(Debug)]
pub struct History {
    geometry: DeviceGeometry,
    /// Operations in the order of submission.
    pub(super) operations: Vec<Operation>,
    pub(super) steps: Vec<(u64, Step)>,
    events: u64,
}

impl History {
    /// Creates the history of this device of the timeline.
    ///
    /// # Errors
    /// [`Error::NotFound`] or [`Error::Invalid`] if the timeline has no such device.
    pub fn new(timeline: &Timeline, device: u16) -> Result<Arc<Self>> {
        let geometry = timeline.device_geometry(device)?.clone();
        let mut history = History {
            geometry,
            operations: Vec::new(),
            steps: Vec::new(),
            events: timeline.events.len() as u64,
        };
        // Operations and flushes in flight, by the event of submission.
        let mut open: BTreeMap<u64, Option<usize>> = BTreeMap::new();
        for (sequence, event) in timeline.events.iter().enumerate() {
            let sequence = sequence as u64;
            match &event.what {
                _ if event.device != device => {}
                EventKind::Submitted(Submission::Read { .. }) => {}
                EventKind::Submitted(submission) => {
                    let index = history.submit(sequence, submission);
                    open.insert(sequence, index);
                }
                EventKind::Completed(completion) => {
                    let succeeded = completion.errno == 0;
                    match open.remove(&completion.submitted) {
                        Some(Some(index)) => {
                            history.operations[index].completed = Some(sequence);
                            history.operations[index].succeeded = succeeded;
                            history.steps.push((sequence, Step::Complete(index)));
                        }
                        Some(None) if succeeded => {
                            history.steps.push((sequence, Step::Flushed { began: completion.submitted }));
                        }
                        _ => {}
                    }
                }
                EventKind::Joined | EventKind::Ended => {}
            }
        }
        Ok(Arc::new(history))
    }

    fn submit(&mut self, sequence: u64, submission: &Submission) -> Option<usize> {
        let (offset, length, durability, content) = match submission {
            Submission::Write { offset, content, durability } => {
                (*offset, content.len(), *durability, Some(content.clone()))
            }
            Submission::WriteZeroes { offset, length, durability, .. } => {
                (*offset, *length, *durability, None)
            }
            Submission::Discard { offset, length } => (*offset, *length, Durability::Visible, None),
            _ => return None,
        };
        let index = self.operations.len();
        self.operations.push(Operation {
            submitted: sequence,
            completed: None,
            succeeded: false,
            range: offset..offset + length,
            durable: durability == Durability::Durable,
            content,
        });
        self.steps.push((sequence, Step::Submit(index)));
        Some(index)
    }

    /// Returns the geometry of the device.
    pub fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    /// Returns the operations that change data, in the order of submission.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Number of events of the whole timeline, which is the last cut.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Checks that a cut is in range.
    pub(super) fn check_cut(&self, cut: u64) -> Result<()> {
        if cut > self.events {
            return Err(Error::invalid(format!("cut {cut}: out of range; expected 0..={}", self.events)));
        }
        Ok(())
    }
}
