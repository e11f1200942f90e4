//! `siltstone attach` over the kernel's NBD client, in a stock kernel: a mounted file system continues when
//! the server is killed.

use siltstone_tests::foreign::binary;
use siltstone_tests::guest::Options;
use siltstone_tests::need_guest;

/// Shell functions for an attachment `vol`.
fn functions() -> String {
    format!(
        "siltstone={}; cd /run; modprobe nbd; log=siltstone/vol/log
         trap '[ $? = 0 ] || {{ cat $log; dmesg | tail -n 30; }} >&2 || true' EXIT
         attach() {{ $siltstone attach \"$@\" --name vol 2>said >path || {{ cat said >&2; exit 1; }}; node=$(readlink /dev/siltstone/vol); }}
         field() {{ grep -o \"\\\"$1\\\": [0-9]*\" siltstone/vol/attachment.json | grep -o '[0-9]*'; }}
         is() {{ grep -q \"\\\"state\\\": \\\"$1\\\"\" siltstone/vol/attachment.json; }}
         within() {{ for try in $(seq $1); do eval \"$2\" && return; sleep 0.1; done; echo \"not within $1: $2\" >&2; exit 1; }}
         size() {{ cat /sys/block/${{node#/dev/}}/size; }}
         gone() {{ [ $(size) = 0 ] && [ ! -e siltstone/vol ] && [ ! -e /dev/siltstone/vol ]; }}",
        binary().display()
    )
}

fn run(lines: &str) {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let options = Options { processors: 2, limit: 300, ..Options::default() };
    let finished = guest.run(&format!("{}\n{lines}", functions()), &options);
    print!("{}{}", finished.out, finished.err);
    finished.ok();
}

/// Several connections: the kernel sends requests of a killed server again when their timer fires, which is
/// shortened here.
#[test]
fn a_mounted_node_over_nbd_survives_its_servers() {
    run("attach 'log(file(disk, size=96MiB), zone_size=1MiB) shards=2' --format
         grep -q 'via nbd: there is no /dev/ublk-control' said
         [ $(cat path) = /dev/siltstone/vol ]; [ -b $node ]; block=/sys/block/${node#/dev/}
         [ $(ls $block/mq | wc -w) = 2 ]; [ \"$(cat $block/queue/write_cache)\" = 'write back' ]
         [ $(cat $block/queue/io_timeout) = 30000 ]; [ $(cat $block/queue/logical_block_size) = 4096 ]
         echo 3000 >$block/queue/io_timeout
         mkfs.ext4 -q -b 4096 $node; mount $node /mnt
         if $siltstone detach vol 2>refused; then exit 1; fi
         grep -q 'in use' refused
         for round in 1 2; do
             for writer in 1 2; do
                 head -c 6M /dev/urandom >file$round-$writer
                 # Until the server was killed, and once more after that.
                 (until [ -e killed ]; do dd if=file$round-$writer of=/mnt/file$round-$writer bs=64k oflag=direct status=none; done
                  dd if=file$round-$writer of=/mnt/file$round-$writer bs=64k oflag=direct status=none) &
                 eval writer$writer=$!
             done
             sleep 0.$round; kill -9 $(field server); touch killed
             wait $writer1; wait $writer2; rm killed
             within 100 \"[ \\$(field lost_servers) -ge $round ] && is attached\"
             echo recovered $round at $(cut -d ' ' -f 1 /proc/uptime)
         done
         sync; fstrim /mnt; echo 3 >/proc/sys/vm/drop_caches
         for file in file?-?; do cmp $file /mnt/$file; done
         umount /mnt; e2fsck -fn $node >checked 2>&1 || { cat checked >&2; exit 1; }
         $siltstone list | grep -q attached
         $siltstone detach vol; gone
         $siltstone list 2>&1 | grep -q 'nothing is attached'

         # The next node has the written data.
         attach 'log(file(disk, size=96MiB), zone_size=1MiB)' --via nbd --sector-size 512
         grep -q 'via nbd: asked for' said
         [ $(cat /sys/block/${node#/dev/}/queue/logical_block_size) = 512 ]
         mount -o ro $node /mnt; for file in file?-?; do cmp $file /mnt/$file; done; umount /mnt
         $siltstone detach vol; gone
         if dmesg | grep -E 'WARNING|BUG:|blocked for more|I/O error'; then exit 1; fi
         echo done");
}

/// One connection: requests of a killed server are sent again after five seconds, and slower requests have no
/// time limit. Several connections: such a request ends the server. Then a server that can't be replaced, and
/// the loss of server and holder.
#[test]
fn losses_of_an_attachment_over_nbd() {
    run("attach 'file(disk, size=16MiB)' --via nbd --recover-within 20s
         [ $(cat /sys/block/${node#/dev/}/queue/io_timeout) = 5000 ]
         head -c 4M /dev/urandom >first
         # A stopped server is slow, not lost.
         kill -STOP $(field server); dd if=first of=$node bs=1M oflag=direct status=none & writer=$!
         sleep 6; kill -0 $writer
         kill -9 $(field server); wait $writer
         within 50 'is attached'; [ $(field lost_servers) = 1 ]
         cmp -n 4194304 first $node
         # The stack can't be opened: requests fail after the time limit.
         mv disk away; mkdir disk
         kill -9 $(field server); sleep 1; is recovering
         if $siltstone detach vol 2>refused; then exit 1; fi
         grep -q 'try again later' refused
         rmdir disk; mv away disk; within 50 'is attached'
         cmp -n 4194304 first $node
         $siltstone detach vol; gone

         attach 'ram(size=16MiB)' --via nbd
         exec 8<$node; kill -9 $(field server); within 50 'is failed'
         if dd count=1 iflag=direct <&8 >/dev/null 2>&1; then exit 1; fi
         [ ! -e /dev/siltstone/vol ]
         if $siltstone detach vol 2>refused; then exit 1; fi
         grep -q 'open in bash' refused; exec 8<&-
         $siltstone detach vol; gone

         # With several connections the kernel closes one that doesn't answer in time; its server ends and is replaced.
         attach 'file(disk, size=16MiB) shards=2' --via nbd
         echo 2000 >/sys/block/${node#/dev/}/queue/io_timeout
         head -c 4M /dev/urandom >first
         kill -STOP $(field server); dd if=first of=$node bs=1M oflag=direct status=none & writer=$!
         within 200 'dmesg | grep -q timed.out'; kill -CONT $(field server); wait $writer
         within 50 '[ $(field lost_servers) -ge 1 ] && is attached'
         grep -q \"a connection of the kernel's NBD client has ended\" $log
         cmp -n 4194304 first $node
         $siltstone detach vol; gone

         # The holder is killed, its server continues; then both are killed, and requests fail after the time limit.
         attach 'file(disk, size=16MiB)' --via nbd --recover-within 2s
         kill -9 $(field holder); sleep 0.5; $siltstone list | grep -q lost
         cmp -n 4194304 first $node
         server=$(field server); $siltstone detach vol; gone
         within 50 '[ ! -e /proc/$server ]'
         attach 'file(disk, size=16MiB)' --via nbd --recover-within 2s
         kill -STOP $(field server); dd if=first of=$node bs=1M oflag=direct 2>/dev/null & writer=$!
         sleep 1; kill -9 $(field holder) $(field server)
         if dd if=$node of=/dev/null count=1 iflag=direct 2>/dev/null; then exit 1; fi
         kill -0 $writer
         $siltstone detach vol; gone
         if wait $writer; then exit 1; fi

         # A failed attachment leaves no node and no link.
         mkdir /dev/siltstone/vol
         if $siltstone attach 'ram(size=16MiB)' --name vol --via nbd 2>refused; then exit 1; fi
         grep -q 'expected a link' refused; rmdir /dev/siltstone/vol; gone
         if dmesg | grep -E 'WARNING|BUG:|blocked for more'; then exit 1; fi
         echo done");
}
