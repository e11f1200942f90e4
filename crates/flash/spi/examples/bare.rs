//! A minimal serprog server that stores bytes and is never busy: the peer of `bench/plans/spinor.toml`.
//!
//! `cargo run --release -p siltstone-spi --example bare 127.0.0.1:4026`. It has the commands that flashrom
//! needs to write and read a W25Q128: JEDEC ID, status 0, read, page program, erases. It has no states, no
//! protection, no write enable latch and no busy times: blocking calls, one client at a time.

use spi::serprog::{Action, Session, Step};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const SIZE: usize = 16 << 20;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:4026".to_owned());
    let listener = TcpListener::bind(&address)?;
    println!("{address}");
    let mut memory = vec![0xFF; SIZE];
    for stream in listener.incoming() {
        // A client that disconnects doesn't end the server.
        let _ = serve(stream?, &mut memory);
    }
    Ok(())
}

fn serve(mut stream: TcpStream, memory: &mut [u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut session = Session::default();
    let (mut requests, mut filled) = (vec![0; 128 << 10], 0);
    let mut answers = Vec::with_capacity(2 << 20);
    loop {
        let count = stream.read(&mut requests[filled..])?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let mut begin = 0;
        loop {
            match session.next(&requests[begin..filled]) {
                Step::Wait => break,
                Step::Skip(count) => begin += count,
                Step::Do { consumed, action, answer } => {
                    answers.extend_from_slice(answer.bytes());
                    if let Action::Transfer { sent, read, .. } = action {
                        transfer(memory, sent, read, &mut answers);
                    }
                    begin += consumed;
                }
            }
        }
        requests.copy_within(begin..filled, 0);
        filled -= begin;
        stream.write_all(&answers)?;
        answers.clear();
    }
}

fn transfer(memory: &mut [u8], sent: &[u8], read: usize, answers: &mut Vec<u8>) {
    let at = match sent {
        [_, a, b, c, ..] => usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c),
        _ => 0,
    };
    let end = answers.len() + read;
    let erase = |memory: &mut [u8], size: usize| memory[at / size * size..][..size].fill(0xFF);
    match sent.first() {
        Some(0x9F) => answers.extend_from_slice(&[0xEF, 0x40, 0x18][..read.min(3)]),
        Some(0x03) => answers.extend_from_slice(&memory[at..(at + read).min(SIZE)]),
        Some(0x02) => {
            let data = &sent[4..];
            let length = data.len().min(SIZE - at);
            memory[at..at + length].copy_from_slice(&data[..length]);
        }
        Some(0x20) => erase(memory, 4096),
        Some(0x52) => erase(memory, 32768),
        Some(0xD8) => erase(memory, 65536),
        Some(0xC7 | 0x60) => memory.fill(0xFF),
        _ => {}
    }
    let rest = if matches!(sent.first(), Some(0x05 | 0x35 | 0x15)) { 0 } else { 0xFF };
    answers.resize(end, rest);
}
