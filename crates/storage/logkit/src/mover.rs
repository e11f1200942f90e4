//! The open zones of the cleaner's moves. [`moves`](crate::moves) appends to them.

use crate::entry::Frozen;
use crate::layout::Layout;
use crate::record::LINK;
use crate::zone_writer::ZoneWriter;

/// Open zones to which the cleaner moves data.
#[derive(Debug)]
pub struct Mover {
    pub(crate) zones: Vec<Option<ZoneWriter>>,
    pub(crate) frozen: Frozen,
}

impl Mover {
    /// Creates a mover without open zones, for this number of classes.
    pub fn new(classes: u8) -> Self {
        Mover { zones: (0..classes).map(|_| None).collect(), frozen: Frozen::default() }
    }

    /// Whether the open zone of a class fits a record with `blocks` data blocks.
    pub fn has_room(&self, layout: &Layout, class: u8, blocks: u32) -> bool {
        let zone = self.zones.get(usize::from(class)).and_then(Option::as_ref);
        zone.is_some_and(|zone| zone.takes(layout, blocks, LINK))
    }

    /// Takes the open zones, to be sealed; this mover has none afterwards.
    #[must_use]
    pub fn take_open(&mut self) -> Mover {
        let zones = self.zones.iter_mut().map(Option::take).collect();
        Mover { zones, frozen: Frozen::default() }
    }
}
