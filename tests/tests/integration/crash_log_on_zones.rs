//! The crash oracle on a log on zones of a stack, with every layer for zones between.

use block::{BlockCount, DevicePart, Result, ZonesPart};
use layers::fault::{FaultZonesPart, parse_rules};
use layers::record::{RecordZonesPart, Recorder, Role};
use layers::stats::StatsZonesPart;
use log::kind::{Options, open_on_zones};
use siltstone_tests::oracle::{Opening, Oracle, in_simulation, seed};
use siltstone_tests::stacked::Stacked;
use std::sync::Arc;

/// log(zone-record(zone-stats(zone-fault(zones(disk))))).
async fn open(disk: Arc<dyn DevicePart>, format: bool) -> Result<Stacked> {
    let on_device = zones::on_device::Options { format, zone_size: Some(32 << 10), ..Default::default() };
    let zones: Arc<dyn ZonesPart> = Arc::new(zones::OnDevice::open(disk, on_device).await?);
    // There are many recoveries, and they have nothing in flight that could be reordered.
    let rules: &[&str] = if format { &["any delay=0us..200us probability=0.3"] } else { &[] };
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let rules = parse_rules(&rules, stack::Contract::Zones)?;
    let slow: Arc<dyn ZonesPart> = Arc::new(FaultZonesPart::new(zones.clone(), rules, 5));
    let counted: Arc<dyn ZonesPart> = Arc::new(StatsZonesPart::new(slow.clone()));
    let recorder = Recorder::in_memory();
    let recorded: Arc<dyn ZonesPart> =
        Arc::new(RecordZonesPart::new(counted.clone(), recorder, "zones", Role::Disk)?);
    let size = Some(60 * 4096);
    let options = Options { format, size, checkpoint_after: 64 << 10, ..Options::default() };
    let log = open_on_zones(recorded.clone(), &options).await?;
    Ok(Stacked::new(Arc::new(log), vec![recorded, counted, slow, zones]))
}

#[test]
fn on_zones_with_layers_between() {
    let name = "a log on zones";
    let mut oracle = Oracle::limited(seed(name, 93), 1);
    oracle.disk.blocks = BlockCount(320);
    oracle.workload.operations = 200;
    oracle.prefix = true;
    oracle.again_every = 331;
    let seed = oracle.seed;
    let main = move || async move {
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let part = open(disk, opening == Opening::Format).await?;
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        };
        oracle.run(open).await
    };
    let report = in_simulation(seed, main);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}");
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    assert!(
        report.recoveries > 100 || !report.is_whole(),
        "{name}: only {} states of recoveries were tried",
        report.recoveries
    );
}
