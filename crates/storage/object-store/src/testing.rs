//! A store on simulated sockets: objects with conditions, listings by pages and multipart uploads, and faults
//! that are drawn for each request.
//!
//! Each request is carried out at one moment, between its last byte and its answer. The answer may be late,
//! lost, damaged or missing.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // Only tests use it, which fail by panics.

use crate::{Addressing, Config, CredentialSource, Credentials, Limits, Store};
use block::{Buffer, Data};
use runtime::net::{Address, Listener};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use tls::{ServerConfig, Stream};

/// Address of the simulated store.
pub const SERVER: &str = "10.0.0.1:80";

/// Probabilities of faults, for each request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// The request is carried out, and the connection ends without an answer.
    pub lost_answer: f64,
    /// The connection ends before the request is carried out.
    pub lost_request: f64,
    /// The request is carried out twice, and the second answer is sent.
    pub duplicate: f64,
    /// 503 SlowDown.
    pub slow_down: f64,
    /// 500 InternalError, after the request was carried out.
    pub internal: f64,
    /// The answer takes up to 20 seconds longer.
    pub late: f64,
    /// The answer's body ends early, with the connection.
    pub cut: f64,
    /// A bit of the answer's body is another one.
    pub damaged: f64,
    /// A listing shows the objects of an earlier moment.
    pub stale: f64,
}

/// A stored object.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// Contents.
    pub bytes: Vec<u8>,
    /// ETag.
    pub etag: String,
    /// Headers with metadata and the checksum.
    pub headers: Vec<(String, String)>,
}

/// A multipart upload: headers of its object, and the parts.
type Upload = (Vec<(String, String)>, BTreeMap<u64, Vec<u8>>);

/// A request.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Method.
    pub method: String,
    /// Key of the object; empty for the bucket.
    pub key: String,
    /// Query.
    pub query: Vec<(String, String)>,
    /// Headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Asked {
    /// Value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Value of a parameter of the query.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// An answer: status, headers, body.
pub struct Answer(pub u16, pub Vec<(String, String)>, pub Vec<u8>);

fn error(status: u16, code: &str) -> Answer {
    Answer(status, Vec::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes())
}

/// Answer of a test to a request; `None` for that of the store.
type Script = Box<dyn FnMut(&Asked) -> Option<Vec<u8>>>;

/// The simulated store, with one bucket.
#[derive(Default)]
pub struct Bucket {
    /// Objects by key.
    pub objects: RefCell<BTreeMap<String, Stored>>,
    /// Keys and lengths of an earlier moment.
    earlier: RefCell<Vec<(String, usize)>>,
    /// Multipart uploads.
    pub uploads: RefCell<BTreeMap<String, Upload>>,
    /// Probabilities of faults.
    pub faults: Cell<Faults>,
    /// Time that each request takes at least.
    pub latency: Cell<Duration>,
    /// Whether conditions are checked before the body is received, as a store without a lock does.
    pub checks_early: Cell<bool>,
    /// Whether pages of listings have 1000 objects, as those of S3, in place of 10.
    pub pages_are_long: Cell<bool>,
    /// Whether a connection is closed after each answer, without notice.
    pub closes: Cell<bool>,
    /// Bytes that follow the next answer 10 ms later, without a request.
    pub stray: RefCell<Vec<u8>>,
    script: RefCell<Option<Script>>,
    /// Methods and keys of all requests.
    pub asked: RefCell<Vec<(String, String)>>,
    versions: Cell<u64>,
    /// Number of open connections.
    pub connections: Cell<usize>,
}

fn chance(probability: f64) -> bool {
    probability > 0.0 && runtime::Random::new(runtime::random_u64()).chance(probability)
}

fn below(limit: u64) -> u64 {
    ((u128::from(runtime::random_u64()) * u128::from(limit)) >> 64) as u64
}

fn decoded(text: &str) -> String {
    let (mut plain, mut bytes) = (Vec::new(), text.bytes());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    String::from_utf8(plain).unwrap()
}

/// Parses a request of our own client, which is well formed; `None` if it isn't complete.
fn parse(bytes: &[u8]) -> Option<(Asked, usize)> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let text = std::str::from_utf8(&bytes[..head]).unwrap();
    let mut lines = text.lines();
    let mut words = lines.next().unwrap().split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let headers: Vec<(String, String)> =
        lines.map(|line| line.split_once(": ").unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.split('&').filter(|pair| !pair.is_empty());
    let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (decoded(name), decoded(value))).collect();
    let key = decoded(path.strip_prefix("/vol/").unwrap_or(path));
    let mut asked = Asked { method: method.to_owned(), key, query, headers, body: Vec::new() };
    let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    let end = head + 4 + length;
    asked.body = bytes.get(head + 4..end)?.to_vec();
    Some((asked, end))
}

impl Bucket {
    /// Listens with an empty bucket.
    pub fn start(faults: Faults) -> Rc<Bucket> {
        Self::start_at(SERVER, None, faults)
    }

    /// Listens at an address, in TLS with a configuration.
    pub fn start_at(address: &str, tls: Option<ServerConfig>, faults: Faults) -> Rc<Bucket> {
        let listener = Listener::bind(&address.parse::<Address>().unwrap()).unwrap();
        let bucket = Rc::new(Bucket::default());
        bucket.faults.set(faults);
        let own = bucket.clone();
        runtime::spawn(async move {
            loop {
                let socket = listener.accept().await.unwrap();
                let (own, tls) = (own.clone(), tls.clone());
                runtime::spawn(async move {
                    own.connections.set(own.connections.get() + 1);
                    if let Ok(stream) = Stream::accept(socket, tls.as_ref(), tls::HANDSHAKE_LIMIT).await {
                        let _ = own.serve(stream).await;
                    }
                    own.connections.set(own.connections.get() - 1);
                })
                .detach();
            }
        })
        .detach();
        bucket
    }

    /// Sets a script whose answers are sent in place of the store's.
    pub fn follow(&self, script: impl FnMut(&Asked) -> Option<Vec<u8>> + 'static) {
        self.script.replace(Some(Box::new(script)));
    }

    /// Number of requests of a method.
    pub fn count(&self, method: &str) -> usize {
        self.asked.borrow().iter().filter(|(known, _)| known == method).count()
    }

    /// Serves a connection until it ends.
    async fn serve(&self, stream: Stream) -> Option<()> {
        let mut bytes = Vec::new();
        loop {
            while let Some((asked, length)) = parse(&bytes) {
                bytes.drain(..length);
                self.asked.borrow_mut().push((asked.method.clone(), asked.key.clone()));
                let scripted = self.script.borrow_mut().as_mut().and_then(|script| script(&asked));
                let answer = match scripted {
                    // An empty answer sends nothing, until the client closes.
                    Some(bytes) if bytes.is_empty() => loop {
                        let (count, _) = stream.receive(Buffer::new(4096)).await;
                        count.ok().filter(|count| *count > 0)?;
                    },
                    Some(bytes) => (bytes, true),
                    None => self.answer(&asked).await?,
                };
                let (sent, _) = stream.send(Data::copy_of(&answer.0).into()).await;
                sent.ok().filter(|()| answer.1 && !self.closes.get())?;
                let stray = self.stray.take();
                if !stray.is_empty() {
                    runtime::sleep(Duration::from_millis(10)).await;
                    let (sent, _) = stream.send(Data::copy_of(&stray).into()).await;
                    sent.ok()?;
                }
            }
            let (count, buffer) = stream.receive(Buffer::new(64 << 10)).await;
            count.ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(buffer.filled());
        }
    }

    /// Carries a request out, with its faults. Returns the bytes of the answer, and whether the connection
    /// continues; `None` for no answer.
    async fn answer(&self, asked: &Asked) -> Option<(Vec<u8>, bool)> {
        let faults = self.faults.get();
        runtime::sleep(self.latency.get() + Duration::from_micros(100 + below(2000))).await;
        if chance(faults.lost_request) {
            return None;
        }
        let early = self.checks_early.get().then(|| self.condition(asked));
        if early.is_some() {
            runtime::sleep(Duration::from_millis(below(3))).await;
        }
        let mut answer = match chance(faults.slow_down) {
            true => error(503, "SlowDown"),
            false => self.carry_out(asked, early),
        };
        if chance(faults.duplicate) {
            runtime::sleep(Duration::from_millis(below(50))).await;
            answer = self.carry_out(asked, early);
        }
        if chance(faults.internal) {
            answer = error(500, "InternalError");
        }
        if chance(faults.late) {
            runtime::sleep(Duration::from_millis(below(20_000))).await;
        }
        if chance(faults.lost_answer) {
            return None;
        }
        let Answer(status, headers, mut body) = answer;
        let length = body.len();
        let (is_damaged, is_cut) = (chance(faults.damaged), chance(faults.cut));
        // Damage of an error's text, or of a listing's, isn't detectable.
        if is_damaged && length > 0 && asked.method == "GET" && status == 200 && !asked.key.is_empty() {
            body[below(length as u64) as usize] ^= 1 << below(8);
        }
        let mut text = format!("HTTP/1.1 {status} x\r\n");
        headers.iter().for_each(|(name, value)| write!(text, "{name}: {value}\r\n").unwrap());
        let is_head = asked.method == "HEAD";
        if !is_head {
            write!(text, "content-length: {length}\r\n").unwrap();
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(if is_head { &[] } else { &body });
        if is_cut {
            bytes.truncate(below(bytes.len() as u64 + 1) as usize);
        }
        Some((bytes, !is_cut))
    }

    /// Answer to a condition that isn't met.
    fn condition(&self, asked: &Asked) -> Option<u16> {
        let objects = self.objects.borrow();
        let there = objects.get(&asked.key);
        match (asked.header("if-none-match"), asked.header("if-match"), there) {
            (Some("*"), _, Some(_)) => Some(412),
            (_, Some(_), None) => Some(404),
            (_, Some(etag), Some(there)) if there.etag != etag => Some(412),
            _ => None,
        }
    }

    fn store(&self, key: &str, bytes: Vec<u8>, headers: Vec<(String, String)>) -> Answer {
        self.versions.set(self.versions.get() + 1);
        let etag = format!("\"{}\"", self.versions.get());
        if chance(0.1) {
            let listed =
                self.objects.borrow().iter().map(|(key, it)| (key.clone(), it.bytes.len())).collect();
            self.earlier.replace(listed);
        }
        self.objects.borrow_mut().insert(key.to_owned(), Stored { bytes, etag: etag.clone(), headers });
        Answer(200, vec![("etag".to_owned(), etag)], Vec::new())
    }

    /// Carries a request out. `early` is the answer to its condition, if that was checked before.
    pub fn carry_out(&self, asked: &Asked, early: Option<Option<u16>>) -> Answer {
        let key = &asked.key;
        let kept = asked
            .headers
            .iter()
            .filter(|(name, _)| name.starts_with("x-amz-meta-") || name.starts_with("x-amz-checksum-crc"));
        let kept: Vec<(String, String)> = kept.cloned().collect();
        let refused = early.unwrap_or_else(|| self.condition(asked));
        match (&*asked.method, asked.query("uploadId"), refused) {
            ("PUT", Some(upload), _) => match self.uploads.borrow_mut().get_mut(upload) {
                Some((_, parts)) => {
                    let number = asked.query("partNumber").unwrap().parse().unwrap();
                    parts.insert(number, asked.body.clone());
                    Answer(200, vec![("etag".to_owned(), format!("\"part-{number}\""))], Vec::new())
                }
                None => error(404, "NoSuchUpload"),
            },
            ("POST", Some(upload), refused) => {
                if !self.uploads.borrow().contains_key(upload) {
                    return error(404, "NoSuchUpload");
                }
                if let Some(status) = refused {
                    return error(status, "PreconditionFailed");
                }
                let (headers, parts) = self.uploads.borrow_mut().remove(upload).unwrap();
                let Answer(_, headers, _) = self.store(key, parts.into_values().flatten().collect(), headers);
                let etag = format!("<R><ETag>{}</ETag></R>", headers[0].1);
                Answer(200, Vec::new(), etag.into_bytes())
            }
            ("DELETE", Some(upload), _) => {
                self.uploads.borrow_mut().remove(upload);
                Answer(204, Vec::new(), Vec::new())
            }
            ("POST", None, _) if asked.query("uploads").is_some() => {
                let upload = format!("{:x}", runtime::random_u64());
                self.uploads.borrow_mut().insert(upload.clone(), (kept, BTreeMap::new()));
                Answer(200, Vec::new(), format!("<R><UploadId>{upload}</UploadId></R>").into_bytes())
            }
            ("POST", None, _) => {
                let text = String::from_utf8(asked.body.clone()).unwrap();
                for key in text.split("<Key>").skip(1) {
                    self.objects.borrow_mut().remove(key.split('<').next().unwrap());
                }
                Answer(200, Vec::new(), b"<DeleteResult/>".to_vec())
            }
            ("PUT", _, Some(status)) => error(status, "PreconditionFailed"),
            ("PUT", ..) => self.store(key, asked.body.clone(), kept),
            ("DELETE", ..) => {
                self.objects.borrow_mut().remove(key);
                Answer(204, Vec::new(), Vec::new())
            }
            _ if key.is_empty() => self.list(asked),
            _ => self.read(asked),
        }
    }

    fn read(&self, asked: &Asked) -> Answer {
        let objects = self.objects.borrow();
        let Some(stored) = objects.get(&asked.key) else { return error(404, "NoSuchKey") };
        let mut headers = stored.headers.clone();
        headers.push(("etag".to_owned(), stored.etag.clone()));
        if asked.method == "HEAD" {
            headers.push(("content-length".to_owned(), stored.bytes.len().to_string()));
        }
        let Some(range) = asked.header("range") else { return Answer(200, headers, stored.bytes.clone()) };
        let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        if first >= stored.bytes.len() {
            return error(416, "InvalidRange");
        }
        let last = last.min(stored.bytes.len() - 1);
        let range = format!("bytes {first}-{last}/{}", stored.bytes.len());
        headers.push(("content-range".to_owned(), range));
        Answer(206, headers, stored.bytes[first..=last].to_vec())
    }

    fn list(&self, asked: &Asked) -> Answer {
        // 10, so that short listings have several pages as well.
        let most = if self.pages_are_long.get() { 1000 } else { 10 };
        let now = self.objects.borrow().iter().map(|(key, it)| (key.clone(), it.bytes.len())).collect();
        let listed: Vec<_> =
            if chance(self.faults.get().stale) { self.earlier.borrow().clone() } else { now };
        let (prefix, from) = (asked.query("prefix").unwrap_or(""), asked.query("continuation-token"));
        let mut keys =
            listed.iter().filter(|(key, _)| key.starts_with(prefix) && from.is_none_or(|from| **key > *from));
        let page: Vec<_> = keys.by_ref().take(most).collect();
        let mut text = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", keys.next().is_some());
        for (key, length) in &page {
            write!(text, "<Contents><Key>{key}</Key><Size>{length}</Size></Contents>").unwrap();
        }
        if let Some((last, _)) = page.last() {
            write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        }
        Answer(200, Vec::new(), (text + "</ListBucketResult>").into_bytes())
    }
}

/// Configuration of a client of the simulated store.
pub fn config(limits: Limits) -> Config {
    Config {
        endpoint: format!("http://{SERVER}"),
        bucket: "vol".to_owned(),
        region: "us-east-1".to_owned(),
        addressing: Addressing::Path,
        credentials: CredentialSource::Given(Credentials::new("key", "hidden", Some("session"))),
        tls: None,
        limits,
    }
}

/// A client of the simulated store.
pub fn client(limits: Limits) -> Store {
    Store::new(config(limits)).unwrap()
}

/// Runs a test in a simulated world, whose sockets cut transfers short.
pub fn simulated<Fut: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce() -> Fut) {
    let faults = runtime::SimulatedFaults { short: 0.1, ..Default::default() };
    let simulation = runtime::Simulation::new(seed).with_faults(faults);
    runtime::simulate(simulation, test).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}
