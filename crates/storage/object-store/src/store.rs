//! The client of a bucket: signed requests, with limits, retries and hedged reads.

use crate::connection::{Request, Response};
use crate::counts::{Counts, Kind};
use crate::credentials::{CredentialSource, Credentials, Provider};
use crate::endpoint::Endpoint;
use crate::http::Method;
use crate::retry::{
    Budget, Failure, Latencies, MAX_DAMAGED_RETRIES, Retry, error_code, lacks_more_than_object, pause,
};
use crate::transport::{Transport, is_lost};
use block::{Error, Payload, Result};
use runtime::Instant;
use rusty_s3::{Bucket, UrlStyle, signing};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tls::ClientConfig;

/// Validity of a signature, in seconds: longer than a request, as the clocks of two machines differ.
const SIGNATURE_SECONDS: u64 = 900;
/// Time limit of an operation until the store has answered for the first time: until then a wrong endpoint is
/// more likely than an outage.
pub const FIRST_CONTACT: Duration = Duration::from_secs(30);
/// Longest key, in bytes.
pub const MAX_KEY: usize = 1024;

/// Form of a bucket's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// The bucket is the first part of the path: `http://host/bucket/key`.
    Path,
    /// The bucket is a part of the host's name: `http://bucket.host/key`.
    VirtualHost,
}

/// Limits of a client.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Limit of the connections. Default: 32.
    pub connections: usize,
    /// Time limit of a connection to one address, its TLS handshake included. Default: 5 s.
    pub connect: Duration,
    /// Time limit from the end of a request to the head of its response. Default: 10 s.
    pub first_byte: Duration,
    /// Time limit of one request, with the wait for a connection and for its response. Default: 60 s.
    pub request: Duration,
    /// Time limit of an operation with all retries of its request; a multipart upload has several requests.
    /// Default: 120 s. Until the store has answered for the first time, at most [`FIRST_CONTACT`].
    pub operation: Duration,
    /// Size in bytes above which an object is written by a multipart upload. Default: 64 MiB.
    pub parts_above: usize,
    /// Size of a part in bytes, at least 5 MiB. Default: 16 MiB.
    pub part: usize,
    /// Whether a slow read gets a hedged read. Default: true.
    pub hedged: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 32,
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(10),
            request: Duration::from_secs(60),
            operation: Duration::from_secs(120),
            parts_above: 64 << 20,
            part: 16 << 20,
            hedged: true,
        }
    }
}

/// Configuration of a client.
#[derive(Debug, Clone)]
pub struct Config {
    /// URL of the store, such as `http://127.0.0.1:7070`.
    pub endpoint: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Region that signatures name, such as `us-east-1`.
    pub region: String,
    /// Form of the bucket's URL.
    pub addressing: Addressing,
    /// Place of the credentials.
    pub credentials: CredentialSource,
    /// Certificates, for an endpoint in https.
    pub tls: Option<ClientConfig>,
    /// Limits.
    pub limits: Limits,
}

/// Client of a bucket on one shard. Clones are the same client.
#[derive(Clone)]
pub struct Store(pub(crate) Rc<Client>);

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Store").field(&self.0.name).finish()
    }
}

pub(crate) struct Client {
    /// URL of the bucket, for messages.
    name: String,
    bucket: Bucket,
    pub limits: Limits,
    transport: Transport,
    credentials: Provider,
    budget: Budget,
    latencies: Latencies,
    counts: RefCell<Counts>,
    /// Whether the store has answered a request.
    pub has_answered: Cell<bool>,
}

/// Check of a response.
type Check<'c> = &'c dyn Fn(&Response) -> Result<()>;

/// A request of an operation.
pub(crate) struct Call<'c> {
    pub kind: Kind,
    pub method: Method,
    /// Key of the object; empty for the bucket.
    pub key: &'c str,
    pub query: Vec<(&'static str, String)>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Payload,
    /// Largest body of a successful response, in bytes.
    pub max_body: usize,
    /// Statuses that aren't failures.
    pub expected: &'static [u16],
    /// Check of such a response; an error of the transfer is retried.
    pub check: Option<Check<'c>>,
}

impl<'c> Call<'c> {
    /// A request without headers and body, whose response has no body.
    pub fn new(kind: Kind, method: Method, key: &'c str, expected: &'static [u16]) -> Self {
        Call {
            kind,
            method,
            key,
            query: Vec::new(),
            headers: Vec::new(),
            body: Payload::new(),
            max_body: 0,
            expected,
            check: None,
        }
    }
}

/// Refuses a key that URLs, signatures or stores would change.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.!'()*".contains(&byte);
    let has_parts = key.split('/').all(|part| !matches!(part, "" | "." | ".."));
    match key.len() <= MAX_KEY && key.bytes().all(is_permitted) && has_parts {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "key \"{}\": expected 1 to {MAX_KEY} letters, digits and /-_.!'()* without empty parts, \".\" and \"..\"",
            key.escape_debug()
        ))),
    }
}

impl Store {
    /// Returns a client. Sends no request; [`probe`](Self::probe) checks the store.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid endpoint, bucket or limit.
    pub fn new(config: Config) -> Result<Store> {
        let Config { endpoint, bucket, region, addressing, credentials, tls, limits } = config;
        let mut endpoint = Endpoint::parse(&endpoint)?;
        let style = match addressing {
            Addressing::Path => UrlStyle::Path,
            Addressing::VirtualHost => UrlStyle::VirtualHost,
        };
        if !(5 << 20..=5 << 30).contains(&limits.part) || limits.parts_above < limits.part {
            return Err(Error::invalid(format!(
                "parts of {} bytes above {}: expected parts of 5 MiB to 5 GiB, in objects that are larger",
                limits.part, limits.parts_above
            )));
        }
        let is_named = !bucket.is_empty() && check_key(&bucket).is_ok() && !bucket.contains('/');
        let bucket = match is_named.then(|| Bucket::new(endpoint.url.clone(), style, bucket.clone(), region))
        {
            Some(Ok(bucket)) => bucket,
            _ => return Err(Error::invalid(format!("bucket \"{bucket}\": expected the name of a bucket"))),
        };
        if addressing == Addressing::VirtualHost {
            endpoint = Endpoint::parse(bucket.base_url().as_str())?;
        }
        let name = bucket.base_url().as_str().trim_end_matches('/').to_owned();
        let transport = Transport::new(endpoint, tls, limits.connections, limits.connect)?;
        Ok(Store(Rc::new(Client {
            name,
            bucket,
            limits,
            transport,
            credentials: Provider::new(credentials),
            budget: Budget::new(),
            latencies: Latencies::default(),
            counts: RefCell::default(),
            has_answered: Cell::new(false),
        })))
    }

    /// URL of the bucket, for messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        Counts { connections: self.0.transport.opened.get(), ..*self.0.counts.borrow() }
    }
}

impl Client {
    /// An error with the store's name and the request before its text.
    pub fn explain(&self, call: &Call<'_>, error: &Error) -> Error {
        let key = if call.key.is_empty() { "(bucket)" } else { call.key };
        error.in_context(format!("object store \"{}\": {} {key}", self.name, call.method.name()))
    }

    /// An error of the whole store.
    pub fn refuse(&self, what: fmt::Arguments<'_>) -> Error {
        Error::unsupported(format!("object store \"{}\": {what}", self.name))
    }

    pub fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.counts.borrow_mut());
    }

    /// Sends a request, again after failures that may pass, until the limit of an operation.
    ///
    /// # Errors
    /// The last failure, with the number of attempts. The store may have carried out the request.
    pub async fn call(&self, call: &Call<'_>) -> Result<Response> {
        let limit = match self.has_answered.get() {
            true => self.limits.operation,
            false => self.limits.operation.min(FIRST_CONTACT),
        };
        let end = runtime::now() + limit;
        let (mut attempts, mut damaged, mut earlier) = (0, 0, None);
        loop {
            attempts += 1;
            let left = end - runtime::now();
            let whole = self.limits.request.min(left);
            let outcome = match call.kind {
                Kind::Get if self.limits.hedged => self.hedged(call, whole).await,
                _ => self.attempt(call, whole, &Cell::new(None)).await,
            };
            let failure = match outcome {
                Ok(response) => {
                    self.budget.earn();
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            // An attempt that the operation's limit cut short says nothing about the store.
            let failure = match earlier.take() {
                Some(earlier) if whole == left && matches!(failure.error, Error::TimedOut(_)) => earlier,
                _ => failure,
            };
            damaged += u32::from(failure.retry == Retry::Damaged);
            match self.next_attempt(&failure, attempts, damaged, (limit, end)) {
                Ok(pause) => {
                    runtime::sleep(pause).await;
                    earlier = Some(failure);
                }
                Err(reason) => {
                    let error = self.explain(call, &failure.error);
                    return Err(match (attempts, failure.retry) {
                        (1, Retry::Never) => error,
                        _ => error.with_detail(format!("{}; attempts: {attempts}, {reason}", error.detail())),
                    });
                }
            }
        }
    }

    /// Pause before the next attempt after a failure, or the reason why there is none. `damaged` is the
    /// number of attempts that failed by damaged bytes. Their retries take nothing of the budget: they say
    /// nothing about the load of the store.
    fn next_attempt(
        &self,
        failure: &Failure,
        attempts: u32,
        damaged: u32,
        (limit, end): (Duration, Instant),
    ) -> Result<Duration, String> {
        if failure.retry == Retry::Never {
            return Err("the last one can't be retried".to_owned());
        }
        let pause = pause(attempts, failure.retry);
        if runtime::now() + pause >= end {
            let contact = match self.has_answered.get() {
                true => "",
                false => ", and it has never answered; check the endpoint, and start the store",
            };
            return Err(format!("within {limit:?}{contact}"));
        }
        if failure.retry == Retry::Damaged {
            if damaged > MAX_DAMAGED_RETRIES {
                return Err(format!("{damaged} of them with damaged bytes"));
            }
        } else if !self.budget.take() {
            return Err(format!(
                "the retry budget of {} is used up, as the store fails most requests",
                Budget::MAX_RETRIES
            ));
        }
        self.count(|counts| counts.retries += 1);
        Ok(pause)
    }

    /// Sends a request once, within `whole`. `first_byte` gets the time to the head of its response.
    pub async fn attempt(
        &self,
        call: &Call<'_>,
        whole: Duration,
        first_byte: &Cell<Option<Duration>>,
    ) -> Result<Response, Failure> {
        let outcome = runtime::timeout(whole, self.attempt_now(call, first_byte)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            let text = format!("no complete response within {whole:?}");
            Err(Failure { error: Error::timed_out(text), retry: Retry::Again })
        });
        if let Err(failure) = &outcome {
            self.count(|counts| {
                counts.timeouts += u64::from(matches!(failure.error, Error::TimedOut(_)));
                counts.slow_downs += u64::from(failure.retry == Retry::SlowDown);
            });
        }
        outcome
    }

    async fn attempt_now(
        &self,
        call: &Call<'_>,
        first_byte: &Cell<Option<Duration>>,
    ) -> Result<Response, Failure> {
        let credentials = self.credentials.get().await.map_err(|error| {
            let may_pass = is_lost(&error) || matches!(error, Error::TimedOut(_));
            let error = match error {
                // Callers take `NotFound` for a missing object.
                Error::NotFound(text) => Error::permission_denied(text),
                error => error,
            };
            Failure { retry: if may_pass { Retry::Again } else { Retry::Never }, error }
        })?;
        let target = self.sign(call, &credentials);
        self.count(|counts| {
            counts.requests[call.kind as usize] += 1;
            counts.sent_bytes += call.body.len() as u64;
        });
        let (method, headers) = (call.method, &call.headers[..]);
        let (body, max_body) = (call.body.slice(0..call.body.len()), call.max_body);
        let request = Request { method, target: &target, headers, body, max_body };
        let sent = self.transport.send(&request, self.limits.first_byte, first_byte).await;
        let response = sent.map_err(Failure::of_transfer)?;
        self.count(|counts| counts.received_bytes += response.body.filled().len() as u64);
        self.has_answered.set(true);
        // The answer names the bucket or the user as missing, not the object.
        let lacks_more = response.head.status == 404 && lacks_more_than_object(&error_code(&response.text()));
        if !call.expected.contains(&response.head.status) || lacks_more {
            let mut failure = Failure::of_response(&response, call.method, call.kind, call.expected);
            if failure.retry == Retry::WithNewCredentials && !self.credentials.refuse(&credentials) {
                failure.retry = Retry::Never;
            }
            return Err(failure);
        }
        match call.check.map_or(Ok(()), |check| check(&response)) {
            Ok(()) => Ok(response),
            Err(error) => Err(Failure::of_transfer(error)),
        }
    }

    /// Path and query of a signed request (AWS Signature Version 4, in the query). They aren't shown: the
    /// signature is valid for a while.
    fn sign(&self, call: &Call<'_>, credentials: &Credentials) -> String {
        fn sorted<'a>(pairs: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
            let mut pairs: Vec<_> = pairs.iter().map(|(name, value)| (*name, &**value)).collect();
            pairs.sort_unstable();
            pairs
        }
        let (query, headers) = (sorted(&call.query), sorted(&call.headers));
        let url = match call.key {
            "" => self.bucket.base_url().clone(),
            key => self.bucket.object_url(key),
        };
        let seconds = i64::try_from(runtime::wall_clock().as_secs()).unwrap_or_default();
        let signed = signing::sign(
            &jiff::Timestamp::from_second(seconds).unwrap_or_default(),
            call.method.to_signed(),
            url,
            &credentials.key,
            &credentials.secret,
            credentials.token.as_ref().map(|token| &***token),
            self.bucket.region(),
            SIGNATURE_SECONDS,
            query.iter().copied(),
            headers.iter().copied(),
        );
        format!("{}?{}", signed.path(), signed.query().unwrap_or_default())
    }

    /// As [`attempt`](Self::attempt), for a read: if its first byte takes longer than that of most others, a
    /// hedged read begins, and the first success of the two is the result. The other one's connection is
    /// closed.
    async fn hedged(&self, call: &Call<'_>, whole: Duration) -> Result<Response, Failure> {
        let (first_byte, second_byte) = (Cell::new(None), Cell::new(None));
        let (is_hedged, mut failed) = (Cell::new(false), None);
        let mut first = pin!(self.attempt(call, whole, &first_byte));
        let mut second = pin!(async {
            match self.latencies.delay() {
                Some(delay) => runtime::sleep(delay).await,
                None => std::future::pending().await,
            }
            let is_slow = first_byte.get().is_none() && self.transport.has_free_connection();
            if !is_slow || !self.latencies.take_hedge() {
                return std::future::pending().await;
            }
            is_hedged.set(true);
            self.count(|counts| counts.hedges += 1);
            self.attempt(call, whole, &second_byte).await
        });
        let mut has_failed_second = false;
        let (outcome, is_second) = std::future::poll_fn(|context| {
            if failed.is_none() {
                match first.as_mut().poll(context) {
                    Poll::Ready(Err(failure)) if is_hedged.get() && !has_failed_second => {
                        failed = Some(failure)
                    }
                    Poll::Ready(outcome) => return Poll::Ready((outcome, false)),
                    Poll::Pending => {}
                }
            }
            if has_failed_second {
                return Poll::Pending;
            }
            match second.as_mut().poll(context) {
                Poll::Ready(Ok(response)) => Poll::Ready((Ok(response), true)),
                Poll::Ready(Err(_)) => {
                    has_failed_second = true;
                    // The first one may still succeed.
                    failed.take().map_or(Poll::Pending, |failure| Poll::Ready((Err(failure), false)))
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        self.count(|counts| counts.hedge_wins += u64::from(is_second));
        if let Some(time) = first_byte.get().or(second_byte.get()) {
            self.latencies.record(time);
        }
        outcome
    }
}

impl Method {
    fn to_signed(self) -> rusty_s3::Method {
        match self {
            Method::Get => rusty_s3::Method::Get,
            Method::Head => rusty_s3::Method::Head,
            Method::Put => rusty_s3::Method::Put,
            Method::Post => rusty_s3::Method::Post,
            Method::Delete => rusty_s3::Method::Delete,
        }
    }
}
