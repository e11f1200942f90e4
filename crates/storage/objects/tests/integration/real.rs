//! Zones on real stores.

use crate::common::{append, handle, read, settings};
use crate::servers::{Program, Server};
use block::{EraseGuarantee, Error, Part, ZoneIndex, ZoneState};
use object_store::{Addressing, Config, CredentialSource, Credentials, Limits};
use objects::{Compression, Encryption, NewVolume, ObjectsPart, Options};
use std::sync::Arc;
use std::time::Duration;

/// Encryption with a key store in memory.
fn encryption() -> Encryption {
    let key_store = disks::ram::RamPart::new(64 << 10, block::BlockSize::new(4096).unwrap()).unwrap();
    let key = Arc::new(crypt::secret::copy_of(&[5; 32]).unwrap());
    Encryption { key, key_store: Some(Arc::new(key_store)) }
}

fn options(port: u16, format: bool, probe: bool, encryption: Option<&Encryption>) -> Options {
    let compression = if encryption.is_some() { Compression::Lz4 } else { Compression::None };
    Options {
        store: Config {
            endpoint: format!("http://127.0.0.1:{port}"),
            bucket: "vol".to_owned(),
            region: "us-east-1".to_owned(),
            addressing: Addressing::Path,
            credentials: CredentialSource::Given(Credentials::new("key", "hidden", None)),
            tls: None,
            limits: Limits::default(),
        },
        prefix: "db1/".to_owned(),
        writer: "a test".to_owned(),
        format: format.then_some(NewVolume { zones: 8, zone_size: 1 << 20, probe }),
        expected: (None, None),
        settings: objects::Settings { grace: Duration::from_millis(300), compression, ..settings() },
        encryption: encryption.cloned(),
        follow: None,
    }
}

/// Uses a volume: appends, reads, resets, a second writer, deletions, a clean stop.
async fn use_volume(port: u16, probe: bool, encryption: Option<&Encryption>) {
    let first = ObjectsPart::open(options(port, true, probe, encryption)).await.unwrap();
    let old = handle(&first).await;
    for zone in 0..4 {
        append(&*old, zone, zone as u8, 90 << 10).await;
        append(&*old, zone, 100 + zone as u8, 4096).await;
    }
    let all = [0, 1, 2, 3].map(ZoneIndex);
    old.flush(&all).await.unwrap();
    old.finish(ZoneIndex(1)).await.unwrap();
    assert_eq!(old.reset(ZoneIndex(2), EraseGuarantee::None).await, Ok(2));
    let second = ObjectsPart::open(options(port, false, false, encryption)).await.unwrap();
    let new = handle(&second).await;
    let states: Vec<ZoneState> =
        new.report(ZoneIndex(0), 4).await.unwrap().iter().map(|report| report.state).collect();
    assert_eq!(states, [ZoneState::Interrupted, ZoneState::Full, ZoneState::Empty, ZoneState::Interrupted]);
    for zone in [0, 1, 3] {
        assert_eq!(read(&*new, zone, 0, 90 << 10).await.unwrap(), vec![zone as u8; 90 << 10]);
        assert_eq!(read(&*new, zone, 90 << 10, 4096).await.unwrap(), vec![100 + zone as u8; 4096]);
    }
    append(&*old, 4, 9, 4096).await;
    let fenced = old.flush(&[ZoneIndex(4)]).await.unwrap_err();
    assert!(matches!(fenced, Error::ReadOnly(_)), "{fenced}");
    for _ in 0..20 {
        append(&*new, 5, 5, 4096).await;
        new.flush(&[ZoneIndex(5)]).await.unwrap();
    }
    new.reset(ZoneIndex(5), EraseGuarantee::None).await.unwrap();
    new.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
    second.message("gc").await.unwrap();
    while second.status().await["garbage_objects"] != 0 {
        runtime::sleep(Duration::from_millis(50)).await;
    }
    append(&*new, 6, 6, 4096).await;
    drop(new);
    second.close().await.unwrap();
    let third = ObjectsPart::open(options(port, false, false, encryption)).await.unwrap();
    let handle = handle(&third).await;
    assert_eq!(handle.report(ZoneIndex(6), 1).await.unwrap()[0].state, ZoneState::Closed);
    assert_eq!(append(&*handle, 6, 7, 4096).await, 4096);
    assert_eq!(read(&*handle, 6, 0, 4096).await.unwrap(), [6; 4096]);
    let status = third.status().await;
    assert_eq!((status["epoch"].as_u64().unwrap() % 3, &status["pieces"]), (0, &5.into()), "{status:?}");
    drop(handle);
    third.close().await.unwrap();
}

fn on(program: Program, probe: bool) {
    let Some(server) = Server::start(program) else { return };
    runtime::run(runtime::Config::default(), move || async move {
        use_volume(server.port, probe, None).await;
        // Formats it again.
        use_volume(server.port, probe, Some(&encryption())).await;
        drop(server);
    })
    .unwrap();
}

#[test]
fn versitygw_holds_zones() {
    on(Program::VersityGw, true);
}

/// Without the probe, since moto's conditions aren't atomic: one writer at a time is enough here.
#[test]
fn moto_holds_zones() {
    on(Program::Moto, false);
}
