use super::*;
use crate::nbd::protocol::{OPTION_REPLY_MAGIC, put_option};
use proptest::prelude::*;

fn exports() -> Vec<ExportDescription> {
    let export = |name: &str, size, read_only| ExportDescription {
        name: name.into(),
        description: format!("the {name}"),
        size,
        read_only,
        several_connections: true,
        preferred_block: 4096,
    };
    vec![export("disk", 1 << 30, false), export("rom", 4096, true)]
}

/// Runs a whole client, in pieces of `step` bytes, and returns the answers and the end.
fn talk(bytes: &[u8], step: usize) -> (Vec<u8>, Result<Progress>) {
    let exports = exports();
    let mut negotiation = Negotiation::new(&exports);
    let (mut answer, mut begin, mut end) = (Vec::new(), 0, 0);
    loop {
        match negotiation.advance(&bytes[begin..end], &mut answer) {
            Ok((0, Progress::Wait)) if end == bytes.len() => return (answer, Ok(Progress::Wait)),
            Ok((0, Progress::Wait)) => end = (end + step).min(bytes.len()),
            Ok((taken, Progress::Continue)) => {
                assert!(taken > 0, "progress without taking anything");
                begin += taken;
            }
            Ok((_, other)) => return (answer, Ok(other)),
            Err(error) => return (answer, Err(error)),
        }
    }
}

fn client(options: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    options.iter().for_each(|(option, data)| put_option(&mut bytes, *option, data));
    bytes
}

/// The replies: option, type, data.
fn replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let mut reader = Reader(bytes);
        assert_eq!(reader.u64(), Some(OPTION_REPLY_MAGIC));
        let (option, reply) = (reader.u32().expect("option"), reader.u32().expect("type"));
        let length = reader.u32().expect("length") as usize;
        list.push((option, reply, reader.take(length).expect("data").to_vec()));
        bytes = reader.0;
    }
    list
}

fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
    data
}

fn query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

#[test]
fn go_with_everything() {
    let bytes = client(&[
        (option::STRUCTURED_REPLY, &[]),
        (option::SET_META_CONTEXT, &query("disk", &["qemu:dirty-bitmap:x", "base:allocation"])),
        (option::GO, &go("disk", &[info::BLOCK_SIZE, info::NAME, info::DESCRIPTION, 77])),
    ]);
    for step in [1, 7, 1000] {
        let (answer, end) = talk(&bytes, step);
        let agreement = Agreement { export: 0, structured: true, allocation_context: true };
        assert_eq!(end, Ok(Progress::Transmission(agreement)));
        let list = replies(&answer);
        let kinds: Vec<(u32, u32)> = list.iter().map(|reply| (reply.0, reply.1)).collect();
        assert_eq!(
            kinds,
            [(8, 1), (10, 4), (10, 1), (7, 3), (7, 3), (7, 3), (7, 3), (7, 1)],
            "structured, context, ack, four infos, ack"
        );
        // Size 1 GiB; flags HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, DF, MULTI_CONN.
        assert_eq!(list[3].2, [0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0x01, 0xed]);
        assert_eq!(list[4].2, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    }
    // A server for one connection doesn't invite to a second one.
    let single = ExportDescription { several_connections: false, ..exports()[0].clone() };
    assert_eq!(exports()[0].flags(true) ^ single.flags(true), transmission_flag::CAN_MULTI_CONN);
}

#[test]
fn the_default_export_and_a_read_only_one() {
    let (answer, end) = talk(&client(&[(option::GO, &go("", &[]))]), 9);
    let agreement = Agreement { export: 0, structured: false, allocation_context: false };
    assert_eq!(end, Ok(Progress::Transmission(agreement)));
    assert_eq!(replies(&answer).len(), 2);
    let (answer, _) = talk(&client(&[(option::INFO, &go("rom", &[]))]), 9);
    assert_eq!(replies(&answer)[0].2, [0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x01, 0x0f]);
}

#[test]
fn export_name_with_and_without_zeroes() {
    let bytes = client(&[(option::EXPORT_NAME, b"rom")]);
    let (answer, end) = talk(&bytes, 100);
    assert!(matches!(end, Ok(Progress::Transmission(Agreement { export: 1, .. }))));
    assert_eq!(answer, [0, 0, 0, 0, 0, 0, 0x10, 0, 0x01, 0x0f]);
    let mut padded = bytes.clone();
    padded[3] = 1;
    assert_eq!(talk(&padded, 100).0.len(), 10 + 124);
    assert!(talk(&client(&[(option::EXPORT_NAME, b"nothing")]), 100).1.is_err());
}

#[test]
fn options_are_refused_as_the_document_says() {
    let long = vec![0; MAX_OPTION as usize + 1];
    let cases: &[(u32, &[u8], u32)] = &[
        (4, &[], option_reply::ERR_UNSUP),
        (11, &[], option_reply::ERR_UNSUP),
        (999, b"data", option_reply::ERR_UNSUP),
        (option::STARTTLS, &[], option_reply::ERR_POLICY),
        (option::STARTTLS, b"x", option_reply::ERR_INVALID),
        (option::LIST, b"x", option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID),
        (option::GO, &go("nothing", &[]), option_reply::ERR_UNKNOWN),
        (option::GO, b"", option_reply::ERR_INVALID),
        (option::GO, &[0xff, 0xff, 0xff, 0xff, 0, 0], option_reply::ERR_INVALID),
        (option::INFO, &[0, 0, 0, 0, 0, 9], option_reply::ERR_INVALID),
        (option::SET_META_CONTEXT, &query("disk", &["base:allocation"]), option_reply::ERR_INVALID),
        (option::GO, &long, option_reply::ERR_TOO_BIG),
    ];
    for (number, data, expected) in cases {
        // The session continues: the next option is answered.
        let (answer, end) = talk(&client(&[(*number, data), (option::ABORT, b"bye")]), 4000);
        assert_eq!(end, Ok(Progress::Ended), "option {number}");
        let list = replies(&answer);
        assert_eq!((list[0].0, list[0].1), (*number, *expected), "option {number}");
        assert_eq!((list[1].0, list[1].1), (option::ABORT, option_reply::ACK));
    }
}

#[test]
fn contexts_are_listed_selected_and_forgotten() {
    let ask = |options: &[(u32, &[u8])]| talk(&client(options), 50);
    let set = option::SET_META_CONTEXT;
    let structured: (u32, &[u8]) = (option::STRUCTURED_REPLY, &[]);
    for (queries, listed) in [(vec![], 1), (vec!["base:"], 1), (vec!["x-y:z"], 0), (vec!["base:other"], 0)] {
        let (answer, _) = ask(&[structured, (option::LIST_META_CONTEXT, &query("", &queries))]);
        assert_eq!(replies(&answer).len(), 2 + listed, "{queries:?}");
    }
    let select = query("disk", &[ALLOCATION_CONTEXT, ALLOCATION_CONTEXT]);
    let chosen = |end| match end {
        Ok(Progress::Transmission(agreement)) => agreement.allocation_context,
        other => panic!("{other:?}"),
    };
    let disk = (option::GO, go("disk", &[]));
    assert!(chosen(ask(&[structured, (set, &select), (disk.0, &disk.1)]).1));
    assert!(!chosen(ask(&[structured, (set, &select), (option::GO, &go("rom", &[]))]).1));
    let (nothing, bad) = (query("disk", &[]), query("disk", &["no colon"]));
    assert!(!chosen(ask(&[structured, (set, &select), (set, &nothing), (disk.0, &disk.1)]).1));
    assert!(!chosen(ask(&[structured, (set, &select), (set, &bad), (disk.0, &disk.1)]).1));
}

#[test]
fn what_cant_be_answered_ends_the_session() {
    assert!(talk(&[0, 0, 0, 4], 1).1.is_err(), "an unknown client flag");
    assert!(talk(b"\x00\x00\x00\x03GET /", 1).1.is_err(), "no option");
    let mut huge = client(&[]);
    huge.extend_from_slice(b"IHAVEOPT\x00\x00\x00\x07\xff\xff\xff\xff");
    assert!(talk(&huge, 3).1.is_err(), "a huge length");
    let many: Vec<(u32, &[u8])> = vec![(option::LIST, &[]); MAX_OPTIONS as usize + 1];
    assert!(talk(&client(&many), 1000).1.is_err(), "options without end");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_answers_stay_bounded(
        pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                (0_u32..13, prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(option, data)| {
                    let mut bytes = Vec::new();
                    put_option(&mut bytes, option, &data);
                    bytes
                }),
            ],
            0..12,
        ),
        flags in 0_u8..5,
        step in 1_usize..64,
    ) {
        let mut bytes = vec![0, 0, 0, flags];
        bytes.extend(pieces.concat());
        let (answer, _) = talk(&bytes, step);
        prop_assert!(answer.len() <= 200 * 13);
    }
}

/// A source that has an export for each name in `known`, and refuses one name.
#[derive(Debug)]
struct Source {
    known: Vec<&'static str>,
    opened: std::sync::Mutex<Vec<String>>,
}

impl ExportSource for Source {
    fn list(&self) -> Vec<ExportDescription> {
        self.opened.lock().expect("no panic").iter().filter_map(|name| self.describe(name).ok()).collect()
    }

    fn describe(&self, name: &str) -> Result<ExportDescription> {
        match name {
            "taken" => Err(Error::busy("it is taken")),
            name if self.known.contains(&name) => {
                Ok(ExportDescription { name: name.into(), size: 8192, ..exports()[0].clone() })
            }
            _ => Err(Error::not_found("not here")),
        }
    }

    fn open(&self, name: &str) -> Result<ExportConfig> {
        let description = self.describe(name)?;
        self.opened.lock().expect("no panic").push(name.to_owned());
        let block = block::BlockSize::new(4096)?;
        let device = std::sync::Arc::new(disks::ram::RamPart::new(description.size, block)?);
        Ok(ExportConfig { name: name.into(), description: String::new(), device, read_only: false })
    }
}

#[test]
fn a_source_has_the_exports_that_the_configuration_has_not() {
    let exports = exports();
    let source = Source { known: vec!["one", "two", "disk"], opened: Default::default() };
    let ask = |options: &[(u32, &[u8])]| {
        let bytes = client(options);
        let mut negotiation = Negotiation::new(&exports).with_source(Some(&source));
        let (mut answer, mut at) = (Vec::new(), 0);
        loop {
            match negotiation.advance(&bytes[at..], &mut answer).expect("the session goes on") {
                (taken, Progress::Continue) => at += taken,
                (_, Progress::Wait) => return (answer, None),
                (_, Progress::Transmission(agreement)) => {
                    return (answer, Some((agreement, negotiation.into_opened().map(|export| export.name))));
                }
                (_, Progress::Ended | Progress::StartTls) => panic!("an unexpected end"),
            }
        }
    };
    let refused = |answer: &[u8]| replies(answer).pop().map(|(_, kind, words)| (kind, words));
    let (answer, agreed) = ask(&[(option::GO, &go("none", &[]))]);
    assert_eq!((refused(&answer), agreed), (Some((option_reply::ERR_UNKNOWN, b"not here".to_vec())), None));
    let (answer, _) = ask(&[(option::GO, &go("taken", &[]))]);
    assert_eq!(refused(&answer), Some((option_reply::ERR_POLICY, b"it is taken".to_vec())));
    // INFO describes an export and opens none.
    let (answer, _) = ask(&[(option::INFO, &go("one", &[]))]);
    assert_eq!(replies(&answer).len(), 2);
    assert!(source.list().is_empty());
    let (_, agreed) = ask(&[(option::INFO, &go("two", &[])), (option::GO, &go("one", &[]))]);
    let (agreement, opened) = agreed.expect("it is opened");
    assert_eq!((agreement.export >= exports.len(), opened.as_deref()), (true, Some("one")));
    // An export of the configuration comes first.
    let (_, agreed) = ask(&[(option::GO, &go("disk", &[]))]);
    assert_eq!(agreed.map(|(agreement, opened)| (agreement.export, opened)), Some((0, None)));
    let (answer, _) = ask(&[(option::LIST, &[])]);
    assert_eq!(replies(&answer).len(), 4, "disk, rom, one, and the ACK");
    // A context that was selected for one export isn't selected for another.
    let name = |name: &str| [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
    let query = |export| [name(export), 1_u32.to_be_bytes().to_vec(), name("base:allocation")].concat();
    for (selected, has_context) in [("one", true), ("two", false)] {
        let options: [(u32, &[u8]); 3] = [
            (option::STRUCTURED_REPLY, &[]),
            (option::SET_META_CONTEXT, &query(selected)),
            (option::GO, &go("one", &[])),
        ];
        let (agreement, _) = ask(&options).1.expect("it is opened");
        assert_eq!(agreement.allocation_context, has_context, "{selected}");
    }
}
