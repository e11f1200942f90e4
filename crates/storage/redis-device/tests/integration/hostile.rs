//! Servers that violate the protocol or are never ready: the device reports a clear error in bounded time,
//! and later requests work.

use crate::fake::{Fake, SERVER, Said, bulk, say, simulated};
use crate::support::{BLOCK, MIB, connect, content, discard, number, open, read, write};
use block::{Error, Part};
use std::time::Duration;

const OTHER: &str = "10.0.0.2:6379";

/// Script with a special action for one command and the usual reply to all others.
fn to(
    name: &'static str,
    mut says: impl FnMut() -> Said + 'static,
) -> impl FnMut(&[String]) -> Said + 'static {
    move |words| if words[0] == name { says() } else { Said::Usual }
}

/// A cluster whose slots are all on one server.
fn cluster_of(address: &str) -> Said {
    let (host, port) = address.split_once(':').unwrap();
    say(&format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{}:{port}\r\n", bulk(host)))
}

#[test]
fn replies_that_are_not_the_expected_ones_end_the_connection_and_nothing_else() {
    simulated(1, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        let long = format!("${}\r\n{}\r\n", BLOCK + 1, "x".repeat(BLOCK as usize + 1));
        let short = format!("$4096\r\n{}", "x".repeat(5000));
        let endless = "+".to_owned() + &"x".repeat(100_000);
        let nested = "*1\r\n".repeat(1000);
        let text = format!("+{}\r\n", "x".repeat(60_000));
        let replies = [
            &text,
            &*long,
            &short,
            &endless,
            &nested,
            "$-1\r\n",
            "$536870912\r\n",
            "$99999999999999999999\r\n",
            ":1\r\n",
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*-1\r\n",
            "%1\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "\0\0\0\0",
            "$2\r\nabcd",
            "-\u{ff}\r\n-",
            "$0\r\n\r\n:7\r\n",
        ];
        for (number, text) in (0..).zip(replies) {
            let text = text.to_owned();
            server.follow(to("GETRANGE", move || say(&text)));
            let outcome = read(&*device, number % 4 * 256, 1).await;
            match outcome {
                Err(Error::Protocol(detail)) => assert!(detail.len() < 400, "{detail}"),
                // Bytes after a complete reply are detected with the next reply.
                Ok(bytes) if number == 17 => assert_eq!(bytes, [0; BLOCK as usize]),
                // The reply is an error reply followed by other bytes.
                Err(Error::Io(_)) if number == 16 => {}
                other => panic!("reply {number}: {other:?}"),
            }
            server.follow(|_| Said::Usual);
            assert_eq!(read(&*device, 0, 1).await, Ok(vec![0; BLOCK as usize]), "after reply {number}");
        }
        let long = format!("${}\r\n{}\r\n", 100_000, "x".repeat(100_000));
        for reply in [&*long, "$1\r\na\r\n", ":4095\r\n", ":-1\r\n", "+OK\r\n", ":99999999999999999999\r\n"] {
            let text = reply.to_owned();
            server.follow(to("SETRANGE", move || say(&text)));
            let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
            assert!(matches!(error, Error::Protocol(_)) && error.detail().len() < 400, "{reply}: {error}");
        }
        server.follow(|_| Said::Usual);
        write(&*device, 0, content(0, 1)).await.unwrap();
    });
}

#[test]
fn random_bytes_are_never_waited_for() {
    for seed in 100..160 {
        simulated(seed, move || async move {
            let mut random = runtime::Random::new(seed);
            let mut noise = move || {
                let pieces = [
                    "$", "*", ":", "-", "+", "\r\n", "1", "4096", "MOVED 1 ", "ASK 1 ", SERVER, ":9", "x",
                    "\r\n", "OOM",
                ];
                let count = random.below(12);
                let mut text: String = (0..count).map(|_| pieces[random.below(15) as usize]).collect();
                if random.below(3) == 0 {
                    text = format!("-{text}\r\n");
                }
                say(&text)
            };
            let _server = Fake::start(SERVER, move |words| match words[0].as_str() {
                "GETRANGE" | "SETRANGE" | "STRLEN" | "UNLINK" => noise(),
                _ => Said::Usual,
            });
            let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
            let device = open(&part).await;
            for block in 0..10 {
                let begin = runtime::now();
                drop(read(&*device, block, 1).await);
                drop(write(&*device, block, content(0, 1)).await);
                drop(discard(&*device, block, 1).await);
                assert!(begin.elapsed() < Duration::from_secs(13), "{:?}", begin.elapsed());
            }
        });
    }
}

#[test]
fn a_server_that_does_not_answer_is_an_error_after_two_seconds() {
    simulated(2, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        // New connections get no answer to the login; most requests wait for a permit.
        server.follow(|_| Said::Nothing);
        let begin = runtime::now();
        let outcomes = runtime::join_all((0..1000).map(|block| read(&*device, block, 1))).await;
        for outcome in outcomes {
            assert!(matches!(outcome, Err(Error::TimedOut(_))), "{outcome:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        let begin = runtime::now();
        let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
        let begin = runtime::now();
        let error = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.err().unwrap();
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        server.follow(|_| Said::Usual);
        read(&*device, 0, 1).await.unwrap();
    });
}

#[test]
fn servers_that_are_never_ready_are_given_up() {
    simulated(3, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        let again = format!("-MOVED 1 {SERVER}\r\n");
        for (refusal, errno) in [
            ("-TRYAGAIN Multiple keys\r\n", 16),
            ("-LOADING in memory\r\n", 16),
            ("-CLUSTERDOWN The cluster is down\r\n", 104),
            ("-READONLY You can't write\r\n", 30),
            (&*again, 71),
            ("-ASK 1 10.0.0.9:9\r\n", 104),
        ] {
            let text = refusal.to_owned();
            server.follow(to("SETRANGE", move || say(&text)));
            let begin = runtime::now();
            let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
            assert!(error.errno() == errno || refusal.starts_with("-ASK"), "{refusal}: {error}");
            assert!(begin.elapsed() < Duration::from_secs(3), "{refusal}: {:?}", begin.elapsed());
            let text = refusal.to_owned();
            let mut count = 0;
            server.follow(to("SETRANGE", move || {
                count += 1;
                if count < 4 && !text.starts_with("-ASK") { say(&text) } else { Said::Usual }
            }));
            write(&*device, 0, content(0, 1))
                .await
                .unwrap_or_else(|error| panic!("{refusal}, 3 times: {error}"));
        }
    });
}

#[test]
fn a_full_server_is_no_broken_one() {
    simulated(4, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        read(&*device, 0, 1).await.unwrap();
        server.follow(to("SETRANGE", || say("-OOM command not allowed when used memory > 'maxmemory'.\r\n")));
        let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
        read(&*device, 0, 1).await.unwrap();
        assert_eq!(number(&part.status().await, "connections_made"), 2, "one of the part, one of the handle");
    });
}

#[test]
fn a_write_without_a_reply_is_not_repeated_and_a_read_is() {
    simulated(5, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        let mut closed = [false; 2];
        server.follow(move |words| {
            let number = match words[0].as_str() {
                "GETRANGE" => 0,
                "SETRANGE" => 1,
                _ => return Said::Usual,
            };
            if std::mem::replace(&mut closed[number], true) { Said::Usual } else { Said::Close }
        });
        read(&*device, 0, 1).await.unwrap();
        assert_eq!(server.count("GETRANGE"), 2);
        let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
        assert!(matches!(error, Error::Disconnected(_)), "{error}");
        assert_eq!(server.count("SETRANGE"), 1);
        write(&*device, 0, content(0, 1)).await.unwrap();
    });
}

#[test]
fn a_server_that_was_restarted_is_noticed() {
    simulated(6, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        write(&*device, 0, content(0, 1)).await.unwrap();
        let other_run = || to("INFO", || say(&bulk("run_id:other\r\n")));
        // The server ends during the first read, and a new run of it starts.
        server.follow(move |words| match words[0].as_str() {
            "GETRANGE" => Said::Close,
            "INFO" => say(&bulk("run_id:other\r\n")),
            _ => Said::Usual,
        });
        let error = read(&*device, 0, 1).await.unwrap_err();
        assert!(error.detail().contains("was restarted"), "{error}");
        server.follow(other_run());
        let error = write(&*device, 0, content(0, 1)).await.unwrap_err();
        assert!(error.detail().contains("was restarted"), "also later: {error}");
        read(&*open(&part).await, 0, 1).await.unwrap();
    });
}

#[test]
fn redirections_are_followed() {
    simulated(7, || async {
        let table = |words: &[String]| if words[0] == "CLUSTER" { cluster_of(SERVER) } else { Said::Usual };
        let (first, other) = (Fake::start(SERVER, table), Fake::start(OTHER, |_| Said::Usual));
        let part = connect(&[SERVER.parse().unwrap()], "disk", 4 * MIB).await.unwrap();
        let device = open(&part).await;
        read(&*device, 0, 1).await.unwrap();
        first.follow(to("GETRANGE", || say(&format!("-ASK 1 {OTHER}\r\n"))));
        read(&*device, 0, 1).await.unwrap();
        assert_eq!((other.count("ASKING"), other.count("GETRANGE"), first.count("GETRANGE")), (1, 1, 2));
        read(&*device, 0, 1).await.unwrap();
        assert_eq!((other.count("ASKING"), first.count("GETRANGE")), (2, 3), "the slot doesn't move");
        first.follow(to("GETRANGE", || say(&format!("-MOVED 1 {OTHER}\r\n"))));
        other.follow(to("CLUSTER", || cluster_of(OTHER)));
        runtime::sleep(Duration::from_millis(100)).await;
        read(&*device, 0, 1).await.unwrap();
        read(&*device, 0, 1).await.unwrap();
        assert_eq!((other.count("ASKING"), first.count("GETRANGE")), (2, 4), "the new table is used");
        assert_eq!(other.count("CLUSTER"), 1);
    });
}

#[test]
fn servers_that_can_not_be_used_are_refused() {
    simulated(8, || async {
        let server = Fake::start(SERVER, |_| Said::Usual);
        let addresses = [SERVER.parse().unwrap(), OTHER.parse().unwrap()];
        let refusal = async |count: usize| {
            connect(&addresses[..count], "disk", MIB).await.err().expect("refused").to_string()
        };
        let text = refusal(2).await;
        assert!(text.contains("connecting to 10.0.0.2") || text.contains("it is no cluster"), "{text}");
        server.follow(to("INFO", || {
            say(&bulk("run_id:one\r\nmaxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n"))
        }));
        let text = refusal(1).await;
        assert!(text.contains("maxmemory-policy is allkeys-lru"), "{text}");
        server.follow(to("INFO", || say("-NOAUTH Authentication required.\r\n")));
        let text = refusal(1).await;
        assert!(text.contains("NOAUTH") && text.contains("password_file"), "{text}");
        server.follow(to("CLUSTER", || say("*0\r\n")));
        let text = refusal(1).await;
        assert!(text.contains("slot 0 has no server"), "{text}");
        server.follow(to("CLUSTER", || cluster_of("10.0.0.9:1")));
        let text = refusal(1).await;
        assert!(text.contains("10.0.0.9:1"), "{text}");
    });
}
