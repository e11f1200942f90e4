//! Reads whose bytes come from several places.

use crate::task::join_all;
use block::{Buffer, ReadOutcome};
use std::future::Future;

/// Reads the pieces of a buffer concurrently and joins them. A piece is a number of bytes, which follow those
/// of the piece before, and the argument of `read` for it; nothing is copied. If pieces fail, the buffer is
/// empty, and the error is that of the first failed one.
///
/// # Panics
/// If the pieces are longer than the buffer.
pub async fn read_pieces<Piece, Read: Future<Output = ReadOutcome>>(
    mut buffer: Buffer,
    pieces: impl IntoIterator<Item = (usize, Piece)>,
    mut read: impl FnMut(Piece, Buffer) -> Read,
) -> ReadOutcome {
    let mut rest = buffer.split_off(0);
    let reads = pieces.into_iter().map(|(bytes, piece)| {
        let after = rest.split_off(bytes);
        read(piece, std::mem::replace(&mut rest, after))
    });
    let mut outcome = Ok(());
    for (result, piece) in join_all(reads).await {
        outcome = outcome.and(result);
        buffer.join(piece);
    }
    buffer.join(rest);
    if outcome.is_err() {
        buffer.clear();
    }
    (outcome, buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn of(fails: Option<u8>) -> ReadOutcome {
        let pieces = [(1, 7_u8), (3, 8), (4, 9)];
        now(read_pieces(Buffer::new(8), pieces, |number, mut buffer| async move {
            if fails.is_some_and(|from| number >= from) {
                return (Err(Error::io(format!("piece {number}"))), buffer);
            }
            let bytes = vec![number; buffer.len()];
            buffer.append(&bytes);
            (Ok(()), buffer)
        }))
    }

    #[test]
    fn pieces_are_put_together_in_their_order() {
        let (outcome, buffer) = of(None);
        assert_eq!((outcome, buffer.filled()), (Ok(()), [7, 8, 8, 8, 9, 9, 9, 9].as_slice()));
    }

    #[test]
    fn a_piece_that_fails_leaves_nothing_to_see() {
        let (outcome, buffer) = of(Some(8));
        assert_eq!((outcome, buffer.filled().len(), buffer.len()), (Err(Error::io("piece 8")), 0, 8));
    }
}
