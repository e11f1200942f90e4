//! The other end of the socket is in the same thread: nothing here may block.

use super::*;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;

struct Server {
    _folder: tempfile::TempDir,
    path: PathBuf,
    listener: Option<UnixListener>,
}

impl Server {
    fn new() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = Some(UnixListener::bind(&path).unwrap());
        Server { _folder: folder, path, listener }
    }

    fn link(&self) -> Link {
        let mut link = Link::new(self.path.clone(), Request::Observe);
        link.ask();
        link
    }

    /// Accepts the connection that a turn of the link has made.
    fn accept(&self, link: &mut Link) -> BufReader<UnixStream> {
        assert_eq!(link.turn().unwrap(), Heard::Nothing);
        BufReader::new(self.listener.as_ref().unwrap().accept().unwrap().0)
    }
}

fn expect(client: &mut BufReader<UnixStream>, request: &Request) {
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line, request.to_line());
}

fn answer(client: &mut BufReader<UnixStream>, value: &Value) {
    client.get_mut().write_all(format!("{value}\n").as_bytes()).unwrap();
}

fn hello() -> Value {
    json!({ "answer": { "protocol": VERSION, "process": 7 } })
}

#[test]
fn answers_arrive_in_pieces_and_a_connection_is_kept() {
    let server = Server::new();
    let mut link = server.link();
    let mut client = server.accept(&mut link);
    expect(&mut client, &Request::Hello);
    expect(&mut client, &Request::Observe);
    answer(&mut client, &hello());
    assert_eq!(link.turn().unwrap(), Heard::Nothing, "the version isn't the answer");
    let mut second = b"{\"answer\":{\"nanoseconds\":5}}\n".to_vec();
    let rest = second.split_off(10);
    for piece in [second, rest] {
        assert_eq!(link.turn().unwrap(), Heard::Nothing);
        client.get_mut().write_all(&piece).unwrap();
    }
    assert_eq!(link.turn().unwrap(), Heard::Answer(json!({ "nanoseconds": 5 })));
    assert_eq!((link.asked(), link.turn().unwrap()), (None, Heard::Nothing));
    link.ask();
    link.ask();
    expect(&mut client, &Request::Observe);
    answer(&mut client, &json!({ "answer": 1 }));
    assert_eq!(link.turn().unwrap(), Heard::Answer(json!(1)));
}

#[test]
fn a_server_that_is_started_again_is_asked_again() {
    let mut server = Server::new();
    let mut link = server.link();
    let mut client = server.accept(&mut link);
    answer(&mut client, &hello());
    drop((client, server.listener.take()));
    for _ in 0..3 {
        assert_eq!(link.turn().unwrap(), Heard::Nothing);
    }
    assert!(link.is_lost());
    std::fs::remove_file(&server.path).unwrap();
    server.listener = Some(UnixListener::bind(&server.path).unwrap());
    let mut client = server.accept(&mut link);
    expect(&mut client, &Request::Hello);
    expect(&mut client, &Request::Observe);
    answer(&mut client, &hello());
    answer(&mut client, &json!({ "answer": 2 }));
    assert_eq!(link.turn().unwrap(), Heard::Answer(json!(2)));
    assert!(!link.is_lost());
    // Between two requests the end is found as well.
    drop((client, server.listener.take()));
    while link.turn().unwrap() != Heard::Ended {
        wait(&[], link.retry_at().unwrap()).unwrap();
    }
}

#[test]
fn a_server_that_accepts_nothing_blocks_nothing() {
    let server = Server::new();
    rustix::net::listen(server.listener.as_ref().unwrap(), 2).unwrap();
    let mut links: Vec<Link> = (0..10).map(|_| server.link()).collect();
    // The queue of the listener is full in the end.
    let is_full = links.iter_mut().any(|link| {
        assert_eq!(link.turn().unwrap(), Heard::Nothing);
        link.descriptor().is_none()
    });
    assert!(is_full);
    let waiting = links.iter().find(|link| link.retry_at().is_some()).unwrap();
    assert!(waiting.asked().is_some() && !waiting.is_lost());
}

#[test]
fn wrong_answers_are_errors_and_refusals_are_not() {
    let server = Server::new();
    let wrong = [
        (json!({ "answer": { "protocol": 99, "process": 7 } }), "speaks version 99"),
        (json!([]), "isn't a JSON object"),
        (json!({ "error": { "errno": 95, "text": "a chip", "wrongly_asked": true } }), "a chip"),
    ];
    for (wrong, expected) in wrong {
        let mut link = server.link();
        let mut client = server.accept(&mut link);
        answer(&mut client, &wrong);
        let failure = link.turn().unwrap_err().to_string();
        assert!(failure.contains(expected), "{failure}");
    }
    let mut link = server.link();
    let mut client = server.accept(&mut link);
    answer(&mut client, &json!({ "error": { "errno": 16, "text": "16 clients, its limit" } }));
    drop(client);
    let Heard::Refused(why) = link.turn().unwrap() else { panic!("it is refused") };
    assert!(why.contains("16 clients"), "{why}");
    link.ask();
    server.accept(&mut link);
    // A line without an end is bounded.
    let mut link = server.link();
    let mut client = server.accept(&mut link);
    client.get_ref().set_nonblocking(true).unwrap();
    let failure = loop {
        while client.get_mut().write(&[b'1'; 1 << 16]).is_ok() {}
        match link.turn() {
            Ok(heard) => assert_eq!(heard, Heard::Nothing),
            Err(failure) => break failure.to_string(),
        }
    };
    assert!(failure.contains("more than 16777216 bytes"), "{failure}");
}
