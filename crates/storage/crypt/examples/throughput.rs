//! Throughput of AES-XTS on one processor, beside that of the crate `aes` alone (its `encrypt_blocks` over
//! the same bytes, without tweaks): `cargo run --release -p siltstone-crypt --example throughput`.
//!
//! The two run in turn, and each line has the median of their ratios, of processor time.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use crypt::xts::Xts;
use std::time::Duration;

/// Pairs of runs of a line.
const PAIRS: usize = 41;
/// Bytes of a run.
const BYTES: usize = 64 << 20;

fn time(bytes: &mut [u8], mut act: impl FnMut(&mut [u8])) -> Duration {
    let began = runtime::thread_cpu_time();
    (0..BYTES / bytes.len()).for_each(|_| act(bytes));
    runtime::thread_cpu_time() - began
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, length: usize, one: impl Fn(&mut [u8]), alone: impl Fn(&mut [Block])) {
    let mut buffer = block::Buffer::zeroed(length);
    let bytes = buffer.filled_mut();
    let (mut ratios, mut speeds) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let ours = time(bytes, &one).as_secs_f64();
        let theirs = time(bytes, |bytes| alone(Array::slice_as_chunks_mut(bytes).0)).as_secs_f64();
        ratios.push(theirs / ours);
        speeds.push(BYTES as f64 / ours / 1e9);
    }
    println!(
        "{name:>16} {:>5} KiB: {:6.2} GB/s, {:.2} of aes alone",
        length >> 10,
        median(speeds),
        median(ratios)
    );
}

fn main() {
    let main = || async {
        for length in [4 << 10, 1 << 20] {
            let (xts, aes) = (Xts::new(&[1; 64]).expect("a key"), Aes256::new(&Array([1; 32])));
            compare("aes-256 encrypt", length, |it| xts.encrypt(it, 4096, 9), |it| aes.encrypt_blocks(it));
            compare("aes-256 decrypt", length, |it| xts.decrypt(it, 4096, 9), |it| aes.decrypt_blocks(it));
            let (xts, aes) = (Xts::new(&[1; 32]).expect("a key"), Aes128::new(&Array([1; 16])));
            compare("aes-128 encrypt", length, |it| xts.encrypt(it, 4096, 9), |it| aes.encrypt_blocks(it));
            compare("aes-128 decrypt", length, |it| xts.decrypt(it, 4096, 9), |it| aes.decrypt_blocks(it));
        }
    };
    runtime::run(runtime::Config::default(), main).expect("the runtime starts");
}
