//! A log whose zones are objects in a real store (VersityGW): the server dies by SIGKILL while an NBD client
//! writes, and the next one has everything that was flushed.

#[path = "../../../crates/storage/object-store/tests/integration/servers.rs"]
pub mod servers;

use servers::Program;
use siltstone_tests::foreign::{Promised, Server, binary, run};
use siltstone_tests::oracle::seed;
use siltstone_tests::worlds::Stop;
use std::path::Path;

const BLOCKS: u64 = 512;
const KILLS: u64 = 3;

/// A log on zones in this store, as one line.
fn stack(folder: &Path, port: u16) -> String {
    let credentials = folder.join("credentials");
    std::fs::write(&credentials, "[default]\naws_access_key_id = key\naws_secret_access_key = hidden\n")
        .unwrap();
    format!(
        "log(objects(\"http://127.0.0.1:{port}\", bucket=vol, prefix=\"db1/\", credentials_file={}, \
         zone_size=256KiB, zones=32, piece_size=128KiB), size={})",
        credentials.display(),
        BLOCKS * 4096
    )
}

#[test]
fn a_killed_server_has_kept_in_the_bucket_what_was_flushed() {
    let Some(store) = servers::Server::start(Program::VersityGw) else { return };
    let first = seed("a_killed_server_has_kept_in_the_bucket_what_was_flushed", 1);
    let folder = tempfile::tempdir().unwrap();
    let stack = stack(folder.path(), store.port);
    run(&binary().display().to_string(), &["format", &stack]).ok();
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(first));
    for round in 0..KILLS {
        let mut server = Server::restart(folder.path(), &stack);
        promised.work_until_killed(&mut server, &mut random, 600);
        let server = Server::restart(folder.path(), &stack);
        promised.check(&server, Stop::PowerCut).unwrap_or_else(|broken| panic!("kill {round}: {broken}"));
        server.stop();
    }
    println!("{} writes, {} flushes", promised.writes, promised.flushes);
    assert!(promised.flushes > 10, "too little happened before the end");
}
