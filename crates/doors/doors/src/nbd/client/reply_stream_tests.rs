use super::*;
use crate::nbd::protocol::{Request, chunk, data_chunk, simple_reply};
use proptest::prelude::*;
use runtime::sync::Semaphore;
use std::task::{Context, Poll, Waker};

const LENGTH: u32 = 1000;
const OFFSET: u64 = 5000;

/// A table with a read and a flush in flight, their slots and cookies.
fn table() -> (Table, [(usize, u64); 2]) {
    let mut table = Table::default();
    let permits = Semaphore::new(10);
    let mut submit = |command, length, buffer| {
        let request = Request { flags: 0, command, cookie: 0, offset: OFFSET, length };
        let permit = permits.try_acquire(1).expect("free");
        table.submit(request, None, buffer, permit).expect("the connection is there")
    };
    let read = submit(command::READ, LENGTH, Some(Buffer::new(LENGTH as usize)));
    let flush = submit(command::FLUSH, 0, None);
    // Cookies count from 1 and end with the slot.
    (table, [(read, (1 << 16) | read as u64), (flush, (2 << 16) | flush as u64)])
}

fn answer(table: &mut Table, slot: usize) -> Option<(Result<()>, Vec<u8>)> {
    match table.poll(slot, &Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => {
            Some((answer.result, answer.buffer.map(|buffer| buffer.filled().to_vec()).unwrap_or_default()))
        }
        Poll::Pending => None,
    }
}

/// Feeds a stream in pieces of `step` bytes, as a link does.
fn feed(stream: &mut ReplyStream, table: &mut Table, bytes: &[u8], step: usize) -> Result<()> {
    let (mut begin, mut end) = (0, 0);
    while end < bytes.len() {
        end = (end + step).min(bytes.len());
        begin += stream.feed(&bytes[begin..end], table)?;
    }
    Ok(())
}

fn data(cookie: u64, at: u32, bytes: &[u8]) -> Vec<u8> {
    let mut message = data_chunk(cookie, OFFSET + u64::from(at), bytes.len() as u32).to_vec();
    message[5] = 0; // Not the last one.
    message.extend_from_slice(bytes);
    message
}

fn error(cookie: u64, number: u32, words: &str) -> Vec<u8> {
    let mut message = chunk(REPLY_FLAG_DONE, chunk_type::ERROR, cookie, 6 + words.len() as u32).to_vec();
    message.extend_from_slice(&number.to_be_bytes());
    message.extend_from_slice(&(words.len() as u16).to_be_bytes());
    message.extend_from_slice(words.as_bytes());
    message
}

proptest! {
    /// Chunks of data and holes in any order, between replies to others, in pieces of any size.
    #[test]
    fn a_read_in_chunks(
        cuts in prop::collection::btree_set(1..LENGTH, 0..6),
        shuffle in any::<u64>(),
        holes in any::<u8>(),
        step in 1_usize..400,
    ) {
        let (mut table, [(read, cookie), (flush, other)]) = table();
        let mut expected: Vec<u8> = (0..LENGTH).map(|at| at as u8 | 1).collect();
        let edges: Vec<u32> = [0].into_iter().chain(cuts).chain([LENGTH]).collect();
        let mut chunks: Vec<Vec<u8>> = Vec::new();
        for (number, pair) in edges.windows(2).enumerate() {
            let range = pair[0] as usize..pair[1] as usize;
            if holes & (1 << number) == 0 {
                chunks.push(data(cookie, pair[0], &expected[range]));
            } else {
                expected[range].fill(0);
                let mut hole = chunk(0, chunk_type::OFFSET_HOLE, cookie, 12).to_vec();
                hole.extend_from_slice(&(OFFSET + u64::from(pair[0])).to_be_bytes());
                hole.extend_from_slice(&(pair[1] - pair[0]).to_be_bytes());
                chunks.push(hole);
            }
        }
        let mut random = runtime::Random::new(shuffle);
        (1..chunks.len()).rev().for_each(|last| chunks.swap(last, random.below(last as u64 + 1) as usize));
        chunks.insert(random.below(chunks.len() as u64) as usize, simple_reply(other, 0).to_vec());
        chunks.push(chunk(REPLY_FLAG_DONE, chunk_type::NONE, cookie, 0).to_vec());
        let mut stream = ReplyStream::new(true);
        prop_assert_eq!(feed(&mut stream, &mut table, &chunks.concat(), step), Ok(()));
        prop_assert_eq!(answer(&mut table, read), Some((Ok(()), expected)));
        prop_assert_eq!(answer(&mut table, flush), Some((Ok(()), vec![])));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                (0_u16..8, 0_u16..3, 0_u64..3, 0_u32..60, any::<bool>()).prop_map(|(kind, flags, cookie, length, error)| {
                    let kind = if error { kind | chunk_type::ERROR_BIT } else { kind };
                    let cookie = ((cookie + 1) << 16) | cookie;
                    let mut message = chunk(flags, kind, cookie, length).to_vec();
                    message.extend_from_slice(&OFFSET.to_be_bytes());
                    message.resize(20 + length as usize, 0);
                    message
                }),
            ],
            0..12,
        ),
        structured in any::<bool>(),
        step in 1_usize..100,
    ) {
        let (mut table, _) = table();
        let mut stream = ReplyStream::new(structured);
        if let Err(error) = feed(&mut stream, &mut table, &pieces.concat(), step) {
            table.fail(&error);
        }
    }
}

#[test]
fn simple_replies() {
    let (mut table, [(read, cookie), (flush, other)]) = table();
    let mut stream = ReplyStream::new(false);
    let bytes = [&simple_reply(other, 5)[..], &simple_reply(cookie, 0), &[7; LENGTH as usize]].concat();
    feed(&mut stream, &mut table, &bytes, 33).expect("valid");
    assert_eq!(answer(&mut table, read), Some((Ok(()), vec![7; LENGTH as usize])));
    let (result, _) = answer(&mut table, flush).expect("ended");
    assert_eq!(result.expect_err("it failed").errno(), libc::EIO);
}

#[test]
fn a_read_that_fails_or_lacks_something_shows_nothing() {
    let none = |cookie| chunk(REPLY_FLAG_DONE, chunk_type::NONE, cookie, 0).to_vec();
    let (_, [(_, cookie), _]) = table();
    for (bytes, errno) in [
        ([data(cookie, 0, &[1; 999]), none(cookie)].concat(), libc::EPROTO),
        ([data(cookie, 0, &[1; 1000]), error(cookie, 5, "broken")].concat(), libc::EIO),
        (error(cookie, 22, ""), libc::EINVAL),
    ] {
        let (mut table, [(read, _), _]) = table();
        feed(&mut ReplyStream::new(true), &mut table, &bytes, 10).expect("the protocol is kept");
        let (result, shown) = answer(&mut table, read).expect("ended");
        assert_eq!(result.expect_err("it failed").errno(), errno);
        assert!(shown.is_empty());
    }
}

#[test]
fn what_isnt_the_protocol_ends_the_connection() {
    let (_, [(_, cookie), (_, other)]) = table();
    let outside = data(cookie, 999, &[1; 2]);
    let twice = [data(cookie, 0, &[1; 10]), data(cookie, 9, &[1; 10])].concat();
    let cases: [&[u8]; 6] = [
        b"GET /",
        &outside,
        &twice,
        &simple_reply(cookie, 0),
        &simple_reply(99, 0),
        &data(other, 0, &[1; 4]),
    ];
    for bytes in cases {
        let (mut table, [(read, _), (flush, _)]) = table();
        let error = feed(&mut ReplyStream::new(true), &mut table, bytes, 1000).expect_err("refused");
        assert_eq!(error.errno(), libc::EPROTO, "{bytes:?}");
        table.fail(&error);
        for slot in [read, flush] {
            assert!(answer(&mut table, slot).expect("ended").0.is_err());
        }
    }
}

#[test]
fn large_data_goes_straight_to_its_buffer() {
    let mut table = Table::default();
    let length = 200_000_u32;
    let request = Request { flags: 0, command: command::READ, cookie: 0, offset: OFFSET, length };
    let permit = Semaphore::new(1).try_acquire(1).expect("free");
    let buffer = Buffer::new(length as usize);
    let address = buffer.address() as usize;
    let read = table.submit(request, None, Some(buffer), permit).expect("there");
    let mut stream = ReplyStream::new(true);
    let expected: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
    let cookie = 1 << 16;
    let message =
        [data(cookie, 0, &expected[..150_000]), data(cookie, 150_000, &expected[150_000..])].concat();
    assert_eq!(stream.feed(&message[..1000], &mut table), Ok(1000));
    let mut piece = stream.take_direct(&mut table).expect("worth it");
    assert_eq!((piece.address() as usize, piece.len()), (address + 972, 150_000 - 972));
    piece.append(&expected[972..100_000]);
    stream.give_back(piece, &mut table, false).expect("in the middle");
    let mut piece = stream.take_direct(&mut table).expect("goes on");
    piece.append(&expected[100_000..150_000]);
    stream.give_back(piece, &mut table, false).expect("done");
    let rest = [&message[150_028..], &chunk(REPLY_FLAG_DONE, chunk_type::NONE, cookie, 0)].concat();
    feed(&mut stream, &mut table, &rest, 70_000).expect("valid");
    assert_eq!(answer(&mut table, read), Some((Ok(()), expected)));
}
