//! Users, passwords and TLS: replies as redis gives them, and redis-cli as a foreign client.

use super::client::{Served, Socket, command, served, shown};
use super::simulate;
use block::{Buffer, Data, Error};
use conformance::certificates::{Authority, Validity};
use redis_door::server::{Server, ServerConfig};
use redis_door::users::LOGIN_LIMIT;
use redis_door::users::Users;
use runtime::net::{Address, Stream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tls::{Folder, HANDSHAKE_LIMIT};

const USERS: &str = "user default on >secret +@all\nuser reader on >r ~* +@read\nuser former off >f +@all\n";

fn config(users: &str) -> ServerConfig {
    let address = "127.0.0.1:6379".parse().unwrap();
    ServerConfig { users: Users::parse(users).unwrap(), ..ServerConfig::new(address) }
}

/// Sends lines; returns their replies.
async fn replies(client: &Socket, lines: &[&str]) -> Vec<String> {
    let mut replies = Vec::new();
    for line in lines {
        client.send(format!("{line}\r\n").as_bytes()).await;
        let (result, buffer) = client.0.receive(Buffer::new(4096)).await;
        assert!(result.unwrap() > 0, "{line}");
        replies.push(shown(buffer.filled()));
    }
    replies
}

const NOAUTH: &str = "-NOAUTH Authentication required.|";
const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.|";

#[test]
fn nothing_is_executed_before_the_right_password() {
    simulate(1, 1, || async {
        let served = served(config(USERS)).await;
        let client = served.client().await;
        let lines =
            ["GET a", "SET a 1", "PING", "MULTI", "INFO", "CLIENT ID", "KV.SCAN", "none", "AUTH wrong"];
        let found = replies(&client, &lines).await;
        assert!(found[..8].iter().all(|reply| reply == NOAUTH), "{found:?}");
        assert_eq!(found[8], WRONGPASS);
        let lines =
            ["AUTH former f", "AUTH nobody secret", "AUTH default", "HELLO 3 AUTH default wrong", "GET a"];
        let found = replies(&client, &lines).await;
        assert!(found[..4].iter().all(|reply| reply == WRONGPASS), "{found:?}");
        assert_eq!(found[4], NOAUTH);
        let found = replies(&client, &["HELLO 3", "AUTH", "AUTH a b c"]).await;
        assert!(found[0].starts_with("-NOAUTH HELLO must be called"), "{found:?}");
        assert_eq!(found[1], "-ERR wrong number of arguments for 'auth' command|");
        assert_eq!(found[2], "-ERR syntax error|");
        let found = replies(&client, &["AUTH secret", "SET a 1", "GET a", "RESET", "GET a"]).await;
        assert_eq!(found, ["+OK|", "+OK|", "$1|1|", "+RESET|", NOAUTH]);
        let found =
            replies(&client, &["HELLO 2 AUTH default secret", "GET a", "AUTH wrong", "GET a", "QUIT"]).await;
        assert!(found[0].starts_with("*14|"), "{found:?}");
        // A failed AUTH leaves the connection as it is.
        assert_eq!(found[1..], ["$1|1|", WRONGPASS, "$1|1|", "+OK|"]);
        served.stop().await;
    });
}

#[test]
fn a_read_only_user_changes_nothing() {
    simulate(2, 2, || async {
        let served = served(config(USERS)).await;
        let writer = served.client().await;
        assert_eq!(replies(&writer, &["AUTH secret", "MSET a 1 b 2"]).await, ["+OK|", "+OK|"]);
        let reader = served.client().await;
        assert_eq!(
            replies(&reader, &["AUTH reader r", "GET a", "STRLEN b", "PING"]).await,
            ["+OK|", "$1|1|", ":1|", "+PONG|"]
        );
        let changes = [
            "SET a 2",
            "DEL a",
            "GETDEL a",
            "GETEX a EX 1",
            "EXPIRE a 1",
            "APPEND a 1",
            "INCR a",
            "MSET a 2",
            "FLUSHALL",
            "KV.COMPACT",
            // It would delay the erasure of what others delete.
            "KV.SNAPSHOT",
            "UNLINK a",
            "PERSIST a",
            "SETEX a 1 2",
            "CONFIG GET maxmemory",
        ];
        for change in changes {
            let name = change.split(' ').next().unwrap().to_lowercase();
            let expected = format!("-NOPERM this user has no permissions to run the '{name}' command|");
            assert_eq!(replies(&reader, &[change]).await, [expected]);
        }
        assert_eq!(replies(&writer, &["MGET a b"]).await, ["*2|$1|1|$1|2|"]);
        served.stop().await;
    });
}

#[test]
fn strangers_get_no_memory_for_long_commands() {
    simulate(3, 1, || async {
        let served = served(config(USERS)).await;
        let client = served.client().await;
        let value = vec![b'x'; 1 << 20];
        let long = command(&[b"SET", b"key", &value]);
        // The server closes the connection in the middle.
        let _ = client.0.send(Data::copy_of(&long).into()).await;
        let rest = shown(&client.rest().await);
        assert_eq!(rest, "-ERR Protocol error: unauthenticated bulk length|");
        // A complete command, longer than is permitted before the login.
        let client = served.client().await;
        let _ = client.0.send(Data::copy_of(&command(&[b"SET", b"key", &value[..40 << 10]])).into()).await;
        let rest = shown(&client.rest().await);
        assert_eq!(rest, "-ERR Protocol error: unauthenticated bulk length|");
        let client = served.client().await;
        client.send(&command(&[b"SET", b"key", &value[..30 << 10]])).await;
        client.expect(b"-NOAUTH Authentication required.\r\n").await;
        let client = served.client().await;
        client.send(&[command(&[b"AUTH", b"secret"]), long].concat()).await;
        client.expect(b"+OK\r\n+OK\r\n").await;
        served.stop().await;
    });
}

#[test]
fn strangers_are_cut_off_unless_they_log_in_in_time() {
    simulate(4, 1, || async {
        let served = served(config(USERS)).await;
        let member = served.client().await;
        assert_eq!(replies(&member, &["AUTH secret"]).await, ["+OK|"]);
        let begin = runtime::now();
        let is_at_limit = || assert_eq!((runtime::now() - begin).as_secs(), LOGIN_LIMIT.as_secs());
        let (silent, busy, deaf) = (served.client().await, served.client().await, served.client().await);
        let deaf = runtime::spawn(async move {
            let lines = Data::copy_of(&b"PING\r\n".repeat(1000));
            while deaf.0.send(lines.clone().into()).await.0.is_ok() {}
        });
        for _ in 0..3 {
            runtime::sleep(LOGIN_LIMIT / 4).await;
            assert_eq!(replies(&busy, &["AUTH wrong", "PING"]).await, [WRONGPASS, NOAUTH]);
        }
        busy.rest().await;
        is_at_limit();
        silent.rest().await;
        deaf.await;
        is_at_limit();
        let status = served.server.status();
        assert_eq!((&status["failed_logins"], &status["cut_off_connections"]), (&3.into(), &3.into()));
        // A client that has logged in may be silent; RESET begins the time limit again.
        runtime::sleep(3 * LOGIN_LIMIT).await;
        assert_eq!(replies(&member, &["PING", "RESET", "AUTH secret"]).await, ["+PONG|", "+RESET|", "+OK|"]);
        runtime::sleep(3 * LOGIN_LIMIT).await;
        let begin = runtime::now();
        assert_eq!(replies(&member, &["RESET", "PING"]).await, ["+RESET|", NOAUTH]);
        member.rest().await;
        assert_eq!((runtime::now() - begin).as_secs(), LOGIN_LIMIT.as_secs());
        served.stop().await;
    });
}

fn good_folder(authority: &Authority) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    authority.fill(folder.path());
    folder
}

fn tls_config(address: &str, folder: &Path, verify: bool) -> ServerConfig {
    let tls = Some(Folder::new(folder).server(verify).unwrap());
    ServerConfig { tls, ..ServerConfig::new(address.parse().unwrap()) }
}

async fn connect(served: &Served, folder: &Path) -> block::Result<tls::Stream> {
    let config = Folder::new(folder).client("127.0.0.1").unwrap();
    let socket = Stream::connect(&served.server.addresses()[0]).await.unwrap();
    tls::Stream::connect(socket, Some(&config), HANDSHAKE_LIMIT).await
}

/// Sends commands and receives their replies.
async fn is_healthy(served: &Served, folder: &Path) {
    let client = connect(served, folder).await.unwrap();
    let value = vec![b'v'; 300_000];
    let commands = [command(&[b"SET", b"key", &value]), command(&[b"GET", b"key"])].concat();
    client.send(Data::copy_of(&commands).into()).await.0.unwrap();
    let expected = [&b"+OK\r\n$300000\r\n"[..], &value, b"\r\n"].concat();
    let (result, buffer) = client.receive_exact(Buffer::new(expected.len())).await;
    result.unwrap();
    assert!(buffer.filled() == expected, "other bytes");
}

#[test]
fn in_tls_what_is_wrong_ends_its_connection_only() {
    let authority = Authority::new("the authority");
    let good = Arc::new(good_folder(&authority));
    let expired = good_folder(&authority);
    authority.sign(expired.path(), "client", Validity::Expired, &["localhost"]);
    simulate(4, 2, move || async move {
        let served = served(tls_config("127.0.0.1:6379", good.path(), true)).await;
        let bystander = connect(&served, good.path()).await.unwrap();
        for bytes in [&b"PING\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[22, 3, 1, 255, 255], &[0; 64]] {
            let plain = served.client().await;
            plain.send(bytes).await;
            assert!(!shown(&plain.rest().await).contains("PONG"));
            is_healthy(&served, good.path()).await;
        }
        assert_eq!(served.server.status()["cut_off_connections"], 4);
        // A record that isn't valid, after the handshake.
        let config = Folder::new(good.path()).client("127.0.0.1").unwrap();
        let socket = Stream::connect(&served.server.addresses()[0]).await.unwrap();
        let client = tls::Stream::connect(socket.clone(), Some(&config), HANDSHAKE_LIMIT).await.unwrap();
        socket.send(Data::copy_of(b"plain text").into()).await.0.unwrap();
        assert!(!matches!(client.receive(Buffer::new(9)).await.0, Ok(1..)));
        is_healthy(&served, good.path()).await;
        assert_eq!(served.server.status()["cut_off_connections"], 5);
        let refused = connect(&served, expired.path()).await.unwrap();
        let error = refused.receive(Buffer::new(9)).await.0.expect_err("an expired certificate");
        assert!(matches!(error, Error::Disconnected(_)), "{error}");
        // A client that says nothing is cut off after the limit.
        let begin = runtime::now();
        let silent = served.client().await;
        silent.rest().await;
        assert_eq!((runtime::now() - begin).as_secs(), HANDSHAKE_LIMIT.as_secs());
        bystander.send(Data::copy_of(b"PING\r\n").into()).await.0.unwrap();
        let (result, buffer) = bystander.receive_exact(Buffer::new(7)).await;
        result.unwrap();
        assert_eq!(buffer.filled(), b"+PONG\r\n");
        served.stop().await;
    });
}

#[test]
fn users_without_a_password_admit_strangers_whatever_their_name() {
    let folder = good_folder(&Authority::new("the authority"));
    let remote = |users: &str, verify| {
        let users = Users::parse(users).unwrap();
        Server::new(ServerConfig { users, ..tls_config("192.0.2.1:6379", folder.path(), verify) })
    };
    let guest = "user default off\nuser guest on nopass ~* +@all\n";
    let refused = remote(guest, false).err().expect("strangers log in as guest").to_string();
    assert!(refused.contains("192.0.2.1:6379"), "{refused}");
    for harmless in [USERS, "user guest off nopass +@all\n", "user guest on nopass\n"] {
        assert!(remote(harmless, false).is_ok(), "{harmless}");
    }
    assert!(remote(guest, true).is_ok());
}

/// Runs redis-cli against a server, while it serves; `None` if it isn't installed.
async fn redis_cli(port: u16, arguments: &[String], password: Option<&str>) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.args(["60", "/usr/bin/redis-cli", "-p", &port.to_string()]).args(arguments).stdin(Stdio::null());
    if let Some(password) = password {
        command.env("REDISCLI_AUTH", password);
    }
    Some(runtime::blocking(move || command.output().unwrap()).await)
}

#[test]
fn redis_cli_logs_in_over_tls() {
    if !Path::new("/usr/bin/redis-cli").is_file() {
        println!("SKIPPED: redis_cli_logs_in_over_tls: redis-cli is not installed");
        return;
    }
    let folder = good_folder(&Authority::new("the authority"));
    let test = move || async move {
        let config = ServerConfig {
            users: Users::parse(USERS).unwrap(),
            ..tls_config("127.0.0.1:0", folder.path(), true)
        };
        let served = served(config).await;
        let Address::Tcp(address) = served.server.addresses()[0].clone() else { panic!("a TCP address") };
        let file = |name: &str| folder.path().join(name).display().to_string();
        let own = ["--cert".to_owned(), file("client-cert.pem"), "--key".to_owned(), file("client-key.pem")];
        let tls = ["--tls".to_owned(), "--cacert".to_owned(), file("ca-cert.pem")];
        let with = |options: &[String], words: &[&str]| {
            options.iter().cloned().chain(words.iter().map(ToString::to_string)).collect::<Vec<String>>()
        };
        let both = with(&tls, &own.each_ref().map(String::as_str));
        let text = |output: Option<Output>| String::from_utf8(output.unwrap().stdout).unwrap();
        let set = redis_cli(address.port(), &with(&both, &["set", "a", "1"]), Some("secret")).await;
        assert_eq!(text(set), "OK\n");
        let reader = ["--user", "reader", "set", "a", "2"];
        let refused = text(redis_cli(address.port(), &with(&both, &reader), Some("r")).await);
        assert!(refused.starts_with("NOPERM"), "{refused}");
        let refused = text(redis_cli(address.port(), &with(&both, &["get", "a"]), None).await);
        assert!(refused.starts_with("NOAUTH"), "{refused}");
        for options in [&tls[..], &[]] {
            let output =
                redis_cli(address.port(), &with(options, &["get", "a"]), Some("secret")).await.unwrap();
            assert!(!output.status.success(), "without a certificate, or in plain text");
        }
        served.stop().await;
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}
