//! The contents of a device after a power cut.

use super::choice::{Choice, Chooser};
use super::cursor::Cursor;
use super::history::History;
use crate::record::timeline::Timeline;
use block::{BlockIndex, Buffer, Device, Durability, Result};
use runtime::file::{File, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Largest write, in bytes.
const CHUNK: u64 = 1 << 20;

/// Bytes with one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub start: u64,
    pub end: u64,
    /// Operation with the data; `None` for zeros.
    pub source: Option<usize>,
}

/// Contents of a device: a sparse map of pieces of the timeline's data.
#[derive(Debug, Clone)]
pub struct Image {
    history: Arc<History>,
    /// Pieces in order; bytes between them are zeros.
    pub(super) pieces: Vec<Piece>,
}

impl Image {
    /// Creates the image of this choice at this cut.
    pub fn new(cursor: &Cursor, choice: Choice) -> Self {
        let chooser = Chooser::new(cursor, choice);
        let mut pieces = Vec::with_capacity(cursor.intervals.len());
        for (start, interval) in &cursor.intervals {
            chooser.pieces(*start, interval, &mut pieces);
        }
        Image { history: cursor.history().clone(), pieces }
    }

    /// Returns the history of the device.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Copies the bytes that begin at `offset`.
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        target.fill(0);
        let end = offset + target.len() as u64;
        let first = self.pieces.partition_point(|piece| piece.end <= offset);
        for piece in self.pieces[first..].iter().take_while(|piece| piece.start < end) {
            let (from, to) = (piece.start.max(offset), piece.end.min(end));
            if let Some(index) = piece.source {
                let place = &mut target[(from - offset) as usize..(to - offset) as usize];
                self.history.operations[index].copy_to(from, place);
            }
        }
    }

    /// Returns the ranges of bytes that may not be zeros, in order, merged where they touch, and extended to
    /// multiples of `align` bytes.
    pub fn data_ranges(&self, align: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.source.is_some()) {
            let (start, end) = (piece.start / align * align, piece.end.next_multiple_of(align));
            match ranges.last_mut() {
                Some(last) if last.end >= start => last.end = last.end.max(end),
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// Writes the contents to a device of zeros that is at least as large.
    pub async fn write_to(&self, device: &dyn Device) -> Result<()> {
        let size = device.geometry().block_size;
        for (offset, buffer) in self.chunks(size.bytes()) {
            device.write(BlockIndex(offset >> size.shift()), buffer.into(), Durability::Visible).await?;
        }
        Ok(())
    }

    /// Returns all bytes that may not be zeros, in pieces of bounded length.
    fn chunks(&self, align: u64) -> impl Iterator<Item = (u64, Buffer)> + '_ {
        let step = CHUNK.max(align) as usize;
        let starts = move |range: Range<u64>| {
            let end = range.end;
            range.step_by(step).map(move |start| start..end.min(start + step as u64))
        };
        self.data_ranges(align).into_iter().flat_map(starts).map(|chunk| {
            let mut buffer = Buffer::zeroed((chunk.end - chunk.start) as usize);
            self.read(chunk.start, buffer.filled_mut());
            (chunk.start, buffer)
        })
    }
}

/// Writes the contents of a device after this cut and choice to a new sparse file of the device's size.
///
/// # Errors
/// [`block::Error::AlreadyExists`] if the file exists; [`block::Error::Invalid`] if the cut is out of range.
pub async fn write_image(
    timeline: &Timeline,
    device: u16,
    cut: u64,
    choice: Choice,
    path: &Path,
) -> Result<()> {
    let history = History::new(timeline, device)?;
    history.check_cut(cut)?;
    let mut cursor = Cursor::new(history.clone());
    cursor.advance_to(cut);
    let image = Image::new(&cursor, choice);
    let file = File::open(path, OpenOptions { create_new: true, ..OpenOptions::read_write() }).await?;
    file.set_len(history.geometry().bytes()).await?;
    for (offset, buffer) in image.chunks(history.geometry().block_size.bytes()) {
        file.write_at(offset, buffer.into(), Durability::Visible).await?;
    }
    file.sync_all().await
}
