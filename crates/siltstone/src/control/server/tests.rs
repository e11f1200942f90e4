//! Server in a simulated world, where time limits take no real time.

use super::*;
use crate::control::operated::OperatedStack;
use crate::control::protocol::{MAX_REQUEST, decode};
use crate::control::test_log::registry;
use crate::control::traced::WAIT as TRACE_WAIT;
use block::Data;
use layers::observation::Observation;
use runtime::net::{Address, Shutdown, Stream};
use runtime::{Random, Simulation, simulate};
use serde_json::{Value, json};
use stack::{Built, Stack, User};

const STATUS: &[u8] = b"{\"verb\":\"status\"}\n";
const WAIT: &[u8] = b"{\"verb\":\"message\",\"kind\":\"log\",\"text\":\"wait\"}\n";
const LIST: &[u8] = b"{\"verb\":\"message\",\"part\":\"log\",\"text\":\"snapshot list\"}\n";

fn address() -> Address {
    Address::Unix("/control.sock".into())
}

/// Starts a server and opens its stack.
async fn serving() -> (ControlServer, Rc<OperatedStack>) {
    let server = ControlServer::listening(None, Listener::bind(&address()).unwrap());
    let stack = Stack::from_line("stack", "log(stats(ram(1MiB)))", &registry()).unwrap();
    let (plan, observation) = (stack.check(false).unwrap(), Observation::default());
    let observe = |user: User<'_>, part: Built| observation.of_part(&stack, user, part);
    let built = plan.build_observed(&observe).await.unwrap();
    let observation = Some(observation);
    let stack = Rc::new(OperatedStack { built, extra_doors: Vec::new(), server: None, observation });
    server.opened(stack.clone());
    (server, stack)
}

fn in_a_world<Fut: Future<Output = ()> + 'static>(main: impl Fn() -> Fut) {
    for (seed, shards) in [(1, 1), (2, 7), (3, 32)] {
        println!("seed {seed}");
        simulate(Simulation { shards, ..Simulation::new(seed) }, &main).expect("it ends");
    }
}

#[test]
fn calls_are_counted_from_the_first_request_on() {
    in_a_world(|| async {
        let (server, stack) = serving().await;
        let client = connect().await;
        let ask = async || {
            send(&client, b"{\"verb\":\"observe\"}\n").await;
            answer(&client).await.unwrap()
        };
        let first = ask().await;
        let parts: Vec<_> =
            first["parts"].as_array().unwrap().iter().map(|part| part["part"].clone()).collect();
        assert_eq!(parts, ["ram1", "stats1", "top"]);
        assert_eq!(first["parts"][2]["below"], json!(["stats1"]));
        assert_eq!(first["parts"][0]["calls"], json!({}));
        assert_eq!(first["status"]["devices"]["top"]["kind"], "log");
        let device = stack.built.device("stats1").unwrap().open().await.unwrap();
        device.flush().await.unwrap();
        // The interval, by which `top` divides, isn't that of a system clock that is stepped.
        runtime::step_simulated_wall_clock(-3600);
        runtime::sleep(Duration::from_secs(2)).await;
        let second = ask().await;
        let passed = second["nanoseconds"].as_u64().unwrap() - first["nanoseconds"].as_u64().unwrap();
        assert!((2_000_000_000..2_100_000_000).contains(&passed), "{passed}");
        for part in [0, 1] {
            let flush = &second["parts"][part]["calls"]["flush"];
            assert_eq!((&flush["operations"], &flush["in_flight"]), (&json!(1), &json!(0)), "{second}");
            assert_eq!(flush["latency_ns"][0][1], 1);
        }
        drop(device);
        server.stop().await;
    });
}

const TRACE: &[u8] = b"{\"verb\":\"trace\",\"parts\":true}\n";
const TRACE_NEXT: &[u8] = b"{\"verb\":\"trace_next\"}\n";

/// Sends a request, and returns the answer.
async fn ask(client: &Stream, request: &[u8]) -> Answer {
    send(client, request).await;
    answer(client).await
}

/// Whether another client can trace.
async fn is_free() -> bool {
    match ask(&connect().await, TRACE).await {
        Ok(_) => true,
        Err(refusal) => {
            assert!(matches!(refusal.error, Error::Busy(_)), "{refusal}");
            false
        }
    }
}

#[test]
fn a_trace_has_every_call_until_its_client_disconnects() {
    in_a_world(|| async {
        let (server, stack) = serving().await;
        let device = stack.built.device("stats1").unwrap().open().await.unwrap();
        let client = connect().await;
        assert!(ask(&client, TRACE_NEXT).await.unwrap_err().to_string().contains("without a trace"));
        assert_eq!(ask(&client, TRACE).await.unwrap(), Value::Null);
        assert!(!is_free().await);
        let begun = runtime::now();
        assert_eq!(ask(&client, TRACE_NEXT).await.unwrap(), json!({ "events": [], "lost": 0 }));
        let waited = begun.elapsed();
        assert!((TRACE_WAIT..TRACE_WAIT + Duration::from_secs(1)).contains(&waited), "{waited:?}");
        send(&client, TRACE_NEXT).await;
        runtime::attributed(runtime::Requester::of_process(u32::MAX), device.flush()).await.unwrap();
        let answer = answer(&client).await.unwrap();
        let calls: Vec<_> = answer["events"].as_array().unwrap().iter().collect();
        assert_eq!(calls.len(), 2, "{answer}");
        // The call to the part below ended first.
        for (call, part) in calls.iter().zip(["ram1", "stats1"]) {
            assert_eq!(
                (&call["part"], &call["call"], &call["errno"]),
                (&json!(part), &json!("flush"), &json!(0))
            );
            assert_eq!((call.get("door"), &call["client"]), (None, &json!(format!("process {}", u32::MAX))));
        }
        // It disconnects while it waits for the next calls.
        send(&client, TRACE_NEXT).await;
        drop(client);
        assert!(is_free().await);
        device.flush().await.unwrap();
        drop(device);
        server.stop().await;
        assert_eq!(Rc::strong_count(&stack), 1, "the stack can be closed");
    });
}

#[test]
fn calls_that_there_are_not_are_no_trace() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        let client = connect().await;
        for (request, expected) in [
            (
                r#""part":"ram""#,
                r#"there is no part "ram" to trace: did you mean "ram1"? expected one of: ram1, stats1, top"#,
            ),
            (r#""door":"vol""#, r#"there is no door "vol" to trace; expected one of: none"#),
            (
                r#""calls":["wirte"]"#,
                r#"there is no call "wirte" to trace: did you mean "write"? expected one of: append, close,"#,
            ),
        ] {
            let refusal =
                ask(&client, format!("{{\"verb\":\"trace\",{request}}}\n").as_bytes()).await.unwrap_err();
            assert!(refusal.wrongly_asked && refusal.to_string().contains(expected), "{refusal}");
        }
        assert!(is_free().await);
        server.stop().await;
    });
}

/// A client that asks for more than it reads is cut off, and calls beyond the limit are counted as lost.
#[test]
fn a_client_that_reads_nothing_loses_its_trace() {
    in_a_world(|| async {
        let (server, stack) = serving().await;
        let device = stack.built.device("stats1").unwrap().open().await.unwrap();
        let (client, silent) = (connect().await, connect().await);
        ask(&client, TRACE).await.unwrap();
        for _ in 0..layers::observation::MAX_EVENTS + 5 {
            device.flush().await.unwrap();
        }
        let first = ask(&client, TRACE_NEXT).await.unwrap();
        assert_eq!(first["events"].as_array().map(Vec::len), Some(crate::control::traced::MAX_EVENTS));
        assert_eq!(first["lost"], 10, "five of each part");
        for _ in 0..15 {
            send(&client, TRACE_NEXT).await;
        }
        runtime::sleep(Duration::from_secs(1)).await;
        ask(&connect().await, STATUS).await.unwrap();
        assert!(!is_free().await);
        runtime::sleep(ANSWER_LIMIT).await;
        assert!(is_free().await);
        // One that asks for nothing any more.
        ask(&silent, TRACE).await.unwrap();
        runtime::sleep(TRACE_SILENCE_LIMIT + Duration::from_secs(1)).await;
        assert!(error(&silent).await.contains("after 60 s of silence during a trace"));
        assert!(is_free().await);
        drop(device);
        server.stop().await;
    });
}

#[test]
fn a_stop_ends_a_trace() {
    in_a_world(|| async {
        let (server, stack) = serving().await;
        let client = connect().await;
        ask(&client, TRACE).await.unwrap();
        send(&client, TRACE_NEXT).await;
        runtime::sleep(Duration::from_millis(100)).await;
        let begun = runtime::now();
        server.stop().await;
        assert!(begun.elapsed() < TRACE_WAIT / 2, "{:?}", begun.elapsed());
        assert_eq!(answer(&client).await.unwrap(), json!({ "events": [], "lost": 0 }));
        assert_eq!(line(&client).await, b"");
        assert_eq!(Rc::strong_count(&stack), 1, "the stack can be closed");
    });
}

async fn connect() -> Stream {
    Stream::connect(&address()).await.unwrap()
}

async fn send(stream: &Stream, bytes: &[u8]) {
    stream.send(Data::copy_of(bytes).into()).await.0.unwrap();
}

/// Receives up to the end of a line, or of the stream.
async fn line(stream: &Stream) -> Vec<u8> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let (result, byte) = stream.receive(Buffer::new(1)).await;
        if result.unwrap_or(0) == 0 {
            break;
        }
        line.extend_from_slice(byte.filled());
    }
    line
}

async fn answer(stream: &Stream) -> Answer {
    decode(&line(stream).await).unwrap()
}

async fn error(stream: &Stream) -> String {
    answer(stream).await.unwrap_err().to_string()
}

#[test]
fn requests_are_answered_in_order() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        let client = connect().await;
        send(&client, &[STATUS, LIST, b"\n", STATUS].concat()).await;
        let status = answer(&client).await.unwrap();
        assert_eq!(status["devices"]["top"]["kind"], "log");
        assert_eq!(answer(&client).await.unwrap(), json!("{\"snapshots\":[]}"));
        assert!(error(&client).await.contains("expected a JSON object"));
        assert_eq!(answer(&client).await.unwrap(), status);
        // The last request lacks the end of its line.
        send(&client, &STATUS[..STATUS.len() - 1]).await;
        client.shutdown(Shutdown::Write).await.unwrap();
        assert_eq!(answer(&client).await.unwrap(), status);
        assert_eq!(line(&client).await, b"");
        server.stop().await;
    });
}

#[test]
fn parts_that_there_are_not_are_refused() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        let client = connect().await;
        for (to, expected) in [
            (
                r#""part":"lgo""#,
                r#"there is no part "lgo": did you mean "log"? expected one of "top" (log), "#,
            ),
            (r#""kind":"file""#, r#"this stack has no part of kind "file": its parts are "top" (log), "#),
            (r#""part":"ram""#, "ram takes no messages"),
        ] {
            send(&client, format!("{{\"verb\":\"message\",{to},\"text\":\"x\"}}\n").as_bytes()).await;
            let error = error(&client).await;
            assert!(error.contains(expected), "{error}");
        }
        server.stop().await;
    });
}

#[test]
fn while_the_stack_is_opened_it_is_busy() {
    in_a_world(|| async {
        let server = ControlServer::listening(None, Listener::bind(&address()).unwrap());
        let client = connect().await;
        send(&client, b"{\"verb\":\"hello\"}\n").await;
        assert_eq!(answer(&client).await.unwrap()["protocol"], 1, "it is there all the same");
        send(&client, STATUS).await;
        let Err(refusal) = answer(&client).await else { panic!("an answer without a stack") };
        assert!(matches!(refusal.error, Error::Busy(_)) && !refusal.wrongly_asked, "{refusal}");
        server.stop().await;
    });
}

#[test]
fn who_is_silent_is_cut_off_in_time() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        for (sent, limit) in [(&b""[..], SILENCE_LIMIT), (b"{\"verb\":", LINE_LIMIT)] {
            let (client, begun) = (connect().await, runtime::now());
            // Another client gets answers throughout.
            let other = connect().await;
            send(&client, sent).await;
            send(&other, STATUS).await;
            answer(&other).await.unwrap();
            assert!(error(&client).await.contains(&format!("after {} s", limit.as_secs())));
            let passed = begun.elapsed();
            assert!((limit..limit + Duration::from_secs(1)).contains(&passed), "{passed:?}");
            assert_eq!(line(&client).await, b"");
        }
        // Bytes that arrive one by one don't extend the limit, and silence before them doesn't shorten it.
        let client = connect().await;
        runtime::sleep(Duration::from_secs(500)).await;
        let begun = runtime::now();
        for byte in STATUS.iter().take(9) {
            send(&client, &[*byte]).await;
            runtime::sleep(Duration::from_secs(3)).await;
        }
        assert!(error(&client).await.contains("the end of a line"));
        let passed = begun.elapsed();
        assert!((LINE_LIMIT..LINE_LIMIT + Duration::from_secs(1)).contains(&passed), "{passed:?}");
        server.stop().await;
    });
}

#[test]
fn one_too_many_is_told_so() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        let mut clients = Vec::new();
        for _ in 0..MAX_CLIENTS {
            let client = connect().await;
            send(&client, STATUS).await;
            answer(&client).await.unwrap();
            clients.push(client);
        }
        let refused = connect().await;
        assert!(error(&refused).await.contains("16 clients, its limit"));
        clients.pop();
        runtime::sleep(Duration::from_secs(1)).await;
        let client = connect().await;
        send(&client, STATUS).await;
        answer(&client).await.unwrap();
        server.stop().await;
    });
}

#[test]
fn a_message_under_way_is_waited_for() {
    in_a_world(|| async {
        let (server, stack) = serving().await;
        let (client, gone, idle) = (connect().await, connect().await, connect().await);
        send(&client, WAIT).await;
        send(&gone, WAIT).await;
        runtime::sleep(Duration::from_secs(1)).await;
        drop(gone);
        let begun = runtime::now();
        server.stop().await;
        let passed = begun.elapsed();
        assert!((Duration::from_secs(3)..Duration::from_secs(5)).contains(&passed), "{passed:?}");
        assert_eq!(answer(&client).await.unwrap(), "waited");
        assert_eq!(line(&idle).await, b"");
        let list = stack.built.part("log").unwrap().built.part().message("snapshot list").await.unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["snapshots"].as_array().unwrap().len(), 2, "whoever went away, it was done");
        assert_eq!(Rc::strong_count(&stack), 1, "the stack can be closed");
    });
}

/// Random bytes and corrupted requests: each line gets an answer, and the next client is served.
#[test]
fn hostile_bytes_are_answered_with_errors() {
    in_a_world(|| async {
        let (server, _stack) = serving().await;
        let mut random = Random::new(5);
        for _ in 0..100 {
            let mut bytes = match random.below(2) {
                0 => vec![0; random.below(300) as usize],
                _ => [STATUS, LIST].concat(),
            };
            match bytes.len() {
                // Random bytes only, or a few changed bytes.
                _ if bytes.iter().all(|byte| *byte == 0) => random.fill(&mut bytes),
                length => (0..3).for_each(|_| {
                    bytes[random.below(length as u64) as usize] = random.next_u64() as u8;
                }),
            }
            let client = connect().await;
            send(&client, &bytes).await;
            client.shutdown(Shutdown::Write).await.unwrap();
            let whole = bytes.split(|byte| *byte == b'\n').count() - usize::from(bytes.ends_with(b"\n"));
            let expected = if bytes.is_empty() { 0 } else { whole };
            for _ in 0..expected {
                let _ = answer(&client).await;
            }
            assert_eq!(line(&client).await, b"", "as many answers as lines: {bytes:?}");
        }
        let client = connect().await;
        send(&client, &vec![b'['; MAX_REQUEST + 1]).await;
        assert!(error(&client).await.contains("expected at most 65536 in a line"));
        assert_eq!(line(&client).await, b"");
        let client = connect().await;
        send(&client, STATUS).await;
        answer(&client).await.unwrap();
        server.stop().await;
    });
}
