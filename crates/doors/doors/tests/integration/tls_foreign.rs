//! TLS with foreign programs, both ways: libnbd's tools and qemu-img as clients, nbdkit as the server.

use crate::support::run;
use crate::tls_clients::{good_folder, server_of};
use block::{BlockIndex, Buffer, DevicePart};
use conformance::certificates::{Authority, Validity};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use runtime::net::Address;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tls::Folder;

/// Whether all programs are installed; prints that the test is skipped otherwise.
fn are_installed(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = programs
        .iter()
        .find(|program| !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    let thread = std::thread::current();
    missing.inspect(|missing| {
        println!("SKIPPED: {}: {missing} is not installed", thread.name().unwrap_or("a test"));
    });
    missing.is_none()
}

/// Runs a program with a time limit, while the shard serves.
async fn call(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", program]).args(arguments).stdin(Stdio::null());
    runtime::blocking(move || command.output().expect("it runs")).await
}

#[track_caller]
fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = runtime::Random::new(7);
    (0..count).map(|_| random.below(256) as u8).collect()
}

#[test]
fn libnbd_and_qemu_read_and_write() {
    if !are_installed(&["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let authority = Authority::new("the authority");
    let folder = good_folder(&authority);
    let foreign = good_folder(&authority);
    authority.sign(foreign.path(), "client", Validity::Expired, &["localhost"]);
    run(2, move || async move {
        let server = server_of(&"127.0.0.1:0".parse().expect("an address"), Some(folder.path()), true);
        server.start().await.expect("it starts");
        let Address::Tcp(address) = server.address() else { panic!("a TCP address") };
        let at = folder.path().display();
        assert_eq!(server.addresses(), [format!("nbds://{address}/disk")]);
        let uri = format!("nbds://localhost:{}/disk?tls-certificates={at}", address.port());
        let info = call("nbdinfo", &["--json", &uri]).await;
        succeeds(&info);
        let text = String::from_utf8_lossy(&info.stdout);
        assert!(text.contains("\"TLS\": true"), "{text}");
        let plain = format!("nbd://localhost:{}/disk", address.port());
        assert!(!call("nbdinfo", &[&plain]).await.status.success(), "plain text is refused");
        let expired =
            format!("nbds://localhost:{}/disk?tls-certificates={}", address.port(), foreign.path().display());
        assert!(!call("nbdinfo", &[&expired]).await.status.success(), "an expired certificate is refused");

        let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
        std::fs::write(&image, random_bytes(1 << 20)).expect("written");
        succeeds(&call("nbdcopy", &[&image.display().to_string(), &uri]).await);
        succeeds(&call("nbdcopy", &[&uri, &copy.display().to_string()]).await);
        assert!(std::fs::read(&copy).expect("read") == std::fs::read(&image).expect("read"), "nbdcopy");

        let credentials = format!("tls-creds-x509,id=tls,dir={at},endpoint=client");
        let options = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls", address.port());
        let image = copy.display().to_string();
        let arguments = ["compare", "-f", "raw", "--object", &credentials, "--image-opts"];
        let source = format!("driver=file,filename={image}");
        let compared =
            call("qemu-img", &[&arguments[..1], &arguments[3..], &[&source, &options]].concat()).await;
        succeeds(&compared);
        server.stop().await.expect("it stops");
    });
}

#[test]
fn the_client_reads_from_nbdkit() {
    if !are_installed(&["nbdkit"]) {
        return;
    }
    let folder = good_folder(&Authority::new("the authority"));
    let socket = folder.path().join("nbdkit.sock");
    let path = folder.path().to_owned();
    let mut nbdkit = Command::new("nbdkit")
        .args(["--foreground", "--tls=require", "--tls-verify-peer", "--unix"])
        .arg(&socket)
        .arg(format!("--tls-certificates={}", folder.path().display()))
        .args(["data", "(0x55*1024)*1024"])
        .stdin(Stdio::null())
        .spawn()
        .expect("it runs");
    run(1, move || async move {
        while !socket.exists() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        let connect = async |folder: Option<&Path>| {
            let config = ClientConfig {
                address: Address::Unix(socket.clone()),
                export: String::new(),
                connections: 2,
                block_size: Some(4096),
                timeout: USUAL_TIMEOUT,
                tls: folder.map(|folder| Folder::new(folder).client("localhost").expect("a folder")),
            };
            NbdClient::connect(config).await
        };
        assert!(connect(None).await.is_err(), "nbdkit requires TLS");
        let client = connect(Some(&path)).await.expect("in TLS");
        let device = client.open().await.expect("a handle");
        let (result, buffer) = device.read(BlockIndex(0), Buffer::new(1 << 20)).await;
        result.expect("read");
        assert!(buffer.filled().iter().all(|byte| *byte == 0x55), "other bytes");
    });
    nbdkit.kill().expect("it was running");
    nbdkit.wait().expect("it has ended");
}
