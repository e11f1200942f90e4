//! Sessions over simulated sockets, which cut receives and sends short, in virtual time.

use crate::session::take_output;
use crate::{ClientConfig, Folder, HANDSHAKE_LIMIT, ServerConfig, Session, Stream};
use block::{Buffer, Data, Error, Payload, Result};
use conformance::certificates::{Authority, Validity};
use runtime::net::{self, Address, Listener, SendWatch, Shutdown};
use runtime::{Random, Simulation, simulate};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn good_folder() -> TempDir {
    let folder = folder();
    Authority::new("the authority").fill(folder.path());
    folder
}

fn configs(server: &Path, client: &Path) -> (ServerConfig, ClientConfig) {
    let server = Folder::new(server).server(true).expect("a server's folder");
    (server, Folder::new(client).client("localhost").expect("a client's folder"))
}

async fn pair() -> (net::Stream, net::Stream) {
    let address: Address = "127.0.0.1:1".parse().expect("an address");
    let listener = Listener::bind(&address).expect("listens");
    let connected = net::Stream::connect(&address).await.expect("connects");
    (listener.accept().await.expect("accepts"), connected)
}

fn in_worlds<Fut: Future<Output = ()> + 'static>(seeds: std::ops::Range<u64>, test: impl Fn(u64) -> Fut) {
    for seed in seeds {
        println!("seed {seed}");
        simulate(Simulation::new(seed), || test(seed)).expect("the simulation ends");
    }
}

/// Handshake of both sides; each gets the outcome, and the first receive of the client's side the server's
/// opinion of its certificate.
async fn shake_hands(server: ServerConfig, client: ClientConfig) -> (Result<Session>, Result<Session>) {
    let (accepted, connected) = pair().await;
    let accepting = runtime::spawn(async move { Session::accept(accepted, &server, HANDSHAKE_LIMIT).await });
    let client = Session::connect(connected, &client, HANDSHAKE_LIMIT).await;
    (accepting.await, client)
}

async fn good_pair(folder: &Path) -> (Rc<Session>, Rc<Session>) {
    let (server, client) = configs(folder, folder);
    let (server, client) = shake_hands(server, client).await;
    (Rc::new(server.expect("a server's session")), Rc::new(client.expect("a client's session")))
}

async fn send(session: &Session, payload: Payload) -> Result<()> {
    session.send_watched(payload, &SendWatch::default()).await.0
}

async fn receive_exact(session: &Session, count: usize) -> Vec<u8> {
    let mut buffer = Buffer::new(count);
    while buffer.missing() > 0 {
        let (result, returned) = session.receive(buffer).await;
        assert!(result.expect("received") > 0, "the stream ends early");
        buffer = returned;
    }
    buffer.filled().to_vec()
}

#[test]
fn payloads_of_many_pieces_arrive_in_both_directions_at_once() {
    let folder = good_folder();
    let path = folder.path().to_owned();
    in_worlds(1..4, |seed| {
        let path = path.clone();
        async move {
            let (server, client) = good_pair(&path).await;
            let mut random = Random::new(seed);
            let mut payload = || {
                let pieces = 1 + random.below(200);
                let mut piece = || {
                    let most = if random.below(20) == 0 { 300_000 } else { 5000 };
                    let length = random.below(most);
                    let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                    Data::copy_of(&bytes)
                };
                (0..pieces).map(|_| piece()).collect::<Payload>()
            };
            let payloads = [payload(), payload()];
            let bytes = payloads.each_ref().map(|payload| payload.to_data().to_vec());
            let mut tasks = Vec::new();
            for (session, payload, expected) in [
                (server.clone(), payloads[0].clone_pieces(), bytes[1].clone()),
                (client.clone(), payloads[1].clone_pieces(), bytes[0].clone()),
            ] {
                let sender = session.clone();
                tasks.push(runtime::spawn(async move { send(&sender, payload).await.expect("sent") }));
                tasks.push(runtime::spawn(async move {
                    assert!(receive_exact(&session, expected.len()).await == expected, "other bytes");
                }));
            }
            for task in tasks {
                task.await;
            }
        }
    });
}

trait ClonePieces {
    fn clone_pieces(&self) -> Payload;
}

impl ClonePieces for Payload {
    fn clone_pieces(&self) -> Payload {
        self.slices().iter().cloned().collect()
    }
}

#[test]
fn output_takes_no_more_memory_than_its_records() {
    let folder = good_folder();
    let (_, client) = configs(folder.path(), folder.path());
    let connection = rustls::ClientConnection::new(client.rules.clone(), client.server.clone());
    let mut connection = connection.expect("a connection").into();
    let output = take_output(&mut connection).expect("the first message");
    assert!((100..4096).contains(&output.len()) && output.missing() == 0, "{} bytes", output.len());
    assert!(!connection.wants_write());
}

#[test]
fn a_half_closed_stream_still_receives() {
    let folder = good_folder();
    let path = folder.path().to_owned();
    in_worlds(11..13, |_| {
        let path = path.clone();
        async move {
            let (server, client) = good_pair(&path).await;
            send(&client, Data::copy_of(b"last").into()).await.expect("sent");
            client.shutdown(Shutdown::Write).await.expect("shut down");
            assert_eq!(receive_exact(&server, 4).await, b"last");
            assert_eq!(server.receive(Buffer::new(9)).await.0, Ok(0));
            send(&server, Data::copy_of(b"answer").into()).await.expect("sent");
            assert_eq!(receive_exact(&client, 6).await, b"answer");
            drop(server);
            assert_eq!(client.receive(Buffer::new(9)).await.0, Ok(0), "without close_notify");
        }
    });
}

#[test]
fn wrong_certificates_are_refused_on_both_sides() {
    let authority = Authority::new("the authority");
    let other = Authority::new("another authority");
    let good = folder();
    authority.fill(good.path());
    let changed = |change: &dyn Fn(&Path)| {
        let folder = folder();
        authority.fill(folder.path());
        change(folder.path());
        folder
    };
    let names = ["localhost"];
    let bad_clients = [
        ("expired", changed(&|path| authority.sign(path, "client", Validity::Expired, &names))),
        ("of the future", changed(&|path| authority.sign(path, "client", Validity::Future, &names))),
        ("of another authority", changed(&|path| other.sign(path, "client", Validity::Always, &names))),
        (
            "none",
            changed(&|path| {
                for name in ["client-cert.pem", "client-key.pem"] {
                    std::fs::remove_file(path.join(name)).expect("removed");
                }
            }),
        ),
    ];
    let bad_servers = [
        ("expired", changed(&|path| authority.sign(path, "server", Validity::Expired, &names))),
        ("of the future", changed(&|path| authority.sign(path, "server", Validity::Future, &names))),
        ("of another authority", changed(&|path| other.sign(path, "server", Validity::Always, &names))),
        (
            "of another host",
            changed(&|path| authority.sign(path, "server", Validity::Always, &["elsewhere"])),
        ),
    ];
    for (what, folder) in &bad_clients {
        let (server, client) = configs(good.path(), folder.path());
        let what = *what;
        simulate(Simulation::new(21), || async move {
            let (server, client) = shake_hands(server, client).await;
            let error = server.map(drop).expect_err(what);
            assert!(matches!(error, Error::PermissionDenied(_)), "{what}: {error}");
            // A client's side of a handshake ends before the server has seen its certificate.
            let client = client.expect("the handshake of the client's side");
            let error = client.receive(Buffer::new(9)).await.0.expect_err(what);
            assert!(matches!(error, Error::Disconnected(_)), "{what}: {error}");
        })
        .expect("the simulation ends");
    }
    for (what, folder) in &bad_servers {
        let (server, client) = configs(folder.path(), good.path());
        let what = *what;
        simulate(Simulation::new(22), || async move {
            let (server, client) = shake_hands(server, client).await;
            let error = client.map(drop).expect_err(what);
            assert!(matches!(error, Error::PermissionDenied(_)), "{what}: {error}");
            let error = server.map(drop).expect_err(what);
            assert!(matches!(error, Error::Disconnected(_)), "{what}: {error}");
        })
        .expect("the simulation ends");
    }
}

#[test]
fn a_client_that_stops_is_cut_off_after_the_limit() {
    let folder = good_folder();
    let (server, _) = configs(folder.path(), folder.path());
    // Nothing, a part of a header, and a header of a long record with a part of it.
    for bytes in [&b""[..], &[22, 3], &[22, 3, 1, 64, 0, 1, 0, 63, 252, 3, 3]] {
        let server = server.clone();
        simulate(Simulation::new(31), || async move {
            let (accepted, connected) = pair().await;
            connected.send(Data::copy_of(bytes).into()).await.0.expect("sent");
            let begin = runtime::now();
            let error =
                Session::accept(accepted, &server, HANDSHAKE_LIMIT).await.map(drop).expect_err("silence");
            assert!(matches!(error, Error::TimedOut(_)), "{error}");
            assert_eq!((runtime::now() - begin).as_secs(), HANDSHAKE_LIMIT.as_secs());
        })
        .expect("the simulation ends");
    }
}

#[test]
fn what_is_no_handshake_is_refused() {
    let folder = good_folder();
    let (server, _) = configs(folder.path(), folder.path());
    let tls12 = client_hello_of_tls12();
    let giant: Vec<u8> = [&[22, 3, 1, 255, 255][..], &[0; 70_000]].concat();
    // A handshake message of 16 MiB in records of a legal size.
    let long: Vec<u8> = [&[22, 3, 1, 64, 0, 1, 255, 255, 255][..], &[0; 16380]]
        .into_iter()
        .chain((0..8).flat_map(|_| [&[22, 3, 1, 64, 0][..], &[0; 16384]]))
        .flatten()
        .copied()
        .collect();
    let attempts: [(&str, &[u8]); 6] = [
        ("plain text", b"*1\r\n$4\r\nPING\r\n"),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n"),
        ("application data", &[23, 3, 3, 0, 5, 1, 2, 3, 4, 5]),
        ("TLS 1.2", &tls12),
        ("a giant record", &giant),
        ("a giant message", &long),
    ];
    for (what, bytes) in attempts {
        let (server, bytes) = (server.clone(), bytes.to_vec());
        simulate(Simulation::new(41), || async move {
            let (accepted, connected) = pair().await;
            let client = connected.clone();
            let sending = runtime::spawn(async move { client.send(Data::copy_of(&bytes).into()).await.0 });
            let outcome = Session::accept(accepted, &server, HANDSHAKE_LIMIT).await;
            let error = outcome.map(drop).expect_err(what);
            assert!(matches!(error, Error::Protocol(_)), "{what}: {error}");
            // The rest of a giant message may find the connection closed.
            let _ = sending.await;
            let (result, alert) = connected.receive(Buffer::new(64)).await;
            let has_alert = result.is_ok() && alert.filled().first() == Some(&21);
            assert!(has_alert || what == "a giant message", "{what}: an alert: {result:?}");
        })
        .expect("the simulation ends");
    }
}

/// A hello of a client that knows nothing newer than TLS 1.2.
fn client_hello_of_tls12() -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend([0, 2, 0xc0, 0x2f, 1, 0]);
    let groups = [0, 10, 0, 4, 0, 2, 0, 23];
    let algorithms = [0, 13, 0, 4, 0, 2, 4, 3];
    hello.extend(((groups.len() + algorithms.len()) as u16).to_be_bytes());
    hello.extend(groups);
    hello.extend(algorithms);
    let mut message = vec![1, 0];
    message.extend((hello.len() as u16).to_be_bytes());
    message.extend(hello);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

#[test]
fn a_record_that_was_changed_ends_the_session() {
    let folder = good_folder();
    let (server, client) = configs(folder.path(), folder.path());
    for garbage in [
        &[23, 3, 3, 0, 32][..],
        // Renegotiation, in plain text; a cipher change; an unknown type; a record above the limit.
        &[22, 3, 3, 0, 4, 1, 0, 0, 0],
        &[20, 3, 3, 0, 1, 1],
        &[99, 3, 3, 0, 1, 1],
        &[23, 3, 3, 72, 1],
    ] {
        let (server, client) = (server.clone(), client.clone());
        let garbage = [garbage, &[9; 32]].concat();
        simulate(Simulation::new(51), || async move {
            let (accepted, connected) = pair().await;
            let socket = connected.clone();
            let accepting =
                runtime::spawn(async move { Session::accept(accepted, &server, HANDSHAKE_LIMIT).await });
            let client = Session::connect(connected, &client, HANDSHAKE_LIMIT).await.expect("a session");
            let server = accepting.await.expect("a session");
            socket.send(Data::copy_of(&garbage).into()).await.0.expect("sent");
            let error = server.receive(Buffer::new(9)).await.0.expect_err("no valid record");
            assert!(matches!(error, Error::Protocol(_)), "{garbage:?}: {error}");
            let error = client.receive(Buffer::new(9)).await.0.expect_err("the alert");
            assert!(matches!(error, Error::Disconnected(_)), "{error}");
        })
        .expect("the simulation ends");
    }
}

#[test]
fn key_updates_are_obeyed() {
    let folder = good_folder();
    let path = folder.path().to_owned();
    in_worlds(61..63, |_| {
        let path = path.clone();
        async move {
            let (server, client) = good_pair(&path).await;
            for round in 0..5_u8 {
                client.refresh_keys().expect("a session");
                send(&client, Data::copy_of(&[round; 3]).into()).await.expect("sent");
                assert_eq!(receive_exact(&server, 3).await, [round; 3]);
                send(&server, Data::copy_of(&[round; 5]).into()).await.expect("sent");
                assert_eq!(receive_exact(&client, 5).await, [round; 5]);
            }
        }
    });
}

#[test]
fn an_interrupted_send_breaks_the_session() {
    let folder = good_folder();
    let path = folder.path().to_owned();
    in_worlds(71..72, |_| {
        let path = path.clone();
        async move {
            let (server, _client) = good_pair(&path).await;
            let payload: Payload = Data::copy_of(&vec![7; 4 << 20]).into();
            let sending = runtime::timeout(Duration::from_secs(5), send(&server, payload)).await;
            assert!(sending.is_err(), "the peer receives nothing");
            let error = send(&server, Data::copy_of(b"more").into()).await.expect_err("a gap in the records");
            assert!(matches!(error, Error::Closed(_)), "{error}");
            server.say_goodbye().await;
        }
    });
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    let folder = good_folder();
    let text = |name: &str, content: Option<&str>| {
        let path = folder.path().join(name);
        let before = std::fs::read(&path).expect("a file");
        match content {
            Some(content) => std::fs::write(&path, content).expect("written"),
            None => std::fs::remove_file(&path).expect("removed"),
        }
        let error = Folder::new(folder.path()).server(true).expect_err("an error").to_string();
        std::fs::write(&path, before).expect("written");
        error
    };
    for (name, content, expected) in [
        ("server-cert.pem", None, "server-cert.pem"),
        ("server-key.pem", None, "server-key.pem"),
        ("ca-cert.pem", None, "ca-cert.pem"),
        ("server-cert.pem", Some("nothing"), "at least one certificate"),
        ("server-key.pem", Some("nothing"), "a private key"),
        ("ca-cert.pem", Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"), "ca-cert.pem"),
    ] {
        let error = text(name, content);
        assert!(error.contains(expected), "{error}");
    }
    let client_key = std::fs::read_to_string(folder.path().join("client-key.pem")).expect("a file");
    let error = text("server-key.pem", Some(&client_key));
    assert!(error.contains("server-cert.pem and server-key.pem"), "{error}");
    let error = Folder::new(folder.path()).client("no name").expect_err("an error").to_string();
    assert!(error.contains("no name"), "{error}");
}

#[test]
fn a_stream_without_a_configuration_is_plain() {
    simulate(Simulation::new(81), || async {
        let (accepted, connected) = pair().await;
        let accepted = Stream::accept(accepted, None, HANDSHAKE_LIMIT).await.expect("plain");
        let connected = Stream::connect(connected, None, HANDSHAKE_LIMIT).await.expect("plain");
        assert!(!accepted.is_tls());
        connected.send(Data::copy_of(b"text").into()).await.0.expect("sent");
        let (result, buffer) = accepted.receive_exact(Buffer::new(4)).await;
        result.expect("received");
        assert_eq!(buffer.filled(), b"text");
    })
    .expect("the simulation ends");
}
