//! Zones as a stack names them.

use block::{Data, ZoneIndex, ZoneState};
use stack::{Built, Registry, Stack};

fn registry() -> Registry {
    Registry::new(vec![&zones::on_device::KIND, &zones::ram::KIND, &disks::file::KIND, &disks::ram::KIND])
}

#[test]
fn the_declarations_are_right() {
    registry().verify().unwrap();
}

#[test]
fn a_plan_knows_the_capacity_or_points_at_the_key() {
    let plan = |line: &str| Stack::from_line("line", line, &registry()).unwrap().check(true);
    assert!(plan("zones(ram(16MiB), zone_size=1MiB)").is_ok());
    for (line, said) in [
        ("zones(ram(16MiB), zone_size=1000000)", "zone_size 1000000"),
        ("zones(ram(16MiB), zone_size=32MiB)", "zone_size"),
        ("ramzones(zone_size=1000)", "zone_size 1000"),
    ] {
        let problems = plan(line).err().map(|problems| problems.to_string()).unwrap_or_default();
        assert!(problems.contains(said), "{line}: {problems}");
    }
}

/// Formats a stack, writes, closes it, and opens it again without `--format`.
#[test]
fn a_stack_of_zones_is_built_closed_and_built_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    let line = format!("zones(file({}, size=8MiB), zone_size=1MiB, max_open=2)", disk.display());
    for format in [true, false] {
        let line = line.clone();
        let run = runtime::run(runtime::Config::default().with_shards(1), move || async move {
            let plan = Stack::from_line("line", &line, &registry()).unwrap().check(format).unwrap();
            let built = plan.build().await.unwrap();
            let part = built
                .parts()
                .find_map(|part| match &part.built {
                    Built::Zones(zones) => Some(zones.clone()),
                    _ => None,
                })
                .unwrap();
            assert_eq!(part.geometry().max_open, 2);
            let handle = part.open().await.unwrap();
            let report = handle.report(ZoneIndex(0), 1).await.unwrap()[0];
            let expected = if format { (ZoneState::Empty, 0) } else { (ZoneState::Closed, 4096) };
            assert_eq!((report.state, report.write_pointer), expected);
            handle.append(ZoneIndex(0), Data::copy_of(&[5; 4096]).into()).await.unwrap();
            drop((handle, part));
            built.close().await.unwrap();
        });
        run.unwrap();
    }
}
