//! One hardware queue on its shard: fetches requests, carries them out on the device, and commits their results.
//!
//! One task drives all tags of the queue, without an allocation or a task per request. A tag is either in the kernel, by a command that
//! waits for its next request, or in the device's hands; a commit is the command that waits for the next request. Data is copied between
//! the request and buffers of the shard (UBLK_F_USER_COPY). So the memory of a queue is bounded by its depth and the largest request.

use super::protocol::{Action, parse};
use crate::served::export::{Export, Tally};
use crate::served::in_flight::InFlight;
use crate::served::work::{Operation, Target, Work};
use block::{Buffer, Call, Data, Device, Error, Result};
use runtime::sync::StopToken;
use runtime::ublk_driver::{self, QueueCommand};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Result of the last command of a tag, when the device is stopped.
const ABORT: i32 = -libc::ENODEV;

enum State<'d> {
    Fetching(QueueCommand),
    Working(Work<'d>, Operation, u64),
}

/// A tag and what it waits for.
struct Tag<'d> {
    tag: u16,
    state: State<'d>,
}

enum Ended {
    Fetched(u16, i32),
    Worked(u16, Operation, u64, Result<Option<Data>>),
}

impl Future for Tag<'_> {
    type Output = Ended;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let tag = self.tag;
        match &mut self.state {
            State::Fetching(command) => {
                Pin::new(command).poll(context).map(|result| Ended::Fetched(tag, result))
            }
            State::Working(work, operation, bytes) => {
                let (operation, bytes) = (*operation, *bytes);
                Pin::new(work).poll(context).map(|outcome| Ended::Worked(tag, operation, bytes, outcome))
            }
        }
    }
}

/// A queue that has fetched, or is about to.
pub(super) struct Queue<'d> {
    queue: ublk_driver::Queue,
    target: Target<'d>,
    export: &'d Export,
    in_flight: InFlight<Tag<'d>>,
    /// Tags to go on with in this turn; empty between turns.
    ended: Vec<Ended>,
    /// Number of requests in the device's hands.
    working: usize,
    /// Whether fetched requests are left to another server.
    leaving: bool,
    /// Error of a command.
    failure: Option<Error>,
    tally: Tally,
}

impl<'d> Queue<'d> {
    /// Begins to fetch requests for every tag.
    pub(super) fn new(
        queue: ublk_driver::Queue,
        export: &'d Export,
        device: &'d dyn Device,
        shard: usize,
    ) -> Self {
        let depth = queue.depth();
        let mut this = Queue {
            queue,
            target: export.target(device, shard),
            export,
            in_flight: InFlight::new(),
            ended: Vec::with_capacity(depth.into()),
            working: 0,
            leaving: false,
            failure: None,
            tally: Tally::default(),
        };
        (0..depth).for_each(|tag| {
            let command = this.queue.fetch(tag);
            this.wait(tag, command);
        });
        // The device starts when all tags of all queues wait.
        runtime::submit_now();
        this
    }

    /// Returns the error of a command that the kernel has refused so far.
    pub(super) fn take_failure(&mut self) -> Result<()> {
        self.collect();
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Serves the queue until the device is stopped, or until it leaves: then every request that was begun is completed, and the others
    /// wait for another server, which gets them when the shard's ring has closed.
    pub(super) async fn serve(mut self, leave: StopToken) -> Result<()> {
        let mut leaving = Some(Call::new(async move { leave.stopped().await }));
        poll_fn(|context| {
            self.in_flight.register(context.waker());
            if let Some(call) = &mut leaving
                && Pin::new(call).poll(context).is_ready()
            {
                leaving = None;
                self.leaving = true;
            }
            self.collect();
            let at_end = self.in_flight.is_empty() || self.leaving && self.working == 0;
            if at_end { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        runtime::submit_now();
        self.failure.map_or(Ok(()), Err)
    }

    fn wait(&mut self, tag: u16, command: QueueCommand) {
        self.ended.extend(self.in_flight.start(Tag { tag, state: State::Fetching(command) }));
    }

    /// Goes on with every tag whose request has arrived or ended.
    fn collect(&mut self) {
        let Queue { in_flight, ended, .. } = self;
        in_flight.collect(|output| ended.push(output));
        while let Some(output) = self.ended.pop() {
            match output {
                Ended::Fetched(tag, 0) => self.begin(tag),
                Ended::Fetched(_, ABORT) => {}
                Ended::Fetched(tag, result) => {
                    let error = std::io::Error::from_raw_os_error(-result);
                    self.failure.get_or_insert(Error::from_io(&error, &format!("a command of tag {tag}")));
                }
                Ended::Worked(tag, operation, bytes, outcome) => {
                    self.complete(tag, operation, bytes, outcome)
                }
            }
        }
        if self.tally != Tally::default() {
            self.export.counters.add(&mut self.tally);
        }
    }

    fn begin(&mut self, tag: u16) {
        if self.leaving {
            return;
        }
        let request = self.queue.request(tag);
        let (operation, range) = match parse(&request, self.export.geometry().bytes(), self.export.read_only)
        {
            Action::Answer(result) => return self.commit(tag, result),
            Action::Carry(operation, range) => (operation, range),
        };
        let payload = match operation {
            Operation::Write(_) => {
                let mut buffer = Buffer::new(range.length as usize);
                if let Err(error) = self.queue.take_data(tag, &mut buffer) {
                    return self.fail(tag, &error);
                }
                Some(buffer)
            }
            _ => None,
        };
        let work = self.target.begin(range, operation, payload);
        self.working += 1;
        let state = State::Working(work, operation, range.length);
        self.ended.extend(self.in_flight.start(Tag { tag, state }));
    }

    fn complete(&mut self, tag: u16, operation: Operation, bytes: u64, outcome: Result<Option<Data>>) {
        self.working -= 1;
        self.tally.count(operation, bytes);
        let given = outcome.and_then(|data| data.map_or(Ok(()), |data| self.queue.give_data(tag, &data)));
        match given {
            Ok(()) if matches!(operation, Operation::Read | Operation::Write(_)) => {
                self.commit(tag, bytes as i32)
            }
            Ok(()) => self.commit(tag, 0),
            Err(error) => self.fail(tag, &error),
        }
    }

    fn fail(&mut self, tag: u16, error: &Error) {
        tracing::debug!("a request of the kernel: {error}");
        self.commit(tag, -error.errno());
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.tally.errors += u64::from(result < 0);
        let command = self.queue.commit_and_fetch(tag, result);
        self.wait(tag, command);
    }
}
