//! Multipart uploads of objects.
//!
//! After the failure of a part no further part is sent. An upload that fails is aborted, so that the store
//! keeps no parts without an object. An upload whose future is dropped isn't aborted, nor one whose creation
//! has succeeded with a lost answer: a rule of the bucket's lifecycle has to end those.

use crate::connection::{MAX_ERROR_BODY, Response};
use crate::counts::Kind;
use crate::http::Method;
use crate::objects::{
    Condition, NONCE, OWN_CHECKSUM, Put, checksum, checksum_headers, condition_header, encoded, etag,
};
use crate::retry::error_code;
use crate::store::{Call, Store};
use crate::xml;
use block::{Data, Error, Payload, Result};
use std::cell::Cell;
use std::fmt::Write;

/// Limit of the parts of an object.
pub const MAX_PARTS: usize = 10_000;
/// Parts of one object that are sent at a time.
const MAX_PARTS_IN_FLIGHT: usize = 4;

/// Text of an element of a response.
fn answered(response: &Response, name: &str) -> Result<String> {
    let text = response.text();
    match xml::element(&text, name) {
        Some(value) if !value.is_empty() => Ok(value.into_owned()),
        // A completion that failed late is answered by 200 with an error.
        _ => {
            let code = error_code(&text);
            Err(Error::io(format!("an answer without {name} {}; expected one", code.escape_debug())))
        }
    }
}

impl Store {
    /// Writes an object by a multipart upload; `nonce` and `sum`, the CRC-32C of the whole, become its
    /// metadata.
    pub(crate) async fn put_parts(
        &self,
        key: &str,
        body: Payload,
        condition: &Condition,
        nonce: &str,
        sum: u32,
    ) -> Result<Put> {
        let (length, part) = (body.len(), self.0.limits.part);
        if length.div_ceil(part) > MAX_PARTS {
            return Err(Error::invalid(format!(
                "key \"{key}\": {length} bytes in parts of {part}; expected at most {MAX_PARTS} parts"
            )));
        }
        let check = |response: &Response| answered(response, "UploadId").map(drop);
        let mut call = Call::new(Kind::CreateUpload, Method::Post, key, &[200]);
        call.query = vec![("uploads", String::new())];
        call.headers = vec![
            ("x-amz-checksum-algorithm", "CRC32C".to_owned()),
            (OWN_CHECKSUM, format!("{sum:08x}")),
            (NONCE, nonce.to_owned()),
        ];
        call.max_body = MAX_ERROR_BODY;
        call.check = Some(&check);
        let upload = answered(&self.0.call(&call).await?, "UploadId")?;
        let outcome = self.send_parts(key, &body, condition, nonce, &upload).await;
        if !matches!(outcome, Ok(Put::Written(_))) {
            let mut call = Call::new(Kind::AbortUpload, Method::Delete, key, &[200, 204, 404]);
            call.query = vec![("uploadId", upload)];
            call.max_body = MAX_ERROR_BODY;
            if let Err(error) = self.0.call(&call).await {
                tracing::warn!(
                    "{error}; the parts of the upload remain until the bucket's lifecycle ends them"
                );
            }
        }
        outcome
    }

    async fn send_parts(
        &self,
        key: &str,
        body: &Payload,
        condition: &Condition,
        nonce: &str,
        upload: &str,
    ) -> Result<Put> {
        let (length, part, has_failed) = (body.len(), self.0.limits.part, &Cell::new(false));
        let parts = (0..length.div_ceil(part)).map(|number| async move {
            // Parts begin in their order: the first error below is that of the part that failed.
            if has_failed.get() {
                return Err(Error::closed("an earlier part failed"));
            }
            let bytes = body.slice(number * part..(number * part + part).min(length));
            let sent = self.send_part(key, bytes, number + 1, upload).await;
            has_failed.set(has_failed.get() || sent.is_err());
            sent
        });
        let mut text =
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for (number, sent) in runtime::join_limited(MAX_PARTS_IN_FLIGHT, parts).await.into_iter().enumerate()
        {
            let (etag, sum) = sent?;
            let (etag, number) = (xml::escaped(&etag), number + 1);
            let _ = write!(
                text,
                "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag><ChecksumCRC32C>{sum}</ChecksumCRC32C></Part>"
            );
        }
        text.push_str("</CompleteMultipartUpload>");
        let check = |response: &Response| match response.head.status {
            200 => answered(response, "ETag").map(drop),
            _ => Ok(()),
        };
        let mut call = Call::new(Kind::CompleteUpload, Method::Post, key, &[200, 404, 412]);
        call.query = vec![("uploadId", upload.to_owned())];
        call.headers = condition_header(condition).into_iter().collect();
        call.body = Data::copy_of(text.as_bytes()).into();
        call.max_body = MAX_ERROR_BODY;
        call.check = Some(&check);
        let response = self.0.call(&call).await?;
        if response.head.status == 200 {
            return answered(&response, "ETag").map(Put::Written);
        }
        // An earlier attempt may have ended the upload: it isn't there any more then, or its own object
        // doesn't meet the condition.
        match self.settle(key, nonce).await? {
            Put::ConditionFailed if error_code(&response.text()) == "NoSuchUpload" => {
                let text = "status 404: the upload isn't there; expected 200";
                Err(self.0.explain(&call, &Error::not_found(text)))
            }
            outcome => Ok(outcome),
        }
    }

    /// Sends a part. Returns its ETag, and its checksum in encoded form.
    async fn send_part(
        &self,
        key: &str,
        bytes: Payload,
        number: usize,
        upload: &str,
    ) -> Result<(String, String)> {
        let sum = checksum(&bytes);
        let check = |response: &Response| etag(&response.head).map(drop);
        let mut call = Call::new(Kind::UploadPart, Method::Put, key, &[200]);
        call.query = vec![("partNumber", number.to_string()), ("uploadId", upload.to_owned())];
        call.headers = checksum_headers(sum).into();
        call.body = bytes;
        call.max_body = MAX_ERROR_BODY;
        call.check = Some(&check);
        let response = self.0.call(&call).await?;
        Ok((etag(&response.head)?, encoded(sum)))
    }
}
