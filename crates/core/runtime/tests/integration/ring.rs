//! The executor on a real ring: files, sockets, shards, time, and abandoned operations.

use block::{Buffer, Data, Durability, Error, Payload};
use runtime::file::{self, File, OpenOptions};
use runtime::net::{Address, Listener, Stream};
use runtime::{Config, ShardIndex};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(Config::default(), main).expect("the runtime starts")
}

#[test]
fn a_file_keeps_what_is_written_and_errors_name_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    run(move || async move {
        let options = OpenOptions { create: true, ..OpenOptions::read_write() };
        let file = File::open(&path, options).await.expect("it opens");
        let payload: Payload = [&b"abc"[..], b"defgh"].iter().map(|bytes| Data::copy_of(bytes)).collect();
        file.write_at(4096, payload, Durability::Durable).await.expect("it writes");
        file.sync_all().await.expect("it syncs");
        assert_eq!(file.length().expect("a length"), 4104);
        let (result, buffer) = file.read_exact_at(4096, Buffer::new(8)).await;
        result.expect("it reads");
        assert_eq!(buffer.filled(), b"abcdefgh");
        let (result, buffer) = file.read_exact_at(4100, Buffer::new(8)).await;
        assert_eq!(result.expect_err("past the end").errno(), libc::EIO);
        assert!(buffer.filled().is_empty(), "a failed read shows nothing");
        file.punch_hole(4096, 4).await.expect("holes work");
        let (_, buffer) = file.read_exact_at(4096, Buffer::new(8)).await;
        assert_eq!(buffer.filled(), b"\0\0\0\0efgh");
        let other = path.with_file_name("other");
        file::rename(&path, &other).await.expect("it renames");
        assert_eq!(
            file::list(directory.path()).await.expect("it lists"),
            [std::path::PathBuf::from("other")]
        );
        let error = File::open(&path, OpenOptions::default()).await.expect_err("removed");
        assert_eq!(error.errno(), libc::ENOENT);
        assert!(error.to_string().contains("data"), "{error}");
    });
}

#[test]
fn registered_and_plain_buffers_both_work_alone_and_in_vectors() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    let config = Config { registered_bytes: 256 << 10, ..Config::default() };
    let registered = runtime::run(config, move || async move {
        let options = OpenOptions { create: true, ..OpenOptions::read_write() };
        let file = File::open(&path, options).await.expect("it opens");
        // More buffers than the region holds, so that only some are registered.
        let buffers: Vec<Buffer> = (0..100).map(|index| Buffer::copy_of(&[index; 4096])).collect();
        let registered = buffers.iter().filter(|buffer| buffer.is_registered_here()).count();
        let buffers: Vec<Data> = buffers.into_iter().map(Buffer::freeze).collect();
        // One by one, then in vectors of 20: registered, plain, and mixed; each step writes half of each
        // block, shifted by one byte.
        for together in [1, 20] {
            for (number, some) in buffers.chunks(together).enumerate() {
                let halves = |data: &Data| [data.slice(1..2000), data.slice(2000..4096), data.slice(0..1)];
                let payload = match together {
                    1 => some[0].clone().into(),
                    _ => some.iter().flat_map(halves).collect::<Payload>(),
                };
                let at = (number * together) as u64 * 4096;
                let durability = if number % 2 == 0 { Durability::Visible } else { Durability::Durable };
                file.write_at(at, payload, durability).await.expect("it writes");
            }
            for index in 0..100 {
                let (result, buffer) = file.read_exact_at(index * 4096, Buffer::new(4096)).await;
                result.expect("it reads");
                assert!(buffer.filled().iter().all(|byte| u64::from(*byte) == index));
            }
            file.set_len(0).await.expect("it is emptied");
        }
        registered
    });
    let registered = registered.expect("the runtime starts");
    assert!(registered == 64 || registered == 0, "{registered} of 100 buffers were registered: 64 fit");
}

#[test]
fn streams_carry_bytes_both_ways_between_shards() {
    let directory = tempfile::tempdir().expect("a directory");
    let unix = Address::Unix(directory.path().join("socket"));
    let tcp: Address = "127.0.0.1:0".parse().expect("an address");
    for address in [unix, tcp] {
        let done = runtime::run(Config::default().with_shards(2), move || async move {
            let listener = Listener::bind(&address).expect("it listens");
            let address = listener.local_address().clone();
            let client = runtime::spawn_on(ShardIndex(1), move || async move {
                assert_eq!(runtime::current_shard(), ShardIndex(1));
                let stream = Stream::connect(&address).await.expect("it connects");
                let payload: Payload = (0..3000_u32).map(|n| Data::copy_of(&n.to_le_bytes())).collect();
                stream.send(payload).await.0.expect("more slices than one call takes are sent");
                let (result, buffer) = stream.receive_exact(Buffer::new(2)).await;
                result.expect("an answer");
                buffer.filled().to_vec()
            });
            let stream = listener.accept().await.expect("a connection");
            // Sends the stream to another task in the form for other shards.
            let stream = stream.into_remote().expect("it travels").into_stream();
            let (result, buffer) = stream.receive_exact(Buffer::new(12_000)).await;
            result.expect("all bytes arrive");
            let expected: Vec<u8> = (0..3000_u32).flat_map(u32::to_le_bytes).collect();
            assert_eq!(buffer.filled(), expected);
            stream.send(Data::copy_of(b"ok").into()).await.0.expect("it answers");
            let answer = client.await.expect("the other shard lives");
            let (end, _) = stream.receive(Buffer::new(1)).await;
            assert_eq!(end.expect("an orderly end"), 0);
            answer
        });
        assert_eq!(done.expect("the runtime starts"), b"ok");
    }
}

#[test]
fn a_dropped_receive_never_writes_into_freed_memory() {
    run(|| async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("it listens");
        let client = Stream::connect(listener.local_address()).await.expect("it connects");
        let server = listener.accept().await.expect("a connection");
        for round in 0..200_u32 {
            // The receive is dropped at every stage while the kernel has its buffer.
            let buffer = Buffer::new(4096);
            let address = buffer.address();
            let receive = runtime::timeout(Duration::from_micros(u64::from(round)), server.receive(buffer));
            assert!(receive.await.is_err(), "nothing was sent yet");
            // If the memory had been freed, these buffers would reuse it, and the kernel would overwrite
            // them.
            let witnesses: Vec<Buffer> = (0..8).map(|_| Buffer::copy_of(&[0x5A; 4096])).collect();
            let reused = witnesses.iter().any(|buffer| buffer.address() == address);
            client.send(Data::copy_of(&[0xFF; 512]).into()).await.0.expect("it sends");
            runtime::sleep(Duration::from_micros(200)).await;
            for witness in &witnesses {
                assert!(witness.filled().iter().all(|byte| *byte == 0x5A), "round {round}, reused: {reused}");
            }
            // The next receive takes the bytes, unless the cancelled one did: a late cancellation loses
            // bytes, which is why doors don't cancel receives.
            let drained = runtime::timeout(Duration::from_millis(5), server.receive(Buffer::new(4096))).await;
            drop(drained);
        }
    });
}

#[test]
fn dropped_file_operations_end_on_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    let read_back = path.clone();
    run(move || async move {
        let options = OpenOptions { create: true, ..OpenOptions::read_write() };
        let file = File::open(&path, options).await.expect("it opens");
        for index in 0..64_u64 {
            let write = Box::pin(file.write_at(
                index * 4096,
                Buffer::copy_of(&[index as u8 + 1; 4096]).into(),
                Durability::Visible,
            ));
            // Polled once, so that the write is submitted, and then dropped.
            let mut write = write;
            let mut polled = false;
            std::future::poll_fn(|context| {
                if !polled {
                    polled = true;
                    let _ = write.as_mut().poll(context);
                }
                std::task::Poll::Ready(())
            })
            .await;
        }
        file.sync_all().await.expect("it syncs");
        // The entry of the sync follows the writes, but isn't ordered after them, so the test waits for the
        // last write.
        for _ in 0..1000 {
            if file.length().expect("a length") == 64 * 4096 {
                break;
            }
            runtime::sleep(Duration::from_millis(1)).await;
        }
    });
    let contents = std::fs::read(read_back).expect("the file is there");
    let expected: Vec<u8> = (1..=64_u8).flat_map(|byte| [byte; 4096]).collect();
    assert!(contents == expected, "abandoned writes are carried out");
}

/// Polls a future once and drops it: while the operation is in flight or, with `late`, after it has ended.
async fn poll_once_and_drop<F: Future>(future: F, late: bool) {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "it was submitted just now");
        std::task::Poll::Ready(())
    })
    .await;
    if late {
        runtime::submit_now();
        runtime::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn what_an_abandoned_open_has_opened_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data");
    std::fs::write(&path, b"abc").expect("a file");
    run(move || async move {
        let descriptors = |path: &std::path::Path| {
            let all = std::fs::read_dir("/proc/self/fd").expect("Linux lists them");
            all.filter(|entry| {
                let entry = entry.as_ref().expect("an entry");
                std::fs::read_link(entry.path()).is_ok_and(|target| target == path)
            })
            .count()
        };
        for late in [false, true] {
            for _ in 0..8 {
                poll_once_and_drop(File::open(&path, OpenOptions::default()), late).await;
            }
            // Outstanding opens end at about the time of an open that begins later.
            drop(File::open(&path, OpenOptions::default()).await.expect("it opens"));
            for _ in 0..500 {
                if descriptors(&path) == 0 {
                    break;
                }
                runtime::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(descriptors(&path), 0, "descriptors stay open; dropped after the end: {late}");
        }
    });
}

#[test]
fn what_an_abandoned_accept_has_accepted_is_closed() {
    for late in [false, true] {
        run(move || async move {
            let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("it listens");
            // The connection exists already, so the accept completes as soon as it is submitted.
            let client = Stream::connect(listener.local_address()).await.expect("it connects");
            poll_once_and_drop(listener.accept(), late).await;
            let end = runtime::timeout(Duration::from_secs(1), client.receive(Buffer::new(1))).await;
            let (end, _) = end.expect("the connection was accepted and never closed");
            assert!(matches!(end, Ok(0) | Err(_)), "no data: {end:?}");
        });
    }
}

#[test]
fn time_passes_in_order() {
    run(|| async {
        let begin = runtime::now();
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks = [30_u64, 10, 20].map(|milliseconds| {
            let order = order.clone();
            runtime::spawn(async move {
                runtime::sleep(Duration::from_millis(milliseconds)).await;
                order.borrow_mut().push(milliseconds);
            })
        });
        runtime::join_all(tasks).await;
        assert_eq!(*order.borrow(), [10, 20, 30]);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        let error = runtime::timeout(Duration::from_millis(1), std::future::pending::<()>()).await;
        assert_eq!(Error::from(error.expect_err("it never ends")).errno(), libc::ETIMEDOUT);
    });
}

#[test]
fn the_end_drops_every_task_with_what_it_holds() {
    struct Count(Rc<Cell<u32>>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            if self.0.get() == 10 {
                DROPPED.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
    }
    static DROPPED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    run(|| async {
        let count = Rc::new(Cell::new(0));
        for index in 0..10 {
            let held = Count(count.clone());
            runtime::spawn(async move {
                let _held = held;
                if index % 2 == 0 {
                    std::future::pending::<()>().await;
                }
                runtime::sleep(Duration::from_secs(3600)).await;
            })
            .detach();
        }
        runtime::yield_now().await;
    });
    assert!(DROPPED.load(std::sync::atomic::Ordering::SeqCst));
}

#[test]
fn a_panic_in_any_task_on_any_shard_ends_the_run() {
    for shard in 0..2 {
        let ended = std::panic::catch_unwind(|| {
            runtime::run(Config::default().with_shards(2), move || async move {
                runtime::spawn_on(ShardIndex(shard), || async { panic!("on purpose") }).detach();
                runtime::sleep(Duration::from_secs(3600)).await;
            })
        });
        let panic = ended.expect_err("the panic comes through");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}

#[test]
fn blocking_calls_do_not_stop_the_shard() {
    run(|| async {
        let ticks = Rc::new(Cell::new(0));
        let counter = ticks.clone();
        runtime::spawn(async move {
            loop {
                runtime::sleep(Duration::from_millis(1)).await;
                counter.set(counter.get() + 1);
            }
        })
        .detach();
        #[allow(clippy::disallowed_methods, reason = "a call that blocks is what is tested")]
        let answer = runtime::blocking(|| {
            std::thread::sleep(Duration::from_millis(50));
            42
        })
        .await;
        assert_eq!(answer, 42);
        assert!(ticks.get() > 5, "{} ticks in 50 ms", ticks.get());
    });
}

#[test]
fn wrong_configurations_are_refused() {
    for shards in [0, 257] {
        let error = runtime::run(Config::default().with_shards(shards), || async {}).expect_err("refused");
        assert!(error.to_string().contains("1 to 256"), "{error}");
    }
}

mod allocations {
    use super::*;
    use conformance::allocations::{Counting, here};

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn steady_io_allocates_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("data");
        run(move || async move {
            let options = OpenOptions { create: true, ..OpenOptions::read_write() };
            let file = File::open(&path, options).await.expect("it opens");
            let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("it listens");
            let client = Stream::connect(listener.local_address()).await.expect("it connects");
            let server = listener.accept().await.expect("a connection");
            let mut counted = 0;
            for round in 0..200 {
                let before = here();
                let block: Payload = Buffer::zeroed(4096).into();
                file.write_at(0, block, Durability::Visible).await.expect("it writes");
                let (result, _) = file.read_exact_at(0, Buffer::new(4096)).await;
                result.expect("it reads");
                let (result, _) = client.send(Buffer::zeroed(64).into()).await;
                result.expect("it sends");
                let (result, _) = server.receive(Buffer::new(4096)).await;
                result.expect("it receives");
                runtime::yield_now().await;
                if round >= 100 {
                    counted += here() - before;
                }
            }
            assert_eq!(counted, 0, "allocations in 100 rounds after 100 to warm up");
        });
    }
}

/// Runs this test again as a user whose limit of locked memory suffices only for a ring: everything works,
/// with plain buffers.
#[test]
fn without_locked_memory_plain_buffers_serve() {
    const UNDER_LIMIT: &str = "SILTSTONE_TEST_UNDER_LIMIT";
    if std::env::var_os(UNDER_LIMIT).is_some() {
        run(|| async {
            assert!(!Buffer::new(4096).is_registered_here(), "too little memory can be locked");
            let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("it listens");
            let client = Stream::connect(listener.local_address()).await.expect("it connects");
            client.send(Data::copy_of(b"abc").into()).await.0.expect("it sends");
            let server = listener.accept().await.expect("a connection");
            assert_eq!(server.receive(Buffer::new(8)).await.1.filled(), b"abc");
        });
        return;
    }
    let this = std::env::current_exe().expect("this test has a file");
    let command =
        ["--memlock=262144:262144", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"];
    let mut limited = std::process::Command::new("prlimit");
    limited.args(command).arg(this).args(["--exact", "ring::without_locked_memory_plain_buffers_serve"]);
    match limited.env(UNDER_LIMIT, "1").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            if text.contains("Operation not permitted") || text.contains("Permission denied") {
                println!(
                    "SKIPPED: without_locked_memory_plain_buffers_serve: needs root to become another user"
                );
                return;
            }
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(error) => println!("SKIPPED: without_locked_memory_plain_buffers_serve: prlimit: {error}"),
    }
}
