//! Swap on memory nodes in a stock kernel whose memory is exhausted: the out-of-memory killer ends a program,
//! not a server, and every page is read back unchanged.
//!
//! The guest swaps to two nodes on this machine, over the network that QEMU emulates. Without the reserved
//! heap of its server, or without its use of the kernel's page reserve, the guest stops: the server waits for
//! a free page, and the kernel for the server.

use siltstone_tests::foreign::{Background, binary};
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};

const PAGES: &str = env!("CARGO_BIN_EXE_siltstone-guest-pages");

/// A memory node on a loopback address, and its port.
fn node() -> (Background, String) {
    let listen = ["memory-node", "--capacity", "112MiB", "--reserve", "64MiB", "--listen", "127.0.0.1:0"];
    // Other programs of this machine may wait for memory.
    let arguments = [&listen[..], &["--pressure-limit", "100"]].concat();
    let mut node = Background::start(&binary().display().to_string(), &arguments);
    node.wait_until("it listens", |node| node.out().ends_with('\n'));
    let port = node.out().trim().rsplit(':').next().expect("an address with a port").to_owned();
    (node, port)
}

#[test]
fn memory_is_exhausted_and_swap_goes_on() {
    need!("mkswap", "swapon");
    let guest = need_guest!();
    let ((_one, one), (_two, two)) = (node(), node());
    let network = ["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net"];
    let options = Options {
        modules: vec!["virtio_net", "ublk_drv"],
        qemu: network.map(str::to_owned).to_vec(),
        memory: 384,
        ..Options::default()
    };
    let lines = format!(
        "siltstone={siltstone}; pages={PAGES}; cd /run
         trap '[ $? = 0 ] || {{ cat siltstone/far/log; dmesg | tail -n 60; }} >&2 || true' EXIT
         busybox ip addr add 10.0.2.15/24 dev eth0; busybox ip link set eth0 up
         node() {{ printf '[device.%s]\\nkind = \"memory-node\"\\naddress = \"10.0.2.2:%s\"\\nname = \"far\"\\n' $1 $2; }}
         {{ node one {one}; node two {two}
           printf '[device.far]\\nkind = \"remote\"\\nnodes = [\"one\", \"two\"]\\ncopies = 2\\ncache = \"32MiB\"\\n'; }} >far.toml
         $siltstone swap on far.toml
         field() {{ grep -o \"\\\"$1\\\": [0-9]*\" siltstone/far/attachment.json | grep -o '[0-9]*'; }}
         server=$(field server) holder=$(field holder)
         # The heap of the server is reserved and locked.
         [ $(awk '/\\[heap\\]/ {{ heap = 1 }} heap && /^Locked:/ {{ sum += $2; heap = 0 }} END {{ print sum }}' /proc/$server/smaps) -ge 49152 ]
         # The second program asks for more than memory and swap space together.
         echo 1 >/proc/sys/vm/overcommit_memory
         (echo -500 >/proc/self/oom_score_adj; exec $pages 100 over) >checked & checker=$!
         (echo 500 >/proc/self/oom_score_adj; exec $pages 4096 over) & greedy=$!
         status=0; wait $greedy || status=$?
         [ $status = 137 ]
         # The swap space was full when the kernel killed it, in kB.
         [ $(dmesg | sed -n 's/.*Free swap *= *\\([0-9]*\\)kB.*/\\1/p' | tail -n 1) -lt 4096 ]
         touch over; wait $checker; cat checked
         dmesg | grep 'Killed process'; [ $(dmesg | grep -c 'Killed process') = 1 ]
         dmesg | grep -q \"Killed process $greedy \"
         [ $(field server) = $server ] && [ $(field holder) = $holder ] && [ $(field lost_servers) = 0 ]
         [ $(cat /proc/$server/oom_score_adj) = -1000 ] && [ $(cat /proc/$holder/oom_score_adj) = -1000 ]
         grep VmSwap /proc/$server/status | grep -q ' 0 kB'; grep VmSwap /proc/$holder/status | grep -q ' 0 kB'
         $siltstone swap status
         $siltstone swap off far
         if dmesg | grep -E 'WARNING|BUG:|blocked for more'; then exit 1; fi
         cut -d ' ' -f 1 /proc/uptime",
        siltstone = binary().display(),
    );
    let finished = guest.run(&lines, &options);
    print!("{}{}", finished.out, finished.err);
    let out = finished.ok();
    assert!(out.contains(" 0 wrong pages"), "{out}");
}
