//! A record that can be replayed: its data is already verified.

use crate::changes::Changes;
use logkit::record::{Header, Links, Parsed};
use logkit::scan::Kept;

/// A record's header and changes.
#[derive(Debug, Clone)]
pub struct Replayable {
    /// Header of the record.
    pub header: Header,
    /// Links of the record.
    pub links: Links,
    /// Changes of the record.
    pub changes: Changes,
}

impl Kept for Replayable {
    fn new(parsed: &Parsed<'_>) -> Self {
        Replayable { header: parsed.header, links: parsed.links(), changes: Changes::new(parsed.meta) }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn links(&self) -> &Links {
        &self.links
    }
}
