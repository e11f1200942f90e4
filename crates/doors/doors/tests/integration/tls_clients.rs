//! TLS with this crate's client and with raw clients, in simulated worlds: a refusal ends the connection of
//! that client, and no other one.

use crate::support::{Raw, export, ram};
use block::{BlockIndex, Buffer, Data, DevicePart, Durability, Error, Result};
use conformance::certificates::{Authority, Validity};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use doors::nbd::protocol::{command, option, option_reply};
use doors::nbd::server::{Server, ServerConfig, ServerTls};
use runtime::net::Address;
use runtime::{Simulation, simulate};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tls::Folder;

pub fn good_folder(authority: &Authority) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    authority.fill(folder.path());
    folder
}

pub fn server_of(address: &Address, folder: Option<&Path>, required: bool) -> Arc<Server> {
    let tls = folder.map(|folder| ServerTls {
        config: Folder::new(folder).server(true).expect("a server's folder"),
        required,
    });
    let exports = vec![export("disk", ram(1 << 20, 512))];
    let access = Default::default();
    let allow_remote = false;
    let config =
        ServerConfig { address: address.clone(), access, exports, max_connections: 4, allow_remote, tls };
    Arc::new(Server::new(config).expect("a valid configuration"))
}

fn client_tls(folder: &Path) -> tls::ClientConfig {
    Folder::new(folder).client("127.0.0.1").expect("a client's folder")
}

async fn connect(address: &Address, folder: Option<&Path>) -> Result<NbdClient> {
    let config = ClientConfig {
        address: address.clone(),
        export: "disk".into(),
        connections: 1,
        block_size: Some(4096),
        timeout: USUAL_TIMEOUT,
        tls: folder.map(client_tls),
    };
    NbdClient::connect(config).await
}

/// Runs a test in a simulated world of two shards.
fn in_simulation<Fut: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Address) -> Fut) {
    println!("seed {seed}");
    let address: Address = "127.0.0.1:10809".parse().expect("an address");
    simulate(Simulation::new(seed).with_shards(2), || test(address)).expect("the simulation ends");
}

/// Writes and reads through the client.
async fn is_healthy(address: &Address, folder: Option<&Path>) {
    let client = connect(address, folder).await.expect("the server answers");
    let device = client.open().await.expect("a handle");
    let bytes: Vec<u8> = (0..600 << 10).map(|index: u32| (index % 251) as u8).collect();
    let payload = [&bytes[..4096], &bytes[4096..]].map(Data::copy_of).into_iter().collect();
    device.write(BlockIndex(3), payload, Durability::Durable).await.expect("written");
    let (result, buffer) = device.read(BlockIndex(3), Buffer::new(bytes.len())).await;
    result.expect("read");
    assert!(buffer.filled() == bytes, "other bytes");
}

#[test]
fn a_client_reads_and_writes_in_both_modes() {
    let folder = good_folder(&Authority::new("the authority"));
    for (seed, required) in [(1, true), (2, false)] {
        let path = folder.path().to_owned();
        in_simulation(seed, |address| async move {
            let server = server_of(&address, Some(&path), required);
            server.start().await.expect("it starts");
            is_healthy(&address, Some(&path)).await;
            match required {
                true => {
                    let error = connect(&address, None).await.map(drop).expect_err("plain text");
                    assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
                    assert!(error.detail().contains("requires TLS"), "{error}");
                }
                false => is_healthy(&address, None).await,
            }
            server.stop().await.expect("it stops");
        });
    }
}

#[test]
fn a_client_with_tls_never_falls_back() {
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    in_simulation(3, |address| async move {
        let server = server_of(&address, None, false);
        server.start().await.expect("it starts");
        let error = connect(&address, Some(&path)).await.map(drop).expect_err("no TLS");
        assert!(error.detail().contains("it offers no TLS"), "{error}");
        is_healthy(&address, None).await;
        server.stop().await.expect("it stops");
    });
}

#[test]
fn wrong_certificates_end_their_connection_only() {
    let (authority, other) = (Authority::new("the authority"), Authority::new("another authority"));
    let good = good_folder(&authority);
    let bad: [TempDir; 3] = std::array::from_fn(|index| {
        let folder = good_folder(&authority);
        let path = folder.path();
        match index {
            0 => authority.sign(path, "client", Validity::Expired, &["localhost"]),
            1 => other.sign(path, "client", Validity::Always, &["localhost"]),
            _ => other.trust(path),
        }
        folder
    });
    let good_path = good.path().to_owned();
    let bad_paths = bad.each_ref().map(|folder| folder.path().to_owned());
    in_simulation(4, |address| async move {
        let server = server_of(&address, Some(&good_path), true);
        server.start().await.expect("it starts");
        for (count, path) in bad_paths.iter().enumerate() {
            let error = connect(&address, Some(path)).await.map(drop).expect_err("a wrong certificate");
            assert!(error.detail().contains("TLS"), "{error}");
            is_healthy(&address, Some(&good_path)).await;
            let cut_off = server.status()["cut_off_connections"].as_u64().expect("a number");
            // The third client ends the connection itself: it doesn't trust the server.
            assert_eq!(cut_off, (count as u64 + 1).min(2));
        }
        server.stop().await.expect("it stops");
    });
}

#[test]
fn nothing_is_answered_before_tls_if_it_is_required() {
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    in_simulation(5, |address| async move {
        let server = server_of(&address, Some(&path), true);
        server.start().await.expect("it starts");
        let mut raw = Raw::connect(&address).await;
        raw.greet().await;
        for number in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 99] {
            assert_eq!(raw.option(number, &[]).await[0].0, option_reply::ERR_TLS_REQD, "option {number}");
        }
        assert_eq!(raw.option(option::STARTTLS, b"x").await[0].0, option_reply::ERR_INVALID);
        raw.start_tls(&client_tls(&path)).await.expect("in TLS");
        assert_eq!(raw.option(option::STARTTLS, &[]).await[0].0, option_reply::ERR_INVALID);
        raw.choose("disk", true).await;
        raw.call(command::WRITE, 0, 512, 4, b"well").await.expect("written");
        assert_eq!(raw.call(command::READ, 0, 512, 4, &[]).await, Ok(b"well".to_vec()));
        raw.request(command::DISC, 0, 0, 0, &[]).await;
        assert!(raw.is_closed().await);
        // EXPORT_NAME has no answer but the end.
        let raw = Raw::connect(&address).await;
        raw.greet().await;
        raw.send(b"IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x04disk").await;
        assert!(raw.is_closed().await);
        server.stop().await.expect("it stops");
    });
}

#[test]
fn agreements_of_plain_text_are_forgotten() {
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    in_simulation(6, |address| async move {
        let server = server_of(&address, Some(&path), false);
        server.start().await.expect("it starts");
        let mut raw = Raw::connect(&address).await;
        raw.greet().await;
        assert_eq!(raw.option(option::STRUCTURED_REPLY, &[]).await[0].0, option_reply::ACK);
        raw.start_tls(&client_tls(&path)).await.expect("in TLS");
        // Contexts need structured replies.
        let query = b"\x00\x00\x00\x04disk\x00\x00\x00\x00";
        assert_eq!(raw.option(option::SET_META_CONTEXT, query).await[0].0, option_reply::ERR_INVALID);
        raw.choose("disk", false).await;
        assert_eq!(raw.call(command::READ, 0, 0, 4, &[]).await, Ok(vec![0; 4]), "a simple reply");
        server.stop().await.expect("it stops");
    });
}

#[test]
fn hostile_handshakes_end_their_connection_only() {
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    in_simulation(7, |address| async move {
        let server = server_of(&address, Some(&path), true);
        server.start().await.expect("it starts");
        let mut start_tls = Vec::new();
        doors::nbd::protocol::put_option(&mut start_tls, option::STARTTLS, &[]);
        // Bytes before the reply to STARTTLS: an injected option, and a hello.
        for early in [&start_tls[..], &[22, 3, 1]] {
            let raw = Raw::connect(&address).await;
            raw.greet().await;
            raw.send(&[&start_tls, early].concat()).await;
            assert!(raw.is_closed().await);
        }
        let giant = [&[22, 3, 1, 255, 255][..], &[0; 4000]].concat();
        for bytes in [&b"IHAVEOPT\x00\x00\x00\x03\x00\x00\x00\x00"[..], b"GET / HTTP/1.1\r\n\r\n", &giant] {
            let raw = Raw::connect(&address).await;
            raw.greet().await;
            assert_eq!(raw.option(option::STARTTLS, &[]).await[0].0, option_reply::ACK);
            raw.send(bytes).await;
            assert!(raw.is_closed().await);
            is_healthy(&address, Some(&path)).await;
        }
        assert_eq!(server.status()["cut_off_connections"], 5);
        // As many clients as the server accepts stop in the middle; their places are free after the limit.
        let begin = runtime::now();
        let mut stopped = Vec::new();
        for bytes in [&[][..], &[22], &[22, 3, 1, 2], &[22, 3, 1, 2, 0, 1]] {
            let raw = Raw::connect(&address).await;
            raw.greet().await;
            assert_eq!(raw.option(option::STARTTLS, &[]).await[0].0, option_reply::ACK);
            raw.send(bytes).await;
            stopped.push(raw);
        }
        assert!(connect(&address, Some(&path)).await.is_err(), "no place is free");
        for raw in &stopped {
            assert!(raw.is_closed().await);
        }
        let seconds = (runtime::now() - begin).as_secs();
        assert!((9..=13).contains(&seconds), "{seconds} s");
        is_healthy(&address, Some(&path)).await;
        server.stop().await.expect("it stops");
    });
}

#[test]
fn garbage_and_a_cut_in_the_transmission_end_the_connection() {
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    in_simulation(8, |address| async move {
        let server = server_of(&address, Some(&path), true);
        server.start().await.expect("it starts");
        for garbage in [&[23, 3, 3, 0, 32, 1, 2, 3][..], &[23, 3, 3, 255, 255], b"plain text"] {
            let mut raw = Raw::connect(&address).await;
            let tls::Stream::Plain(socket) = raw.stream.clone() else { panic!("in TLS already") };
            raw.greet().await;
            raw.start_tls(&client_tls(&path)).await.expect("in TLS");
            raw.choose("disk", true).await;
            socket.send(Data::copy_of(garbage).into()).await.0.expect("sent");
            // A truncated record, or the end without close_notify.
            socket.shutdown(runtime::net::Shutdown::Write).await.expect("shut down");
            assert!(raw.is_closed().await);
            is_healthy(&address, Some(&path)).await;
        }
        // Without the record that was cut short.
        assert_eq!(server.status()["cut_off_connections"], 2);
        server.stop().await.expect("it stops");
    });
}

/// The keys of the door and of the client, and a URI as the client's address.
#[test]
fn stacks_on_both_sides_use_the_folder() {
    use stack::{Registry, Stack};
    let folder = good_folder(&Authority::new("the authority"));
    let path = folder.path().to_owned();
    crate::support::run(1, move || async move {
        let registry =
            || Registry::new(vec![&disks::ram::KIND, &doors::nbd::door::KIND, &doors::nbd::client::KIND]);
        let checked = |line: &str| {
            let stack = Stack::from_line("test", line, &registry()).expect("parses");
            stack.with_base_directory(&path).check(false).map_err(|problems| problems.to_string())
        };
        let server = checked("nbd(ram(size=1MiB), socket=vol.sock, tls=\".\")").expect("fits");
        let server = server.build().await.expect("builds");
        server.start().await.expect("starts");
        let uri = "nbds+unix:///?socket=vol.sock&tls-certificates=.";
        for line in ["nbd-client(unix:vol.sock, tls=\".\")".to_owned(), format!("nbd-client(\"{uri}\")")] {
            let client = checked(&line).expect("fits").build().await.expect("builds");
            client.close().await.expect("closes");
        }
        for (line, expected) in [
            ("nbd(ram(size=1MiB), socket=v, tls_mode=allow)", "tls_mode without tls"),
            ("nbd(ram(size=1MiB), socket=v, tls=absent)", "absent"),
            ("nbd-client(unix:v, tls_hostname=x)", "tls_hostname without tls"),
            ("nbd-client(\"nbds://127.0.0.1/\")", "needs certificates"),
            ("nbd-client(\"nbd://127.0.0.1/\", tls=\".\")", "expected nbds:"),
        ] {
            let problem = checked(line).map(drop).expect_err(line);
            assert!(problem.contains(expected), "{line}: {problem}");
        }
        server.close().await.expect("closes");
    });
}
