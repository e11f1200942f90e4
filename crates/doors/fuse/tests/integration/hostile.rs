//! A peer that sends arbitrary bytes, over a socket with message boundaries in place of the kernel's device.

use crate::memory::Memory;
use block::{Buffer, Call, Data, Error, Result};
use fuse::dispatch::{Request, answer};
use fuse::negotiation::MAX_WRITE;
use fuse::protocol::{GetattrIn, HEAD_BYTES, InHeader, OutHeader, WriteIn, init_flag, opcode};
use fuse::{
    Attributes, Ended, Entry, FileSystem, Mount, Negotiated, Opened, Operation, ReadDirectory, Reply,
    Session, Statistics,
};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

fn negotiated() -> Negotiated {
    let flags = init_flag::HAS_RESEND | init_flag::SETXATTR_EXT;
    Negotiated { minor: 40, flags, max_write: MAX_WRITE as u32, max_background: 16 }
}

fn frame(opcode: u32, unique: u64, node: u64, arguments: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + arguments.len()) as u32;
    let header = InHeader { len, opcode, unique, nodeid: node, ..InHeader::default() };
    [header.as_bytes(), arguments].concat()
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

fn receive(peer: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    let count = rustix::io::read(peer, &mut bytes).expect("a message");
    bytes.truncate(count);
    bytes
}

/// Sends frames to a session and returns the reason for its end. A valid frame before them is answered.
fn end_after(frames: Vec<Vec<u8>>) -> Ended {
    let run = move || async move {
        let (ours, peer) = pair();
        let mount = Mount::existing("/nowhere".into());
        let session = Session::adopt(Arc::new(Memory::new()), vec![ours], negotiated(), mount);
        let session = session.await.expect("it is served");
        let peer = runtime::blocking(move || {
            let notification = receive(&peer);
            assert_eq!(OutHeader::read_from_bytes(&notification).expect("a header").error, 7, "RESEND");
            rustix::io::write(&peer, &frame(opcode::GETATTR, 4, 1, GetattrIn::default().as_bytes()))
                .expect("sent");
            let reply = receive(&peer);
            let header = OutHeader::read_from_prefix(&reply).expect("a header").0;
            assert_eq!((header.error, header.unique, reply.len()), (0, 4, 120));
            for frame in &frames {
                rustix::io::write(&peer, frame).expect("sent");
            }
            peer
        });
        let peer = peer.await;
        session.ended().await;
        drop(peer);
        session.outcome().expect("it has ended").clone()
    };
    runtime::run(runtime::Config::default().with_shards(1), run).expect("it runs")
}

#[test]
fn a_malformed_frame_ends_the_session() {
    let mut wrong_length = frame(opcode::STATFS, 6, 1, &[]);
    wrong_length.push(0);
    let write = WriteIn { size: 10, ..WriteIn::default() };
    for hostile in [
        vec![1, 2, 3],
        wrong_length,
        frame(opcode::LOOKUP, 6, 1, b"no end"),
        frame(opcode::UNLINK, 6, 1, b"..\0"),
        frame(opcode::WRITE, 6, 1, &[write.as_bytes(), &[0; 9]].concat()),
        frame(opcode::WRITE, 6, 1, &write.as_bytes()[..20]),
    ] {
        let ended = end_after(vec![hostile.clone()]);
        assert!(matches!(ended, Ended::Failed(Error::Protocol(_))), "{ended} after {hostile:?}");
    }
}

#[test]
fn unknown_operations_are_refused_and_the_session_goes_on() {
    let frames = [9999, opcode::GETLK, opcode::POLL, opcode::STATX, opcode::INIT]
        .map(|opcode| frame(opcode, 6, 1, &[0; 64]))
        .into_iter()
        .chain([frame(opcode::DESTROY, 8, 1, &[]), vec![0; 10]]);
    let Ended::Failed(error) = end_after(frames.collect()) else { panic!("the last one is malformed") };
    assert!(error.to_string().contains("10 bytes"), "{error}");
}

/// Executes a frame on a file system that never waits.
fn carry_out(file_system: &dyn FileSystem, frame: &[u8]) -> Option<(u64, Vec<u8>)> {
    let first = frame.len().min(HEAD_BYTES);
    let (head, body) = (Buffer::copy_of(&frame[..first]), Buffer::copy_of(&frame[first..]));
    let request = Request::of(head, body, frame.len()).ok()?;
    let unique = request.header.unique;
    let negotiated = negotiated();
    let mut answering = pin!(answer(file_system, &negotiated, request));
    match answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(Some(reply))) => Some((unique, reply.to_data().to_vec())),
        Poll::Ready(_) => None,
        Poll::Pending => panic!("the file system waits"),
    }
}

/// A file system that answers every operation by one reply.
struct Always(fn() -> Reply);

impl FileSystem for Always {
    fn serve<'a>(&'a self, _: fuse::Context, _: Operation<'a>) -> Call<'a, Result<Reply>> {
        Call::ready(Ok((self.0)()))
    }
}

/// A reply, with the opcodes that it answers and the number of zeros before the names in their arguments.
type Kind = (fn() -> Reply, &'static [(u32, usize)]);

fn directory(with_attributes: bool) -> Reply {
    let read = ReadDirectory { handle: 0, offset: 0, size: 4096, with_attributes };
    Reply::Directory(read.entries())
}

#[test]
fn a_reply_of_another_kind_than_its_operation_is_an_error_for_the_caller() {
    use opcode::*;
    let kinds: [Kind; 12] = [
        (|| Reply::Done, &[(UNLINK, 0), (RENAME, 8), (FLUSH, 24), (RELEASE, 24), (FSYNC, 16), (SYNCFS, 8)]),
        (|| Entry::default().into(), &[(LOOKUP, 0), (SYMLINK, 0), (MKNOD, 16), (MKDIR, 8), (LINK, 8)]),
        (|| (Attributes::default(), Duration::ZERO).into(), &[(GETATTR, 16), (SETATTR, 88)]),
        (|| Opened::default().into(), &[(OPEN, 8), (OPENDIR, 8)]),
        (|| (Entry::default(), Opened::default()).into(), &[(CREATE, 16), (TMPFILE, 16)]),
        (|| Reply::Bytes(Data::copy_of(&[]).into()), &[(READ, 40), (READLINK, 0)]),
        (|| Reply::Value(Data::copy_of(&[])), &[(GETXATTR, 8), (LISTXATTR, 8)]),
        (|| Reply::Written(0), &[(WRITE, 40), (COPY_FILE_RANGE, 56), (COPY_FILE_RANGE_64, 56)]),
        (|| Reply::Offset(0), &[(LSEEK, 24)]),
        (|| Statistics::default().into(), &[(STATFS, 0)]),
        (|| directory(false), &[(READDIR, 40)]),
        (|| directory(true), &[(READDIRPLUS, 40)]),
    ];
    for (made, (reply, _)) in kinds.iter().enumerate() {
        for (expected, (_, opcodes)) in kinds.iter().enumerate() {
            for &(opcode, zeros) in *opcodes {
                let names: &[u8] = if opcode == WRITE { b"" } else { b"a\0b\0" };
                let request = frame(opcode, 77, 1, &[&vec![0; zeros], names].concat());
                let (_, answer) = carry_out(&Always(*reply), &request).expect("a reply");
                let error = OutHeader::read_from_prefix(&answer).expect("a header").0.error;
                let wanted = if made == expected { 0 } else { -libc::EIO };
                assert_eq!(error, wanted, "{:?} to {opcode}", reply());
                assert!(error == 0 || answer.len() == 16);
            }
        }
    }
}

proptest! {
    /// For arbitrary frames, with bytes that are likely in operations, there is no panic, and every reply is
    /// well-formed.
    #[test]
    fn any_frames_are_answered_or_refused(
        frames in proptest::collection::vec((
            prop_oneof![0_u32..60, any::<u32>()],
            prop_oneof![0_u64..5, any::<u64>()],
            proptest::collection::vec(
                prop_oneof![5 => Just(0_u8), 2 => Just(b'a'), 1 => Just(1_u8), 1 => any::<u8>()],
                0..150
            ),
        ), 1..20)
    ) {
        let memory = Memory::new();
        for (opcode, node, arguments) in frames {
            // The test's file system accepts any size.
            if opcode == opcode::SETATTR {
                continue;
            }
            if let Some((unique, reply)) = carry_out(&memory, &frame(opcode, 77, node, &arguments)) {
                let header = OutHeader::read_from_prefix(&reply).expect("a header").0;
                prop_assert_eq!(header.len as usize, reply.len());
                prop_assert_eq!(header.unique, unique);
                prop_assert!((-511..=0).contains(&header.error));
                prop_assert!(header.error == 0 || reply.len() == 16);
            }
        }
    }
}
