//! The vhost-user-blk door under QEMU and a stock kernel: data that the guest syncs is flushed, and the guest
//! continues when the server is stopped or killed in the middle of its writes, without an error and without a
//! lost write.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use layers::record::Timeline;
use layers::record::format::Submission;
use layers::record::timeline::EventKind;
use rustix::process::Signal;
use siltstone_tests::foreign::{Server, binary, run};
use siltstone_tests::guest::{Options, Running};
use siltstone_tests::need_guest;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// Bytes that each of the four writers of a round writes.
const WRITTEN: u64 = 4 * MIB;

/// Order of the writes of the two blocks, and of the flushes, in a recorded run.
fn writes_and_flushes(timeline: &Path) -> Vec<char> {
    let path = timeline.to_owned();
    let timeline =
        runtime::run(runtime::Config::default(), move || async move { Timeline::read(&path).await });
    let timeline = timeline.expect("the runtime runs").expect("a recorded run");
    let events = timeline.events.iter().filter_map(|event| match &event.what {
        EventKind::Submitted(Submission::Write { offset, .. }) if *offset == 4096 => Some('1'),
        EventKind::Submitted(Submission::Write { offset, .. }) if *offset == 8192 => Some('2'),
        EventKind::Submitted(Submission::Flush) => Some('f'),
        _ => None,
    });
    events.collect()
}

/// A disk that grows by an operator's message while a guest uses it.
struct Growing {
    disk: PathBuf,
    socket: PathBuf,
    /// Line of the stack.
    line: String,
    server: Server,
}

impl Growing {
    const SMALL: u64 = 16 * MIB;
    const LARGE: u64 = 24 * MIB;

    fn served(folder: &Path) -> Growing {
        let (disk, socket) = (folder.join("growing"), folder.join("growing.sock"));
        std::fs::File::create(&disk).expect("a file").set_len(Self::SMALL).expect("a sparse file");
        let line = format!("vhost-user(file({}), socket={})", disk.display(), socket.display());
        let server = Server::start_with(&["serve", &line], socket.clone());
        Growing { disk, socket, line, server }
    }

    /// Lines of a guest that waits until the disk is larger, and writes its last block.
    fn lines(name: &str) -> String {
        format!(
            "[ $(cat /sys/block/{name}/size) = {} ]
             echo small
             while [ $(cat /sys/block/{name}/size) != {} ]; do sleep 0.1; done
             printf grown | dd of=/dev/{name} bs=4096 seek={} conv=fsync,sync status=none",
            Self::SMALL / 512,
            Self::LARGE / 512,
            Self::LARGE / 4096 - 1
        )
    }

    fn grow(&self, running: &mut Running) {
        running.wait_until("its size", |out| out.contains("small"));
        let program = binary().to_str().expect("a path in UTF-8");
        println!("{}", run(program, &["resize", &self.line, "24MiB", "--part", "file"]).ok());
    }

    /// Stops the server, and checks what the guest has written.
    fn has_grown(self) {
        self.server.stop();
        let bytes = std::fs::read(&self.disk).expect("the disk");
        assert_eq!(bytes.len() as u64, Self::LARGE);
        assert!(bytes[Self::LARGE as usize - 4096..].starts_with(b"grown"));
    }
}

/// Also with a disk that grows, in one guest, as its start is expensive.
#[test]
fn a_guest_flushes_survives_its_servers_and_sees_a_larger_disk() {
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let disk = folder.path().join("disk");
    std::fs::File::create(&disk).expect("a file").set_len(64 * MIB).expect("a sparse file");
    let socket = folder.path().join("vm.sock");
    let line =
        |below: &str| format!("vhost-user({below}, socket={}, serial=silt) shards=2", socket.display());
    let recorded = line(&format!("record(file({}), {})", path("disk"), path("run.timeline")));
    let server = Server::start_with(&["serve", &recorded], socket.clone());
    let growing = Growing::served(folder.path());
    let vhost_user_disks = vec![socket.clone(), growing.socket.clone()];
    let options = Options { vhost_user_disks, limit: 200, ..Options::default() };
    let lines = format!(
        "{}
         [ $(cat /sys/block/vda/serial) = silt ]
         printf first | dd of=/dev/vda bs=4096 seek=1 conv=fsync,sync status=none
         printf second | dd of=/dev/vda bs=4096 seek=2 conv=fsync,sync status=none
         echo flushed
         write() {{
             for writer in 1 2 3 4; do
                 head -c {WRITTEN} /dev/urandom >/run/round$1-$writer
                 dd if=/run/round$1-$writer of=/dev/vda bs=64k seek=$((($1 * 4 + writer) * {WRITTEN} / 65536)) oflag=direct \
                    status=none &
             done
             echo writing $1
             for job in $(jobs -p); do wait $job; done
         }}
         write 0; write 1; write 2
         for round in 0 1 2; do for writer in 1 2 3 4; do
             dd if=/dev/vda bs=64k skip=$(((round * 4 + writer) * {WRITTEN} / 65536)) count=$(({WRITTEN} / 65536)) iflag=direct \
                status=none | cmp - /run/round$round-$writer
         done; done
         cat /run/round* | sha256sum
         if dmesg | grep 'I/O error'; then exit 1; fi",
        Growing::lines("vdb"),
    );
    let mut running = guest.start(&lines, &options);
    growing.grow(&mut running);
    running.wait_until("its first flushes", |out| out.contains("flushed"));
    // One clean stop, and then kills, each in the middle of a round.
    server.stop();
    let plain = line(&format!("file({})", path("disk")));
    let mut server = Server::restart_with(&["--log", "info", "serve", &plain], socket.clone());
    // Bytes of the file that were written: each round writes elsewhere.
    let written = || std::fs::metadata(&disk).expect("the disk").blocks() * 512;
    for round in 0..3 {
        let before = written();
        // QEMU 7.2 never connects again if its server ends during its first messages, so this waits for the
        // round's writes.
        running.wait_until("a round of writes", |out| {
            let is_over = written() >= (round + 1) * 4 * WRITTEN;
            out.contains(&format!("writing {round}")) && (written() > before || is_over)
        });
        std::thread::sleep(std::time::Duration::from_millis(20 * round));
        server.process.signal(Signal::KILL);
        assert!(!server.process.wait().success(), "the server was killed");
        print!("{}", server.process.err());
        server = Server::restart_with(&["--log", "info", "serve", &plain], socket.clone());
    }
    println!("{}{}", running.wait().ok(), server.process.err());
    server.stop();
    growing.has_grown();
    let order = writes_and_flushes(&folder.path().join("run.timeline"));
    let position =
        |what| order.iter().position(|event| *event == what).unwrap_or_else(|| panic!("{what}: {order:?}"));
    let (first, second) = (position('1'), position('2'));
    assert!(order[first..second].contains(&'f') && order[second..].contains(&'f'), "{order:?}");
    let bytes = std::fs::read(&disk).expect("the disk");
    assert!(bytes[4096..].starts_with(b"first") && bytes[8192..].starts_with(b"second"));
}
