//! A client that writes and flushes until its server is killed, and remembers which data must survive.
//!
//! At most one write to a block is in flight at any time. The model of the simulated worlds decides which
//! contents are legal.

use super::raw_client::{Command, RawClient, request};
use super::server::Server;
use crate::worlds::{Model, Stop, stamped, version_of};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a block, in bytes.
const BLOCK: usize = 4096;
/// Requests in flight.
const DEPTH: usize = 16;
const FORCE_UNIT_ACCESS: u16 = 1;

/// Promises that a server made for an export.
#[derive(Debug)]
pub struct Promised {
    model: Model,
    /// Number of writes that were sent.
    pub writes: u64,
    /// Number of flushes that were acknowledged.
    pub flushes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Sent {
    Write { block: u64, operation: usize, durable: bool },
    Flush { began: u64 },
}

impl Promised {
    /// Model of an export of `blocks` blocks of 4096 bytes, all zeros.
    pub fn new(blocks: u64) -> Self {
        Promised { model: Model::new(blocks, false), writes: 0, flushes: 0 }
    }

    fn bytes(&self) -> u64 {
        self.model.len() * BLOCK as u64
    }

    /// Writes and flushes until the server is killed, which happens after 200 to `most` more replies.
    ///
    /// # Panics
    /// If the server doesn't answer as it must.
    pub fn work_until_killed(&mut self, server: &mut Server, random: &mut runtime::Random, most: u64) {
        let client = RawClient::open(&server.socket).expect("a ready server answers");
        assert_eq!(client.size, self.bytes(), "the size of the export");
        let (after, done) = (200 + random.below(most), AtomicU64::new(0));
        let process = &mut server.process;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                process.wait_until("there were enough replies", |_| done.load(Ordering::Relaxed) >= after);
                process.signal(Signal::KILL);
            });
            let broken = self.work(client, random, &done, || false);
            broken.expect_err("the connection breaks when the server is killed");
        });
        assert!(!server.process.wait().success(), "the server was killed");
    }

    /// Writes and flushes until `is_over` returns true, and waits for all replies. None of them is an error.
    ///
    /// # Panics
    /// If the server doesn't answer as it must.
    pub fn work_until(&mut self, server: &Server, random: &mut runtime::Random, is_over: impl Fn() -> bool) {
        let client = RawClient::open(&server.socket).expect("a ready server answers");
        assert_eq!(client.size, self.bytes(), "the size of the export");
        let done = AtomicU64::new(0);
        self.work(client, random, &done, is_over).expect("no connection breaks");
    }

    /// Writes and flushes until the connection breaks, or `is_over` returns true and all replies are there.
    fn work(
        &mut self,
        mut client: RawClient,
        random: &mut runtime::Random,
        done: &AtomicU64,
        is_over: impl Fn() -> bool,
    ) -> io::Result<()> {
        let mut in_flight: BTreeMap<u64, Sent> = BTreeMap::new();
        for cookie in 1.. {
            if is_over() {
                while !in_flight.is_empty() {
                    self.receive(&mut client, &mut in_flight, done)?;
                }
                break;
            }
            while in_flight.len() >= DEPTH {
                self.receive(&mut client, &mut in_flight, done)?;
            }
            if random.below(12) == 0 {
                in_flight.insert(cookie, Sent::Flush { began: self.model.begin() });
                client.send(Command::Flush, cookie, 0, 0, &[])?;
                continue;
            }
            let block = random.below(self.model.len());
            let is_same = |sent: &Sent| matches!(sent, Sent::Write { block: other, .. } if *other == block);
            while in_flight.values().any(is_same) {
                self.receive(&mut client, &mut in_flight, done)?;
            }
            let (version, durable) = (self.model.draw_version(), random.below(16) == 0);
            let operation = self.model.submit(block, 1, version);
            self.writes += 1;
            in_flight.insert(cookie, Sent::Write { block, operation, durable });
            let mut bytes = request(Command::Write, cookie, block * BLOCK as u64, BLOCK as u32).to_vec();
            if durable {
                bytes[4..6].copy_from_slice(&FORCE_UNIT_ACCESS.to_be_bytes());
            }
            bytes.extend_from_slice(&stamped(BLOCK, block, 1, version));
            client.stream.write_all(&bytes)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        client: &mut RawClient,
        in_flight: &mut BTreeMap<u64, Sent>,
        done: &AtomicU64,
    ) -> io::Result<()> {
        let (error, cookie) = client.reply()?;
        assert_eq!(error, 0, "a request failed");
        match in_flight.remove(&cookie).expect("a reply to a request") {
            Sent::Write { operation, durable, .. } => self.model.completed(operation, durable),
            Sent::Flush { began } => {
                self.flushes += 1;
                self.model.flushed(began);
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the whole export: each block must hold, as a whole, contents that are legal after such a stop.
    /// The contents are durable from now on, since the end of a process loses no page of the kernel's.
    ///
    /// # Errors
    /// The first block whose contents aren't legal.
    ///
    /// # Panics
    /// If the server doesn't answer as it must.
    pub fn check(&mut self, server: &Server, stop: Stop) -> Result<(), String> {
        let mut client = RawClient::open(&server.socket).expect("a ready server answers");
        assert_eq!(client.size, self.bytes(), "the size of the export");
        let mut found = Vec::new();
        for block in 0..self.model.len() {
            let bytes = client.read(block * BLOCK as u64, BLOCK as u32).expect("a block is read");
            found.push(version_of(block, &bytes)?);
        }
        self.model.check_stopped(&found, stop)?;
        self.model.restart(&found);
        Ok(())
    }
}
