//! The state machine of the emulated drive against others: QEMU's zoned NVMe namespace, with its NVMe status
//! codes; and through the block layer, the kernel's null_blk and the emulated drive itself behind a ublk
//! door.
//!
//! The comparison runs in the guest (`guest/zones/main.rs`), and ends at the first difference that
//! `zoned/differences.rs` doesn't list, or at a listed one that no longer occurs. These tests check that all
//! classes of answers and all listed differences occurred.

use serde_json::Value;
use siltstone_tests::foreign::binary;
use siltstone_tests::guest::Options;
use siltstone_tests::need_guest;
use siltstone_tests::zoned::differences::{DOOR, Difference, NULL_BLK, QEMU, QEMU_AUTO_TRANSITION};
use std::path::Path;

const ZONES: &str = env!("CARGO_BIN_EXE_siltstone-guest-zones");

/// Answers of a namespace that don't need limits.
const NAMESPACE: [&str; 17] = [
    "Append 002h",
    "Append 1B8h",
    "Append 1B9h",
    "Append done",
    "Close 1BFh",
    "Close done",
    "Finish done",
    "Offline 1BFh",
    "Open 1BFh",
    "Open done",
    "Read 1B8h",
    "Read done",
    "Reset done",
    "Write 1B8h",
    "Write 1B9h",
    "Write 1BCh",
    "Write done",
];
const LIMITS: [&str; 6] =
    ["Append 1BDh", "Append 1BEh", "Open 1BDh", "Open 1BEh", "Write 1BDh", "Write 1BEh"];
const BLOCK_LAYER: [&str; 9] = [
    "Close done",
    "Close refused",
    "Finish done",
    "Open done",
    "Open refused",
    "Read done",
    "Reset done",
    "Write done",
    "Write refused",
];
const FAILURES: [&str; 5] =
    ["Fail Offline", "Fail ReadOnly", "Finish refused", "Read refused", "Reset refused"];

/// QEMU's controllers and namespaces, with 10 zones of 256 KiB each, of which 192 KiB can be written.
fn namespaces(folder: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut device = |kind: &str, value: String| arguments.extend([kind.to_owned(), value]);
    device("-device", "nvme,id=strict,serial=strict,zoned.auto_transition=off".into());
    device("-device", "nvme,id=auto,serial=auto".into());
    let limits = ",zoned.max_open=3,zoned.max_active=5";
    for (name, controller, number, limits) in
        [("limited", "strict", 1, limits), ("unlimited", "strict", 2, ""), ("closing", "auto", 1, limits)]
    {
        let file = folder.join(name);
        std::fs::File::create(&file).unwrap().set_len(10 << 18).unwrap();
        device("-drive", format!("if=none,id={name},format=raw,file={}", file.display()));
        device(
            "-device",
            format!(
                "nvme-ns,drive={name},bus={controller},nsid={number},logical_block_size=4096,physical_block_size=4096,\
                 zoned=true,zoned.zone_size=256K,zoned.zone_capacity=192K{limits}"
            ),
        );
    }
    arguments
}

#[test]
fn the_state_machine_answers_as_others_do() {
    let guest = need_guest!();
    let folder = tempfile::tempdir().unwrap();
    let last_seed = if conformance::budget::is_long() { 40 } else { 1 };
    let lines = format!(
        "siltstone={}; zones={ZONES}; cd /run
         # The namespace of this number of the controller with this serial number. The kernel looks for namespaces at the same time, and numbers
         # their nodes as it finds them.
         namespace() {{
             for block in /sys/block/nvme*; do
                 node=/dev/ng${{block#/sys/block/nvme}}
                 found=\"$(cat $block/nsid) $(tr -d ' ' <$block/device/serial)\"
                 if [ \"$found\" = \"$2 $1\" ] && [ -e $node ]; then echo $node; fi
             done
         }}
         compare() {{ name=$1; shift; $zones $@ >said; echo $name $(cat said); }}
         modprobe null_blk nr_devices=0
         mount -t configfs configfs /sys/kernel/config
         drive='zns-emulator(zones=10, zone_size=2MiB, zone_capacity=1MiB, time=none, max_open=3, max_active=5)'
         $siltstone attach \"$drive\" --name zns --via ublk --format >said 2>&1 || {{ cat said >&2; exit 1; }}
         for seed in $(seq {last_seed}); do
             limits=3:5
             compare limited nvme $(namespace strict 1) 10:64:48:$limits known=qemu $seed 4000
             compare unlimited nvme $(namespace strict 2) 10:64:48:0:0 known=qemu $seed 2000
             compare closing nvme $(namespace auto 1) 10:64:48:$limits known=qemu-auto $seed 4000
             compare door block $(readlink -f /dev/siltstone/zns) 10:512:256:$limits known=door $seed 2000
             # Zones that have failed don't come back, so each seed has a device.
             null=/sys/kernel/config/nullb/zoned$seed
             mkdir $null
             for setting in size=20 blocksize=4096 memory_backed=1 zoned=1 zone_size=2 zone_capacity=1 zone_max_open=3 \\
                 zone_max_active=5 power=1; do echo ${{setting#*=}} >$null/${{setting%=*}}; done
             compare null_blk block /dev/zoned$seed 10:512:256:$limits known=null_blk $seed 3000 failures=$null
             rmdir $null
         done
         $siltstone detach zns
         if dmesg | grep -E 'WARNING|BUG:|blocked for more'; then exit 1; fi
         echo done",
        binary().display(),
    );
    let options = Options {
        qemu: namespaces(folder.path()),
        modules: vec!["nvme", "ublk_drv"],
        limit: if last_seed > 1 { 3000 } else { 300 },
        ..Options::default()
    };
    let finished = guest.run(&lines, &options);
    print!("{}{}", finished.out, finished.err);
    let out = finished.ok();
    let with = |one: &[&'static str], other: &[&'static str]| [one, other].concat();
    judge(&out, "limited", QEMU, &with(&NAMESPACE, &LIMITS));
    judge(&out, "unlimited", QEMU, &NAMESPACE);
    judge(&out, "closing", QEMU_AUTO_TRANSITION, &with(&NAMESPACE, &LIMITS));
    judge(&out, "door", DOOR, &BLOCK_LAYER);
    judge(&out, "null_blk", NULL_BLK, &with(&BLOCK_LAYER, &FAILURES));
}

/// Checks that each seed of a device met these differences and answers.
fn judge(out: &str, device: &str, differences: &[Difference], answers: &[&str]) {
    let lines = out.lines().filter_map(|line| line.strip_prefix(device)?.strip_prefix(' '));
    let seeds: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!seeds.is_empty(), "{device} isn't in {out}");
    let met = |kind: &str, name: &str| seeds.iter().any(|it| it[kind][name].as_u64() > Some(0));
    for difference in differences {
        assert!(met("differences", difference.name), "{device}: {difference} wasn't met: {seeds:?}");
    }
    for answer in answers {
        assert!(met("answers", answer), "{device}: \"{answer}\" wasn't met: {seeds:?}");
    }
}
