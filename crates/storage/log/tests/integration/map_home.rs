//! The map in a file of its own: the contract of a device, epochs that end in every way, and opening without
//! reading the log.

use crate::life::{Volume, disk, run, small};
use block::{
    Buffer, Call, DevicePart, Part, ReadOutcome, Result, ZoneAddress, ZoneGeometry, Zones, ZonesPart,
};
use log::home::{FileMedium, storage};
use log::kind::{MapPlace, Options};
use log::recovery::FileUse;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

fn at_home(path: &Path) -> Options {
    Options { map_home: MapPlace::Pmem(path.to_owned()), ..small() }
}

/// A folder, and the home's file in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("map.pmem");
    (folder, path)
}

fn conforms(shards: usize, options: Options) {
    let (_folder, path) = folder();
    let disk = crate::conformance::disk(8192, 4096, true);
    crate::conformance::conforms(shards, disk, Options { map_home: MapPlace::Pmem(path), ..options });
}

#[test]
fn keeps_the_promises_of_a_device() {
    conforms(1, Options::default());
    conforms(2, Options { size: Some(12 << 20), zone_size: Some(64 << 10), ..Options::default() });
}

#[test]
fn keeps_them_from_the_buffer() {
    let acknowledge = log::core::Acknowledge::Buffer;
    conforms(2, Options { acknowledge, dirty: 1 << 20, ..Options::default() });
}

#[derive(Debug, Default)]
struct Reads(Mutex<Vec<(u32, u64)>>);

impl Reads {
    /// Numbers of bytes read since the last call: of root zones, and of others.
    fn take(&self) -> (u64, u64) {
        let reads = std::mem::take(&mut *self.0.lock().expect("nothing panics under it"));
        let of = |roots: bool| {
            reads.iter().filter(|(zone, _)| (*zone < 2) == roots).map(|(_, bytes)| bytes).sum::<u64>()
        };
        (of(true), of(false))
    }
}

/// Zones that record their reads.
struct Watched {
    inner: zones::OnDevice,
    reads: Arc<Reads>,
}

struct WatchedHandle {
    inner: Rc<dyn Zones>,
    reads: Arc<Reads>,
}

impl Part for Watched {
    fn kind(&self) -> &'static str {
        "watched"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.inner.close()
    }
}

impl ZonesPart for Watched {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            Ok(Rc::new(WatchedHandle { inner, reads: self.reads.clone() }) as Rc<dyn Zones>)
        })
    }
}

impl Zones for WatchedHandle {
    conformance::pass_on!(inner: geometry, append, append_at, open, close, flush, finish, reset, report);

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.reads.0.lock().expect("nothing panics under it").push((at.zone.0, buffer.len() as u64));
        self.inner.read(at, buffer)
    }
}

async fn watched(disk: &Arc<dyn DevicePart>, format: bool) -> (Arc<dyn ZonesPart>, Arc<Reads>) {
    let options = zones::on_device::Options {
        format,
        zone_size: format.then_some(64 << 10),
        max_append: Some(log::layout::MAX_APPEND),
        ..Default::default()
    };
    let inner = zones::OnDevice::open(disk.clone(), options).await.expect("the zones open");
    let reads = Arc::<Reads>::default();
    (Arc::new(Watched { inner, reads: reads.clone() }), reads)
}

/// After a clean stop only roots are read. After a crash that follows a flush no record is replayed, and
/// blocks before the last committed record aren't scanned.
#[test]
fn opening_reads_no_log() {
    let (_folder, path) = folder();
    let disk = disk(64);
    let options = Options { size: Some(36 << 20), ..at_home(&path) };
    let write = |part: log::LogPart| async move {
        let volume = Volume { device: part.open().await.expect("a handle"), part: part.into() };
        for round in 1..4 {
            for block in (0..volume.blocks() - 8).step_by(8) {
                volume.write((block * 7 + round) % (volume.blocks() - 8), 1 + block % 8, round).await;
            }
        }
        volume
    };
    let (disk_1, path_1, options_1) = (disk.clone(), path.clone(), options.clone());
    let before = run(move || async move {
        let (zones, _) = watched(&disk_1, true).await;
        let medium = FileMedium::open(&path_1, FileUse::Create, None).await.expect("a file");
        let options = Options { format: true, ..options_1 };
        let part = log::kind::open_with(zones, &options, Some(storage(medium))).await.expect("it is made");
        let volume = write(part).await;
        let all = volume.all().await;
        volume.close().await;
        all
    });
    let (disk_2, path_2, options_2) = (disk.clone(), path.clone(), Options { size: None, ..options });
    let opened = options_2.clone();
    let mut now = run(move || async move {
        let (zones, reads) = watched(&disk_2, false).await;
        let medium = FileMedium::open(&path_2, FileUse::Open, None).await.expect("a file");
        let part = log::kind::open_with(zones, &options_2, Some(storage(medium))).await.expect("it opens");
        let (roots, others) = reads.take();
        assert!(roots > 0 && roots <= 8 << 12 && others == 0, "{roots} bytes of roots, {others} of others");
        let recovered = part.recovered().clone();
        assert!(recovered.clean && recovered.replayed == 0 && recovered.pages == 0, "{recovered:?}");
        let volume = Volume { device: part.open().await.expect("a handle"), part: part.into() };
        assert!(volume.all().await == before, "what was closed is there");
        volume.write(5, 3, 77).await;
        volume.flush().await;
        volume.all().await
        // The process dies.
    });
    for life in 0..2_u64 {
        let (disk, path, options) = (disk.clone(), path.clone(), opened.clone());
        now = run(move || async move {
            let (zones, reads) = watched(&disk, false).await;
            let medium = FileMedium::open(&path, FileUse::Open, None).await.expect("a file");
            let part = log::kind::open_with(zones, &options, Some(storage(medium))).await.expect("it opens");
            let recovered = part.recovered().clone();
            let (_, others) = reads.take();
            // Open zones are scanned after their last committed record, and nowhere else.
            assert!(others <= 4 * (64 << 10), "{others} bytes of zones");
            assert_eq!((recovered.replayed, recovered.clean), (life.min(1) * 2, false), "{recovered:?}");
            let volume = Volume { device: part.open().await.expect("a handle"), part: part.into() };
            assert!(volume.all().await == now, "what was there is there");
            volume.write(500, 2, 80 + life).await;
            volume.write(9000, 1, 80 + life).await;
            volume.all().await
            // The process dies without a flush.
        });
    }
}

#[test]
fn without_its_home_with_another_one_or_an_older_one_a_log_is_not_opened() {
    let (folder, path) = folder();
    let other = folder.path().join("other.pmem");
    let (disk, other_disk) = (disk(16), disk(16));
    let copies = folder.path().to_owned();
    let (home, there) = (path.clone(), disk.clone());
    run(move || async move {
        let volume = Volume::make(&there, &at_home(&home)).await;
        volume.write(1, 5, 1).await;
        volume.close().await;
        let volume = Volume::make(&other_disk, &at_home(&other)).await;
        volume.close().await;
        std::fs::copy(&home, copies.join("old")).expect("a copy");
        let volume = Volume::open(&there, &at_home(&home)).await;
        volume.write(1, 1, 2).await;
        volume.close().await;
        std::fs::copy(&home, copies.join("good")).expect("a copy");
    });
    let good = std::fs::read(folder.path().join("good")).expect("a file");
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(folder.path().join("damaged"), bytes).expect("a file");
    };
    let refused = |options: Options, words: &[&str]| {
        let disk = disk.clone();
        let error = run(move || async move { Volume::try_open(&disk, &options).await.map(drop) });
        let error = error.expect_err(words[0]);
        println!("{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{word}: {error}"));
    };
    refused(small(), &["map_home", "pmem:PATH"]);
    refused(at_home(&folder.path().join("nowhere")), &["nowhere", "restore it"]);
    refused(at_home(&folder.path().join("other.pmem")), &["other.pmem", "belongs to log"]);
    refused(at_home(&folder.path().join("old")), &["older copy", "transaction"]);
    refused(at_home(folder.path()), &["not a regular file"]);
    let at = at_home(&folder.path().join("damaged"));
    damaged(&|bytes| bytes.truncate(5000));
    refused(at.clone(), &["too short"]);
    damaged(&|bytes| bytes.truncate(bytes.len() - (1 << 20)));
    refused(at.clone(), &["was truncated"]);
    damaged(&|bytes| bytes[..8192].fill(0));
    refused(at.clone(), &["not a map's home"]);
    damaged(&|bytes| {
        bytes[60] ^= 1;
        bytes[4096 + 60] ^= 1;
    });
    refused(at.clone(), &["header", "damaged"]);
    damaged(&|bytes| (bytes[8], bytes[4096 + 8]) = (9, 9));
    refused(at.clone(), &["version 9"]);
    // Opening applies the journal and starts it from scratch; afterwards every line of the state is checked
    // on its own.
    let (good_path, there) = (folder.path().join("good"), disk.clone());
    run(move || async move { drop(Volume::open(&there, &at_home(&good_path)).await) });
    let settled = std::fs::read(folder.path().join("good")).expect("a file");
    let state = u64::from_le_bytes(settled[56..64].try_into().expect("eight bytes")) as usize;
    for line in [0, 1, 2, 20, 200] {
        let mut bytes = settled.clone();
        bytes[state + 64 * line + 9] ^= 4;
        std::fs::write(folder.path().join("damaged"), bytes).expect("a file");
        refused(at.clone(), &["map's home", "damaged"]);
    }
    refused(Options { map: "hash".to_owned(), ..at.clone() }, &["radix", "hash"]);
    let (good_path, there) = (folder.path().join("good"), disk.clone());
    run(move || async move {
        let volume = Volume::open(&there, &at_home(&good_path)).await;
        assert_eq!(volume.versions(0, 7).await, [0, 2, 1, 1, 1, 1, 0]);
        volume.close().await;
    });
}
