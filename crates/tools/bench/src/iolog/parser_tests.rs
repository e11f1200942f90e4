use super::*;
use proptest::prelude::*;

/// Entries of a log with these bytes, fed in pieces of this length.
fn read(bytes: &[u8], piece: usize, settings: &Settings) -> Vec<Result<Entry, String>> {
    let mut parser = Parser::new("t.log", settings);
    let mut all = Vec::new();
    let said = |problem: Problem| format!("{}:{}: {}", problem.line, problem.column, problem.message);
    let mut take = |found: Result<Entry, Problem>| all.push(found.map_err(said));
    bytes.chunks(piece).for_each(|piece| parser.feed(piece, &mut take));
    parser.end(&mut take);
    all
}

fn entries(text: &str) -> Vec<(u64, &'static str, u64, u64)> {
    let found = read(text.as_bytes(), usize::MAX, &Settings::default());
    let entry = |found: Result<Entry, String>| {
        let entry = found.expect("this log is right");
        (entry.time, entry.action.name(), entry.offset, entry.length)
    };
    found.into_iter().map(entry).collect()
}

fn problems(text: &str) -> Vec<String> {
    let found = read(text.as_bytes(), usize::MAX, &Settings::default());
    found.into_iter().filter_map(Result::err).collect()
}

#[test]
fn version_2_waits_until_milliseconds_after_the_start() {
    let text = "fio version 2 iolog\n/d add\n/d open\n/d read 4096 512\n/d wait 700 0\n/d write 0 8192\n\
                /d wait 300 0\n\n/d sync 8192 0\n/d datasync 0 0\n/d trim 1048576 4096\n/d close\n";
    let expected = [
        (0, "read", 4096, 512),
        (700_000, "write", 0, 8192),
        (700_000, "sync", 0, 0),
        (700_000, "datasync", 0, 0),
        (700_000, "trim", 1_048_576, 4096),
    ];
    assert_eq!(entries(text), expected);
}

#[test]
fn version_3_counts_microseconds_from_its_first_line() {
    let text = "fio version 3 iolog\r\n26 /d add\r\n143 /d  open\n147 /d read 0 4096\n\t90 /d write 0 4096 \n23 /d close";
    assert_eq!(entries(text), [(121, "read", 0, 4096), (64, "write", 0, 4096)]);
}

#[test]
fn places_are_scaled_and_rounded() {
    let settings = Settings { scale: 10, align: 4096, ..Settings::default() };
    let text = b"fio version 2 iolog\na add\na open\na read 123456 512\n";
    let entry = read(text, 7, &settings).remove(0).unwrap();
    assert_eq!((entry.offset, entry.length, entry.line), (12345 / 4096 * 4096, 512, 4));
}

#[test]
fn every_wrong_line_is_said_with_its_place() {
    let text = "fio version 2 iolog\nx add\ny open\nx open\nx raed 0 4096\nx read 0 4q\nx read -1 4096\nx read 0\n\
                x read 0 0\nx write 0 999999999999\nx read 9223372036854775807 1\nx read 0 4096 7 8 9\nz read 0 1\n\
                y add\nx close\nx read 0 512\nfio version 2 iolog\nx sync 0 0\nx wiat 1 0\nx frobnicate\n";
    let expected = [
        "3:1: y is not known: expected \"y add\" and \"y open\" before this line",
        "5:3: action \"raed\" is not known: did you mean \"read\"?",
        "6:10: 4q: expected a number of bytes",
        "7:8: -1: expected a number of bytes",
        "8:1: expected \"FILE add|open|close\"",
        "9:10: read of no bytes: expected at least one block",
        "10:11: write of 999999999999 bytes: expected at most 268435456",
        "11:8: 9223372036854775807: larger than any device",
        "12:19: expected \"FILE add|open|close\"",
        "13:1: z is not known",
        "14:1: y: a second file beside x, and a job has one device: replay_redirect=NAME",
        "16:1: x is not open: expected \"x open\" before this line",
        "17:1: another log begins here",
        "18:1: x is not open",
        "19:3: action \"wiat\" is not known: did you mean \"wait\"?",
        "20:3: action \"frobnicate\" is not known (known: add,",
    ];
    let found = problems(text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn wrong_versions_and_times() {
    let long = format!("fio version 3 iolog\n{}\n1 x add\n", "a".repeat(MAX_LINE + 1));
    for (text, expected) in [
        (
            "",
            "1:1: expected \"fio version 2 iolog\" or \"fio version 3 iolog\" in the first line, found nothing",
        ),
        ("fio version 1 iolog\n", "found \"fio version 1 iolog\""),
        ("0, 4096, 4096\n", "found \"0, 4096, 4096\""),
        ("\x07tae\0\0\0", "a recording of blktrace"),
        (&"\0".repeat(99_999), "in the first line, found \"·"),
        ("fio version 3 iolog\nx add\n", "2:1: x: expected the time of the request in microseconds"),
        ("fio version 3 iolog\n1 x add\n2 x open\n3 x wait 10 0\n", "4:5: wait in a log of version 3"),
        (&long, "2:1: a line of more than 4096 bytes"),
        ("fio version 3 iolog\n1 x add\nfio version 3 iolog\n", "3:1: another log begins here"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{text:.60}: {found:?}");
        assert!(found[0].contains(expected), "{}", found[0]);
    }
}

#[test]
fn several_files_are_one_where_they_are_redirected() {
    let settings = Settings { redirect: Some("d".into()), ..Settings::default() };
    let text = b"fio version 2 iolog\na add\na open\nb add\nb open\nb read 0 4096\na read 4096 4096\nb close\na write 0 512\n";
    let offsets: Vec<u64> = read(text, 3, &settings).into_iter().map(|found| found.unwrap().offset).collect();
    assert_eq!(offsets, [0, 4096, 0]);
}

proptest! {
    /// The size of the pieces makes no difference, and the parser never panics.
    #[test]
    fn pieces_make_no_difference(
        version in 1..4_u8,
        lines in prop::collection::vec("([0-9]{1,20} )?(/d|x|é) (add|open|close|read|write|trim|sync|wait|\\PC{0,5})( [0-9]{1,20}){0,3}[ \r]?", 0..20),
        piece in 1..50_usize,
    ) {
        let text = format!("fio version {version} iolog\n1 x add\nx add\n2 x open\nx open\n{}", lines.join("\n"));
        let whole = read(text.as_bytes(), usize::MAX, &Settings::default());
        prop_assert_eq!(read(text.as_bytes(), piece, &Settings::default()), whole);
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1..50_usize) {
        let mut log = b"fio version 2 iolog\n".to_vec();
        let _ = read(&bytes, piece, &Settings::default());
        log.extend(bytes);
        let _ = read(&log, piece, &Settings::default());
    }
}
