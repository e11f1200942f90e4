//! Stock flashrom in the guest machine, on a serial port whose other end is our chip.

use rustix::process::Signal;
use siltstone_tests::foreign::{Background, binary, run};
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};

#[test]
fn flashrom_writes_through_a_serial_port() {
    if conformance::budget::is_left_out() {
        return;
    }
    // The guest sees the host's root.
    need!("flashrom");
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (socket, control) = (path("flash.sock"), path("control.sock"));
    let program = binary().display().to_string();
    let arguments =
        ["spi", "serve", "--chip", "W25Q64JV", "--unix", &socket, "--control", &control, "--time", "fast"];
    let mut server = Background::start(&program, &arguments);
    server.wait_until("it printed its address", |server| server.out().ends_with('\n'));
    let options =
        Options { serial: Some(socket.into()), shares: vec![folder.path().into()], ..Options::default() };
    let lines = format!(
        "PATH=$PATH:/usr/sbin
         head -c 8388608 /dev/urandom > /tmp/image; head -c 2048 /tmp/image > {}
         printf '000000:0007ff part\\n' > /tmp/layout
         flashrom -p serprog:dev=/dev/ttyS1:115200 -c W25Q64JV-.Q -l /tmp/layout -i part -N -w /tmp/image",
        path("written")
    );
    let finished = guest.run(&lines, &options);
    assert!(finished.out.contains("VERIFIED"), "{finished:#?}");
    let cells = path("cells");
    run(&program, &["spi", "dump", "--control", &control, "--length", "2048", "--raw", "--out", &cells]).ok();
    assert!(std::fs::read(cells).expect("a dump") == std::fs::read(path("written")).expect("the share"));
    server.signal(Signal::TERM);
    assert!(server.wait().success(), "{}", server.err());
}
