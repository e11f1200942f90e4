//! Exact replies. Those of [`SAME`] are the same in redis, which the module `foreign` verifies.

use super::client::{Served, Socket, command, served, served_by, shown};
use super::simulate;
use kv::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use proptest::prelude::*;
use redis_door::server::ServerConfig;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Commands on an initially empty store, with replies that redis gives also. `|` is a line end.
pub const SAME: &[(&str, &str)] = &[
    // Reading and setting.
    ("GET a", "$-1|"),
    ("SET a 1", "+OK|"),
    ("get a", "$1|1|"),
    ("SET a 2 NX", "$-1|"),
    ("SET a 2 xx", "+OK|"),
    ("SET a 3 GET", "$1|2|"),
    ("SET none 3 XX GET", "$-1|"),
    ("SET a 4 NX GET", "$1|3|"),
    ("SET new 4 NX GET", "$-1|"),
    ("GETDEL new", "$1|4|"),
    ("GETDEL new", "$-1|"),
    ("SET a 5 NX XX", "-ERR syntax error|"),
    ("SET a 5 EX", "-ERR syntax error|"),
    ("SET a 5 EX 10 PX 10", "-ERR syntax error|"),
    ("SET a 5 EX 10 KEEPTTL", "-ERR syntax error|"),
    ("SET a 5 KEEPTTL EX 10", "-ERR syntax error|"),
    ("SET a 5 BOGUS", "-ERR syntax error|"),
    ("SET a 5 EX x", "-ERR value is not an integer or out of range|"),
    ("SET a 5 EX 0", "-ERR invalid expire time in 'set' command|"),
    ("SET a 5 PX -1", "-ERR invalid expire time in 'set' command|"),
    ("SET a 5 EX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
    ("SET a 5 PX 9223372036854775807", "-ERR invalid expire time in 'set' command|"),
    ("SET a 5 EX 100", "+OK|"),
    ("TTL a", ":100|"),
    ("SET a 6 KEEPTTL", "+OK|"),
    ("TTL a", ":100|"),
    ("SET a 6 PXAT 33177117420500", "+OK|"),
    ("PEXPIRETIME a", ":33177117420500|"),
    ("EXPIRETIME a", ":33177117421|"),
    ("SET a 6 EXAT 33177117420", "+OK|"),
    ("PEXPIRETIME a", ":33177117420000|"),
    ("SET a 7", "+OK|"),
    ("TTL a", ":-1|"),
    ("SET past 7 PXAT 1", "+OK|"),
    ("GET past", "$-1|"),
    ("SET \"sp ace\" \"\\x00\\r\\n\\\"\"", "+OK|"),
    ("GET 'sp ace'", "$4|\0|\"|"),
    ("SET '' ''", "+OK|"),
    ("GET ''", "$0||"),
    ("DEL ''", ":1|"),
    ("SETEX b 100 x", "+OK|"),
    ("SETEX b 0 x", "-ERR invalid expire time in 'setex' command|"),
    ("PSETEX b -5 x", "-ERR invalid expire time in 'psetex' command|"),
    ("SETEX b x x", "-ERR value is not an integer or out of range|"),
    ("PSETEX b 100000 x", "+OK|"),
    ("TTL b", ":100|"),
    ("SETNX b y", ":0|"),
    ("SETNX c y", ":1|"),
    ("GETEX b", "$1|x|"),
    ("GETEX b PERSIST", "$1|x|"),
    ("TTL b", ":-1|"),
    ("GETEX b EX 50", "$1|x|"),
    ("TTL b", ":50|"),
    ("GETEX b EX 50 PERSIST", "-ERR syntax error|"),
    ("GETEX b PERSIST PX 50", "-ERR syntax error|"),
    ("GETEX b EX 0", "-ERR invalid expire time in 'getex' command|"),
    ("GETEX none PERSIST", "$-1|"),
    ("GETEX none EX 0", "$-1|"),
    ("GETEX none EX 1 PERSIST", "-ERR syntax error|"),
    ("GETEX b PXAT 1", "$1|x|"),
    ("EXISTS b", ":0|"),
    // Deleting and counting.
    ("EXISTS a a none c", ":3|"),
    ("DEL a a none c", ":2|"),
    ("UNLINK a", ":0|"),
    ("TYPE a", "+none|"),
    ("SET a 1", "+OK|"),
    ("TYPE a", "+string|"),
    // Expiry.
    ("EXPIRE none 10", ":0|"),
    ("TTL none", ":-2|"),
    ("PTTL none", ":-2|"),
    ("EXPIRETIME none", ":-2|"),
    ("PTTL a", ":-1|"),
    ("EXPIRETIME a", ":-1|"),
    ("PEXPIRETIME a", ":-1|"),
    ("EXPIRE a 100 XX", ":0|"),
    ("EXPIRE a 100 GT", ":0|"),
    ("EXPIRE a 100 NX", ":1|"),
    ("EXPIRE a 200 NX", ":0|"),
    ("EXPIRE a 50 GT", ":0|"),
    ("EXPIRE a 200 gt", ":1|"),
    ("EXPIRE a 300 LT", ":0|"),
    ("EXPIRE a 50 LT", ":1|"),
    ("EXPIRE a 100 XX GT", ":1|"),
    ("TTL a", ":100|"),
    ("PERSIST a", ":1|"),
    ("PERSIST a", ":0|"),
    ("PERSIST none", ":0|"),
    ("EXPIRE a 50 LT", ":1|"),
    ("EXPIRE a 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible|"),
    ("EXPIRE a 1 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible|"),
    ("EXPIRE a 1 GT LT", "-ERR GT and LT options at the same time are not compatible|"),
    ("EXPIRE a 1 AB", "-ERR Unsupported option AB|"),
    ("EXPIRE a x", "-ERR value is not an integer or out of range|"),
    ("EXPIRE a 9223372036854775807", "-ERR invalid expire time in 'expire' command|"),
    ("PEXPIRE a 9223372036854775807", "-ERR invalid expire time in 'pexpire' command|"),
    ("EXPIREAT a -9223372036854775808", "-ERR invalid expire time in 'expireat' command|"),
    ("PEXPIREAT a 33177117420001", ":1|"),
    ("PEXPIRETIME a", ":33177117420001|"),
    ("EXPIREAT a 33177117420", ":1|"),
    ("PEXPIRE a 100000", ":1|"),
    ("TTL a", ":100|"),
    ("EXPIRE a -1", ":1|"),
    ("EXISTS a", ":0|"),
    // Changing.
    ("STRLEN a", ":0|"),
    ("APPEND a Hello", ":5|"),
    ("EXPIRE a 100", ":1|"),
    ("APPEND a \" World\"", ":11|"),
    ("TTL a", ":100|"),
    ("STRLEN a", ":11|"),
    ("INCR a", "-ERR value is not an integer or out of range|"),
    ("INCR n", ":1|"),
    ("EXPIRE n 100", ":1|"),
    ("INCRBY n 41", ":42|"),
    ("TTL n", ":100|"),
    ("DECR n", ":41|"),
    ("DECRBY n 50", ":-9|"),
    ("INCRBY n x", "-ERR value is not an integer or out of range|"),
    ("INCRBY n +1", "-ERR value is not an integer or out of range|"),
    ("INCRBY n 01", "-ERR value is not an integer or out of range|"),
    ("INCRBY n -0", "-ERR value is not an integer or out of range|"),
    ("INCRBY n ' 1'", "-ERR value is not an integer or out of range|"),
    ("INCRBY n 9223372036854775808", "-ERR value is not an integer or out of range|"),
    ("DECRBY n -9223372036854775808", "-ERR decrement would overflow|"),
    ("SET n 9223372036854775807", "+OK|"),
    ("INCR n", "-ERR increment or decrement would overflow|"),
    ("GET n", "$19|9223372036854775807|"),
    ("SET n -9223372036854775808", "+OK|"),
    ("DECR n", "-ERR increment or decrement would overflow|"),
    ("SET n ''", "+OK|"),
    ("INCR n", "-ERR value is not an integer or out of range|"),
    // Several keys.
    ("MSET x 1 y 2 x 3", "+OK|"),
    ("MGET x none y", "*3|$1|3|$-1|$1|2|"),
    ("MSET x", "-ERR wrong number of arguments for 'mset' command|"),
    ("MSET x 1 y", "-ERR wrong number of arguments for 'mset' command|"),
    ("MSETNX x 1 y", "-ERR wrong number of arguments for 'msetnx' command|"),
    ("MSETNX x 7 z 8", ":0|"),
    ("EXISTS z", ":0|"),
    ("MSETNX z 8 w 9", ":1|"),
    ("MGET z w x", "*3|$1|8|$1|9|$1|3|"),
    ("DBSIZE", ":7|"),
    // Iterating.
    ("KEYS nothing*", "*0|"),
    ("KEYS [yw]", "*2|$1|w|$1|y|"),
    ("FLUSHDB BOGUS", "-ERR syntax error|"),
    ("FLUSHDB ASYNC", "+OK|"),
    ("DBSIZE", ":0|"),
    ("SET only 1", "+OK|"),
    ("EXEC", "-ERR EXEC without MULTI|"),
    ("DISCARD", "-ERR DISCARD without MULTI|"),
    ("MULTI x", "-ERR wrong number of arguments for 'multi' command|"),
    ("SCAN 0", "*2|$1|0|*1|$4|only|"),
    ("SCAN 0 MATCH o* COUNT 5 TYPE string", "*2|$1|0|*1|$4|only|"),
    ("SCAN 0 MATCH x*", "*2|$1|0|*0|"),
    ("SCAN 0 TYPE list", "*2|$1|0|*0|"),
    ("SCAN x", "-ERR invalid cursor|"),
    ("SCAN 0 COUNT 0", "-ERR syntax error|"),
    ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range|"),
    ("SCAN 0 COUNT", "-ERR syntax error|"),
    ("SCAN 0 BOGUS x", "-ERR syntax error|"),
    ("FLUSHALL", "+OK|"),
    ("FLUSHALL SYNC", "+OK|"),
    // Connection.
    ("PING", "+PONG|"),
    ("PING 'a b'", "$3|a b|"),
    ("PING a b", "-ERR wrong number of arguments for 'ping' command|"),
    ("ECHO x", "$1|x|"),
    ("SELECT 0", "+OK|"),
    ("SELECT 99", "-ERR DB index is out of range|"),
    ("SELECT x", "-ERR value is not an integer or out of range|"),
    ("CLIENT GETNAME", "$-1|"),
    ("CLIENT SETNAME me", "+OK|"),
    ("CLIENT GETNAME", "$2|me|"),
    ("CLIENT SETNAME 'a b'", "-ERR Client names cannot contain spaces, newlines or special characters.|"),
    ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command|"),
    ("CLIENT NO-EVICT on", "+OK|"),
    ("CLIENT NO-EVICT x", "-ERR syntax error|"),
    ("CLIENT BOGUS", "-ERR unknown subcommand 'BOGUS'. Try CLIENT HELP.|"),
    ("CLIENT", "-ERR wrong number of arguments for 'client' command|"),
    ("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command|"),
    ("CONFIG GET save", "*2|$4|save|$0||"),
    ("CONFIG GET SAVE", "*2|$4|SAVE|$0||"),
    ("CONFIG GET maxmemor[y]", "*2|$9|maxmemory|$1|0|"),
    ("CONFIG GET nothing", "*0|"),
    ("CONFIG SET bogus 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'bogus'|"),
    (
        "CONFIG SET unixsocket x",
        "-ERR CONFIG SET failed (possibly related to argument 'unixsocket') - can't set immutable config|",
    ),
    ("CONFIG BOGUS", "-ERR unknown subcommand 'BOGUS'. Try CONFIG HELP.|"),
    ("COMMAND BOGUS", "-ERR unknown subcommand 'BOGUS'. Try COMMAND HELP.|"),
    ("COMMAND INFO bogus", "*1|$-1|"),
    ("COMMAND DOCS bogus", "*0|"),
    (
        "AUTH x",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?|",
    ),
    ("AUTH default x", "+OK|"),
    ("AUTH other x", "-WRONGPASS invalid username-password pair or user is disabled.|"),
    ("AUTH a b c", "-ERR syntax error|"),
    ("HELLO x", "-ERR Protocol version is not an integer or out of range|"),
    ("HELLO 4", "-NOPROTO unsupported protocol version|"),
    ("HELLO 3 BOGUS", "-ERR Syntax error in HELLO option 'BOGUS'|"),
    ("HELLO 3 AUTH x", "-ERR Syntax error in HELLO option 'AUTH'|"),
    ("HELLO 3 AUTH other x", "-WRONGPASS invalid username-password pair or user is disabled.|"),
    ("HELLO 3 SETNAME 'a b'", "-ERR Client names cannot contain spaces, newlines or special characters.|"),
    ("WAIT 0 0", ":0|"),
    ("WAIT x 0", "-ERR value is not an integer or out of range|"),
    ("WAIT 0 x", "-ERR timeout is not an integer or out of range|"),
    ("WAIT 0 -1", "-ERR timeout is negative|"),
    ("RESET", "+RESET|"),
    ("CLIENT GETNAME", "$-1|"),
    // Unknown commands.
    ("foo", "-ERR unknown command 'foo', with args beginning with: |"),
    ("Foo a 'b c'", "-ERR unknown command 'Foo', with args beginning with: 'a' 'b c' |"),
    ("foo 'a\\r\\nb'", "-ERR unknown command 'foo', with args beginning with: 'a\\r\\nb' |"),
    ("foo \"a\\r\\nb\"", "-ERR unknown command 'foo', with args beginning with: 'a  b' |"),
    ("GET", "-ERR wrong number of arguments for 'get' command|"),
    ("GET a b", "-ERR wrong number of arguments for 'get' command|"),
    ("SETEX a 1", "-ERR wrong number of arguments for 'setex' command|"),
    ("DEL", "-ERR wrong number of arguments for 'del' command|"),
    ("ECHO", "-ERR wrong number of arguments for 'echo' command|"),
    ("RESET x", "-ERR wrong number of arguments for 'reset' command|"),
];

/// Commands and replies of RESP 3 that redis gives also.
pub const SAME_RESP3: &[(&str, &str)] = &[
    ("GET none", "_|"),
    ("SET a 1 XX", "_|"),
    ("SET a 1", "+OK|"),
    ("MGET a none", "*2|$1|1|_|"),
    ("CONFIG GET save", "%1|$4|save|$0||"),
    ("CONFIG GET nothing", "%0|"),
    ("COMMAND INFO bogus", "*1|_|"),
    ("COMMAND DOCS bogus", "%0|"),
    ("CLIENT GETNAME", "_|"),
    ("GETDEL a", "$1|1|"),
    ("RESET", "+RESET|"),
    ("GET none", "$-1|"),
];

/// Violations of the protocol, and the last replies, which redis gives also.
pub const VIOLATIONS: &[(&str, &str)] = &[
    ("*1\r\n$4\r\nPING\r\n*x\r\nrest", "+PONG|-ERR Protocol error: invalid multibulk length|"),
    ("*2000000000000\r\n", "-ERR Protocol error: invalid multibulk length|"),
    ("*1\r\n+4\r\n", "-ERR Protocol error: expected '$', got '+'|"),
    ("*1\r\n$x\r\n", "-ERR Protocol error: invalid bulk length|"),
    ("*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length|"),
    ("*1\r\n$6000000000\r\n", "-ERR Protocol error: invalid bulk length|"),
    ("SET a \"b\r\n", "-ERR Protocol error: unbalanced quotes in request|"),
    ("SET 'a'b c\r\n", "-ERR Protocol error: unbalanced quotes in request|"),
    ("POST / HTTP/1.1\r\n", ""),
    ("*1\r\n$5\r\nHOST:\r\n", ""),
];

/// Runs a test in virtual time, with a server of a new store.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<Served>) -> F + Send + 'static) {
    simulate(1, 1, || async {
        let served = Rc::new(served(config()).await);
        test(served.clone()).await;
        served.stop().await;
    });
}

fn config() -> ServerConfig {
    ServerConfig::new("127.0.0.1:6379".parse().unwrap())
}

async fn check(client: &Socket, cases: &[(&str, &str)]) {
    for (line, reply) in cases {
        assert_eq!(client.line(line).await, *reply, "{line}");
    }
}

#[test]
fn replies_are_those_of_redis() {
    run(|served| async move {
        let client = served.client().await;
        check(&client, SAME).await;
        let hello = client.line("HELLO 3").await;
        let expected = "%7|$6|server|$5|redis|$7|version|$6|7.0.15|$5|proto|:3|$2|id|:1|$4|mode|$10|standalone|$4|role|\
                        $6|master|$7|modules|*0|";
        assert_eq!(hello, expected);
        check(&client, SAME_RESP3).await;
        assert!(client.line("HELLO").await.contains("$5|proto|:2|"));
        let hello = client.line("HELLO 3 AUTH default x SETNAME you").await;
        assert!(hello.starts_with("%7|"), "{hello}");
        assert_eq!(client.line("CLIENT GETNAME").await, "$3|you|");
        assert_eq!(client.line("QUIT").await, "+OK|");
    });
}

#[test]
fn all_replies_of_a_pipeline_come_in_order() {
    run(|served| async move {
        let client = served.client().await;
        let cases: Vec<_> = SAME.iter().filter(|(line, _)| !line.starts_with("SCAN")).collect();
        let lines: String = cases.iter().map(|(line, _)| format!("{line}\r\n")).collect();
        let replies = client.ask(lines.as_bytes()).await;
        let expected: String = cases.iter().map(|(_, reply)| *reply).collect();
        assert_eq!(shown(&replies), expected);
    });
}

#[test]
fn violations_are_answered_as_redis_does() {
    run(|served| async move {
        for (bytes, reply) in VIOLATIONS {
            let replies = served.client().await.ask(bytes.as_bytes()).await;
            assert_eq!(shown(&replies), *reply, "{bytes:?}");
        }
    });
}

#[test]
fn nothing_of_a_browsers_request_is_carried_out() {
    run(|served| async move {
        let client = served.client().await;
        check(&client, &[("SET a 1", "+OK|"), ("ECHO Host:", "$5|Host:|"), ("SET b host:", "+OK|")]).await;
        for request in [
            "POST / HTTP/1.1\r\nHost: localhost:6379\r\nContent-Length: 10\r\n\r\nFLUSHALL\r\n",
            "FLUSHALL / HTTP/1.1\r\nFLUSHALL\r\nHost: localhost:6379\r\n\r\n",
            "FLUSHALL\r\n  host:\r\n",
            "SET a 2\r\nHOST: x",
        ] {
            let replies = served.client().await.ask(request.as_bytes()).await;
            assert_eq!(shown(&replies), "", "{request:?}");
            assert_eq!(client.line("GET a").await, "$1|1|", "{request:?}");
        }
        // An argument of an array isn't a line.
        let set = command(&[b"SET", b"c", b"\r\nPOST x\r\n"]);
        assert_eq!(shown(&client.ask(&set).await), "+OK|");
    });
}

#[test]
fn a_transaction_has_no_effect() {
    run(|served| async move {
        let client = served.client().await;
        let refused = "-ERR refused after MULTI: transactions aren't supported|";
        let pipeline = b"SET a 1\r\nMULTI\r\nSET a 2\r\nINCR a\r\nMULTI\r\nbogus\r\nEXEC\r\nGET a\r\n";
        let replies = shown(&client.ask(pipeline).await);
        let (first, rest) = replies.split_once("-ERR MULTI: ").unwrap();
        let (told, rest) = rest.split_once('|').unwrap();
        assert!(first == "+OK|" && told.contains("until EXEC or DISCARD"), "{replies}");
        let aborted = "-EXECABORT Transaction discarded because of previous errors.|";
        let nested = "-ERR MULTI calls can not be nested|";
        assert_eq!(rest, format!("{refused}{refused}{nested}{refused}{aborted}$1|1|"));
        let wrong = "-ERR wrong number of arguments for 'discard' command|";
        for (end, reply) in [("DISCARD", "+OK|"), ("RESET", "+RESET|")] {
            let pipeline = format!("MULTI\r\nGET a\r\nDISCARD x\r\n{end}\r\nGET a\r\nEXEC\r\n");
            let replies = shown(&client.ask(pipeline.as_bytes()).await);
            let (_, rest) = replies.split_once('|').unwrap();
            assert_eq!(rest, format!("{refused}{wrong}{reply}$1|1|-ERR EXEC without MULTI|"));
        }
    });
}

#[test]
fn keys_end_with_their_time() {
    run(|served| async move {
        let client = served.client().await;
        let cases =
            [("SET a 1 PX 1500", "+OK|"), ("TTL a", ":2|"), ("PTTL a", ":1500|"), ("SET b 1 EX 1", "+OK|")];
        check(&client, &cases).await;
        runtime::sleep(Duration::from_millis(1200)).await;
        check(&client, &[("PTTL a", ":300|"), ("TTL a", ":0|"), ("GET b", "$-1|"), ("DBSIZE", ":1|")]).await;
        check(&client, &[("KEYS *", "*1|$1|a|"), ("SETNX b 2", ":1|"), ("TTL b", ":-1|")]).await;
        runtime::sleep(Duration::from_millis(300)).await;
        let cases = [
            ("EXISTS a", ":0|"),
            ("INCR a", ":1|"),
            ("TTL a", ":-1|"),
            ("SCAN 0", "*2|$1|0|*2|$1|a|$1|b|"),
            ("SET a x PX 10", "+OK|"),
        ];
        check(&client, &cases).await;
        runtime::sleep(Duration::from_millis(10)).await;
        check(&client, &[("APPEND a y", ":1|"), ("DEL a none", ":1|"), ("MSETNX a 1 c 2", ":1|")]).await;
    });
}

#[test]
fn settings_of_values_that_follow_each_other_are_written_together() {
    simulate(1, 1, || async {
        let served = served(config()).await;
        let client = served.client().await;
        // Each small write is a record of one block, so the number of blocks is the number of writes.
        let written = async |commands: &[u8]| {
            let blocks = async || {
                let status = served.store.status().await.unwrap();
                let bytes = |name: &str| status[name].as_u64().unwrap();
                (bytes("log_bytes") + bytes("overhead_bytes")) / 4096
            };
            let before = blocks().await;
            let replies = client.ask(commands).await;
            (replies, blocks().await - before)
        };
        let (replies, writes) = written(b"SET a 1\r\nMSET b 2 c 3\r\nSETEX d 10 4\r\nSET a 5\r\n").await;
        assert_eq!((replies, writes), (b"+OK\r\n".repeat(4), 3), "MSET is a write of its own");
        let (_, writes) = written(b"SET a 1\r\nMSET b 2\r\nSETEX d 10 4\r\nSET a 5\r\n").await;
        assert_eq!(writes, 1);
        let (replies, writes) = written(b"GET a\r\nSET a 6\r\nGET a\r\nSET a 7\r\nfoo\r\nSET a 8\r\n").await;
        assert_eq!((replies.len(), writes), (7 + 5 + 7 + 5 + 56 + 5, 3));
        let (_, writes) = written("SET a 1\r\n".repeat(1000).as_bytes()).await;
        assert_eq!(writes, 4, "256 commands at most");
        // All commands of a batch fail together, and the following ones are executed.
        served.drive.power_off().await.unwrap();
        let (replies, _) = written(b"SET a 1\r\nSET b 9\r\nGET b\r\nINCR b\r\nFLUSHALL\r\n").await;
        let replies = shown(&replies);
        let [first, second, "$1", "2", third, fourth, ""] = replies.split('|').collect::<Vec<_>>()[..] else {
            panic!("{replies}");
        };
        assert!(first.starts_with("-ERR ") && first == second, "{replies}");
        assert!(third.starts_with("-READONLY ") && third == fourth, "{replies}");
        served.server.stop().await.unwrap();
    });
}

#[test]
fn limits_of_keys_and_values() {
    run(|served| async move {
        let client = served.client().await;
        let (longest, longer) = (vec![b'k'; MAX_KEY_BYTES], vec![b'k'; MAX_KEY_BYTES + 1]);
        assert_eq!(client.ask(&command(&[b"SET", &longest, b"1"])).await, b"+OK\r\n");
        assert_eq!(client.ask(&command(&[b"GET", &longest])).await, b"$1\r\n1\r\n");
        let refusal = "-ERR key of 32769 bytes; expected at most 32768 bytes\r\n";
        for words in
            [&[&b"GET"[..], &longer][..], &[b"DEL", b"a", &longer], &[b"MSET", b"a", b"1", &longer, b"1"]]
        {
            assert_eq!(client.ask(&command(words)).await, refusal.as_bytes());
        }
        assert_eq!(client.ask(&command(&[b"MSET", b"a", &longer])).await, b"+OK\r\n");
        let half = vec![b'v'; MAX_VALUE_BYTES / 2];
        client.ask(&command(&[b"SET", b"a", &half])).await;
        let length = format!(":{MAX_VALUE_BYTES}\r\n");
        assert_eq!(client.ask(&command(&[b"APPEND", b"a", &half])).await, length.as_bytes());
        assert_eq!(
            client.line("APPEND a x").await,
            "-ERR string exceeds maximum allowed size (proto-max-bulk-len)|"
        );
        let pattern = "*a".repeat(513);
        let refusal = "-ERR pattern of 1026 bytes; expected at most 1024|";
        assert_eq!(client.line(&format!("KEYS {pattern}")).await, refusal);
        assert_eq!(client.line(&format!("SCAN 0 MATCH {pattern}")).await, refusal);
    });
}

/// Sends `SCAN`; returns the cursor and the keys of the reply.
async fn scan(client: &Socket, cursor: &str, options: &str) -> (String, Vec<String>) {
    let reply = client.line(&format!("SCAN {cursor} {options}")).await;
    let fields: Vec<&str> = reply.split('|').filter(|field| !field.starts_with(['*', '$'])).collect();
    (fields[0].to_owned(), fields[1..fields.len() - 1].iter().map(|key| key.to_string()).collect())
}

#[test]
fn an_iteration_returns_every_key_that_is_there_throughout() {
    run(|served| async move {
        let client = served.client().await;
        for key in 0..1000 {
            client.line(&format!("SET key{key:04} 1")).await;
        }
        for (options, expected) in [("", 1000), ("COUNT 7", 1000), ("COUNT 5000", 1000), ("MATCH *5", 100)] {
            let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
            for step in 0.. {
                let (next, keys) = scan(&client, &cursor, options).await;
                found.extend(keys);
                // Concurrent changes of other keys, and other iterations.
                client.line(&format!("SET other{step} 1")).await;
                client.line(&format!("DEL other{}", step / 2)).await;
                scan(&client, "0", "").await;
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
            found.retain(|key| key.starts_with("key"));
            assert_eq!(found.len(), expected, "{options}: each once");
            client.line("DEL other0").await;
        }
        // An unknown cursor returns every key, in another order.
        let (next, mut keys) = scan(&client, "18446744073709551615", "COUNT 1 MATCH key*").await;
        assert!(next == "0" && keys.len() == 1000 && !keys.is_sorted());
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
        assert_eq!(scan(&client, "5000000000000000", "TYPE list").await, ("0".to_owned(), Vec::new()));
        // Steps can be repeated.
        let (first, _) = scan(&client, "0", "COUNT 3").await;
        let (second, keys) = scan(&client, &first, "COUNT 3").await;
        assert_eq!(scan(&client, &first, "COUNT 3").await.1, keys);
        assert_eq!(scan(&client, &second, "COUNT 1").await.1, ["key0006"]);
    });
}

#[test]
fn interleaved_iterations_over_long_keys_end() {
    run(|served| async move {
        let client = served.client().await;
        for number in 0..100 {
            let key = [&[b'a' + number / 10, b'a' + number % 10][..], &[b'k'; 32_000]].concat();
            client.send(&command(&[b"SET", &key, b"1"])).await;
            client.expect(b"+OK\r\n").await;
        }
        // The server doesn't keep all positions, which would take 9 MiB.
        let mut iterations = vec![(Some("0".to_owned()), BTreeSet::new()); 300];
        let mut calls = 0;
        while iterations.iter().any(|(cursor, _)| cursor.is_some()) {
            for (cursor, found) in &mut iterations {
                let Some(before) = cursor.take() else { continue };
                let (next, keys) = scan(&client, &before, "COUNT 30 MATCH ?[ab]*").await;
                found.extend(keys.iter().map(|key| key[..2].to_owned()));
                *cursor = Some(next).filter(|next| next != "0");
                calls += 1;
                assert!(calls < 300 * 20, "the iterations don't end");
            }
        }
        assert!(iterations.iter().all(|(_, found)| found.len() == 20));
    });
}

#[test]
fn changes_of_keys_are_atomic() {
    for shards in [1, 3] {
        simulate(1, 2, move || async move {
            let served = Rc::new(served_by(config(), shards, true).await);
            let clients = (0..8).map(|index| {
                let served = served.clone();
                runtime::spawn(async move {
                    let rounds = (0..50).map(|round| {
                        let set = format!("MSETNX a{round} {index} b{round} {index} c{round} {index}");
                        format!("INCR n\r\nAPPEND s x\r\n{set}\r\nSETNX b{} x\r\n", round + 1)
                    });
                    let replies = served.client().await.ask(rounds.collect::<String>().as_bytes()).await;
                    // The third of each round's four replies.
                    shown(&replies).split('|').skip(2).step_by(4).filter(|reply| *reply == ":1").count()
                })
            });
            let won = runtime::join_all(clients.collect::<Vec<_>>()).await.into_iter().sum::<usize>();
            let client = served.client().await;
            check(&client, &[("GET n", "$3|400|"), ("STRLEN s", ":400|")]).await;
            // The client that wins a round sets all of its keys; the others set none.
            let set = client.line("KEYS a*").await.matches('$').count();
            assert!(won == set && won >= 1, "{won} won, {set} set");
            assert_eq!(client.line("KEYS c*").await.matches('$').count(), set);
            served.stop().await;
        });
    }
}

#[test]
fn facts_of_the_server_are_told() {
    run(|served| async move {
        let client = served.client().await;
        client.line("SET a 1").await;
        let info = client.line("INFO").await;
        for line in [
            "|# Server|redis_version:7.0.15|",
            "|role:master|",
            "|loading:0|",
            "|# Store|shards:1|",
            "_processed:3|",
        ] {
            assert!(info.contains(line), "{line} in {info}");
        }
        let info = client.line("INFO clients STORE").await;
        assert!(info.contains("# Clients|connected_clients:1|") && info.contains("# Store|"), "{info}");
        assert!(!info.contains("# Server"), "{info}");
        assert_eq!(client.line("INFO bogus").await, "$0||");
        let length = client.line("COMMAND COUNT").await;
        let commands = client.line("COMMAND").await;
        assert!(commands.starts_with(&length.replace(':', "*")), "{length} {commands}");
        let get = "*1|*10|$3|get|:2|*2|+readonly|+fast|:1|:1|:1|*0|*0|*0|*0|";
        assert_eq!(client.line("COMMAND INFO get").await, get);
        let docs = client.line("COMMAND DOCS get").await;
        assert_eq!(docs, "*2|$3|get|*4|$7|summary|$16|Returns a value.|$5|group|$6|string|");
        assert_eq!(client.line("CLIENT ID").await, ":1|");
        assert_eq!(client.line("CLIENT SETINFO LIB-NAME redis-py").await, "+OK|");
        assert_eq!(client.line("CLIENT SETINFO lib-ver 5.0").await, "+OK|");
        let refusal = "-ERR lib-ver cannot contain spaces, newlines or special characters.|";
        assert_eq!(client.line("CLIENT SETINFO lib-ver '5 0'").await, refusal);
        let line = client.line("CLIENT INFO").await;
        assert!(line.contains("id=1 ") && line.contains(" lib-name=redis-py lib-ver=5.0"), "{line}");
        client.line("HELLO 3").await;
        assert!(client.line("INFO server").await.starts_with('='));
    });
}

/// Returns the bytes after the first reply; `None` if it is incomplete.
fn after_reply(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    let (line, mut rest) = (&bytes[..end], &bytes[end + 2..]);
    let length = || std::str::from_utf8(&line[1..]).ok()?.parse::<i64>().ok();
    let inner = match *line.first()? {
        b'+' | b'-' => 0,
        b':' => length().map(|_| 0)?,
        b'_' => (line.len() == 1).then_some(0)?,
        b'$' | b'=' => match length()? {
            -1 => 0,
            length => {
                rest = rest.get(length as usize..)?.strip_prefix(b"\r\n")?;
                0
            }
        },
        b'*' | b'~' => length()?,
        b'%' => 2 * length()?,
        _ => return None,
    };
    (0..inner).try_fold(rest, |rest, _| after_reply(rest))
}

proptest! {
    #[test]
    fn any_words_are_answered_by_one_reply_each(
        commands in proptest::collection::vec(
            (any::<prop::sample::Index>(), proptest::collection::vec("(\\PC|[0-9]|[a-c]){0,4}|SETNAME|GET|DOCS|ID|3|AUTH|MATCH|COUNT|EX", 0..5)),
            1..20,
        ),
    ) {
        run(move |served| async move {
            let mut client = served.client().await;
            let list = client.line("COMMAND LIST").await;
            let names: Vec<&str> = list.split('|').filter(|field| !field.starts_with(['*', '$'])).collect();
            for (index, arguments) in commands {
                // The last name is empty.
                let name = index.get(&names);
                let words = std::iter::once(*name).chain(arguments.iter().map(String::as_str));
                let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
                let reply = client.ask(&command(&words)).await;
                assert_eq!(after_reply(&reply), Some(&b""[..]), "{name} {arguments:?}: {}", shown(&reply));
                if *name == "quit" {
                    client = served.client().await;
                }
            }
        });
    }
}

#[test]
fn ranges_are_scanned_in_both_directions_and_in_a_snapshot() {
    run(|served| async move {
        let client = served.client().await;
        check(&client, &[("MSET a 1 b 2 c 3 d 4", "+OK|"), ("PEXPIREAT b 33177117420500", ":1|")]).await;
        let cases = [
            ("KV.SCAN FROM b TO d", "*6|$1|b|$1|2|:33177117420500|$1|c|$1|3|:-1|"),
            ("kv.scan from b to d reverse limit 1", "*3|$1|c|$1|3|:-1|"),
            ("KV.SCAN KEYS LIMIT 3", "*3|$1|a|$1|b|$1|c|"),
            ("KV.SCAN REVERSE KEYS TO c", "*2|$1|b|$1|a|"),
            ("KV.SCAN FROM x", "*0|"),
            ("KV.SCAN FROM", "-ERR syntax error|"),
            ("KV.SCAN LIMIT 0", "-ERR syntax error|"),
            ("KV.SCAN LIMIT x", "-ERR value is not an integer or out of range|"),
            ("KV.SCAN SIDEWAYS", "-ERR syntax error|"),
            ("KV.SNAPSHOT", "+OK|"),
            ("DEL a b c", ":3|"),
            ("SET e 5", "+OK|"),
            ("KV.SCAN KEYS", "*4|$1|a|$1|b|$1|c|$1|d|"),
            ("KV.RELEASE", "+OK|"),
            ("KV.SCAN KEYS", "*2|$1|d|$1|e|"),
            ("KV.SNAPSHOT", "+OK|"),
            ("DEL d", ":1|"),
            ("RESET", "+RESET|"),
            ("KV.SCAN KEYS", "*1|$1|e|"),
            ("KV.COMPACT", "+OK|"),
            ("KV.COMPACT now", "-ERR wrong number of arguments for 'kv.compact' command|"),
        ];
        check(&client, &cases).await;
    });
}
