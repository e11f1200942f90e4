//! Zones in a stock kernel: the ublk door serves them as a host-managed zoned block device, which the
//! programs and file systems for such devices can use.

use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};

/// Runs a script in a guest with the shell functions that the tests share.
fn run(modules: Vec<&'static str>, script: &str) {
    let functions = "# A number in the status of an attached stack's door.
         door() { $siltstone status \"$1\" --json | jq .doors.attached.$2; }
         # Conditions of the zones, beginning with the first, as blkzone abbreviates them.
         conditions() { blkzone report -c $2 $1 | grep -o 'zcond:[ 0-9]*([a-z]*' | grep -o '[a-z]*$' | tr '\\n' ' '; }
         ";
    let options = Options { modules, processors: 2, memory: 1536, limit: 600, ..Options::default() };
    need_guest!().run_siltstone(&(functions.to_owned() + script), &options);
}

/// An emulated drive is attached without options. blkzone sees the states, fio verifies its writes, and btrfs
/// finds its files again when the drive is attached again.
const DRIVE: &str = "drive='zns-emulator(drive.img, zones=40, zone_size=4MiB, zone_capacity=3MiB, time=none) shards=2'
     attach zns \"$drive\"; node=$(readlink /dev/siltstone/zns)
     queue() { cat /sys/block/${node#/dev/}/queue/$1; }
     [ $(queue zoned) = host-managed ]; [ $(queue nr_zones) = 40 ]; [ $(queue chunk_sectors) = 8192 ]
     [ $(queue max_open_zones) = 14 ]; [ $(queue max_active_zones) = 14 ]; [ $(queue zone_append_max_bytes) = 262144 ]
     if $siltstone attach \"$drive\" --name other --via nbd 2>refused; then exit 1; fi
     grep -q 'nbd serves devices and no zones' refused

     head -c 64K /dev/urandom >data
     dd if=data of=$node bs=64k oflag=direct status=none
     blkzone open -o 8192 -l 8192 $node; blkzone open -o 16384 -l 8192 $node; blkzone close -o 16384 -l 8192 $node
     blkzone finish -o 24576 -l 8192 $node
     [ \"$(conditions $node 5)\" = 'oi oe cl fu em ' ]
     blkzone report -c 1 $node | grep -q 'len 0x002000, cap 0x001800, wptr 0x000080'
     cmp -n 65536 data $node
     [ $(dd if=$node bs=64k skip=1 count=1 iflag=direct status=none | tr -d '\\0' | wc -c) = 0 ]
     if dd if=data of=$node bs=64k seek=2 oflag=direct status=none 2>/dev/null; then exit 1; fi
     blkzone reset -o 0 -l 8192 $node; [ \"$(conditions $node 2)\" = 'em oe ' ]
     blkzone reset $node; [ \"$(conditions $node 5)\" = 'em em em em em ' ]
     echo states

     fio --name=zoned --filename=$node --direct=1 --zonemode=zbd --rw=randwrite --bs=16k --io_size=12M --size=160M \\
         --max_open_zones=6 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --output=fio.out ||
         { cat fio.out >&2; exit 1; }
     [ $(door \"$drive\" reads) -ge 768 ]; [ $(door \"$drive\" errors) = 0 ]
     echo verified

     blkzone reset $node
     mkfs.btrfs -q -O zoned -m single -d single $node >made 2>&1 || { cat made >&2; exit 1; }
     mount $node /mnt
     head -c 9000001 /dev/urandom >first; cp first /mnt/first; sync -f /mnt
     cp first /mnt/short-lived; sync -f /mnt; rm /mnt/short-lived
     for file in $(seq 40); do echo $file >/mnt/$file; done
     umount /mnt
     [ $(door \"$drive\" appends) -gt 30 ]; [ $(door \"$drive\" flushes) -gt 0 ]; [ $(door \"$drive\" errors) = 0 ]
     btrfs check $node >checked 2>&1 || { cat checked >&2; exit 1; }
     $siltstone detach zns; [ ! -e $node ]
     attach zns \"$drive\"; node=$(readlink /dev/siltstone/zns)
     mount $node /mnt; cmp first /mnt/first; [ $(cat /mnt/40) = 40 ]
     cp first /mnt/second; btrfs balance start -dusage=100 /mnt >/dev/null; cmp first /mnt/first; umount /mnt
     btrfs check --check-data-csum $node >checked 2>&1 || { cat checked >&2; exit 1; }
     $siltstone detach zns
     rm drive.img data first
     ";

/// f2fs has its metadata on an ordinary device and its data on zones. It is found again when both are
/// attached again.
const F2FS: &str = "drive='zns-emulator(drive.img, zones=40, zone_size=4MiB, time=none)'
     attach zns \"$drive\"; attach meta 'file(meta.img, size=64MiB)' --format
     # f2fs finds the zones by this path.
     mkfs.f2fs -q -m -c /dev/siltstone/zns /dev/siltstone/meta >made 2>&1 || { cat made >&2; exit 1; }
     mount -t f2fs /dev/siltstone/meta /mnt
     head -c 9000001 /dev/urandom >first; cp first /mnt/first; sync -f /mnt
     for file in $(seq 100); do echo $file >/mnt/$file; done
     cp first /mnt/second; rm /mnt/second; umount /mnt
     [ $(door \"$drive\" writes) -gt 10 ]; [ $(door \"$drive\" errors) = 0 ]
     fsck.f2fs /dev/siltstone/meta >checked 2>&1 || { cat checked >&2; exit 1; }
     $siltstone detach zns; $siltstone detach meta
     attach meta 'file(meta.img)'; attach zns \"$drive\"
     mount -t f2fs /dev/siltstone/meta /mnt; cmp first /mnt/first; [ $(cat /mnt/100) = 100 ]
     echo again

     # The server is killed: writes fail, and zones that were open are full on the next server.
     cp first /mnt/third; sync -f /mnt; cp first /mnt/fourth
     kill -9 $(field zns server); sync -f /mnt || true; umount /mnt
     $siltstone list --json | jq -e '.[] | select(.name == \"zns\") | .state == \"failed\"' >/dev/null
     $siltstone detach zns; attach zns \"$drive\"
     grep -q 'zones are interrupted by an unclean stop' siltstone/zns/log
     mount -t f2fs /dev/siltstone/meta /mnt
     cmp first /mnt/first; cmp first /mnt/third; cp first /mnt/fifth; sync -f /mnt; cmp first /mnt/fifth; umount /mnt
     fsck.f2fs /dev/siltstone/meta >checked 2>&1 || { cat checked >&2; exit 1; }
     $siltstone detach zns; $siltstone detach meta";

/// Both in one guest, as its start is expensive.
#[test]
fn a_drive_is_a_zoned_block_device_with_btrfs_and_f2fs() {
    need!("blkzone", "fio", "mkfs.btrfs", "mkfs.f2fs", "jq");
    run(vec!["ublk_drv", "btrfs", "f2fs"], &(DRIVE.to_owned() + F2FS));
}

/// Zones of a file whose size isn't a power of two, by the door of a stack: limits, several writers, servers
/// that are killed and stopped, and a read-only door.
#[test]
fn zones_of_a_file_are_served_by_one_server_after_the_other() {
    if conformance::budget::is_left_out() {
        return;
    }
    need!("blkzone");
    need!("fio");
    run(
        vec!["ublk_drv"],
        "node=/dev/ublkb3; mib=2048; disk='file(disk, size=64MiB)'
         serve() { start \"ublk($1, id=3) shards=2\" ${@:2}; }
         write() { dd if=data of=$node bs=4k oflag=direct status=none seek=$((256 * $1)) count=${2:-1}; }
         zone() { blkzone $1 -o $((4 * mib * $2)) -l $((4 * mib)) $node; }
         refused() { if \"${@:2}\" 2>refusal; then exit 1; fi; grep -q \"$1\" refusal || { cat refusal >&2; exit 1; }; }
         head -c 1M /dev/urandom >data

         serve \"zones($disk, zone_size=3MiB, max_open=2, max_active=3)\" --format
         [ $(cat /sys/block/ublkb3/queue/chunk_sectors) = $((4 * mib)) ]
         capacity=$(($(blkzone report -c 1 $node | grep -o 'cap 0x[0-9a-f]*' | cut -c 5-)))
         [ $capacity -gt $((2 * mib)) ]; [ $capacity -le $((3 * mib)) ]
         write 0; write 4; write 8
         [ \"$(conditions $node 4)\" = 'cl oi oi em ' ]
         refused 'Value too large' write 12
         zone open 0; zone open 1
         refused 'Too many references' zone open 2
         zone finish 0; zone close 1
         # After a failed write the kernel learns the write pointer from a report.
         blkzone report $node >report; write 12
         [ \"$(conditions $node 4)\" = 'fu cl cl oi ' ]
         # The file has the zones of the clean stop.
         stop; [ ! -e $node ]
         serve \"zones($disk, zone_size=3MiB)\"
         [ \"$(conditions $node 5)\" = 'fu cl cl cl em ' ]; cmp -n 4096 data $node
         for zone in 0 1 2 3; do zone reset $zone; done
         echo limits

         for job in 'write --bs=64k --numjobs=3' 'randrw --bs=4k,32k --fsync=8'; do
             fio --name=zones --filename=$node --direct=1 --zonemode=zbd --rw=$job --offset_increment=16M --size=16M --io_size=6M \\
                 --max_open_zones=2 --ioengine=libaio --iodepth=4 --verify=crc32c --verify_fatal=1 --output=fio.out ||
                 { cat fio.out >&2; exit 1; }
         done
         echo verified

         blkzone reset $node; write 0 100; write 4
         kill -9 $server; wait $server || true; [ -b $node ]
         write 8 100 & writer=$!; sleep 0.5; kill -0 $writer
         serve \"zones($disk, zone_size=3MiB)\"
         wait $writer; grep -q '2 zones are interrupted' said
         [ \"$(conditions $node 4)\" = 'fu fu oi em ' ]; cmp -n 409600 data $node
         refused 'Input/output error' dd if=data of=$node bs=4k oflag=direct status=none seek=100 count=1
         zone reset 0; write 0; [ \"$(conditions $node 2)\" = 'oi fu ' ]
         stop
         echo recovered

         serve \"zones($disk, zone_size=3MiB), read_only=true\"
         [ \"$(conditions $node 4)\" = 'cl fu cl em ' ]; cmp -n 4096 data $node
         refused '' write 12; refused '' zone reset 1
         stop",
    );
}
