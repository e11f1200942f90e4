//! Counters of a client.

/// Kind of a request, as stores bill them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PUT of an object.
    Put,
    /// GET of an object or of a range.
    Get,
    /// HEAD of an object.
    Head,
    /// One page of a listing.
    List,
    /// DELETE of an object.
    Delete,
    /// Deletion of up to 1000 objects.
    DeleteBatch,
    /// Start of a multipart upload.
    CreateUpload,
    /// PUT of a part.
    UploadPart,
    /// End of a multipart upload.
    CompleteUpload,
    /// Abort of a multipart upload.
    AbortUpload,
}

impl Kind {
    /// All kinds with their names.
    pub const ALL: [(Kind, &str); 10] = [
        (Kind::Put, "put"),
        (Kind::Get, "get"),
        (Kind::Head, "head"),
        (Kind::List, "list"),
        (Kind::Delete, "delete"),
        (Kind::DeleteBatch, "delete_batch"),
        (Kind::CreateUpload, "create_upload"),
        (Kind::UploadPart, "upload_part"),
        (Kind::CompleteUpload, "complete_upload"),
        (Kind::AbortUpload, "abort_upload"),
    ];

    /// Permission that a request of this kind needs.
    pub(crate) fn permission(self) -> &'static str {
        match self {
            // Without `s3:ListBucket` the answer for a missing object is 403.
            Kind::Get | Kind::Head => "s3:GetObject and s3:ListBucket",
            Kind::List => "s3:ListBucket",
            Kind::Delete | Kind::DeleteBatch => "s3:DeleteObject",
            Kind::AbortUpload => "s3:AbortMultipartUpload",
            Kind::Put | Kind::CreateUpload | Kind::UploadPart | Kind::CompleteUpload => "s3:PutObject",
        }
    }
}

/// Counters since the client was made. Each attempt is a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) requests: [u64; Kind::ALL.len()],
    /// Retried requests.
    pub retries: u64,
    /// Hedged reads, beside a read that was slow to answer.
    pub hedges: u64,
    /// Hedged reads whose response came first.
    pub hedge_wins: u64,
    /// Requests that exceeded a time limit.
    pub timeouts: u64,
    /// Responses that asked for fewer requests.
    pub slow_downs: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Bytes of bodies of requests, retried ones included.
    pub sent_bytes: u64,
    /// Bytes of bodies of responses.
    pub received_bytes: u64,
}

impl Counts {
    /// Number of requests of a kind.
    pub fn requests(&self, kind: Kind) -> u64 {
        self.requests[kind as usize]
    }

    /// Number of all requests.
    pub fn total(&self) -> u64 {
        self.requests.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_their_order() {
        assert!(Kind::ALL.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place));
    }
}
