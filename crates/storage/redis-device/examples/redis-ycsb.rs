//! The YCSB mixes (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", 2010) on strings of a
//! server with the Redis protocol.
//!
//! Usage: redis-ycsb SOCKET load RECORDS [--value=BYTES]
//!        redis-ycsb SOCKET A|B|C|D|E|F RECORDS SECONDS [--value=BYTES] [--clients=N]
//!
//! Half of a value (default: 1024 bytes) can't be compressed. `load` writes all records. Each client
//! (default: 4) has a connection with one request at a time. Prints fio's JSON. The mixes:
//!
//! | | operations | keys |
//! |---|---|---|
//! | A | 50 % reads, 50 % updates | Zipf's law |
//! | B | 95 % reads, 5 % updates | Zipf's law |
//! | C | reads | Zipf's law |
//! | D | 95 % reads, 5 % inserts | the latest ones, by Zipf's law |
//! | E | 95 % scans of 1 to 100 records, 5 % inserts | Zipf's law |
//! | F | 50 % reads, 50 % reads followed by an update | Zipf's law |
//!
//! The exponent is 0.99. Popular keys are spread over the whole key space, except in D. A scan is an MGET of
//! consecutive numbers, since strings have no order.

use bench::peer::output::Output;
use resp::Head;
use runtime::Random;
use runtime::histogram::Histogram;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Exponent of Zipf's law.
const EXPONENT: f64 = 0.99;
/// Requests that `load` has in flight.
const PIPELINE: u64 = 64;
/// Most records of a scan.
const MAX_SCAN: u64 = 100;
/// Time without an answer after which a server is treated as dead.
const LIMIT: Duration = Duration::from_secs(60);

/// Operation that isn't a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Update,
    Insert,
    ReadAndUpdate,
}

#[derive(Debug, Clone, Copy)]
struct Mix {
    /// Share of reads, in percent.
    reads: u64,
    other: Other,
    /// Whether reads are scans.
    scans: bool,
    /// Whether the latest inserted keys are the most popular.
    latest: bool,
}

impl Mix {
    fn named(name: &str) -> Option<Mix> {
        let mix = |reads, other| Mix { reads, other, scans: false, latest: false };
        Some(match name {
            "A" => mix(50, Other::Update),
            "B" => mix(95, Other::Update),
            "C" => mix(100, Other::Update),
            "D" => Mix { latest: true, ..mix(95, Other::Insert) },
            "E" => Mix { scans: true, ..mix(95, Other::Insert) },
            "F" => mix(50, Other::ReadAndUpdate),
            _ => return None,
        })
    }
}

#[derive(Debug, Clone)]
struct Arguments {
    socket: String,
    /// Mix to run; `None` for `load`.
    mix: Option<(String, Mix)>,
    records: u64,
    seconds: u64,
    value: usize,
    clients: u64,
}

fn arguments() -> Option<Arguments> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let (options, words): (Vec<&String>, Vec<&String>) =
        given.iter().partition(|word| word.starts_with("--"));
    let (socket, name, records, seconds) = match words[..] {
        [socket, name, records] if name == "load" => (socket, name, records, "0"),
        [socket, name, records, seconds] if name != "load" => (socket, name, records, seconds.as_str()),
        _ => return None,
    };
    let mut arguments = Arguments {
        socket: socket.clone(),
        mix: Mix::named(name).map(|mix| (name.clone(), mix)),
        records: records.parse().ok().filter(|records| *records > 0)?,
        seconds: seconds.parse().ok()?,
        value: 1024,
        clients: 4,
    };
    for option in options {
        match option.split_once('=') {
            Some(("--value", bytes)) => arguments.value = bytes.parse().ok()?,
            Some(("--clients", clients)) => arguments.clients = clients.parse().ok()?,
            _ => return None,
        }
    }
    let is_known = name == "load" || arguments.mix.is_some();
    (is_known && arguments.clients > 0).then_some(arguments)
}

/// A connection.
struct Client {
    replies: BufReader<UnixStream>,
    request: Vec<u8>,
}

fn invalid(what: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what)
}

impl Client {
    fn connect(socket: &str) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Client { replies: BufReader::new(stream), request: Vec::new() })
    }

    /// Adds a request to those that are sent next.
    fn add(&mut self, words: &[&[u8]]) {
        resp::put_command(&mut self.request, words);
    }

    fn send(&mut self) -> Result<()> {
        self.replies.get_mut().write_all(&self.request)?;
        self.request.clear();
        Ok(())
    }

    /// Receives a reply. Returns its number of strings.
    fn receive(&mut self) -> Result<u64> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let head = resp::head(line.as_bytes()).map_err(|error| invalid(error.to_string()))?;
        match head.map(|(head, _)| head) {
            Some(Head::Simple(_) | Head::Bulk(None)) => Ok(0),
            Some(Head::Bulk(Some(length))) => {
                let length = length as u64 + 2;
                let copied = std::io::copy(&mut (&mut self.replies).take(length), &mut std::io::sink())?;
                if copied == length { Ok(1) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
            }
            Some(Head::Array(count)) => (0..count).map(|_| self.receive()).sum(),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Err(invalid(format!("reply {line:?}; expected OK, strings, or an array of them"))),
        }
    }

    /// Sends a request and receives its reply.
    fn call(&mut self, words: &[&[u8]]) -> Result<u64> {
        self.add(words);
        self.send()?;
        self.receive()
    }
}

/// Key of a record.
fn key(number: u64) -> Vec<u8> {
    format!("user{number:012}").into_bytes()
}

/// Writes a new value whose first half can't be compressed.
fn renew(value: &mut [u8], random: &mut Random) {
    let half = value.len() / 2;
    random.fill(&mut value[..half]);
}

/// Draws a number below `count` by Zipf's law, with 0 the most frequent: the inverse of the continuous
/// distribution.
fn zipf(random: &mut Random, count: u64) -> u64 {
    let most = (count as f64).powf(1.0 - EXPONENT) - 1.0;
    let rank = (most * random.unit() + 1.0).powf(1.0 / (1.0 - EXPONENT));
    (rank as u64 - 1).min(count - 1)
}

#[expect(clippy::disallowed_methods, reason = "this program measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn load(arguments: &Arguments) -> Result<()> {
    let mut client = Client::connect(&arguments.socket)?;
    let (mut random, mut value) = (Random::new(1), vec![b'y'; arguments.value]);
    for first in (0..arguments.records).step_by(PIPELINE as usize) {
        let numbers = first..(first + PIPELINE).min(arguments.records);
        for number in numbers.clone() {
            renew(&mut value, &mut random);
            client.add(&[b"SET", &key(number), &value]);
        }
        client.send()?;
        for _ in numbers {
            client.receive()?;
        }
    }
    Ok(())
}

/// Measurements of one client.
#[derive(Debug, Default)]
struct Measured {
    latencies: Histogram<7>,
    bytes: u64,
    /// Reads of records that weren't found.
    missing: u64,
}

/// Runs operations until the time is over. `records` is the number of records, which inserts increase.
fn run(arguments: &Arguments, mix: Mix, seed: u64, records: &AtomicU64) -> Result<Measured> {
    let mut client = Client::connect(&arguments.socket)?;
    let (mut random, mut value) = (Random::new(seed), vec![b'y'; arguments.value]);
    let mut measured = Measured::default();
    let begin = now();
    while begin.elapsed() < Duration::from_secs(arguments.seconds) {
        let count = records.load(Ordering::Relaxed);
        let rank = zipf(&mut random, count);
        let number = match mix.latest {
            true => count - 1 - rank,
            false => rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % count,
        };
        let is_read = random.below(100) < mix.reads;
        let length = if is_read && mix.scans { 1 + random.below(MAX_SCAN) } else { 1 };
        let numbers = number..(number + length).min(count);
        let wanted = numbers.end - numbers.start;
        if !is_read {
            renew(&mut value, &mut random);
        }
        let operation = now();
        let (found, transferred) = match (is_read, mix.other) {
            (true, _) if mix.scans => {
                let keys: Vec<Vec<u8>> = numbers.map(key).collect();
                let words: Vec<&[u8]> =
                    [&b"MGET"[..]].into_iter().chain(keys.iter().map(Vec::as_slice)).collect();
                (client.call(&words)?, wanted)
            }
            (true, _) => (client.call(&[b"GET", &key(number)])?, 1),
            (false, Other::Insert) => {
                // A client that draws the new number before this SET completes may miss the record.
                let new = records.fetch_add(1, Ordering::Relaxed);
                client.call(&[b"SET", &key(new), &value])?;
                (wanted, 1)
            }
            (false, other) => {
                let read = match other {
                    Other::ReadAndUpdate => client.call(&[b"GET", &key(number)])?,
                    _ => wanted,
                };
                client.call(&[b"SET", &key(number), &value])?;
                (read, 1)
            }
        };
        measured.latencies.record(operation.elapsed().as_nanos() as u64);
        measured.bytes += transferred * arguments.value as u64;
        measured.missing += if mix.other == Other::Insert { 0 } else { wanted - found };
    }
    Ok(measured)
}

fn measure(arguments: &Arguments, name: &str, mix: Mix) -> Result<()> {
    let records = AtomicU64::new(arguments.records);
    let begin = now();
    let clients: Vec<Result<Measured>> = std::thread::scope(|scope| {
        let client = |seed| {
            let records = &records;
            scope.spawn(move || run(arguments, mix, seed, records))
        };
        let clients: Vec<_> = (1..=arguments.clients).map(client).collect();
        clients.into_iter().map(|client| client.join().expect("a client doesn't panic")).collect()
    });
    let time = begin.elapsed();
    let mut all = Measured::default();
    for measured in clients {
        let measured = measured?;
        all.latencies.merge(&measured.latencies);
        all.bytes += measured.bytes;
        all.missing += measured.missing;
    }
    if all.missing > 0 {
        return Err(invalid(format!(
            "{} records aren't there; expected those that `load` has written",
            all.missing
        )));
    }
    let output = Output {
        name: &format!("redis-ycsb {name}"),
        writes: false,
        latencies: &all.latencies,
        bytes: all.bytes,
        time,
        cpu: runtime::process_cpu_time(),
        wall: time,
        failed: false,
    };
    println!("{}", serde_json::json!({ "jobs": [output.job()] }));
    Ok(())
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("redis-ycsb SOCKET load RECORDS [--value=BYTES]");
        eprintln!("redis-ycsb SOCKET A|B|C|D|E|F RECORDS SECONDS [--value=BYTES] [--clients=N]");
        return ExitCode::from(2);
    };
    let outcome = match &arguments.mix {
        None => load(&arguments),
        Some((name, mix)) => measure(&arguments, name, *mix),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redis-ycsb: {}: {error}", arguments.socket);
            ExitCode::FAILURE
        }
    }
}
