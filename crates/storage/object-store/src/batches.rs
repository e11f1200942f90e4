//! Operations on many objects: pages of a listing, and deletions in batches.

use crate::connection::Response;
use crate::counts::Kind;
use crate::http::Method;
use crate::objects::{checksum, checksum_headers};
use crate::retry::shown;
use crate::store::{Call, Store, check_key};
use crate::xml;
use block::{Data, Error, Payload, Result};
use std::fmt::Write;

/// Limit of the objects of a page, and of a batch.
pub const MAX_BATCH: usize = 1000;
/// Largest page in bytes: [`MAX_BATCH`] keys of 1024 bytes, in escaped form, and their descriptions.
const MAX_PAGE: usize = 8 << 20;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Key.
    pub key: String,
    /// Number of bytes.
    pub length: u64,
    /// ETag, with its quotes.
    pub etag: String,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Objects, at most [`MAX_BATCH`].
    pub objects: Vec<Listed>,
    /// Continuation token of the next page; `None` for the last page.
    pub next: Option<String>,
}

/// Checks the parser of listings on any text, for fuzzing: no panic, and no more than there is.
///
/// # Panics
/// If a check fails.
pub(crate) fn check_any_text(text: &str) {
    let inside = format!("<ListBucketResult><Contents>{text}</Contents></ListBucketResult>");
    for text in [text, &inside] {
        for (prefix, from) in [("", None), ("db1/", Some("x"))] {
            match page(text, prefix, from) {
                Ok(page) => {
                    let length: usize = page.objects.iter().map(|it| it.key.len() + it.etag.len()).sum();
                    assert!(page.objects.len() <= MAX_BATCH && length <= text.len());
                    assert!(page.objects.iter().all(|listed| listed.key.starts_with(prefix)));
                    assert!(page.next.is_none() || page.next.as_deref() != from);
                }
                Err(error) => assert!(matches!(error, Error::Protocol(_))),
            }
        }
    }
}

fn body_of(response: &Response) -> Result<&str> {
    std::str::from_utf8(response.body.filled()).map_err(|_| Error::protocol("the response isn't UTF-8"))
}

/// Parses a page of a listing of `prefix` that began at `from`.
fn page(text: &str, prefix: &str, from: Option<&str>) -> Result<Page> {
    let invalid = |what: &str| Error::protocol(format!("a listing: {what}"));
    let root = xml::elements(text, "ListBucketResult").next();
    let root = root.ok_or_else(|| invalid("expected ListBucketResult"))?;
    let mut objects = Vec::new();
    for content in xml::elements(root, "Contents") {
        let key = xml::element(content, "Key").ok_or_else(|| invalid("expected a key"))?;
        let length = xml::element(content, "Size").and_then(|size| size.trim().parse().ok());
        let length = length.ok_or_else(|| invalid("expected a size"))?;
        let etag = xml::element(content, "ETag").unwrap_or_default();
        if !key.starts_with(prefix) {
            return Err(invalid(&format!("key \"{}\"; expected {prefix}…", shown(&key))));
        }
        if objects.len() == MAX_BATCH {
            return Err(invalid(&format!("expected at most {MAX_BATCH} keys")));
        }
        objects.push(Listed { key: key.into_owned(), length, etag: etag.into_owned() });
    }
    let is_truncated = xml::element(root, "IsTruncated").is_some_and(|value| value.trim() == "true");
    let next = xml::element(root, "NextContinuationToken").filter(|next| !next.is_empty());
    match next.filter(|_| is_truncated) {
        None if is_truncated => Err(invalid("it is truncated; expected a continuation token")),
        // A listing without an end would be followed without end.
        Some(next) if from == Some(&*next) => Err(invalid("its next page is the same one")),
        next => Ok(Page { objects, next: next.map(String::from) }),
    }
}

impl Store {
    /// Lists a page of the objects whose keys begin with `prefix`: the first one, or the one after the page
    /// whose continuation token, [`Page::next`], is `from`.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Protocol`] for a page that isn't one of this listing.
    pub async fn list(&self, prefix: &str, from: Option<&str>) -> Result<Page> {
        let check =
            |response: &Response| body_of(response).and_then(|text| page(text, prefix, from)).map(drop);
        let mut call = Call::new(Kind::List, Method::Get, "", &[200]);
        call.query = vec![("list-type", "2".to_owned()), ("max-keys", MAX_BATCH.to_string())];
        call.query.extend((!prefix.is_empty()).then(|| ("prefix", prefix.to_owned())));
        call.query.extend(from.map(|from| ("continuation-token", from.to_owned())));
        call.max_body = MAX_PAGE;
        call.check = Some(&check);
        let response = self.0.call(&call).await?;
        body_of(&response).and_then(|text| page(text, prefix, from))
    }

    /// Deletes objects, [`MAX_BATCH`] with each request. Those that don't exist are successes. Their keys
    /// aren't used again, as after [`delete`](Self::delete).
    ///
    /// # Errors
    /// [`Error::Io`] with the first object that the store keeps, after all batches; errors of the store,
    /// after which the rest isn't deleted.
    pub async fn delete_batch(&self, keys: &[String]) -> Result<()> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let (mut kept, mut first) = (0, None);
        for batch in keys.chunks(MAX_BATCH) {
            let mut text =
                "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>".to_owned();
            for key in batch {
                let _ = write!(text, "<Object><Key>{}</Key></Object>", xml::escaped(key));
            }
            text.push_str("</Delete>");
            let body = Payload::from(Data::copy_of(text.as_bytes()));
            let mut call = Call::new(Kind::DeleteBatch, Method::Post, "", &[200]);
            call.query = vec![("delete", String::new())];
            call.headers = checksum_headers(checksum(&body)).into();
            call.body = body;
            call.max_body = MAX_PAGE;
            let response = self.0.call(&call).await?;
            let text = body_of(&response).map_err(|error| self.0.explain(&call, &error))?;
            if xml::elements(text, "DeleteResult").next().is_none() {
                let text = format!("\"{}\"; expected DeleteResult", shown(text));
                return Err(self.0.explain(&call, &Error::protocol(text)));
            }
            for error in xml::elements(text, "Error") {
                let code = xml::element(error, "Code").unwrap_or_default();
                if code != "NoSuchKey" {
                    kept += 1;
                    first.get_or_insert_with(|| {
                        let key = xml::element(error, "Key").unwrap_or_default();
                        self.0.explain(&call, &Error::io(shown(&format!("{key} {code}"))))
                    });
                }
            }
        }
        match first {
            None => Ok(()),
            Some(error) => Err(error.with_detail(format!(
                "{}: {kept} of {} objects were not deleted; expected all",
                error.detail(),
                keys.len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(inner: &str) -> String {
        format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"u\">{inner}</ListBucketResult>")
    }

    #[test]
    fn pages_belong_to_their_listing() {
        let object = "<Contents><Key>a/b&amp;</Key><Size>7</Size><ETag>&quot;e&quot;</ETag></Contents>";
        let expected = Listed { key: "a/b&".into(), length: 7, etag: "\"e\"".into() };
        let text = listing(&format!(
            "<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>{object}"
        ));
        assert_eq!(page(&text, "a/", None), Ok(Page { objects: vec![expected], next: None }));
        let more = listing("<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>");
        assert_eq!(page(&more, "", None).unwrap().next.as_deref(), Some("x"));
        for (refused, said) in [
            (page(&more, "", Some("x")), "the same one"),
            (page(&listing("<IsTruncated>true</IsTruncated>"), "", None), "expected a continuation token"),
            (page(&text, "b/", None), "expected b/…"),
            (page(&listing(&object.repeat(1001)), "", None), "at most 1000"),
            (page(&listing("<Contents><Key>a</Key></Contents>"), "", None), "expected a size"),
            (page("<ListBucketResult>", "", None), "expected ListBucketResult"),
            (page("{}", "", None), "expected ListBucketResult"),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, Error::Protocol(_)) && error.to_string().contains(said), "{error}");
        }
    }
}
