//! For any text, the parsers return a stack or problems.

use crate::fixtures::registry;
use proptest::prelude::*;
use stack::Stack;

/// Parses a text in both forms. A valid stack can be drawn, planned and written.
fn answer(text: &str) {
    let registry = registry();
    for read in [Stack::from_toml, Stack::from_line] {
        match read("wild", text, &registry) {
            Ok(stack) => {
                assert_eq!(Stack::from_toml("again", &stack.to_toml(), &registry).unwrap(), stack);
                assert!(!stack.draw().is_empty());
                assert!(stack.to_json().is_object());
                if let Err(problems) = stack.check(false) {
                    assert!(problems.to_string().starts_with("wild:"));
                }
            }
            Err(problems) => {
                assert!(problems.count() > 0);
                assert!(problems.to_string().starts_with("wild:"), "{problems}");
            }
        }
    }
}

/// Pieces of both grammars, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let words = vec![
        "log",
        "file",
        "ram",
        "null",
        "mirror",
        "cut",
        "nbd",
        "writecache",
        "(",
        ")",
        "(",
        ")",
        "[",
        "]",
        ",",
        "=",
        "\"",
        "\\",
        "\n",
        " ",
        "on",
        "size",
        "path",
        "devices",
        "kind",
        "device",
        "zones",
        "door",
        "stack",
        "shards",
        "[device.",
        "[zones.",
        "[door.",
        "[stack]\n",
        "kind = \"",
        "on = \"",
        ".",
        "a",
        "b",
        "1",
        "-1",
        "4GiB",
        "1e9",
        "0x1F",
        "inf",
        "2026-11-20",
        "{",
        "}",
        "#",
        "'",
        "\"\"\"",
        "\u{0}",
        "\u{feff}",
        "ä",
        "\r\n",
        "\\u{",
        "top",
    ];
    prop::collection::vec(prop::sample::select(words), 0..60).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "(.|\n){0,200}") {
        answer(&text);
    }

    #[test]
    fn pieces_of_the_grammars(text in pieces()) {
        answer(&text);
    }

    #[test]
    fn a_good_stack_with_a_change(at in 0_usize..200, length in 0_usize..8, put in "[\\x20-\\x7e\n]{0,4}") {
        let good = [
            "nbd(mirror(log(file(disk.img, 4GiB, tags=[a, \"b\"]), map=btree), null, zones=cut(null))) shards=4",
            "[device.disk]\nkind = \"file\"\npath = \"d\"\n[device.vol]\nkind = \"log\"\non = \"disk\"\n\
             [door.vol]\nkind = \"nbd\"\ndevice = \"vol\"\nexports = [\"vol\"]\n",
        ];
        for text in good {
            let start = at.min(text.len());
            let end = (start + length).min(text.len());
            answer(&format!("{}{put}{}", &text[..start], &text[end..]));
        }
    }
}

#[test]
fn long_and_deep_texts() {
    for piece in [
        "log(",
        "[",
        "a=",
        "mirror(null,",
        "\"",
        "\\",
        "[[",
        "{a=",
        "x=[",
        "[device.",
        "a.",
        "null ",
        "=",
        "\n",
    ] {
        answer(&piece.repeat(50_000));
        answer(&format!("file({}", piece.repeat(50_000)));
        answer(&format!("[device.a]\nkind = {}", piece.repeat(50_000)));
    }
}
