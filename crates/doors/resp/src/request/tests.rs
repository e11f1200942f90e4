//! Tests of the parser.

use super::*;
use proptest::prelude::*;

const MAX_ARGUMENT_BYTES: usize = 64 << 20;

/// Result of parsing a stream.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    commands: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// Number of bytes after the last complete request; 0 after an error.
    rest: usize,
}

/// Parses bytes that arrive in pieces of these lengths, cyclically.
fn parse_in_pieces(bytes: &[u8], pieces: &[usize]) -> Parsed {
    let mut parser = Parser::new(MAX_ARGUMENT_BYTES);
    let mut parsed = Parsed { commands: Vec::new(), error: None, rest: 0 };
    let (mut begin, mut end) = (0, 0);
    let mut pieces = pieces.iter().cycle();
    loop {
        let arrived = end - begin;
        match parser.next(&bytes[begin..end]) {
            Ok(Step::Incomplete) if end == bytes.len() => break,
            Ok(Step::Incomplete) => {
                end = (end + pieces.next().map_or(1, |piece| *piece).max(1)).min(bytes.len())
            }
            Ok(Step::Empty(count)) => {
                assert!(count > 0 && begin + count <= end);
                begin += count;
            }
            Ok(Step::Command(count)) => {
                assert!(count > 0 && begin + count <= end);
                let arguments = parser.arguments(&bytes[begin..end]);
                assert!(!arguments.is_empty() && arguments.iter().count() == arguments.len());
                parsed.commands.push(arguments.iter().map(<[u8]>::to_vec).collect());
                begin += count;
            }
            Err(error) => return Parsed { error: Some(error), ..parsed },
        }
        // Memory is bounded by the bytes that have arrived: an argument takes at least 6 of them.
        assert!(parser.spans.capacity() <= (2 * arrived / 6).max(2 * KEPT_ARGUMENTS));
    }
    parsed.rest = bytes.len() - begin;
    parsed
}

fn parse(bytes: &[u8]) -> Parsed {
    parse_in_pieces(bytes, &[usize::MAX / 2])
}

fn words(line: &str) -> Result<Vec<String>, ProtocolError> {
    let parsed = parse(format!("{line}\r\n").as_bytes());
    let texts = |command: &Vec<Vec<u8>>| {
        command.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    };
    parsed.error.map_or_else(|| Ok(parsed.commands.first().map_or_else(Vec::new, texts)), Err)
}

#[test]
fn requests_are_the_same_however_they_arrive() {
    let stream = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\n*-1\r\nPING 'a b'\r\n*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\nECHO x\n*1\r\n$4";
    let whole = parse(stream);
    let expected: &[&[&[u8]]] =
        &[&[b"GET", b"k"], &[b"PING", b"a b"], &[b"SET", b"", b"\r\n\r\n"], &[b"ECHO", b"x"]];
    assert_eq!(whole.commands, expected);
    assert_eq!((whole.rest, whole.error), (6, None));
    for at in 1..stream.len() {
        assert_eq!(parse_in_pieces(stream, &[at]), whole, "cut at {at}");
    }
}

#[test]
fn inline_commands_are_words() {
    assert_eq!(words("  SET\ta  b ").expect("valid"), ["SET", "a", "b"]);
    assert_eq!(words("").expect("valid"), [""; 0]);
    assert_eq!(words(r#"a "b c" 'd e' """#).expect("valid"), ["a", "b c", "d e", ""]);
    assert_eq!(words(r#""\x41\n\t\"\\\q\xZZ""#).expect("valid"), ["A\n\t\"\\qxZZ"]);
    assert_eq!(words(r"'it\'s \n'").expect("valid"), [r"it's \n"]);
    assert_eq!(words(r#"a"b c""#).expect("valid"), ["ab c"]);
    for wrong in [r#"a "b"#, r#""a"b"#, "'a", "'a'b", r#""\"#, r#""\""#] {
        assert_eq!(words(wrong), Err(ProtocolError::Quotes), "{wrong}");
    }
}

#[test]
fn limits_are_those_of_redis() {
    let error = |bytes: &[u8]| {
        let whole = parse(bytes);
        assert_eq!(parse_in_pieces(bytes, &[1000]).error, whole.error);
        whole.error
    };
    assert_eq!(error(b"*1048577\r\n"), Some(ProtocolError::ArrayLength));
    assert_eq!(error(b"*1048576\r\n"), None);
    for wrong in [&b"*\r\n"[..], b"*+1\r\n", b"*01\r\n", b"*1 \r\n", b"*1\r.", b"*99999999999999999999\r\n"] {
        assert_eq!(error(wrong), Some(ProtocolError::ArrayLength), "{wrong:?}");
    }
    let longest = format!("*1\r\n${MAX_ARGUMENT_BYTES}\r\n");
    assert_eq!(error(longest.as_bytes()), None);
    for wrong in
        [format!("${}", MAX_ARGUMENT_BYTES + 1), "$-1".into(), "$".into(), "$1x".into(), "$00".into()]
    {
        assert_eq!(
            error(format!("*1\r\n{wrong}\r\n").as_bytes()),
            Some(ProtocolError::BulkLength),
            "{wrong}"
        );
    }
    assert_eq!(error(b"*1\r\n:1\r\n"), Some(ProtocolError::NoBulk(b':')));
    assert_eq!(error(b"*1\r\n\r\n"), Some(ProtocolError::NoBulk(b'\r')));
    assert_eq!(error(b"*1\r\n$1\r\nabc"), Some(ProtocolError::NoLineEnd));
    let line = [b'1'; MAX_LINE_BYTES + 1];
    assert_eq!(error(&[b"*", &line[..]].concat()), Some(ProtocolError::LongArrayLine));
    assert_eq!(error(&[b"*1\r\n$", &line[..]].concat()), Some(ProtocolError::LongBulkLine));
    assert_eq!(error(&line), Some(ProtocolError::LongInline));
    assert_eq!(error(&line[1..]), None);
}

#[test]
fn a_command_is_bounded_as_a_whole() {
    let value = [b"$67108864\r\n", vec![b'v'; MAX_ARGUMENT_BYTES].as_slice(), b"\r\n"].concat();
    let mut stream = [b"*4\r\n$4\r\nMSET\r\n", value.as_slice(), b"$67108800\r\n"].concat();
    assert_eq!(parse(&stream).error, None);
    stream.truncate(stream.len() - 11);
    stream.extend(b"$67108850\r\n");
    assert_eq!(parse(&stream).error, Some(ProtocolError::BulkLength));
}

#[test]
fn time_is_linear_in_what_arrives() {
    // A long argument, and many short ones, byte by byte: quadratic time would take minutes.
    let long = [b"*1\r\n$4000000\r\n", vec![b'v'; 4_000_000].as_slice(), b"\r\n"].concat();
    assert_eq!(parse_in_pieces(&long, &[1]).commands.len(), 1);
    let many = [b"*200000\r\n", b"$1\r\nx\r\n".repeat(200_000).as_slice()].concat();
    assert_eq!(parse_in_pieces(&many, &[1]).commands[0].len(), 200_000);
    assert_eq!(parse_in_pieces(&[b'x'; MAX_LINE_BYTES], &[1]).rest, MAX_LINE_BYTES);
}

#[test]
fn integers_are_those_of_redis() {
    for text in ["0", "1", "-1", "10", "9223372036854775807", "-9223372036854775808"] {
        assert_eq!(integer(text.as_bytes()), text.parse().ok());
    }
    for text in [
        "",
        "-",
        "-0",
        "00",
        "01",
        "+1",
        " 1",
        "1 ",
        "1.0",
        "0x1",
        "9223372036854775808",
        "-9223372036854775809",
    ] {
        assert_eq!(integer(text.as_bytes()), None, "{text}");
    }
}

/// Byte sequences that are often parts of requests.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"*1\r\n$4\r\nPING\r\n".to_vec()),
        Just(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n".to_vec()),
        Just(b"GET \"k\"\r\n".to_vec()),
        "[0-9'\" -]{1,3}".prop_map(String::into_bytes),
        any::<u8>().prop_map(|byte| vec![byte]),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

#[test]
fn commands_are_arrays_of_bulk_strings() {
    let mut bytes = Vec::new();
    put_command(&mut bytes, &[b"GET", b"", b"a\r\n"]);
    assert_eq!(bytes, b"*3\r\n$3\r\nGET\r\n$0\r\n\r\n$3\r\na\r\n\r\n");
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_the_same_however_they_arrive(
        bytes in hostile(),
        pieces in proptest::collection::vec(1usize..20, 1..5),
    ) {
        prop_assert_eq!(parse_in_pieces(&bytes, &pieces), parse(&bytes));
    }

    #[test]
    fn commands_come_out_as_they_went_in(
        commands in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..5),
            0..5,
        ),
        piece in 1usize..100,
    ) {
        let mut stream = Vec::new();
        for command in &commands {
            stream.extend(format!("*{}\r\n", command.len()).bytes());
            for word in command {
                stream.extend(format!("${}\r\n", word.len()).bytes());
                stream.extend(word);
                stream.extend(b"\r\n");
            }
        }
        let parsed = parse_in_pieces(&stream, &[piece]);
        prop_assert_eq!(parsed, Parsed { commands, error: None, rest: 0 });
    }
}
