//! One hardware queue on its shard: fetches requests, executes them on a device or on zones, and commits
//! their results.
//!
//! One task drives all tags of the queue, without an allocation or a task per request. A tag is either in the
//! kernel, with a command that waits for its next request, or in the target; a commit is also the command
//! that waits for the next request. Data is copied between the request and buffers of the shard
//! (UBLK_F_USER_COPY). So the memory of a queue is bounded by its depth and the largest request.

use super::protocol::Action;
use crate::served::in_flight::InFlight;
use block::{Buffer, Call, Data, Error, Result};
use runtime::sync::StopToken;
use runtime::ublk_driver::{self, QueueCommand, RequestDescriptor};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Result of the last command of a tag, when the device is stopped.
const ABORT: i32 = -libc::ENODEV;

/// Device or zones that execute the requests of a queue.
pub(super) trait Target {
    /// Operation of a request.
    type Operation: Copy + Unpin;
    /// An operation in progress.
    type Work: Future<Output = Result<Done>> + Unpin;

    /// Parses a request.
    fn parse(&self, request: &RequestDescriptor) -> Action<Self::Operation>;

    /// Length of the data that comes with a request, in bytes; `None` for a request without data.
    fn payload(operation: Self::Operation) -> Option<usize>;

    /// Begins an operation with the data of its request.
    fn begin(&self, operation: Self::Operation, payload: Option<Buffer>) -> Self::Work;

    /// Counts an operation that has ended.
    fn count(&mut self, operation: Self::Operation);

    /// Counts an error.
    fn count_error(&mut self);

    /// Adds the counts to the totals.
    fn publish(&mut self);

    /// Error number with which a request fails.
    fn errno(error: &Error) -> i32 {
        error.errno()
    }
}

/// Answer to a request.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Data for the kernel.
    pub(super) data: Option<Data>,
    /// Number of bytes that were read or written; 0 for other operations.
    pub(super) result: i32,
    /// Sector of a zone append; 0 for other operations.
    pub(super) sector: u64,
}

enum State<T: Target> {
    Fetching(QueueCommand),
    Working(T::Work, T::Operation),
}

/// A tag and the operation or command that it waits for.
struct Tag<T: Target> {
    tag: u16,
    state: State<T>,
}

enum Ended<T: Target> {
    Fetched(u16, i32),
    Worked(u16, T::Operation, Result<Done>),
}

impl<T: Target> Future for Tag<T> {
    type Output = Ended<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended<T>> {
        let tag = self.tag;
        match &mut self.state {
            State::Fetching(command) => {
                Pin::new(command).poll(context).map(|result| Ended::Fetched(tag, result))
            }
            State::Working(work, operation) => {
                let operation = *operation;
                Pin::new(work).poll(context).map(|outcome| Ended::Worked(tag, operation, outcome))
            }
        }
    }
}

/// A queue whose fetches have been submitted, or are about to be.
pub(super) struct Queue<T: Target> {
    queue: ublk_driver::Queue,
    target: T,
    in_flight: InFlight<Tag<T>>,
    /// Tags that continue in this turn; empty between turns.
    ended: Vec<Ended<T>>,
    /// Number of requests in the target.
    working: usize,
    /// Whether fetched requests are left to another server.
    leaving: bool,
    /// Error of a command.
    failure: Option<Error>,
}

impl<T: Target> Queue<T> {
    /// Begins to fetch requests for every tag.
    pub(super) fn new(queue: ublk_driver::Queue, target: T) -> Self {
        let depth = queue.depth();
        let mut this = Queue {
            queue,
            target,
            in_flight: InFlight::new(),
            ended: Vec::with_capacity(depth.into()),
            working: 0,
            leaving: false,
            failure: None,
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

    /// Serves the queue until the device is stopped, or until it leaves: then every request that was begun is
    /// completed, and the others wait for another server, which gets them when the shard's ring has closed.
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

    /// Continues with every tag whose request has arrived or ended.
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
                Ended::Worked(tag, operation, outcome) => self.complete(tag, operation, outcome),
            }
        }
        self.target.publish();
    }

    fn begin(&mut self, tag: u16) {
        if self.leaving {
            return;
        }
        let request = self.queue.request(tag);
        let operation = match self.target.parse(&request) {
            Action::Answer(result) => return self.commit(tag, result, 0),
            Action::Carry(operation) => operation,
        };
        let payload = match T::payload(operation) {
            Some(length) => {
                let mut buffer = Buffer::new(length);
                if let Err(error) = self.queue.take_data(tag, &mut buffer) {
                    return self.fail(tag, &error);
                }
                Some(buffer)
            }
            None => None,
        };
        let work = self.target.begin(operation, payload);
        self.working += 1;
        let state = State::Working(work, operation);
        self.ended.extend(self.in_flight.start(Tag { tag, state }));
    }

    fn complete(&mut self, tag: u16, operation: T::Operation, outcome: Result<Done>) {
        self.working -= 1;
        self.target.count(operation);
        let given = outcome.and_then(|Done { data, result, sector }| {
            data.map_or(Ok(()), |data| self.queue.give_data(tag, &data)).map(|()| (result, sector))
        });
        match given {
            Ok((result, sector)) => self.commit(tag, result, sector),
            Err(error) => self.fail(tag, &error),
        }
    }

    fn fail(&mut self, tag: u16, error: &Error) {
        tracing::debug!("a request of the kernel: {error}");
        self.commit(tag, -T::errno(error), 0);
    }

    fn commit(&mut self, tag: u16, result: i32, sector: u64) {
        if result < 0 {
            self.target.count_error();
        }
        let command = self.queue.commit_and_fetch(tag, result, sector);
        self.wait(tag, command);
    }
}
