//! The ublk door in a stock kernel: a file system on the block device continues when the server is killed in
//! the middle of its writes and another one takes over, and a clean stop loses nothing and removes the
//! device.

use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};

const CLIENT: &str = env!("CARGO_BIN_EXE_siltstone-guest-client");

#[test]
fn a_mounted_block_device_survives_its_servers() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let options =
        Options { modules: vec!["ublk_drv"], processors: 2, memory: 1536, limit: 300, ..Options::default() };
    let lines = format!(
        "node=/dev/ublkb3
         serve() {{ start 'ublk(file(disk, size=96MiB), id=3) shards=2' \"$@\"; [ $(cat addresses) = $node ]; }}
         gone() {{ [ ! -e $node ] && [ ! -e /dev/ublkc3 ] && [ -z \"$(ls /sys/block | grep ublk || true)\" ]; }}

         serve --format
         [ $(ls /sys/block/ublkb3/mq | wc -w) = 2 ]
         [ \"$(cat /sys/block/ublkb3/queue/write_cache)\" = 'write back' ]
         mkfs.ext4 -q -b 4096 $node
         mount $node /mnt
         head -c 9000001 /dev/urandom >first; cp first /mnt/first; sync
         cp first /mnt/short-lived; sync; before=$(stat -c %b disk)
         rm /mnt/short-lived; sync; fstrim /mnt; after=$(stat -c %b disk)
         echo trimmed $(((before - after) / 2)) KiB; [ $((before - after)) -gt 16000 ]
         if $siltstone serve \"ublk(ram(size=96MiB), id=3)\" 2>refused; then exit 1; fi
         grep -q 'has a server' refused

         for round in 1 2 3; do
             for writer in 1 2 3; do
                 head -c 8M /dev/urandom >round$round-$writer
                 dd if=round$round-$writer of=/mnt/round$round-$writer bs=4k oflag=direct status=none &
                 eval writer$writer=$!
             done
             sleep 0.$round
             kill -9 $server; wait $server || true
             [ -b $node ] && jobs -r | grep -q dd
             serve
             wait $writer1; wait $writer2; wait $writer3
             echo recovered $round
         done
         sync; echo 3 >/proc/sys/vm/drop_caches
         cmp first /mnt/first
         for file in round*; do cmp $file /mnt/$file; done
         umount /mnt
         e2fsck -fn $node >checked 2>&1 || {{ cat checked >&2; exit 1; }}

         # The page cache is written back at the stop.
         mount $node /mnt; rm /mnt/round*; cp first /mnt/again; sync -f /mnt; umount /mnt
         dd if=first of=$node bs=1M count=1 seek=95 status=none
         stop; gone
         dd if=disk bs=1M skip=95 count=1 status=none | cmp -n 1048576 - first
         e2fsck -fn disk >checked 2>&1 || {{ cat checked >&2; exit 1; }}

         # A device that stays mounted is stopped after the time limit, and the server says so.
         serve; mount $node /mnt
         if stop; then exit 1; fi
         grep -q 'still in use' said; [ ! -e $node ]
         umount /mnt || true
         until gone; do sleep 0.1; done

         # Servers that are stopped cleanly in the middle of writes, and leave the device.
         rm -f line; mkfifo line; head -c 8M /dev/urandom >last
         hold() {{ rm -f addresses; {CLIENT} hold disk 5 $1 <line >addresses & server=$!; exec 7>line; until [ -s addresses ]; do kill -0 $server; sleep 0.1; done; }}
         leave() {{ exec 7>&-; wait $server; }}
         hold new
         dd if=last of=/dev/ublkb5 bs=4k oflag=direct status=none 7>&- & writer=$!
         sleep 0.1; leave
         kill -0 $writer; [ -b /dev/ublkb5 ]
         hold left; wait $writer
         leave
         {CLIENT} delete 5; [ ! -e /dev/ublkb5 ]
         cmp -n 8388608 last disk"
    );
    guest.run_siltstone(&lines, &options);
}

/// `siltstone attach` uses ublk if the kernel has it; the mount continues while its servers are killed.
#[test]
fn an_attached_stack_is_a_ublk_device() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let options =
        Options { modules: vec!["ublk_drv"], processors: 2, memory: 1536, limit: 300, ..Options::default() };
    let lines = "attach vol 'log(file(disk, size=160MiB), zone_size=1MiB) shards=2' --format
         [ $(cat path) = /dev/siltstone/vol ]; grep -q 'via ublk: the kernel has it' said
         node=$(readlink /dev/siltstone/vol); [ -b $node ]
         mkfs.ext4 -q -b 4096 /dev/siltstone/vol; mount /dev/siltstone/vol /mnt
         if $siltstone detach vol 2>refused; then exit 1; fi
         grep -q 'in use' refused
         for round in 1 2 3; do
             head -c 8M /dev/urandom >file$round
             dd if=file$round of=/mnt/file$round bs=64k oflag=direct status=none & writer=$!
             sleep 0.$round; killed=$(field vol server); kill -9 $killed; wait $writer
             until [ $(field vol server) != $killed ]; do sleep 0.1; done
             echo recovered $round
         done
         sync; echo 3 >/proc/sys/vm/drop_caches
         for file in file?; do cmp $file /mnt/$file; done
         umount /mnt; e2fsck -fn $node >checked 2>&1 || { cat checked >&2; exit 1; }
         $siltstone detach vol; [ ! -e $node ]; [ ! -e siltstone/vol ]; [ ! -e /dev/siltstone/vol ]

         # Server and holder are killed: the remains are removed.
         attach vol 'file(other, size=16MiB)'
         node=$(readlink /dev/siltstone/vol)
         kill -9 $(field vol holder) $(field vol server); sleep 1
         $siltstone list | grep -q lost
         $siltstone detach vol; [ ! -e $node ]; [ ! -e siltstone/vol ]";
    guest.run_siltstone(lines, &options);
}

/// LVM uses an attached node as a physical volume: a logical volume is created, extended and mounted while
/// the server is killed, and is found again when the stack is attached again.
#[test]
fn lvm_stands_on_an_attached_node() {
    need!("lvm");
    let guest = need_guest!();
    let options = Options { modules: vec!["ublk_drv", "dm_mod"], limit: 200, ..Options::default() };
    let lines = "# The guest has no udev.
         lvm() { command lvm \"$@\" --config 'activation { udev_sync = 0 udev_rules = 0 }' >lvm.out 2>&1 || { cat lvm.out >&2; exit 1; }; }
         attach vol 'file(disk, size=160MiB) shards=2' --format
         node=$(readlink /dev/siltstone/vol)
         lvm pvcreate $node; lvm vgcreate vg $node; lvm lvcreate --yes --size 64M --name one vg
         mkfs.ext4 -q /dev/mapper/vg-one; mount /dev/mapper/vg-one /mnt
         head -c 8M /dev/urandom >first; cp first /mnt/first; sync
         if $siltstone detach vol 2>refused; then exit 1; fi
         grep -q 'in use' refused
         lvm lvextend --size +32M vg/one; resize2fs /dev/mapper/vg-one 2>/dev/null
         cp first /mnt/second & copy=$!
         kill -9 $(field vol server)
         wait $copy; sync; echo 3 >/proc/sys/vm/drop_caches
         cmp first /mnt/first; cmp first /mnt/second
         umount /mnt; e2fsck -fn /dev/mapper/vg-one >checked 2>&1 || { cat checked >&2; exit 1; }
         lvm vgchange -an vg; $siltstone detach vol; [ ! -e $node ]
         attach vol 'file(disk) shards=2'
         lvm vgchange -ay vg; mount /dev/mapper/vg-one /mnt; cmp first /mnt/second; umount /mnt
         lvm vgchange -an vg; $siltstone detach vol
         if dmesg | grep 'I/O error'; then exit 1; fi";
    guest.run_siltstone(lines, &options);
}
