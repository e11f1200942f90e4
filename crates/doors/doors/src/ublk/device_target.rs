//! A device as the target of a queue's requests.

use super::protocol::{Action, parse};
use super::queue::{Done, Target};
use crate::served::export::{Export, Tally};
use crate::served::work::{self, ByteRange, Operation, Work};
use block::{Buffer, Device, Result};
use runtime::ublk_driver::RequestDescriptor;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A device for the requests of one queue.
pub(super) struct DeviceTarget<'d> {
    export: &'d Export,
    target: work::Target<'d>,
    tally: Tally,
}

impl<'d> DeviceTarget<'d> {
    /// Returns the target of the requests of a shard; `device` is the shard's handle.
    pub(super) fn new(export: &'d Export, device: &'d dyn Device, shard: usize) -> Self {
        DeviceTarget { export, target: export.target(device, shard), tally: Tally::default() }
    }
}

/// An operation in progress, and its result if it succeeds.
pub(super) struct DeviceWork<'d>(Work<'d>, i32);

impl Future for DeviceWork<'_> {
    type Output = Result<Done>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Done>> {
        let result = self.1;
        let done = Pin::new(&mut self.0).poll(context);
        done.map(|outcome| outcome.map(|data| Done { data, result, sector: 0 }))
    }
}

impl<'d> Target for DeviceTarget<'d> {
    type Operation = (Operation, ByteRange);
    type Work = DeviceWork<'d>;

    #[inline]
    fn parse(&self, request: &RequestDescriptor) -> Action<Self::Operation> {
        parse(request, self.export.geometry().bytes(), self.export.read_only)
    }

    #[inline]
    fn payload((operation, range): Self::Operation) -> Option<usize> {
        matches!(operation, Operation::Write(_)).then_some(range.length as usize)
    }

    #[inline]
    fn begin(&self, (operation, range): Self::Operation, payload: Option<Buffer>) -> DeviceWork<'d> {
        let result = match operation {
            Operation::Read | Operation::Write(_) => range.length as i32,
            _ => 0,
        };
        DeviceWork(self.target.begin(range, operation, payload), result)
    }

    #[inline]
    fn count(&mut self, (operation, range): Self::Operation) {
        self.tally.count(operation, range.length);
    }

    fn count_error(&mut self) {
        self.tally.errors += 1;
    }

    #[inline]
    fn publish(&mut self) {
        if self.tally != Tally::default() {
            self.export.counters.add(&mut self.tally);
        }
    }
}
