//! Parsing of warming messages, and division of ranges into pieces.

use super::*;
use crate::WarmRanges;
use crate::message::Message;
use block::BlockSize;
use runtime::Random;

fn parse(text: &str) -> Result<Message> {
    stack::Message::parse(&crate::KIND, &format!("warm {text}"))
}

fn range(from: u64, to: u64, heat: Heat) -> WarmRange {
    WarmRange { bytes: from..to, heat }
}

#[test]
fn messages_are_read() {
    assert_eq!(parse("list 7 100").unwrap(), Message::WarmList(7, 100));
    let hot = Heat::parse("main/3/12").unwrap();
    let expected = vec![range(0, 10, Heat::PREFETCHED), range(5, 6, hot), range(100, 200, hot)];
    assert_eq!(parse("fetch 0+10 main/3/12 5+1 100+100").unwrap(), Message::WarmFetch(WarmRanges(expected)));
    assert_eq!(parse("heat main/3/12 1+1").unwrap(), Message::WarmHeat(WarmRanges(vec![range(1, 2, hot)])));
    assert_eq!(parse("evict 1+1").unwrap(), Message::WarmEvict(vec![ByteRange(1..2)]));
    for wrong in ["", "defrag", "list", "list 1 2 3", "fetch", "fetch main/3/12", "evict"] {
        assert!(matches!(parse(wrong), Err(Error::Unsupported(_))), "{wrong}");
    }
    for (wrong, expected) in [
        ("list -1 2", "\"-1\": expected a whole number below 2^32"),
        ("list 4294967296 2", "\"4294967296\": expected a whole number"),
        ("fetch 5", "\"5\": expected OFFSET+LENGTH"),
        ("fetch 5+0", "\"5+0\""),
        ("fetch 18446744073709551615+1", "\"18446744073709551615+1\""),
        ("fetch main/9/1 1+1", "\"main/9/1\""),
        ("evict main/3/12 1+1", "\"main/3/12\""),
    ] {
        let refused = parse(wrong).unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)) && refused.detail().contains(expected), "{refused}");
    }
    let long = format!("fetch {}", "9".repeat(10_000));
    assert!(parse(&long).unwrap_err().to_string().len() < 300);
}

/// The pieces cover exactly the requested bytes that the origin has, in order; each lies within one step of
/// one block.
#[test]
fn pieces_are_what_is_wanted() {
    let mut random = Random::new(5);
    for block in [32 << 10, 64 << 10, 96 << 10, 1 << 20, 40 << 20] {
        let shape = Shape::new(block, BlockSize::default(), 3 * block + 5 * 4096);
        let step = step(&shape);
        assert!(step >= shape.part && (step == block || step.is_multiple_of(shape.part)), "{shape:?}");
        for round in 0..200 {
            let ranges: Vec<WarmRange> = (0..random.below(5))
                .map(|_| {
                    let from = random.below(shape.origin + block);
                    range(from, from + 1 + random.below(2 * block), Heat::PREFETCHED)
                })
                .collect();
            let mut pieces = Pieces::new(shape, ranges.clone());
            let mut past_end = 0;
            for range in ranges {
                let end = range.bytes.end.min(shape.origin);
                let mut at = range.bytes.start;
                while at < end {
                    let piece = pieces.next().unwrap();
                    assert_eq!(piece.block * block + piece.from, at, "block {block}, round {round}");
                    assert!(
                        piece.to > piece.from
                            && piece.to <= block
                            && piece.from / step == (piece.to - 1) / step
                    );
                    at += piece.length();
                }
                past_end += range.bytes.end - at.max(range.bytes.start);
            }
            assert_eq!(
                (pieces.next(), pieces.take_past_end()),
                (None, past_end),
                "block {block}, round {round}"
            );
        }
    }
}
