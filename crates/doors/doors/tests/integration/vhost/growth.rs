//! A device that grows while it is served.

use super::front_end::{FrontEnd, Queue, Settings, Transfer};
use crate::support::{Raw, run};
use block::Buffer;
use doors::nbd::protocol::command;
use doors::vhost_user::config::feature;
use doors::vhost_user::protocol::{CONFIG_CHANGE, HEADER_BYTES, flag, message};
use doors::vhost_user::request::kind;
use runtime::net::Address;
use stack::{Registry, Stack};
use std::io::Read;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Whether the server has sent a message, which must be CONFIG_CHANGE without a request for a reply.
async fn is_told(channel: &mut std::os::unix::net::UnixStream) -> bool {
    channel.set_nonblocking(true).expect("a socket");
    let mut bytes = [0; HEADER_BYTES];
    for _ in 0..2000 {
        match channel.read(&mut bytes) {
            Ok(count) => {
                assert_eq!(bytes[..count], message(CONFIG_CHANGE, flag::VERSION, &[]));
                return true;
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Asserts that the server has sent no message when it answers a later request.
async fn assert_not_told(front_end: &mut FrontEnd, channel: &mut std::os::unix::net::UnixStream) {
    front_end.read_config().await.expect("the configuration");
    channel.set_nonblocking(true).expect("a socket");
    let problem = channel.read(&mut [0; HEADER_BYTES]).expect_err("a message");
    assert_eq!(problem.kind(), std::io::ErrorKind::WouldBlock);
}

fn sectors(front_end: &FrontEnd) -> u64 {
    u64::from(front_end.config_u32(0)) | u64::from(front_end.config_u32(4)) << 32
}

#[test]
fn a_grown_device_is_announced_and_usable() {
    let registry =
        Registry::new(vec![&disks::file::KIND, &doors::nbd::door::KIND, &doors::vhost_user::door::KIND]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    run(2, move || async move {
        let text = "
            [device.disk]
            kind = \"file\"
            path = \"disk.img\"
            [door.vm]
            kind = \"vhost-user\"
            device = \"disk\"
            socket = \"vm.sock\"
            [door.net]
            kind = \"nbd\"
            device = \"disk\"
            socket = \"net.sock\"
        ";
        std::fs::File::create(path.join("disk.img")).expect("a file").set_len(MIB).expect("a sparse file");
        let stack = Stack::from_toml("test", text, &registry).expect("parses").with_base_directory(&path);
        let built = stack.check(false).expect("fits").build().await.expect("builds");
        built.start().await.expect("starts");
        let refresh = || built.doors().for_each(|(_, door)| door.refresh());
        let disk = built.part("disk").expect("the part").built.part();
        let address = Address::Unix(path.join("vm.sock"));
        let mut front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        assert_ne!(front_end.shared.features & feature::FLUSH, 0);
        let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
        let end = 2 * MIB / 512 - 8;
        assert_eq!(queue.request(kind::OUT, end, None, Transfer::Out(&[7; 4096])).await, 1, "past the end");
        let mut channel = front_end.open_channel().await.expect("taken");

        // Requests that change nothing aren't announced.
        for (text, expected) in [
            ("resize 1MiB", "more than 256"),
            ("resize 4096", "can't shrink"),
            ("resize 1049088", "multiple of the block size"),
            ("resize much", "a size, such as"),
            ("shrink 1MiB", "unknown to file"),
        ] {
            let error = disk.message(text).await.expect_err(text);
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
        refresh();
        assert_not_told(&mut front_end, &mut channel).await;
        assert_eq!(std::fs::metadata(path.join("disk.img")).expect("the file").len(), MIB);

        let answer = disk.message("resize 2MiB").await.expect("it grows");
        assert!(answer.contains("\"bytes\":2097152"), "{answer}");
        refresh();
        assert!(is_told(&mut channel).await, "no message within two seconds");
        assert_not_told(&mut front_end, &mut channel).await;
        assert_eq!(sectors(&front_end), 2 * MIB / 512);
        assert_eq!(queue.request(kind::OUT, end, None, Transfer::Out(&[7; 4096])).await, 0);
        assert_eq!(queue.request(kind::OUT, end + 1, None, Transfer::Out(&[7; 4096])).await, 1);
        assert_eq!(queue.request(kind::FLUSH, 0, None, Transfer::None).await, 0);
        let mut block = Buffer::new(4096);
        assert_eq!(queue.request(kind::IN, MIB / 512, None, Transfer::In(&mut block)).await, 0);
        assert_eq!(block.filled(), [0; 4096], "new blocks are zeros");

        // A new client of another door sees the whole device.
        let raw = Raw::open(&Address::Unix(path.join("net.sock")), "disk", false).await;
        let last = raw.call(command::READ, 0, 2 * MIB - 4096, 4096, &[]).await;
        assert!(last.is_ok(), "{last:?}");

        // A front-end that connects between two growths is notified of the second one, and one that closed
        // its channel isn't disconnected.
        drop((queue, front_end));
        let mut front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        assert_eq!(sectors(&front_end), 2 * MIB / 512);
        let mut channel = front_end.open_channel().await.expect("taken");
        disk.message("resize 3MiB").await.expect("it grows");
        refresh();
        assert!(is_told(&mut channel).await, "no message within two seconds");
        drop(channel);
        disk.message("resize 4MiB").await.expect("it grows");
        refresh();
        front_end.read_config().await.expect("it is still served");
        assert_eq!(sectors(&front_end), 4 * MIB / 512);
        built.close().await.expect("closes");
        let bytes = std::fs::read(path.join("disk.img")).expect("the file");
        assert_eq!((bytes.len() as u64, bytes[2 * MIB as usize - 1]), (4 * MIB, 7));
    });
}
