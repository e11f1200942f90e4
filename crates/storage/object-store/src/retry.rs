//! Retries: the failures that are retried, the pauses and the budget; the delay of hedged reads.

use crate::connection::Response;
use crate::counts::Kind;
use crate::http::Method;
use crate::xml;
use block::Error;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Longest pause before the first retry; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Shortest pause after the store has asked for fewer requests.
const MIN_SLOW_DOWN_PAUSE: Duration = Duration::from_millis(250);
/// Limit of the retries of an operation after damaged bytes: the object itself may be damaged.
pub(crate) const MAX_DAMAGED_RETRIES: u32 = 2;
/// Characters of a store's text that an error shows.
const MAX_SHOWN: usize = 200;

/// Reason for or against a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The request would fail again.
    Never,
    /// The store or the connection failed.
    Again,
    /// The store asks for fewer requests.
    SlowDown,
    /// The credentials have expired.
    WithNewCredentials,
    /// The bytes differ from their checksum: they were damaged in transfer, or in the store.
    Damaged,
}

/// Code of a store's error, such as `NoSuchKey`; empty if there is none.
pub(crate) fn error_code(text: &str) -> Cow<'_, str> {
    xml::element(text, "Code").unwrap_or_default()
}

/// Whether a response with status 404 and this code names something else than the object as missing: the
/// bucket, or the user of the access key.
pub(crate) fn lacks_more_than_object(code: &str) -> bool {
    code == "NoSuchBucket" || code.contains("User")
}

/// Advice about a refusal, as a part of its error; empty if its text says it.
fn hint(status: u16, code: &str, message: &str, kind: Kind) -> String {
    let is_of_time = message.contains("expired") || message.contains("not yet valid");
    match (status, code) {
        (300..=399, _) => "; expected the endpoint and the region of the bucket itself".to_owned(),
        (_, "RequestTimeTooSkewed") => "; set this machine's clock".to_owned(),
        // Signatures have a time limit.
        (_, "AccessDenied") if is_of_time => "; set this machine's clock".to_owned(),
        (_, "SignatureDoesNotMatch" | "InvalidAccessKeyId") => {
            "; check the access key and its secret".to_owned()
        }
        // VersityGW's word for a key that it doesn't know.
        (404, code) if code.contains("User") => "; check the access key and its secret".to_owned(),
        (404, "NoSuchBucket") => "; create the bucket, or correct its name".to_owned(),
        (401 | 403, _) => format!("; the credentials need {}", kind.permission()),
        _ => String::new(),
    }
}

/// A store's text as errors show it: at most [`MAX_SHOWN`] characters, escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect()
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: Error,
    pub retry: Retry,
}

impl Failure {
    /// Failure of the connection, or of a response that arrived damaged.
    pub fn of_transfer(error: Error) -> Failure {
        let retry = match error {
            // A further response wouldn't be valid HTTP either.
            Error::Protocol(_) | Error::Invalid(_) | Error::PermissionDenied(_) => Retry::Never,
            Error::Corrupt(_) => Retry::Damaged,
            _ => Retry::Again,
        };
        let error = match error {
            // A host without an address isn't a missing object.
            Error::NotFound(text) => Error::io(text),
            error => error,
        };
        Failure { error, retry }
    }

    /// Failure by the store's answer; `expected` are the statuses of success.
    pub fn of_response(response: &Response, method: Method, kind: Kind, expected: &[u16]) -> Failure {
        Self::of_answer(response.head.status, &response.text(), method, kind, expected)
    }

    fn of_answer(status: u16, text: &str, method: Method, kind: Kind, expected: &[u16]) -> Failure {
        let code = error_code(text);
        let message = xml::element(text, "Message").unwrap_or_default();
        let hint = hint(status, &code, &message, kind);
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        let shown = format!("status {status} {}", shown(&format!("{code} {message}")));
        // A store's sentence ends here.
        let shown = shown.trim().trim_end_matches('.');
        let text = format!("{shown}; expected {}{hint}", expected.join(" or "));
        let retry = match (status, &*code) {
            (429 | 503, _) | (_, "SlowDown") => Retry::SlowDown,
            (400 | 403, "ExpiredToken") => Retry::WithNewCredentials,
            // The answer to HEAD has no code: the credentials may have expired.
            (400 | 403, _) if method == Method::Head => Retry::WithNewCredentials,
            (408 | 500 | 502 | 504, _) => Retry::Again,
            (_, "RequestTimeout" | "InternalError" | "ConditionalRequestConflict" | "OperationAborted") => {
                Retry::Again
            }
            _ => Retry::Never,
        };
        let error = match status {
            // Callers take `NotFound` for a missing object, and look for the code of a missing bucket.
            404 if code != "NoSuchBucket" && lacks_more_than_object(&code) => Error::permission_denied(text),
            404 => Error::not_found(text),
            401 | 403 => Error::permission_denied(text),
            409 | 412 => Error::already_exists(text),
            400..500 => Error::invalid(text),
            _ => Error::io(text),
        };
        Failure { error, retry }
    }
}

/// Checks errors of any answers, for fuzzing: they are short, and one line.
///
/// # Panics
/// If a check fails.
pub(crate) fn check_any_text(text: &str) {
    let inside = format!("<Error><Code>{text}</Code><Message>{text}</Message></Error>");
    let statuses = [200, 301, 400, 403, 404, 409, 412, 416, 429, 500, 503];
    let status = statuses[text.len() % statuses.len()];
    for text in [text, &inside] {
        let failure = Failure::of_answer(status, text, Method::Get, Kind::Get, &[206]);
        let said = failure.error.detail();
        assert!(said.len() < 16 * MAX_SHOWN && !said.contains(char::is_control), "{said}");
    }
}

/// Pause before a retry after `attempts` attempts: random, so that clients that failed at the same time don't
/// retry at the same time ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015; full jitter).
pub(crate) fn pause(attempts: u32, retry: Retry) -> Duration {
    if retry == Retry::WithNewCredentials {
        return Duration::ZERO;
    }
    let longest = (FIRST_PAUSE * 2_u32.pow(attempts.saturating_sub(1).min(16))).min(MAX_PAUSE);
    let shortest = if retry == Retry::SlowDown { MIN_SLOW_DOWN_PAUSE } else { Duration::ZERO };
    shortest + longest.mul_f64(runtime::Random::new(runtime::random_u64()).unit())
}

/// Retry budget: retries are at most a tenth of the requests that succeeded, and those that were saved up.
/// Each success earns [`EARNED`](Self::EARNED) hundredths of a retry.
#[derive(Debug)]
pub(crate) struct Budget {
    hundredths: Cell<u64>,
}

impl Budget {
    /// Limit of the retries that are saved up.
    pub const MAX_RETRIES: u64 = 100;
    /// Hundredths of a retry that a success earns.
    pub const EARNED: u64 = 10;

    pub fn new() -> Self {
        Budget { hundredths: Cell::new(Self::MAX_RETRIES * 100) }
    }

    pub fn earn(&self) {
        self.hundredths.set((self.hundredths.get() + Self::EARNED).min(Self::MAX_RETRIES * 100));
    }

    /// Takes one retry; false if there is none.
    pub fn take(&self) -> bool {
        let rest = self.hundredths.get().checked_sub(100);
        self.hundredths.set(rest.unwrap_or(self.hundredths.get()));
        rest.is_some()
    }
}

/// Times to the first byte of reads, from which the delay of a hedged read follows.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    recent: RefCell<Vec<Duration>>,
    next: Cell<usize>,
    hedges: Cell<u64>,
    reads: Cell<u64>,
}

impl Latencies {
    /// Number of times that are kept.
    const MAX_TIMES: usize = 128;
    /// Number of times before the first hedged read.
    const MIN_TIMES: usize = 16;
    /// Shortest delay: an earlier hedged read would cost more than it saves.
    const MIN_DELAY: Duration = Duration::from_millis(5);
    /// Reads for each hedged read.
    const READS_PER_HEDGE: u64 = 10;

    pub fn record(&self, time: Duration) {
        let (mut recent, next) = (self.recent.borrow_mut(), self.next.get());
        match recent.get_mut(next) {
            Some(place) => *place = time,
            None => recent.push(time),
        }
        self.next.set((next + 1) % Self::MAX_TIMES);
        self.reads.set(self.reads.get() + 1);
    }

    /// Delay after which a read without a first byte gets a hedged read: the 95th percentile of the recent
    /// ones ("The Tail at Scale", Dean and Barroso, 2013). `None` while too few are known.
    pub fn delay(&self) -> Option<Duration> {
        let mut sorted = self.recent.borrow().clone();
        if sorted.len() < Self::MIN_TIMES {
            return None;
        }
        sorted.sort_unstable();
        Some(sorted[sorted.len() * 95 / 100].max(Self::MIN_DELAY))
    }

    /// Takes the permission for a hedged read; false if a tenth of the reads had one.
    pub fn take_hedge(&self) -> bool {
        let is_permitted = self.hedges.get() * Self::READS_PER_HEDGE < self.reads.get();
        self.hedges.set(self.hedges.get() + u64::from(is_permitted));
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_a_remedy() {
        let refused = |status: u16, code: &str, message: &str, kind| hint(status, code, message, kind);
        for (status, code, message, said) in [
            (403, "RequestTimeTooSkewed", "", "clock"),
            (403, "AccessDenied", "Request has expired", "clock"),
            (403, "SignatureDoesNotMatch", "The request signature", "its secret"),
            (404, "XAdminUserNotFound", "No user exists", "its secret"),
            (403, "AccessDenied", "Access Denied.", "s3:ListBucket"),
            (403, "", "", "s3:ListBucket"),
            (404, "NoSuchBucket", "", "create the bucket"),
            (301, "", "", "the region of the bucket"),
        ] {
            assert!(refused(status, code, message, Kind::List).contains(said), "{status} {code} {message}");
        }
        assert_eq!(refused(404, "NoSuchKey", "", Kind::Get), "");
        assert!(refused(403, "AccessDenied", "", Kind::DeleteBatch).contains("s3:DeleteObject"));
        assert!(lacks_more_than_object("XAdminUserNotFound") && !lacks_more_than_object("NoSuchKey"));
    }

    #[test]
    fn pauses_grow_and_differ() {
        let main = || async {
            for attempts in 1..40 {
                let longest = Duration::from_millis(50 << (attempts - 1).min(10)).min(MAX_PAUSE);
                let pauses: Vec<Duration> = (0..50).map(|_| pause(attempts, Retry::Again)).collect();
                assert!(pauses.iter().all(|pause| *pause < longest), "{attempts}");
                assert!(pauses.iter().max() > Some(&(longest / 2)), "{attempts}");
                assert!(pause(attempts, Retry::SlowDown) >= MIN_SLOW_DOWN_PAUSE);
                assert_eq!(pause(attempts, Retry::WithNewCredentials), Duration::ZERO);
            }
        };
        runtime::simulate(runtime::Simulation::new(1), main).unwrap();
    }

    #[test]
    fn a_budget_permits_a_tenth_more_requests() {
        let budget = Budget::new();
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 100);
        (0..50).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 5);
        (0..100_000).for_each(|_| budget.earn());
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 100);
    }

    #[test]
    fn hedged_reads_follow_the_slowest_of_twenty() {
        let latencies = Latencies::default();
        assert!(!latencies.take_hedge());
        (1..=15).for_each(|time| latencies.record(Duration::from_millis(time)));
        assert_eq!(latencies.delay(), None);
        (16..=300).for_each(|time| latencies.record(Duration::from_millis(time)));
        // The last 128 of them: 173 to 300.
        assert_eq!(latencies.delay(), Some(Duration::from_millis(173 + 121)));
        assert_eq!((0..1000).filter(|_| latencies.take_hedge()).count(), 30);
        let fast = Latencies::default();
        (0..100).for_each(|_| fast.record(Duration::from_micros(10)));
        assert_eq!(fast.delay(), Some(Duration::from_millis(5)));
    }
}
