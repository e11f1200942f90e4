//! A log on zones of a stack, with and without layers in between: it keeps the contract of a device, leaves
//! the zones to the stack, and never has more of them open than it declares.

use block::{Call, DevicePart, Durable, EraseGuarantee, Error, Part, Result, ZoneGeometry};
use conformance::Whole;
use log::kind::Options;
use stack::{Registry, Stack};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn registry() -> Registry {
    Registry::new(vec![
        &disks::file::KIND,
        &disks::ram::KIND,
        &zones::on_device::KIND,
        &zones::ram::KIND,
        &layers::stats::ZONES_KIND,
        &layers::fault::ZONES_KIND,
        &layers::record::ZONES_KIND,
        &log::KIND,
    ])
}

/// Builds a stack. Closing it adds the number of failed appends.
async fn build(line: &str, format: bool, failed_appends: &Arc<AtomicU64>) -> Result<Whole> {
    let plan = Stack::from_line("line", line, &registry()).and_then(|stack| stack.check(format));
    let built = plan.unwrap_or_else(|problems| panic!("{problems}")).build().await?;
    let failed_appends = failed_appends.clone();
    Ok(Whole::new(built)?.before_close(move |built| {
        let failed_appends = failed_appends.clone();
        Call::new(async move {
            if let Some(counted) = built.status().await["zones"].get("zone-stats1") {
                let failed = counted["append"]["errors"].as_u64().expect("a number");
                failed_appends.fetch_add(failed, Ordering::Relaxed);
            }
        })
    }))
}

/// Runs the suite on this stack, with a file for `DISK`; returns the number of failed appends, if
/// `zone-stats` counts them.
fn conforms(shards: usize, line: &str) -> u64 {
    println!("{line}");
    let folder = tempfile::tempdir().expect("a folder");
    let line = line.replace("DISK", &folder.path().join("disk.img").display().to_string());
    let config = runtime::Config::default().with_shards(shards);
    let failed = Arc::new(AtomicU64::new(0));
    let counted = failed.clone();
    let main = move || async move {
        let made = Cell::new(false);
        let make = async || {
            let whole = build(&line, !made.replace(true), &counted).await;
            Arc::new(whole.expect("the stack opens")) as Arc<dyn DevicePart>
        };
        let suite = conformance::device::Options { persistent: true, ..Default::default() };
        conformance::device::run(make, suite).await
    };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
    failed.load(Ordering::Relaxed)
}

#[test]
fn on_zones() {
    conforms(1, "log(zones(file(DISK, size=32MiB), zone_size=256KiB), size=16MiB)");
}

/// Zones of the usual size, and appends of the least size for a log: a header and a block of data.
#[test]
fn on_zones_with_small_appends() {
    conforms(2, "log(zones(file(DISK, size=32MiB), zone_size=256KiB, max_append=8KiB), size=8MiB)");
}

#[test]
fn with_layers_between() {
    let line = "log(zone-stats(zone-fault(zones(file(DISK, size=32MiB), zone_size=256KiB), \
                \"any delay=0us..100us probability=0.2\", seed=3)), ack=buffer)";
    assert_eq!(conforms(2, line), 0, "appends that failed");
}

/// Smallest limit of open zones that this log accepts.
fn least_limit(options: &Options) -> u32 {
    let zones = |limit| ZoneGeometry {
        zones: 120,
        zone_size: 64 << 10,
        zone_capacity: 60 << 10,
        append_granularity: 4096,
        read_granularity: 4096,
        max_append: 60 << 10,
        max_open: limit,
        max_active: limit,
        durable: Durable::OnFlush,
        erase: EraseGuarantee::Erased,
    };
    (1..1000).find(|limit| options.layout_on(&zones(*limit)).is_ok()).expect("there is one")
}

/// No append is refused for too many open zones, with as few as the log requires, while zones are reused many
/// times.
#[test]
fn with_as_few_open_zones_as_it_demands() {
    for (appends_in_flight, cleaning) in [(2, "lifetime"), (1, "greedy"), (4, "sepbit")] {
        let options = Options { appends_in_flight, cleaning: cleaning.to_owned(), ..Options::default() };
        let limit = least_limit(&options);
        let line = format!(
            "log(zone-stats(zones(file(DISK, size=9MiB), zone_size=64KiB, max_open={limit}, max_active={limit})), \
             size=3MiB, checkpoint_after=256KiB, appends_in_flight={appends_in_flight}, cleaning={cleaning})"
        );
        assert_eq!(conforms(2, &line), 0, "{line}: appends that failed");
    }
}

/// Unfit zones are refused by the plan if it can know, otherwise at the open.
#[test]
fn zones_that_do_not_fit_are_refused() {
    let refused = |line: &str, format: bool| {
        let plan = Stack::from_line("line", line, &registry()).and_then(|stack| stack.check(format));
        plan.err().unwrap_or_else(|| panic!("{line}: it is taken")).to_string()
    };
    for (line, said) in [
        ("log(ramzones(zones=64))", "durable only when they are finished"),
        ("log(zones(ram(64MiB), zone_size=1MiB), zone_size=1MiB)", "set for a log on zones"),
        (
            "log(zones(ram(64MiB), zone_size=1MiB, max_active=3))",
            "max_active=3; expected 0 (no limit) or at least",
        ),
        ("log(zones(ram(64MiB, block_size=4096), zone_size=1MiB, max_append=4KiB))", "appends of 2"),
        (
            "log(zones(ram(64MiB, block_size=8KiB), zone_size=1MiB))",
            "multiples of 8192 bytes; expected a divisor of 4096",
        ),
        ("log(zones(ram(64MiB), zone_size=1MiB), size=60MiB)", "expected at most"),
    ] {
        let told = refused(line, true);
        assert!(told.contains(said), "{line}: {told}");
    }
    // The size of existing zones is known only once they are opened.
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk.img").display().to_string();
    runtime::run(runtime::Config::default(), move || async move {
        let none = Arc::new(AtomicU64::new(0));
        let zones = format!("zones(file({disk}, size=16MiB), max_open=2)");
        let formatted = format!("log(zones(file({disk}, size=16MiB), zone_size=256KiB))");
        build(&formatted, true, &none).await.expect("it is made").close().await.expect("it closes");
        let error = build(&format!("log({zones})"), false, &none).await.err().expect("it is refused");
        assert!(matches!(&error, Error::Invalid(_)) && error.to_string().contains("max_open=2"), "{error}");
        let whole = build(&formatted, false, &none).await.expect("it opens with more");
        whole.close().await.expect("it closes");
    })
    .expect("the runtime starts");
}
