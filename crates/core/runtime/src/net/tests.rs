use super::*;
use crate::{Config, run};
use block::Data;

fn option(stream: &Stream, level: i32, option: i32) -> i32 {
    let Descriptor::Kernel { fd, .. } = &*stream.descriptor else { panic!("a simulated socket") };
    let (mut value, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: at most `length` bytes are written to `value`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, std::ptr::from_mut(&mut value).cast(), &mut length)
    };
    assert_eq!(result, 0);
    value
}

#[test]
fn tcp_connections_are_kept_alive() {
    run(Config::default(), || async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let connected = Stream::connect(listener.local_address()).await.unwrap();
        let accepted = listener.accept().await.unwrap();
        for (stream, silence) in [(&connected, 0), (&accepted, 120_000)] {
            assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
            assert_eq!(option(stream, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
            assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 60);
            assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 10);
            assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 6);
            assert_eq!(option(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT), silence);
        }
    })
    .unwrap();
}

/// The kernel sends a payload piece by piece in one operation: an interrupted send must count the pieces that
/// were sent.
#[test]
fn an_interrupted_send_goes_on_where_the_peer_took_something() {
    run(Config::default(), || async {
        let folder = tempfile::tempdir().unwrap();
        for address in [Address::Unix(folder.path().join("s")), "127.0.0.1:0".parse().unwrap()] {
            let listener = Listener::bind(&address).unwrap();
            let peer = Stream::connect(listener.local_address()).await.unwrap();
            let stream = listener.accept().await.unwrap();
            // Several times the buffers of both ends of a connection.
            let bytes: Vec<u8> = (0..64_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
            let payload: Payload = Data::copy_of(&bytes).into();
            let watch = Rc::new(SendWatch::default());
            let sending = crate::spawn({
                let watch = watch.clone();
                async move { stream.send_watched(payload, &watch).await }
            });
            let mut steps = 0;
            let mut last = None;
            while !sending.is_finished() {
                if watch.step().is_some() && watch.step() != last {
                    (last, steps) = (watch.step(), steps + 1);
                    watch.interrupt();
                }
                crate::yield_now().await;
            }
            let (result, payload) = sending.await;
            assert!(matches!(result, Err(Error::TimedOut(_))), "{result:?}");
            assert_eq!(payload.len(), bytes.len(), "it comes back whole");
            assert!(steps >= 2, "{steps} steps: the first one has filled the connection");
            let mut received = Vec::new();
            loop {
                let (result, buffer) = peer.receive(Buffer::new(1 << 20)).await;
                match result {
                    Ok(0) | Err(_) => break,
                    Ok(_) => received.extend_from_slice(buffer.filled()),
                }
            }
            assert!(!received.is_empty() && received.len() < bytes.len(), "{} bytes", received.len());
            assert!(received == bytes[..received.len()], "what the peer took is the payload's beginning");
        }
    })
    .unwrap();
}
