//! Thread that writes a log, with a queue: nothing else waits for the log, for example if its disk hangs.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most messages in the queue; further ones are dropped, and counted.
const MAX_QUEUED: usize = 1024;

/// A message with its severity of syslog(3).
pub struct Message {
    pub severity: u8,
    /// With its newline.
    pub text: Vec<u8>,
}

/// The thread. It never ends.
pub struct Writer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The queue or the writing has changed.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// Messages dropped since the last one that was written.
    dropped: u64,
    is_writing: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a message, and takes it with the number of dropped ones before it.
    fn next(&self) -> (Option<Message>, u64) {
        let mut queue = self.queue();
        queue.is_writing = false;
        self.changed.notify_all();
        let is_empty = |queue: &mut Queue| queue.messages.is_empty() && queue.dropped == 0;
        let mut queue = self.changed.wait_while(queue, is_empty).unwrap_or_else(PoisonError::into_inner);
        queue.is_writing = true;
        // The queue was full when messages were dropped, so those in it come first.
        match queue.messages.pop_front() {
            Some(message) => (Some(message), 0),
            None => (None, std::mem::take(&mut queue.dropped)),
        }
    }
}

impl Writer {
    /// Starts the thread, which writes by `write`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn start(mut write: impl FnMut(&Message) + Send + 'static) -> io::Result<Writer> {
        let shared = Arc::<Shared>::default();
        let writer = Writer(shared.clone());
        let writing = move || {
            loop {
                let (message, dropped) = shared.next();
                if dropped > 0 {
                    let text = format!("{dropped} messages are missing: the log was too slow\n").into_bytes();
                    write(&Message { severity: super::WARNING, text });
                }
                if let Some(message) = message {
                    write(&message);
                }
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(writing)?;
        Ok(writer)
    }

    /// Queues a message, or drops it if the queue is full.
    pub fn send(&self, message: Message) {
        let mut queue = self.0.queue();
        match queue.messages.len() < MAX_QUEUED && queue.dropped == 0 {
            true => queue.messages.push_back(message),
            false => queue.dropped += 1,
        }
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, for at most `limit`.
    pub fn flush(&self, limit: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || queue.dropped > 0 || !queue.messages.is_empty();
        let _at_most = self.0.changed.wait_timeout_while(self.0.queue(), limit, is_busy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn nothing_waits_for_a_log_that_hangs_and_dropped_messages_are_counted() {
        let (begin, begun) = mpsc::channel();
        let (go_on, hanging) = mpsc::channel::<()>();
        let (written, all) = mpsc::channel();
        let writer = Writer::start(move |message: &Message| {
            begin.send(()).unwrap();
            // It fails once the log no longer hangs.
            let _ended = hanging.recv();
            written.send(String::from_utf8(message.text.clone()).unwrap()).unwrap();
        })
        .unwrap();
        let send =
            |number: usize| writer.send(Message { severity: 6, text: number.to_string().into_bytes() });
        send(0);
        begun.recv().unwrap();
        (1..MAX_QUEUED + 8).for_each(send);
        writer.flush(Duration::ZERO);
        assert!(all.try_recv().is_err(), "it hangs");
        drop(go_on);
        writer.flush(Duration::from_secs(60));
        let all: Vec<String> = all.try_iter().collect();
        assert_eq!(all.len(), MAX_QUEUED + 2);
        assert!(all[..=MAX_QUEUED].iter().enumerate().all(|(number, text)| *text == number.to_string()));
        assert_eq!(all[MAX_QUEUED + 1], "7 messages are missing: the log was too slow\n");
    }
}
