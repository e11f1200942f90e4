//! Messages to a log device and the format of its answers, with the test log of this crate.

use super::*;
use crate::arguments::{CommandLine, Verb};
use crate::control::operated::OperatedStack;
use crate::control::place::ControlAddress;
use crate::control::server::ControlServer;
use crate::control::test_log::registry;
use clap::Parser;
use runtime::Config;
use runtime::sync::StopSource;
use stack::Stack;
use std::path::Path;
use std::rc::Rc;

fn verb(arguments: &[&str]) -> SnapshotVerb {
    match CommandLine::parse_from([&["siltstone", "snapshot"], arguments].concat()).verb {
        Verb::Snapshot(verb) => verb,
        other => panic!("{other:?}"),
    }
}

fn operated(stack: &str, control: Option<&Path>) -> Operated {
    Operated { stack: stack.into(), control: control.map(Path::to_owned) }
}

#[test]
fn words_for_the_part() {
    for (arguments, expected) in [
        (&["create", "s.toml", "monday"][..], "snapshot create monday"),
        (&["list", "s.toml"], "snapshot list"),
        (&["delete", "s.toml", "monday"], "snapshot delete monday"),
        (&["clone", "s.toml", "monday", "new"], "snapshot clone monday new"),
        (&["diff", "s.toml", "monday"], "snapshot diff monday"),
        (&["diff", "s.toml", "monday", "tuesday"], "snapshot diff monday tuesday"),
    ] {
        assert_eq!(text(&verb(arguments)).unwrap(), expected);
    }
    for name in ["", "a b", "a\nb", "\u{1b}[2J"] {
        let failure = text(&verb(&["delete", "s.toml", name])).unwrap_err();
        assert!(matches!(&failure, Failure::Usage(said) if said.contains("without spaces")), "{failure}");
    }
}

#[test]
fn a_stack_that_is_not_served_is_opened() {
    let ask = |line: &str, part: Option<&str>, text: &str| {
        ask(&operated(line, None), &registry(), part.map(str::to_owned), text.into())
    };
    assert_eq!(ask("stats(log(ram(1MiB)))", None, "snapshot list").unwrap(), "{\"snapshots\":[]}");
    assert_eq!(ask("log(ram(1MiB))", Some("top"), "snapshot list").unwrap(), "{\"snapshots\":[]}");
    let none = ask("stats(ram(1MiB))", None, "snapshot list").unwrap_err();
    let expected =
        "stats(ram(1MiB)): this stack has no part of kind \"log\": its parts are \"top\" (stats), ";
    assert!(matches!(&none, Failure::Usage(said) if said.starts_with(expected)), "{none}");
    let two = ask("log(log(ram(1MiB)))", None, "snapshot list").unwrap_err();
    let expected = "2 parts are of kind \"log\": expected the name of one of them: \"top\" (log), ";
    assert!(matches!(&two, Failure::Usage(said) if said.contains(expected)), "{two}");
    assert!(matches!(&two, Failure::Usage(said) if said.ends_with("; give it with --part NAME")), "{two}");
    let unknown = ask("log(ram(1MiB))", None, "snapshot delete none").unwrap_err();
    let expected = "log \"top\": there is no snapshot \"none\" (not found)";
    assert!(matches!(&unknown, Failure::World(said) if said == expected), "{unknown}");
}

/// A snapshot that one operator creates is visible to the next: the server answers both.
#[test]
fn a_stack_that_is_served_is_asked_through_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let (stop, (ready, is_ready)) = (StopSource::new(), std::sync::mpsc::channel());
    std::thread::scope(|scope| {
        let (place, token) = (ControlAddress::At(socket.clone()), stop.token());
        let server = scope.spawn(move || {
            let stack = Stack::from_line("stack", "log(ram(1MiB))", &registry()).unwrap();
            let plan = stack.check(false).unwrap();
            let main = move || async move {
                let server = ControlServer::start(&place).await.unwrap();
                let built = plan.build().await.unwrap();
                let stack = Rc::new(OperatedStack {
                    built,
                    extra_doors: Vec::new(),
                    server: None,
                    observation: None,
                });
                server.opened(stack.clone());
                ready.send(()).unwrap();
                token.stopped().await;
                server.stop().await;
                stack.built.close().await.unwrap();
            };
            runtime::run(Config::default(), main).unwrap();
        });
        is_ready.recv().unwrap();
        let ask = |text: &str| ask(&operated("elsewhere", Some(&socket)), &registry(), None, text.into());
        assert_eq!(ask("snapshot create monday").unwrap(), "{\"name\":\"monday\",\"bytes_unique\":0}");
        assert_eq!(ask("snapshot clone monday new").unwrap(), "{\"name\":\"new\",\"parent\":\"monday\"}");
        assert!(matches!(ask("snapshot diff none"), Err(Failure::World(_))));
        let listed: Value = serde_json::from_str(&ask("snapshot list").unwrap()).unwrap();
        assert_eq!(listed["snapshots"][1]["name"], "new");
        stop.stop();
        server.join().unwrap();
    });
    assert!(!socket.exists());
}

fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_list() {
    let answer = object(
        r#"{"snapshots":[
            {"name":"monday","created":1795234546,"bytes_unique":1048576,"kind":"snapshot","parent":null},
            {"name":"new","created":"today","bytes_unique":0,"kind":"clone","parent":"monday"}]}"#,
    );
    let expected = "\
name    kind      created               unique  parent
monday  snapshot  2026-11-21 04:15 UTC   1 MiB  -
new     clone     today                    0 B  monday
";
    assert_eq!(list(&answer), expected);
    assert_eq!(list(&object(r#"{"snapshots":[]}"#)), "no snapshots\n");
    assert_eq!(list(&object(r#"{"snapshots":[7]}"#)).lines().count(), 2, "whatever the part says");
}

#[test]
fn a_comparison() {
    let expected = "\
first block  blocks    bytes
          0       2    8 KiB
       1000      30  120 KiB
2 ranges differ: 32 blocks of 4KiB, 128 KiB
";
    assert_eq!(diff(&object(r#"{"ranges":[[0,2],[1000,30]],"block_size":4096}"#)), expected);
    let nothing = "0 ranges differ: 0 blocks of 4KiB, 0 B\n";
    assert_eq!(diff(&object(r#"{"ranges":[],"block_size":4096}"#)), nothing);
}

#[test]
fn what_was_done() {
    assert_eq!(
        done(&object(r#"{"name":"monday","bytes_unique":0}"#)),
        "name          monday\nbytes_unique  0 B\n"
    );
    assert_eq!(done(&object("{}")), "done\n");
}
