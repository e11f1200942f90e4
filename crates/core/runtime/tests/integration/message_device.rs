//! Message devices; a socket that preserves message boundaries replaces the device.

use block::{Buffer, Error, Payload};
use runtime::Config;
use runtime::message_device::MessageDevice;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::time::Duration;

fn run<Fut: Future<Output = ()> + 'static>(
    ring_entries: u32,
    test: impl FnOnce(MessageDevice, OwnedFd) -> Fut + Send,
) {
    let config = Config { ring_entries, ..Config::default() };
    runtime::run(config, || {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, peer) = pair.unwrap();
        test(MessageDevice::from_descriptor(ours, "test").unwrap(), peer)
    })
    .unwrap();
}

async fn received(device: &MessageDevice) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let (result, head, body) = device.receive(Buffer::new(10), Buffer::new(100)).await;
    assert!(result.is_ok() || head.filled().is_empty() && body.filled().is_empty());
    result.map(|count| {
        assert_eq!(count, head.filled().len() + body.filled().len());
        (head.filled().to_vec(), body.filled().to_vec())
    })
}

#[test]
fn a_message_fills_the_head_and_then_the_body() {
    run(64, |device, peer| async move {
        rustix::io::write(&peer, b"0123456789abcdef").unwrap();
        rustix::io::write(&peer, b"short").unwrap();
        assert_eq!(received(&device).await, Ok((b"0123456789".to_vec(), b"abcdef".to_vec())));
        assert_eq!(received(&device).await, Ok((b"short".to_vec(), Vec::new())));
        let parts = [&b"one "[..], b"message"].map(|part| Buffer::copy_of(part).freeze());
        device.send(&parts.into_iter().collect::<Payload>()).unwrap();
        let mut bytes = [0; 100];
        assert_eq!(rustix::io::read(&peer, &mut bytes), Ok(11));
        assert_eq!(&bytes[..11], b"one message");
        drop(peer);
        assert_eq!(received(&device).await, Ok((Vec::new(), Vec::new())), "the end");
        assert_eq!(device.send(&Buffer::copy_of(b"x").into()).unwrap_err().errno(), libc::EPIPE);
    });
}

/// With a small ring, submissions happen between the entries of many receives. None may happen between the
/// two entries of one receive.
#[test]
fn many_receives_wait_and_each_takes_one_message() {
    run(8, |device, peer| async move {
        let mut receiving = Vec::new();
        for number in 0..50_u64 {
            let device = device.clone();
            receiving.push(runtime::spawn(async move { received(&device).await.unwrap().0[0] }));
            if number % 3 == 0 {
                // Makes the number of entries odd.
                runtime::sleep(Duration::ZERO).await;
            }
        }
        runtime::sleep(Duration::from_millis(1)).await;
        assert!(receiving.iter().all(|task| !task.is_finished()));
        for number in 0..50 {
            rustix::io::write(&peer, &[number]).unwrap();
            runtime::sleep(Duration::from_micros(200)).await;
        }
        let mut seen = runtime::join_all(receiving).await;
        seen.sort_unstable();
        assert_eq!(seen, (0..50).collect::<Vec<_>>());
    });
}

#[test]
fn a_dropped_receive_takes_no_message() {
    run(64, |device, peer| async move {
        for _ in 0..20 {
            let waiting = runtime::timeout(Duration::from_micros(200), received(&device)).await;
            assert!(waiting.is_err(), "there is no message");
        }
        runtime::sleep(Duration::from_millis(1)).await;
        rustix::io::write(&peer, b"here").unwrap();
        assert_eq!(received(&device).await, Ok((b"here".to_vec(), Vec::new())));
    });
}
