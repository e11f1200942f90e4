//! Operations on one object: PUT, GET, HEAD, DELETE.

use crate::connection::Response;
use crate::counts::Kind;
use crate::http::{Head, Method};
use crate::store::{Call, Store, check_key};
use base64ct::{Base64, Encoding};
use block::{Buffer, Error, Payload, Result};
use crc_fast::{CrcAlgorithm, Digest};
use std::cell::Cell;

/// Header with the checksum that stores verify and return.
pub(crate) const CHECKSUM: &str = "x-amz-checksum-crc32c";
/// Metadata with the same checksum, in hexadecimal digits: every store returns it.
pub(crate) const OWN_CHECKSUM: &str = "x-amz-meta-siltstone-crc32c";
/// Metadata that identifies one write.
pub(crate) const NONCE: &str = "x-amz-meta-siltstone-nonce";

/// Condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No condition: an existing object is replaced.
    Always,
    /// There is no object of this key.
    Absent,
    /// The object has this ETag. Many stores compute it from the contents alone: contents that shall differ
    /// for this condition need a number or a nonce of their own.
    Matches(String),
}

/// Outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// This write is the object, with this ETag.
    Written(String),
    /// The condition wasn't met: nothing was written, or another write has replaced it since.
    ConditionFailed,
}

/// A read object, or a range of one.
#[derive(Debug)]
pub struct Object {
    /// The bytes.
    pub data: Buffer,
    /// ETag of the object.
    pub etag: String,
    /// Number of bytes of the whole object.
    pub length: u64,
    /// Whether the bytes were compared with a checksum. Those of a range never are.
    pub is_verified: bool,
}

/// Description of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// ETag.
    pub etag: String,
    /// Number of bytes.
    pub length: u64,
    pub(crate) nonce: String,
}

/// CRC-32C of a payload.
pub(crate) fn checksum(body: &Payload) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    body.slices().iter().for_each(|slice| digest.update(slice));
    digest.finalize() as u32
}

/// Value of the header [`CHECKSUM`].
pub(crate) fn encoded(checksum: u32) -> String {
    Base64::encode_string(&checksum.to_be_bytes())
}

/// Headers of a body with this checksum.
pub(crate) fn checksum_headers(checksum: u32) -> [(&'static str, String); 2] {
    [(CHECKSUM, encoded(checksum)), ("x-amz-sdk-checksum-algorithm", "CRC32C".to_owned())]
}

/// Draws the nonce of a write: 128 random bits.
pub(crate) fn new_nonce() -> String {
    let mut bytes = [0; 16];
    runtime::fill_secret(&mut bytes);
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// Header of the condition.
pub(crate) fn condition_header(condition: &Condition) -> Option<(&'static str, String)> {
    match condition {
        Condition::Always => None,
        Condition::Absent => Some(("if-none-match", "*".to_owned())),
        Condition::Matches(etag) => Some(("if-match", etag.clone())),
    }
}

/// Statuses that answer a write with this condition. A store that has no object to match answers 404.
pub(crate) fn expected(condition: &Condition) -> &'static [u16] {
    match condition {
        Condition::Always => &[200],
        Condition::Absent => &[200, 412],
        Condition::Matches(_) => &[200, 404, 412],
    }
}

/// ETag of a response, as it is, with its quotes.
pub(crate) fn etag(head: &Head) -> Result<String> {
    match head.header("etag") {
        Some(etag) if !etag.is_empty() => Ok(etag.to_owned()),
        _ => Err(Error::protocol("the response has no ETag; expected one")),
    }
}

/// Compares a body with the checksums of its head. Returns whether there was one.
fn verify(response: &Response) -> Result<bool> {
    let body = response.body.filled();
    let found = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, body) as u32;
    // The checksum of a multipart upload is that of the checksums of its parts, with their number after a
    // dash.
    let stores = response.head.header(CHECKSUM).filter(|value| !value.contains('-'));
    let stores = stores.map(|value| (value, encoded(found)));
    let own = response.head.header(OWN_CHECKSUM).map(|value| (value, format!("{found:08x}")));
    for (expected, found) in [&stores, &own].into_iter().flatten() {
        if expected != found {
            return Err(Error::corrupt(format!(
                "{} bytes with the checksum {found}; expected {expected}",
                body.len()
            )));
        }
    }
    Ok(stores.is_some() || own.is_some())
}

/// Offset of the first byte, of the last one, and number of bytes of the object, from `Content-Range`.
fn content_range(head: &Head) -> Option<(u64, u64, u64)> {
    let (range, total) = head.header("content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()?))
}

impl Store {
    /// Writes an object, by a multipart upload if it is larger than the limit. The payload is checked by the
    /// store where it knows CRC-32C, and by [`get`](Self::get) in any case.
    ///
    /// A write whose answer was lost is retried. If the store then says that the condition isn't met, the
    /// object's nonce shows whether it was this write that met it.
    ///
    /// An attempt that timed out, failed or was dropped may reach the store late, after later writes and
    /// deletions of the key. It replaces their object if its condition is met then. So that it never is:
    /// - A key isn't used again after [`delete`](Self::delete): [`Condition::Absent`] would be met.
    /// - An object that is replaced is written with [`Condition::Matches`], and no two of its contents are
    ///   equal: an earlier ETag could return.
    /// - [`Condition::Always`] is only for keys that are written once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that isn't permitted; [`Error::Corrupt`] if the store returns another
    /// checksum, also when the object is sent again; errors of the store. After an error, or if this future
    /// is dropped, the object may be written or not, or be written later.
    pub async fn put(&self, key: &str, body: Payload, condition: &Condition) -> Result<Put> {
        check_key(key)?;
        if body.len() > self.0.limits.parts_above {
            let (nonce, checksum) = (new_nonce(), checksum(&body));
            return self.put_parts(key, body, condition, &nonce, checksum).await;
        }
        self.put_whole(key, body, condition).await
    }

    /// As [`put`](Self::put), by one request whatever the length: for a condition that must be the one that
    /// [`probe`](Self::probe) has checked. Stores take up to 5 GiB so.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_whole(&self, key: &str, body: Payload, condition: &Condition) -> Result<Put> {
        check_key(key)?;
        let (nonce, checksum) = (new_nonce(), checksum(&body));
        let damaged = Cell::new(None);
        let returned = |response: &Response| match response.head.header(CHECKSUM) {
            Some(value) if response.head.status == 200 && value != encoded(checksum) => {
                let (value, expected) = (value.escape_debug(), encoded(checksum));
                let error =
                    Error::corrupt(format!("the store has the checksum {value}; expected {expected}"));
                damaged.set(Some(error.clone()));
                Err(error)
            }
            _ => Ok(()),
        };
        let mut call = Call::new(Kind::Put, Method::Put, key, expected(condition));
        call.headers = checksum_headers(checksum).into();
        call.headers.extend([(OWN_CHECKSUM, format!("{checksum:08x}")), (NONCE, nonce.clone())]);
        call.headers.extend(condition_header(condition));
        call.body = body;
        // Some stores answer a success with an empty document.
        call.max_body = crate::connection::MAX_ERROR_BODY;
        call.check = Some(&returned);
        let response = self.0.call(&call).await?;
        match response.head.status {
            200 => etag(&response.head).map(Put::Written).map_err(|error| self.0.explain(&call, &error)),
            _ => match (self.settle(key, &nonce).await?, damaged.take()) {
                // The object is that of the attempt whose bytes the store has damaged.
                (Put::Written(_), Some(error)) => Err(self.0.explain(&call, &error)),
                (outcome, _) => Ok(outcome),
            },
        }
    }

    /// Outcome of a write whose condition wasn't met when it was sent last: its nonce is on the object if an
    /// earlier attempt has written it.
    pub(crate) async fn settle(&self, key: &str, nonce: &str) -> Result<Put> {
        Ok(match self.head(key).await? {
            Some(found) if found.nonce == nonce => Put::Written(found.etag),
            _ => Put::ConditionFailed,
        })
    }

    /// Reads an object of at most `limit` bytes, or [`MAX_BODY`](crate::MAX_BODY), and compares it with its
    /// checksums.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it doesn't exist; [`Error::Corrupt`] if its bytes aren't those that were
    /// written, also when they are read again; [`Error::Protocol`] if it is longer.
    pub async fn get(&self, key: &str, limit: usize) -> Result<Object> {
        check_key(key)?;
        let is_verified = Cell::new(false);
        let check = |response: &Response| {
            is_verified.set(verify(response)?);
            etag(&response.head).map(drop)
        };
        let mut call = Call::new(Kind::Get, Method::Get, key, &[200]);
        call.headers = vec![("x-amz-checksum-mode", "ENABLED".to_owned())];
        call.max_body = limit;
        call.check = Some(&check);
        let response = self.0.call(&call).await?;
        let (etag, length) = (etag(&response.head)?, response.body.len() as u64);
        Ok(Object { data: response.body, etag, length, is_verified: is_verified.get() })
    }

    /// Reads `length` bytes of an object, at most [`MAX_BODY`](crate::MAX_BODY), from the byte `offset` on.
    /// They aren't compared with a checksum, since that is of the whole object: the caller's format has its
    /// own.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the object doesn't exist; [`Error::Invalid`] if it doesn't have all bytes of
    /// the range, or `length` is 0; [`Error::Protocol`] if the store returns others.
    pub async fn get_range(&self, key: &str, offset: u64, length: usize) -> Result<Object> {
        check_key(key)?;
        let last = offset.checked_add(length as u64).filter(|_| length > 0).map(|end| end - 1);
        let Some(last) = last else {
            return Err(Error::invalid(format!(
                "key \"{key}\": range of {length} bytes at {offset}; expected at least 1 byte, before 2^64"
            )));
        };
        let check = |response: &Response| {
            etag(&response.head)?;
            match content_range(&response.head) {
                Some((first, end, _)) if (first, end) == (offset, last) => {
                    match response.body.filled().len() {
                        found if found == length => Ok(()),
                        found => Err(Error::protocol(format!("a body of {found} bytes; expected {length}"))),
                    }
                }
                Some((first, end, total)) if first == offset && end < last && end + 1 == total => {
                    let text = format!("the object has {total} bytes; expected {offset} to {last} inside");
                    Err(Error::invalid(text))
                }
                _ => {
                    let found = response.head.header("content-range").unwrap_or("no range");
                    let text = format!("{}; expected bytes {offset}-{last}", found.escape_debug());
                    Err(Error::protocol(text))
                }
            }
        };
        let mut call = Call::new(Kind::Get, Method::Get, key, &[206]);
        call.headers = vec![("range", format!("bytes={offset}-{last}"))];
        call.max_body = length;
        call.check = Some(&check);
        let response = self.0.call(&call).await?;
        let total = content_range(&response.head).map_or(0, |(_, _, total)| total);
        let etag = etag(&response.head)?;
        Ok(Object { data: response.body, etag, length: total, is_verified: false })
    }

    /// Describes an object; `None` if it doesn't exist.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn head(&self, key: &str) -> Result<Option<Description>> {
        check_key(key)?;
        let call = Call::new(Kind::Head, Method::Head, key, &[200, 404]);
        let response = match self.0.call(&call).await {
            Err(refusal @ (Error::PermissionDenied(_) | Error::Invalid(_))) => {
                return Err(self.reason(key, refusal).await);
            }
            answered => answered?,
        };
        if response.head.status == 404 {
            return Ok(None);
        }
        let described = etag(&response.head).and_then(|etag| {
            let length = response.head.header("content-length").and_then(|length| length.parse().ok());
            let length = length.ok_or_else(|| Error::protocol("the response has no Content-Length"))?;
            let nonce = response.head.header(NONCE).unwrap_or_default().to_owned();
            Ok(Description { etag, length, nonce })
        });
        described.map(Some).map_err(|error| self.0.explain(&call, &error))
    }

    /// Returns the refusal of a HEAD with its reason, from the response to a GET: that to HEAD has no body.
    async fn reason(&self, key: &str, refusal: Error) -> Error {
        match self.get_range(key, 0, 1).await {
            Err(error @ Error::PermissionDenied(_)) => error,
            Err(error @ Error::Invalid(_)) if error.detail().contains("status 400") => error,
            _ => refusal,
        }
    }

    /// Deletes an object; that it doesn't exist is a success.
    ///
    /// An attempt that timed out, failed or was dropped may reach the store late, and deletes an object that
    /// was written to the key since. So a key isn't used again after its deletion, whatever the outcome.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, key: &str) -> Result<()> {
        check_key(key)?;
        let mut call = Call::new(Kind::Delete, Method::Delete, key, &[200, 204, 404]);
        call.max_body = crate::connection::MAX_ERROR_BODY;
        self.0.call(&call).await.map(drop)
    }
}
