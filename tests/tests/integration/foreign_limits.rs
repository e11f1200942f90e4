//! Refusals of a server, and its behaviour when resources run out: read-only exports, files and sockets that
//! are in use, a full file system, and a stop while clients write.

use rustix::process::Signal;
use siltstone_tests::foreign::{Background, Command, RawClient, Server, binary, run};
use siltstone_tests::{need, need_root};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::{TempDir, tempdir};

const EPERM: u32 = 1;
const ENOSPC: u32 = 28;

fn folder() -> TempDir {
    tempdir().expect("a folder")
}

fn open(server: &Server) -> RawClient {
    RawClient::open(&server.socket).expect("a ready server answers")
}

#[test]
fn read_only_exports_refuse_writes() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    std::fs::write(&image, vec![5; 1 << 20]).expect("a file");
    let by_the_file = format!("file({}, read_only=true)", image.display());
    let by_the_door = "[device.disk]\nkind = \"file\"\npath = \"disk.img\"\n\
                       [door.nbd]\nkind = \"nbd\"\ndevice = \"disk\"\nsocket = \"nbd.sock\"\nread_only = true\n";
    let start: [&dyn Fn() -> Server; 2] =
        [&|| Server::start(folder.path(), &by_the_file), &|| Server::start_toml(folder.path(), by_the_door)];
    for start in start {
        let server = start();
        let mut client = open(&server);
        for command in [Command::Trim, Command::WriteZeroes] {
            assert_eq!(client.call(command, 0, 4096, &[]).expect("an answer"), EPERM, "{command:?}");
        }
        assert_eq!(client.call(Command::Write, 0, 4096, &[1; 4096]).expect("an answer"), EPERM);
        assert_eq!(client.call(Command::Flush, 0, 0, &[]).expect("an answer"), 0);
        assert_eq!(client.read(0, 4096).expect("an answer"), [5; 4096]);
        drop(client);
        server.stop();
    }
    assert!(std::fs::read(&image).expect("the file").iter().all(|&byte| byte == 5), "something was written");
}

#[test]
fn read_only_exports_are_announced() {
    need!("nbdinfo", "qemu-io");
    let folder = folder();
    let image = folder.path().join("disk.img");
    std::fs::write(&image, vec![5; 1 << 20]).expect("a file");
    let server = Server::start(folder.path(), &format!("file({}, read_only=true)", image.display()));
    run("nbdinfo", &["--is", "read-only", server.uri()]).ok();
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 5 0 1M", server.uri()]).ok();
    run("qemu-io", &["-f", "raw", "-c", "write 0 512", server.uri()]).refused();
    server.stop();
}

#[test]
fn a_file_or_a_socket_in_use_is_refused() {
    let folder = folder();
    let image = folder.path().join("disk.img");
    let stack = format!("file({}, size=1MiB)", image.display());
    let server = Server::start(folder.path(), &stack);
    let program = binary().display().to_string();
    let second = |stack: &str, socket: &str| {
        let address = format!("unix:{}", folder.path().join(socket).display());
        let refused = run(&program, &["serve", stack, "--nbd", &address]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.err
    };
    let said = second(&stack, "other.sock");
    assert!(said.contains("disk.img") && said.contains("in use"), "{said}");
    assert!(!folder.path().join("other.sock").exists(), "the refused server has left its socket");
    let said = second("ram(1MiB)", "nbd.sock");
    assert!(said.contains("nbd.sock") && said.contains("a server listens there"), "{said}");
    std::fs::write(folder.path().join("a_file"), "mine").expect("a file");
    let said = second("ram(1MiB)", "a_file");
    assert!(said.contains("a_file") && said.contains("regular file"), "{said}");
    assert_eq!(std::fs::read(folder.path().join("a_file")).expect("the file"), b"mine");
    assert_eq!(open(&server).call(Command::Write, 0, 4, b"data").expect("the first server continues"), 0);
    server.stop();
    // The files and sockets of a stopped server are free at once.
    Server::start(folder.path(), &stack).stop();
}

/// A sparse file on a file system of 4 MiB that only the server sees, and that ends with it.
#[test]
fn a_full_file_system_is_reported_and_survived() {
    need!("unshare", "mount");
    need_root!("mount");
    const CHUNK: u32 = 64 << 10;
    let folder = folder();
    let inside = folder.path().join("small");
    std::fs::create_dir(&inside).expect("a folder");
    let (small, socket) = (inside.display(), folder.path().join("nbd.sock"));
    let script = format!(
        "mount -t tmpfs -o size=4m small {small}
         exec {} serve 'file({small}/disk.img, size=64MiB)' --nbd unix:{}",
        binary().display(),
        socket.display()
    );
    let process = Background::start("unshare", &["--mount", "sh", "-euc", &script]);
    let mut server = Server::ready(process, socket);
    let mut client = open(&server);
    let contents = |index: u32| vec![index as u8 + 1; CHUNK as usize];
    let write = |client: &mut RawClient, index: u32| {
        client.call(Command::Write, u64::from(index * CHUNK), CHUNK, &contents(index)).expect("an answer")
    };
    let errors: Vec<u32> = (0..128).map(|index| write(&mut client, index)).collect();
    let written = errors.iter().take_while(|&&error| error == 0).count() as u32;
    assert!((32..=64).contains(&written), "{written} chunks of 64 KiB fit into 4 MiB");
    assert!(errors[written as usize..].iter().all(|&error| error == ENOSPC), "{errors:?}");
    for index in 0..written {
        let found = client.read(u64::from(index * CHUNK), CHUNK).expect("an answer");
        assert!(found == contents(index), "chunk {index} changed");
    }
    // Discards succeed on a full file system, and free space.
    assert_eq!(client.call(Command::Trim, 0, 8 * CHUNK, &[]).expect("an answer"), 0);
    assert_eq!(write(&mut client, 100), 0, "after a discard there is room");
    assert!(
        client.read(0, CHUNK).expect("an answer").iter().all(|&byte| byte == 0),
        "what was discarded is there"
    );
    assert!(client.read(u64::from(100 * CHUNK), CHUNK).expect("an answer") == contents(100));
    assert_eq!(client.call(Command::Flush, 0, 0, &[]).expect("an answer"), 0);
    drop(client);
    assert!(server.process.is_alive());
    server.stop();
}

/// All acknowledged writes are in the file after SIGTERM, although the client was still writing.
#[test]
fn a_stop_in_the_middle_of_writes_keeps_what_was_acknowledged() {
    for round in 0..5_u64 {
        let folder = folder();
        let image = folder.path().join("disk.img");
        let mut server =
            Server::start(folder.path(), &format!("file({}, size=16MiB) shards=2", image.display()));
        let (mut client, acknowledged) = (open(&server), AtomicU64::new(0));
        let process = &mut server.process;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let enough = 20 + 100 * round;
                process.wait_until("it has begun", |_| acknowledged.load(Ordering::Relaxed) > enough);
                process.signal(Signal::TERM);
            });
            for index in 0..4096_u64 {
                match client.call(Command::Write, index * 4096, 4096, &[index as u8 | 1; 4096]) {
                    Ok(error) => assert_eq!(error, 0, "write {index}"),
                    Err(_) => break,
                }
                acknowledged.store(index + 1, Ordering::Relaxed);
            }
        });
        let status = server.process.wait();
        assert!(status.success(), "after SIGTERM: {status}: {}", server.process.err());
        assert!(!server.socket.exists(), "the socket's file is still there");
        let file = std::fs::File::open(&image).expect("the file");
        let mut block = [0; 4096];
        for index in 0..acknowledged.load(Ordering::Relaxed) {
            file.read_exact_at(&mut block, index * 4096).expect("a block");
            assert!(
                block == [index as u8 | 1; 4096],
                "round {round}: block {index} was acknowledged and is lost"
            );
        }
    }
}
