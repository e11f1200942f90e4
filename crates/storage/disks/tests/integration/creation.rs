//! Creation of a file with contents: other files aren't touched, and of several creators one makes it.

use block::{BlockIndex, Buffer, DevicePart, Durability, Error, Payload, Result};
use disks::file::{FilePart, creation};
use runtime::Config;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: u64 = 1 << 20;

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(Config::default(), main).expect("the runtime starts")
}

fn block_of(byte: u8) -> Payload {
    Buffer::copy_of(&[byte; 4096]).into()
}

/// Writes the first and the last block.
async fn fill(device: Arc<dyn DevicePart>) -> Result<()> {
    let device = device.open().await?;
    for block in [0, SIZE / 4096 - 1] {
        device.write(BlockIndex(block), block_of(5), Durability::Visible).await?;
    }
    Ok(())
}

fn create_with(
    path: &Path,
    fill: impl AsyncFn(Arc<dyn DevicePart>) -> Result<()> + Send + 'static,
) -> Result<()> {
    let path = path.to_path_buf();
    run(move || async move { creation::create(&path, SIZE, fill).await })
}

fn create(path: &Path) -> Result<()> {
    create_with(path, fill)
}

fn open(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    run(move || async move { FilePart::open_path(&path, None).await.map(drop) })
}

fn is_complete(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.len() as u64 == SIZE && bytes.starts_with(&[5; 4096]) && bytes.ends_with(&[5; 4096])
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn errors_of_opening_begin_with_the_path_also_if_it_is_a_word_of_them() {
    let opened = |path: &Path, size, found: Result<u8>| {
        let path = path.to_path_buf();
        run(move || async move {
            let open = async move |_| found;
            creation::open_or_create(&path, "letter", size, fill, open).await.map(|(found, _)| found)
        })
    };
    let none = opened(Path::new("such"), None, Ok(1)).unwrap_err();
    assert!(matches!(none, Error::NotFound(_)) && none.to_string().starts_with("such: no such"), "{none}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it");
    let begins = |error: &Error| error.to_string().starts_with(&format!("{}: ", path.display()));
    assert_eq!(opened(&path, Some(SIZE), Ok(1)), Ok(1));
    assert!(is_complete(&path));
    let other = opened(&path, None, Err(Error::protocol("a postcard"))).unwrap_err();
    assert!(begins(&other) && other.to_string().contains("it holds no letter (a postcard)"), "{other}");
    let damaged = opened(&path, Some(SIZE), Err(Error::corrupt("it is torn"))).unwrap_err();
    assert!(matches!(damaged, Error::Corrupt(_)) && begins(&damaged), "{damaged}");
}

#[test]
fn a_file_with_a_similar_name_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("data"), folder.path().join("data.new"));
    std::fs::write(&copy, "a restored copy").unwrap();
    create(&path).unwrap();
    assert!(is_complete(&path));
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), "a restored copy");
    assert_eq!(entries(folder.path()), 2);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_empty_file_keeps_its_inode_and_mode() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("data"), folder.path().join("link"));
    std::fs::write(&path, []).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("data", &link).unwrap();
    let before = std::fs::metadata(&path).unwrap();
    create(&link).unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    assert!(is_complete(&path) && std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(entries(folder.path()), 2);
}

#[test]
fn an_empty_file_that_is_locked_is_busy_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let other = std::fs::File::create(&path).unwrap();
    other.try_lock().unwrap();
    let error = create(&path).unwrap_err();
    assert!(matches!(&error, Error::Busy(_)) && error.to_string().contains("data"), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), other.metadata().unwrap().ino());
    assert_eq!((other.metadata().unwrap().len(), entries(folder.path())), (0, 1));
}

#[test]
fn a_link_without_a_target_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    symlink("nowhere", &path).unwrap();
    let error = create(&path).unwrap_err();
    assert!(matches!(&error, Error::Invalid(_)) && error.to_string().contains("nowhere"), "{error}");
    assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("nowhere"));
    assert_eq!(entries(folder.path()), 1);
}

#[test]
fn a_file_that_appears_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    for contents in ["another's", ""] {
        let appearing = path.clone();
        let appears = async move |device| {
            std::fs::write(&appearing, contents).unwrap();
            fill(device).await
        };
        create_with(&path, appears).unwrap();
        match contents {
            "" => assert!(is_complete(&path)),
            _ => assert_eq!(std::fs::read_to_string(&path).unwrap(), contents),
        }
        assert_eq!(entries(folder.path()), 1);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn after_an_error_the_path_is_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    for is_there in [false, true] {
        if is_there {
            std::fs::write(&path, []).unwrap();
        }
        let fails = async |device| {
            fill(device).await?;
            Err(Error::io("on purpose"))
        };
        let error = create_with(&path, fails).unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(entries(folder.path()), usize::from(is_there));
        assert!(!is_there || std::fs::read(&path).unwrap().is_empty());
    }
}

/// A process that was killed while it filled an empty file in place leaves what the copy holds.
#[test]
fn an_incomplete_file_is_recognized_and_filled_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, left) = (folder.path().join("data"), folder.path().join("left"));
    std::fs::write(&path, []).unwrap();
    let paths = (path.clone(), left.clone());
    let copies = async move |device| {
        fill(device).await?;
        std::fs::copy(&paths.0, &paths.1).unwrap();
        Ok(())
    };
    create_with(&path, copies).unwrap();
    assert!(!creation::is_absent(&path).unwrap() && creation::is_absent(&left).unwrap());
    assert!(open(&left).is_err());
    create(&left).unwrap();
    assert!(is_complete(&left) && !creation::is_absent(&left).unwrap());
    // Other contents of that length aren't an incomplete file.
    let length = std::fs::metadata(&left).unwrap().len() + 64;
    std::fs::write(&left, vec![0; length as usize]).unwrap();
    assert!(!creation::is_absent(&left).unwrap());
}

#[test]
fn of_many_that_create_a_file_at_once_all_find_it_complete_or_busy() {
    const ROUNDS: usize = 20;
    const CREATORS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let barrier = std::sync::Barrier::new(CREATORS);
    let opened = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for creator in 0..CREATORS {
            let (folder, barrier, opened) = (folder.path(), &barrier, &opened);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let path = folder.join(format!("data{round}"));
                    if creator == 0 && round % 3 == 0 {
                        std::fs::write(&path, []).unwrap();
                    }
                    barrier.wait();
                    let open = move || async move {
                        if creation::is_absent(&path)? {
                            creation::create(&path, SIZE, fill).await?;
                        }
                        FilePart::open_path(&path, None).await.map(|_part| assert!(is_complete(&path)))
                    };
                    match run(open) {
                        Ok(()) => drop(opened.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::Busy(_)) => {}
                        Err(other) => panic!("round {round}, creator {creator}: {other}"),
                    }
                }
            });
        }
    });
    assert!(opened.load(Ordering::Relaxed) >= ROUNDS);
    assert_eq!(entries(folder.path()), ROUNDS, "nothing else is left");
    (0..ROUNDS).for_each(|round| assert!(is_complete(&folder.path().join(format!("data{round}")))));
}
