//! Remote memory on a real cluster that loses a master together with acknowledged writes.

use crate::servers::{Cluster, wait_for};
use crate::support::{BLOCK, MIB, connect, content, read, write};
use block::{BlockSize, Device, DevicePart, Part};
use disks::ram::RamPart;
use remote::RemotePart;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const PAGES: u64 = 8192;
const CLUSTER_BYTES: u64 = 160 * MIB;

/// A device and the permitted versions of each page.
struct Checked {
    part: Arc<RemotePart>,
    device: Rc<dyn Device>,
    versions: Vec<Vec<u64>>,
    errors: u64,
}

impl Checked {
    async fn open(nodes: Vec<Arc<dyn DevicePart>>, copies: u64) -> Checked {
        let nodes = nodes.into_iter().enumerate().map(|(number, node)| (format!("node {number}"), node));
        let config = remote::Config {
            size: Some(PAGES * BLOCK),
            cache: 32 << 20,
            group: 1 << 20,
            copies,
            compression: remote::Compression::None,
            ..remote::Config::new(nodes.collect())
        };
        let part = RemotePart::open(config).await.unwrap();
        let device = part.open().await.unwrap();
        Checked { part, device, versions: vec![vec![0]; PAGES as usize], errors: 0 }
    }

    async fn write(&mut self, page: u64, version: u64) {
        let versions = &mut self.versions[page as usize];
        match write(&*self.device, page, content(page, version)).await {
            Ok(()) => *versions = vec![version],
            Err(_) => {
                versions.push(version);
                self.errors += 1;
            }
        }
    }

    /// Whether a page could be read. Panics if it has none of the permitted versions.
    async fn check(&mut self, page: u64) -> bool {
        match read(&*self.device, page, 1).await {
            Ok(found) => {
                let versions = &self.versions[page as usize];
                let is_one_of_them = versions.iter().any(|version| found == content(page, *version)[..]);
                assert!(is_one_of_them, "page {page} isn't one of the versions {versions:?}");
                true
            }
            Err(_) => {
                self.errors += 1;
                false
            }
        }
    }

    async fn wait_until_up(&self) {
        for _ in 0..200 {
            let status = self.part.status().await;
            if status["nodes"][0]["state"] == "up" && status["blocks_being_written"] == 0 {
                return;
            }
            runtime::sleep(Duration::from_millis(100)).await;
        }
        panic!("the cluster doesn't come back: {:?}", self.part.status().await);
    }
}

#[test]
fn lost_writes_are_noticed_and_copies_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut cluster) = Cluster::start(folder.path(), 3, true, "2000") else { return };
    let test = move || async move {
        let addresses = cluster.addresses();
        let on_cluster = async |name| {
            let part = connect(&addresses[..2], name, CLUSTER_BYTES).await.unwrap();
            Arc::new(part) as Arc<dyn DevicePart>
        };
        let ram = RamPart::new(CLUSTER_BYTES, BlockSize::default()).unwrap();
        let mut alone = Checked::open(vec![on_cluster("alone").await], 1).await;
        let mut covered = Checked::open(vec![on_cluster("covered").await, Arc::new(ram)], 2).await;
        for page in 0..PAGES {
            alone.write(page, 1).await;
            covered.write(page, 1).await;
        }
        let (master, replica) = (0, 3);
        wait_for("a replica that has everything", || {
            let offset = |server: usize, name| cluster.servers[server].field(&["INFO", "replication"], name);
            offset(master, "master_repl_offset") == offset(replica, "slave_repl_offset")
        });
        // Later writes don't reach the replica.
        cluster.servers[replica].signal("STOP");
        assert_eq!(cluster.servers[master].ask(&["CLIENT", "KILL", "TYPE", "replica"]), ":1");
        let mut random = runtime::Random::new(1);
        for number in 0..PAGES {
            if number == PAGES * 3 / 4 {
                cluster.servers[master].kill();
                cluster.servers[replica].signal("CONT");
            }
            // Writes each page once.
            let page = number * 5 % PAGES;
            alone.write(page, 2).await;
            covered.write(page, 2).await;
            let other = random.below(PAGES);
            alone.check(other).await;
            covered.check(other).await;
        }
        println!("{} errors while the master was down", alone.errors);
        assert_eq!(covered.errors, 0, "the other copy has every page");
        alone.wait_until_up().await;
        covered.wait_until_up().await;
        let mut lost = Vec::new();
        for page in 0..PAGES {
            assert!(covered.check(page).await, "page {page} of two copies");
            if !alone.check(page).await {
                lost.push(page);
            }
        }
        let role = cluster.servers[replica].field(&["INFO", "replication"], "role");
        println!("{} of {PAGES} pages were lost by the failover; the replica is {role} now", lost.len());
        assert!(!lost.is_empty() && lost.len() < PAGES as usize / 2, "{} pages", lost.len());
        for page in lost {
            // The last pages of the first round were still staged when replication stopped.
            let was_replicated = page < PAGES / 2 && alone.versions[page as usize].contains(&1);
            assert!(!was_replicated, "page {page}: the replica had the version that was acknowledged last");
            assert!(!alone.check(page).await, "page {page} remains lost");
            alone.write(page, 3).await;
            assert!(alone.check(page).await, "until it is written again");
        }
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}
