use super::*;
use crate::{Config, run};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn with_folder<Fut: Future<Output = ()> + 'static>(test: impl FnOnce(PathBuf) -> Fut + Send) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol.sock");
    run(Config::default(), move || test(path)).unwrap();
}

async fn listen(path: &Path) -> Result<Listener> {
    Listener::replace_stale(&Address::Unix(path.to_owned()), Access::default()).await
}

/// Listens without the retries of `replace_stale`.
fn listen_at_once(path: &Path) -> Result<Listener> {
    SocketFolder::of(path)?.listen(path, Access::default())
}

fn make_fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the name ends with a NUL and lives during the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

#[test]
fn whatever_is_no_stale_socket_stays() {
    with_folder(|path| async move {
        type Make = fn(&Path);
        let cases: [(&str, Make); 4] = [
            ("a regular file", |path| std::fs::write(path, "precious").unwrap()),
            ("a directory", |path| std::fs::create_dir(path).unwrap()),
            ("a FIFO", make_fifo),
            ("a symbolic link", |path| std::os::unix::fs::symlink("elsewhere", path).unwrap()),
        ];
        for (kind, make) in cases {
            make(&path);
            let before = std::fs::symlink_metadata(&path).unwrap();
            let Err(error) = listen(&path).await else { panic!("it listens in place of {kind}") };
            assert_eq!(error.errno(), libc::EEXIST, "{error}");
            for expected in [path.to_str().unwrap(), kind, "remove it or choose another path"] {
                assert!(error.to_string().contains(expected), "{expected}: {error}");
            }
            let after = std::fs::symlink_metadata(&path).unwrap();
            assert_eq!((after.ino(), after.file_type()), (before.ino(), before.file_type()), "{kind}");
            match before.is_dir() {
                true => std::fs::remove_dir(&path).unwrap(),
                false => std::fs::remove_file(&path).unwrap(),
            }
        }
        let datagrams = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(listen_at_once(&path), Err(Error::Busy(_))), "another type of socket is in use");
        drop(datagrams);
        listen(&path).await.unwrap().close().await.unwrap();
        assert!(!path.exists());
    });
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_stays() {
    with_folder(|path| async move {
        drop(UnixListener::bind(&path).unwrap());
        let first = listen(&path).await.unwrap();
        let Err(error) = listen_at_once(&path) else { panic!("two listen on one path") };
        assert!(matches!(error, Error::Busy(_)) && error.to_string().contains("vol.sock"), "{error}");
        crate::net::Stream::connect(first.local_address()).await.unwrap();
        first.close().await.unwrap();
        assert!(!path.exists());
    });
}

#[test]
fn closing_removes_only_the_own_inode() {
    with_folder(|path| async move {
        let first = listen(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        first.close().await.unwrap();
        assert!(path.exists(), "another server's socket remains");
        drop(second);
        // A file that was removed isn't an error.
        let third = listen(&path).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        third.close().await.unwrap();
    });
}

#[test]
fn a_locked_folder_is_waited_for_but_not_for_ever() {
    with_folder(|path| async move {
        let listener = listen(&path).await.unwrap();
        let lock = SocketFolder::lock(path.parent().unwrap()).unwrap();
        let other = path.with_extension("other");
        let waiting = crate::spawn({
            let other = other.clone();
            async move { listen(&other).await }
        });
        crate::yield_now().await;
        assert!(!waiting.is_finished() && !other.exists());
        drop(lock);
        waiting.await.unwrap().close().await.unwrap();
        let _lock = SocketFolder::lock(path.parent().unwrap()).unwrap();
        let Err(error) = listen_at_once(&other) else { panic!("it listens in a locked folder") };
        assert!(error.to_string().contains("locked by another process"), "{error}");
        assert!(matches!(listener.close().await, Err(Error::Busy(_))));
        assert!(path.exists(), "without the lock nothing is removed");
    });
}

/// Two threads start at the same moment over a stale socket: one listens, and the path has its socket.
#[test]
fn of_two_that_start_at_once_one_listens() {
    const ROUNDS: u32 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vol.sock");
    let (barrier, listening) = (Barrier::new(2), AtomicU32::new(0));
    let start = |path: &Path| loop {
        match SocketFolder::of(path).map(|folder| folder.listen(path, Access::default())) {
            Err(Error::Busy(_)) => std::thread::yield_now(),
            Ok(Err(Error::Busy(_))) => return None,
            other => return other.and_then(|listened| listened).ok(),
        }
    };
    // An assertion that fails in the middle of a round would leave the other thread waiting forever.
    let rounds = |prepares: bool| {
        let mut wrong = 0;
        for _ in 0..ROUNDS {
            if prepares {
                listening.store(0, Ordering::SeqCst);
                drop(UnixListener::bind(&path));
            }
            barrier.wait();
            let listener = start(&path);
            listening.fetch_add(u32::from(listener.is_some()), Ordering::SeqCst);
            barrier.wait();
            if prepares {
                let reached = is_listened_on(&path).unwrap_or(false);
                wrong += u32::from(listening.load(Ordering::SeqCst) != 1 || !reached);
                let _ = std::fs::remove_file(&path);
            }
            barrier.wait();
        }
        wrong
    };
    let on_a_shard = |prepares| run(Config::default(), || std::future::ready(rounds(prepares))).unwrap();
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| on_a_shard(false));
        on_a_shard(true)
    });
    assert_eq!(wrong, 0, "of {ROUNDS} rounds");
}

#[test]
fn permissions_are_there_from_the_beginning() {
    with_folder(|path| async move {
        let folder = SocketFolder::lock(path.parent().unwrap()).unwrap();
        let listener = folder.listen(&path, Access::with_mode(0o600)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        drop((folder, listener));
    });
}
