//! Sequential reads, and the bytes to fetch ahead of them.
//!
//! A stream is a series of reads of one zone, each of which begins at the end of the one before, or at most
//! 64 KiB after it: records of a log have headers between the data. It is sequential after four reads, or
//! three that have 256 KiB together, if at least half of the bytes from its start on were read. Then the
//! window of bytes ahead of it begins at 256 KiB and doubles with each request, up to four times the bytes
//! that were read, and up to its limit. A stream that has read a zone to its end continues in the zone whose
//! first bytes are read next: it keeps its window, so that not every zone begins with a few slow requests.

use block::ZoneIndex;
use std::ops::Range;

/// Number of streams that are followed at a time.
const MAX_STREAMS: usize = 64;
/// Limit of the bytes between two reads of a stream.
const MAX_GAP: u64 = 64 << 10;
/// Distance by which a read of a sequential stream may begin before its end: clients have several reads in
/// flight, which arrive out of order.
const MAX_REORDER: u64 = 1 << 20;
/// Number of reads after which a stream is sequential.
const MIN_READS: u32 = 4;
/// Bytes after which a stream with one read less is sequential.
const MIN_BYTES: u64 = 256 << 10;
/// Window of a stream that has become sequential.
const FIRST_WINDOW: u64 = 256 << 10;
/// Bytes that are requested together, if the window is large enough.
const STEP: u64 = 1 << 20;
/// Limit of the window as a multiple of the bytes that the stream has read, which bounds what is fetched in
/// vain.
const MAX_RATIO: u64 = 4;
/// Length of a stream over which the share of the bytes that were read is computed.
const SPAN: u64 = 16 << 20;
/// Number of reads of other streams after which a stream doesn't continue in another zone.
const MAX_PAUSE: u64 = 64;
/// Number of reads of other streams for which a sequential stream is kept longer than others.
const SEQUENTIAL_BONUS: u64 = 1024;

/// A read of a user.
#[derive(Debug, Clone, Copy)]
pub struct Note {
    /// The zone.
    pub zone: ZoneIndex,
    /// Generation of the zone.
    pub generation: u64,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    zone: ZoneIndex,
    generation: u64,
    /// Start of the range for the share of the bytes that were read.
    start: u64,
    /// End of the read that ends last.
    next: u64,
    /// Bytes that were read between `start` and `next`.
    read: u64,
    /// Number of reads.
    reads: u32,
    /// Bytes that were read, including those in earlier zones.
    all: u64,
    /// Bytes to have ahead of `next`; 0 while the stream isn't sequential.
    window: u64,
    /// Window after the bytes that are wanted now were requested.
    next_window: u64,
    /// End of the bytes that were requested ahead.
    ahead: u64,
    /// End of the zone's data at the last read.
    end: u64,
    /// Number of the last read.
    seen: u64,
}

impl Stream {
    /// Whether a read continues this stream.
    fn is_continued_by(&self, note: &Note) -> bool {
        let reorder = if self.window > 0 { MAX_REORDER } else { 0 };
        self.reads > 0
            && (self.zone, self.generation) == (note.zone, note.generation)
            && note.offset + reorder >= self.next
            && note.offset <= self.next + MAX_GAP
    }

    fn is_sequential(&self) -> bool {
        let is_long = self.reads >= MIN_READS || self.reads == MIN_READS - 1 && self.read >= MIN_BYTES;
        is_long && 2 * self.read >= self.next - self.start
    }

    fn add(&mut self, note: &Note) {
        self.next = self.next.max(note.offset + note.length);
        self.read += note.length;
        self.all += note.length;
        self.reads = self.reads.saturating_add(1);
        let span = self.next - self.start;
        if span > SPAN {
            self.start += span / 2;
            self.read /= 2;
        }
    }
}

/// Streams of all zones.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    reads: u64,
    /// Bytes of a chunk.
    chunk: u64,
    /// Limit of the window.
    max_window: u64,
}

impl Streams {
    /// Creates an empty set, for chunks of this size. A limit of 0 fetches nothing ahead.
    pub fn new(chunk: u64, max_window: u64) -> Self {
        Streams { streams: Vec::new(), reads: 0, chunk, max_window }
    }

    /// Notes a read of a zone whose data ends at `end`. Returns the number of its stream, and the bytes that
    /// are to be fetched ahead of it.
    pub fn note(&mut self, note: Note, end: u64) -> Option<(usize, Range<u64>)> {
        self.reads += 1;
        let found = self.streams.iter().position(|stream| stream.is_continued_by(&note));
        let number = match found {
            Some(number) => {
                self.streams[number].add(&note);
                number
            }
            None => self.begin(note),
        };
        let (chunk, max_window) = (self.chunk, self.max_window);
        let stream = &mut self.streams[number];
        (stream.seen, stream.end) = (self.reads, end);
        if !stream.is_sequential() {
            stream.window = 0;
            return None;
        }
        if stream.window == 0 {
            stream.ahead = 0;
        }
        let first = FIRST_WINDOW.max(chunk).min(max_window);
        let grown = (2 * stream.window).min(MAX_RATIO * stream.all).max(stream.window);
        let window = grown.clamp(first, max_window.max(first));
        stream.next_window = window;
        // The read itself fetches the rest of its last chunk.
        let from = stream.ahead.max(stream.next.next_multiple_of(chunk));
        let step = (window / 2).clamp(1, STEP.max(chunk));
        let wanted = stream.next + window;
        if max_window == 0 || from + step > wanted || from >= end {
            return None;
        }
        let mut to = wanted.next_multiple_of(chunk);
        if to - from >= STEP && to / STEP * STEP > from {
            to = to / STEP * STEP;
        }
        Some((number, from..to.min(end)))
    }

    /// Begins a stream in place of the oldest one, or continues one that has ended with its zone.
    fn begin(&mut self, note: Note) -> usize {
        let mut stream = Stream {
            zone: note.zone,
            generation: note.generation,
            start: note.offset,
            next: note.offset + note.length,
            read: note.length,
            reads: 1,
            all: note.length,
            seen: self.reads,
            ..Stream::default()
        };
        let reads = self.reads;
        let has_ended = |ended: &Stream| {
            ended.window > 0 && ended.next + MAX_GAP >= ended.end && ended.seen + MAX_PAUSE >= reads
        };
        let ended = self.streams.iter().position(has_ended).filter(|_| note.offset < MAX_GAP);
        if let Some(ended) = ended {
            let before = self.streams[ended];
            stream.window = before.window;
            stream.all += before.all;
            stream.reads = MIN_READS;
            self.streams[ended] = stream;
            return ended;
        }
        if self.streams.len() < MAX_STREAMS {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let rank = |stream: &Stream| stream.seen + if stream.window > 0 { SEQUENTIAL_BONUS } else { 0 };
        let oldest = (0..MAX_STREAMS).min_by_key(|number| rank(&self.streams[*number])).unwrap_or(0);
        self.streams[oldest] = stream;
        oldest
    }

    /// Notes the end of what was requested ahead of a stream of this zone, and enlarges its window.
    pub fn set_ahead(&mut self, number: usize, zone: ZoneIndex, to: u64) {
        let stream = self.streams.get_mut(number).filter(|stream| stream.zone == zone);
        if let Some(stream) = stream
            && to > stream.ahead
        {
            stream.ahead = to;
            stream.window = stream.next_window;
        }
    }

    /// Ends the streams of a zone, which was reset.
    pub fn forget_zone(&mut self, zone: ZoneIndex) {
        for stream in self.streams.iter_mut().filter(|stream| stream.zone == zone) {
            *stream = Stream::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    const KIB: u64 = 1 << 10;
    const CHUNK: u64 = 64 * KIB;
    const END: u64 = 1 << 30;

    fn note(zone: u32, offset: u64, length: u64) -> Note {
        Note { zone: ZoneIndex(zone), generation: 1, offset, length }
    }

    /// Notes a read, and takes the bytes that are to be fetched ahead as requested.
    fn read(streams: &mut Streams, note: Note, end: u64) -> Option<Range<u64>> {
        let (number, bytes) = streams.note(note, end)?;
        streams.set_ahead(number, note.zone, bytes.end);
        Some(bytes)
    }

    #[test]
    fn the_window_doubles_up_to_its_limit() {
        let mut streams = Streams::new(CHUNK, 8 << 20);
        let (mut ahead, mut largest) = (Vec::new(), 0);
        let mut ratio = 0;
        for step in 0..20_000 {
            let offset = step * 4 * KIB;
            if let Some(bytes) = read(&mut streams, note(0, offset, 4 * KIB), END) {
                assert!(bytes.start % CHUNK == 0 && bytes.end % CHUNK == 0, "{bytes:?}");
                largest = largest.max(bytes.end - offset);
                ratio = ratio.max((bytes.end - CHUNK).saturating_sub(FIRST_WINDOW) / (offset + 4 * KIB));
                ahead.push(bytes);
            }
        }
        assert_eq!(ahead[0], 64 * KIB..320 * KIB, "after four reads");
        assert!(ratio <= MAX_RATIO + 1, "{ratio} times the bytes that were read");
        assert!(ahead.windows(2).all(|pair| pair[0].end == pair[1].start), "nothing twice, and no hole");
        assert!((7 << 20..=(8 << 20) + CHUNK).contains(&largest), "{largest}");
        let late = &ahead[ahead.len() - 20..];
        assert!(
            late.iter().all(|bytes| bytes.end - bytes.start == STEP && bytes.start % STEP == 0),
            "{late:?}"
        );
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut random = Random::new(3);
        let mut streams = Streams::new(CHUNK, 8 << 20);
        for _ in 0..100_000 {
            let offset = random.below((16 << 20) / 4096) * 4096;
            assert_eq!(streams.note(note(random.below(4) as u32, offset, 4096), 16 << 20), None);
        }
    }

    #[test]
    fn gaps_of_headers_and_reads_out_of_order_are_followed() {
        let mut streams = Streams::new(CHUNK, 8 << 20);
        let mut ahead = 0;
        for pair in 0..1000_u64 {
            for number in [2 * pair + 1, 2 * pair] {
                let offset = number * 36 * KIB;
                let bytes = read(&mut streams, note(0, offset, 32 * KIB), END);
                ahead = bytes.map_or(ahead, |bytes| bytes.end);
            }
        }
        assert!(ahead > 1999 * 36 * KIB + (7 << 20), "{ahead}");
        // Every tenth block isn't a sequential read.
        let mut streams = Streams::new(CHUNK, 8 << 20);
        assert!((0..1000).all(|step| streams.note(note(0, step * 40 * KIB, 4 * KIB), END).is_none()));
    }

    #[test]
    fn streams_of_many_zones_are_followed_among_random_reads() {
        let mut random = Random::new(4);
        let mut streams = Streams::new(CHUNK, 8 << 20);
        let mut ahead = [0; 8];
        for step in 0..2000 {
            for zone in 0..8 {
                if let Some(bytes) = read(&mut streams, note(zone, step * 16 * KIB, 16 * KIB), END) {
                    ahead[zone as usize] = bytes.end;
                }
                let offset = random.below(1 << 14) * 64 * KIB;
                assert_eq!(read(&mut streams, note(100, offset, 4 * KIB), END), None);
            }
        }
        assert!(ahead.iter().all(|end| *end > 2000 * 16 * KIB + (6 << 20)), "{ahead:?}");
    }

    #[test]
    fn a_window_ends_with_the_data_and_continues_in_the_next_zone() {
        let mut streams = Streams::new(CHUNK, 8 << 20);
        let end = 300 * KIB;
        let all: Vec<_> =
            (0..75).filter_map(|step| read(&mut streams, note(0, step * 4 * KIB, 4 * KIB), end)).collect();
        assert_eq!(all.iter().map(|bytes| bytes.end).max(), Some(end));
        // The stream continues in another zone, with its window.
        let other = streams.note(note(1, 0, 4 * KIB), END).map(|(_, bytes)| bytes);
        assert!(
            other.as_ref().is_some_and(|bytes| bytes.start == CHUNK && bytes.end >= 320 * KIB),
            "{other:?}"
        );
        assert_eq!(streams.note(note(2, 0, 4 * KIB), END), None, "but not in two");
        streams.forget_zone(ZoneIndex(0));
        assert_eq!(streams.note(note(0, 296 * KIB, 4 * KIB), END), None, "a new stream");
        // A window that wasn't requested, because the fetches are at their limit, is wanted again.
        let mut streams = Streams::new(CHUNK, 8 << 20);
        let wanted = (0..8).filter_map(|step| streams.note(note(0, step * 4 * KIB, 4 * KIB), END));
        assert!(wanted.map(|(_, bytes)| bytes).all(|bytes| bytes == (64 * KIB..320 * KIB)));
        let mut none = Streams::new(CHUNK, 0);
        assert!((0..100).all(|step| none.note(note(0, step * 4 * KIB, 4 * KIB), END).is_none()));
    }
}
