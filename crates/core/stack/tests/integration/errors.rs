//! Every error, in the form that users get.

use crate::fixtures::registry;
use stack::{Problems, Stack};

fn toml(text: &str) -> Problems {
    match Stack::from_toml("examples/quick.toml", text, &registry()) {
        Err(problems) => problems,
        Ok(stack) => stack.check(false).expect_err("the stack is wrong"),
    }
}

fn line(text: &str) -> Problems {
    match Stack::from_line("stack", text, &registry()) {
        Err(problems) => problems,
        Ok(stack) => stack.check(false).expect_err("the stack is wrong"),
    }
}

/// Compares the first lines, without the excerpts.
#[track_caller]
fn assert_messages(problems: &Problems, expected: &[&str]) {
    let found = problems
        .iter()
        .map(|problem| format!("{}:{}: {}", problem.line, problem.column, problem.message))
        .collect::<Vec<_>>();
    assert_eq!(found, expected);
}

#[test]
fn an_unknown_key_in_full() {
    let problems =
        toml("# A quick one\n\n[device.disk]\nkind = \"file\"\npath = \"disk.img\"\n\nsise = \"4GiB\"\n");
    assert_eq!(
        problems.to_string(),
        "examples/quick.toml:7:1: unknown key \"sise\" for kind \"file\": did you mean \"size\"? It takes path, \
         size, block_size, direct, latency, depth, seed, rate, note, tags, mode, levels\n \
         7 | sise = \"4GiB\"\n   \
           | ^^^^"
    );
    assert_eq!(problems.iter().next().unwrap().nearest.as_deref(), Some("size"));
    let problems = line("log(file(disk.img, sise=4GiB))");
    assert_eq!(
        problems.to_string(),
        "stack:1:20: unknown key \"sise\" for kind \"file\": did you mean \"size\"? It takes path, \
         size, block_size, direct, latency, depth, seed, rate, note, tags, mode, levels\n \
         1 | log(file(disk.img, sise=4GiB))\n   \
           |                    ^^^^"
    );
}

#[test]
fn several_at_once_in_the_order_of_the_text() {
    let problems = toml(
        "[device.a]\nkind = \"ram\"\nsize = true\ncolour = 1\n[devise.b]\n[device.c]\nkind = \"lgo\"\n[door.d]\n",
    );
    assert_messages(
        &problems,
        &[
            "3:8: key \"size\" of kind \"ram\": found true, expected a size such as 4096, \"64KiB\" or \"4GiB\"",
            "4:1: unknown key \"colour\" for kind \"ram\". It takes size, block_size, fail",
            "5:2: unknown section \"devise\": did you mean \"device\"? A stack consists of [stack], [device.NAME], \
             [zones.NAME] and [door.NAME]",
            "7:8: unknown kind \"lgo\": did you mean \"log\"? Kinds of [device.NAME]: file, ram, null, log, mirror, \
             writecache",
            "8:7: \"d\" has no key \"kind\". Kinds of [door.NAME]: nbd",
        ],
    );
    assert_eq!(problems.to_string().matches("\n\n").count(), 4);
    assert_eq!(problems.count(), 5);
}

#[test]
fn kinds() {
    assert_messages(
        &toml("[device.a]\nkind = 3\n"),
        &[
            "2:8: key \"kind\": found 3, expected a text. Kinds of [device.NAME]: file, ram, null, log, mirror, \
           writecache",
        ],
    );
    assert_messages(
        &toml("[device.z]\nkind = \"cut\"\non = \"z\"\n"),
        &["2:8: kind \"cut\" is zones: expected a section [zones.NAME] for it, not [device.NAME]"],
    );
    assert_messages(
        &line("log(flie(disk.img))"),
        &[
            "1:5: unknown kind \"flie\": did you mean \"file\"? Kinds: file, ram, null, log, mirror, writecache, cut, \
           liar, nbd",
        ],
    );
}

#[test]
fn sections_and_the_stack_itself() {
    assert_messages(
        &toml("device = 3\nzones = 4\n"),
        &[
            "1:1: \"device\" is not a table: write [device.NAME] and its keys below",
            "2:1: \"zones\" is not a table: write [zones.NAME] and its keys below",
        ],
    );
    assert_messages(
        &toml("[device]\nkind = \"null\"\n"),
        &["2:1: \"kind\" is outside of all sections: write [device.NAME] above it"],
    );
    assert_messages(
        &toml("[stack]\nshards = 257\nshard = 1\n[device.a]\nkind = \"null\"\n"),
        &[
            "2:10: key \"shards\" of the stack itself: found 257, expected a whole number from 1 to 256",
            "3:1: unknown key \"shard\" for the stack itself: did you mean \"shards\"? It takes shards",
        ],
    );
    assert_messages(
        &line("null shards=many shards=2 shards=3 pin=1"),
        &[
            "1:13: key \"shards\" of the stack itself: found many, expected a whole number from 1 to 256",
            "1:27: key \"shards\" is given twice",
            "1:36: unknown key \"pin\" for the stack itself. It takes shards",
        ],
    );
    assert_messages(
        &toml("stack = 1\n[device.a]\nkind = \"null\"\n"),
        &["1:1: \"stack\" is not a table: write [stack] and its keys below"],
    );
    assert_messages(
        &toml("# nothing\n"),
        &["1:1: no parts: expected at least one [device.NAME] or [zones.NAME] with its kind below"],
    );
    assert_messages(
        &toml("[device.\"\"]\nkind = \"null\"\n"),
        &["1:9: the name of a part: expected one or more characters, none of them a control one"],
    );
    assert_messages(
        &toml(
            "[device.a]\nkind = \"null\"\n[zones.a]\nkind = \"cut\"\non = \"b\"\n[device.b]\nkind = \"null\"\n",
        ),
        &[
            "3:8: there are both [device.a] and [zones.a]: expected two names, since keys name parts of both sorts",
        ],
    );
}

#[test]
fn broken_toml() {
    let problems = toml("[device.a]\nkind = \"null\nx = 1\n");
    assert_eq!((problems.iter().next().unwrap().line, problems.iter().next().unwrap().column), (2, 13));
    assert!(problems.to_string().starts_with("examples/quick.toml:2:13: TOML: "), "{problems}");
    assert_messages(&toml("[device.a]\nkind = \"null\"\nkind = \"null\"\n"), &["3:1: TOML: duplicate key"]);
}

#[test]
fn types_and_ranges() {
    let size = "expected whole bytes, with KiB, MiB, GiB or TiB where wanted, as in 4096 or 4GiB";
    let time = "expected a whole number with ns, us, ms, s, m or h, as in 250us or 10ms";
    let problems = toml(
        "[device.a]\nkind = \"file\"\npath = 1\nsize = \"4XB\"\nblock_size = -1\ndirect = \"true\"\nlatency = 10\n\
         depth = 300\nseed = 99999999999999999999\nrate = inf\nnote = [1]\ntags = [\"a\", 2]\nmode = \"fats\"\nlevels = [80, 101]\n",
    );
    assert_messages(
        &problems,
        &[
            "3:8: key \"path\" of kind \"file\": found 1, expected a path",
            &format!("4:8: key \"size\" of kind \"file\": size \"4XB\": unknown unit \"XB\", {size}"),
            "5:14: key \"block_size\" of kind \"file\": found -1, expected a size such as 4096, \"64KiB\" or \"4GiB\"",
            "6:10: key \"direct\" of kind \"file\": found the text \"true\", expected true or false",
            "7:11: key \"latency\" of kind \"file\": found 10, expected a duration such as \"250us\", \"10ms\" or \"1s\"",
            "8:9: key \"depth\" of kind \"file\": found 300, expected a whole number from 1 to 256",
            "9:8: key \"seed\" of kind \"file\": found 99999999999999999999, expected a whole number from 0 to \
             18446744073709551615",
            "10:8: key \"rate\" of kind \"file\": found inf, expected a number from 0 to 1000000000",
            "11:8: key \"note\" of kind \"file\": found a list, expected a text",
            "12:8: key \"tags\" of kind \"file\": found 2 in the list, expected a list of texts",
            "13:8: key \"mode\" of kind \"file\": found \"fats\": did you mean \"fast\"? It takes fast, safe",
            "14:10: key \"levels\" of kind \"file\": found a list, expected percentages from 1% to 100% such as \"80%, 90%\", or \"never\"",
        ],
    );
    assert_messages(
        &line("mirror(file(\"\", latency=10, depth=0, tags=a), zones=\"z\")"),
        &[
            "1:13: key \"path\" of kind \"file\": found \"\", expected a path that isn't empty",
            &format!("1:25: key \"latency\" of kind \"file\": duration \"10\": {time}"),
            "1:35: key \"depth\" of kind \"file\": found 0, expected a whole number from 1 to 256",
            "1:43: key \"tags\" of kind \"file\": found a, expected a list of texts, in brackets",
            "1:53: key \"zones\" of kind \"mirror\": found a text, expected zones",
        ],
    );
    assert_messages(
        &line("mirror(devices=null)"),
        &["1:16: key \"devices\" of kind \"mirror\": found a part, expected a list of devices, in brackets"],
    );
    assert_messages(
        &line("mirror([])"),
        &[
            "1:8: key \"devices\" of kind \"mirror\": found an empty list, expected a list of devices with at least \
           one element",
        ],
    );
}

#[test]
fn missing_keys() {
    assert_messages(
        &toml("[device.disk]\nkind = \"file\"\n"),
        &[
            "1:9: \"disk\" has no key \"path\": kind \"file\" needs it (the file that holds the data), expected a path",
        ],
    );
    assert_messages(
        &line("log(ram)"),
        &[
            "1:5: \"ram1\" has no key \"size\": kind \"ram\" needs it (its size), expected a size such as 4096, \
           \"64KiB\" or \"4GiB\"",
        ],
    );
}

#[test]
fn names_that_lead_nowhere() {
    let disk = "[device.disk]\nkind = \"null\"\n";
    assert_messages(
        &toml(&format!("{disk}[device.vol]\nkind = \"log\"\non = \"dsk\"\n")),
        &["5:6: key \"on\": no part has the name \"dsk\": did you mean \"disk\"? Parts: disk, vol"],
    );
    assert_messages(
        &toml(&format!("{disk}[device.vol]\nkind = \"mirror\"\ndevices = [\"disk\", \"other\"]\n")),
        &["5:20: key \"devices\": no part has the name \"other\". Parts: disk, vol"],
    );
}

#[test]
fn contracts() {
    let text = "[device.disk]\nkind = \"null\"\n[zones.z]\nkind = \"cut\"\non = \"disk\"\n\
                [device.vol]\nkind = \"log\"\non = \"z\"\n[device.m]\nkind = \"mirror\"\ndevices = [\"vol\"]\nzones = \"disk\"\n";
    assert_messages(
        &toml(text),
        &[
            "8:6: key \"on\": \"z\" is zones (kind \"cut\"), expected a device",
            "12:9: key \"zones\": \"disk\" is a device (kind \"null\"), expected zones",
        ],
    );
    assert_messages(
        &line("log(cut(null))"),
        &["1:5: key \"on\": \"cut1\" is zones (kind \"cut\"), expected a device"],
    );
    assert_messages(
        &line("log(nbd(null))"),
        &["1:5: key \"on\": no part has the name \"nbd1\". Parts: null1, top"],
    );
}

#[test]
fn cycles() {
    assert_messages(
        &toml("[device.a]\nkind = \"log\"\non = \"b\"\n[device.b]\nkind = \"log\"\non = \"a\"\n"),
        &["6:6: cycle: a -> b -> a: no part can be below itself"],
    );
    assert_messages(
        &toml("[device.a]\nkind = \"log\"\non = \"a\"\n"),
        &["3:6: cycle: a -> a: no part can be below itself"],
    );
}

#[test]
fn parts_with_too_many_users() {
    let disk = "[device.disk]\nkind = \"ram\"\nsize = \"2MiB\"\n";
    let log = |name: &str| format!("[device.{name}]\nkind = \"log\"\non = \"disk\"\n");
    assert_messages(
        &toml(&format!("{disk}{}{}", log("a"), log("b"))),
        &["9:6: \"disk\" is used by \"b\" and by \"a\", but a part of kind \"ram\" takes only one user"],
    );
    assert_messages(
        &toml(&format!("{disk}[device.m]\nkind = \"mirror\"\ndevices = [\"disk\", \"disk\"]\n")),
        &["6:20: \"disk\" is used twice by \"m\", but a part of kind \"ram\" takes only one user"],
    );
    assert_messages(
        &toml(&format!("{disk}{}[door.d]\nkind = \"nbd\"\ndevice = \"disk\"\nexports = [\"a\"]\n", log("a"))),
        &[
            "9:10: \"disk\" is used by door \"d\" and by \"a\", but a part of kind \"ram\" takes only one user",
        ],
    );
    let doors =
        "[door.d]\nkind = \"nbd\"\ndevice = \"disk\"\n[door.e]\nkind = \"nbd\"\nexports = [\"disk\"]\n";
    let shared_by_doors = Stack::from_toml("x", &format!("{disk}{doors}"), &registry());
    assert!(shared_by_doors.is_ok(), "doors may share a device: {shared_by_doors:?}");
    let null = "[device.disk]\nkind = \"null\"\n";
    let shareable = Stack::from_toml("x", &format!("{null}{}{}", log("a"), log("b")), &registry());
    assert!(shareable.is_ok(), "null is shareable: {shareable:?}");
}

#[test]
fn parts_that_nothing_uses() {
    let two = "[device.a]\nkind = \"null\"\n[device.b]\nkind = \"null\"\n";
    assert!(Stack::from_toml("x", two, &registry()).is_ok(), "without doors there may be several tops");
    assert_messages(
        &toml(&format!("{two}[door.d]\nkind = \"nbd\"\ndevice = \"a\"\n")),
        &["3:9: nothing uses \"b\": name it in a key of another part or of a door, or take it out"],
    );
    assert_messages(
        &toml(&format!("{two}[zones.z]\nkind = \"cut\"\non = \"a\"\n")),
        &["5:8: nothing uses \"z\": name it in a key of another part or of a door, or take it out"],
    );
    assert!(Stack::from_line("x", "cut(null)", &registry()).is_ok(), "zones alone may be a stack");
}

#[test]
fn sizes_that_do_not_fit() {
    let text = "[device.a]\nkind = \"ram\"\nsize = 5000\n[device.b]\nkind = \"log\"\non = \"a\"\n\
                [device.c]\nkind = \"ram\"\nsize = \"1MiB\"\n[device.d]\nkind = \"log\"\non = \"c\"\n\
                [device.e]\nkind = \"file\"\npath = \"e\"\nblock_size = \"3KiB\"\n";
    assert_messages(
        &toml(text),
        &[
            "3:1: ram \"a\": size 5000: expected a multiple of the block size, 512",
            "10:9: log \"d\": 1048576 bytes below: expected more than 1MiB",
            "16:1: file \"e\": block size 3072: expected a power of two from 512 to 1048576 bytes",
        ],
    );
    assert_messages(
        &line("mirror(ram(1MiB), ram(2MiB))"),
        &["1:8: mirror \"top\": the copies differ in size: expected the same"],
    );
    assert_messages(
        &line("log(ram(1MiB))"),
        &["1:1: log \"top\": 1048576 bytes below: expected more than 1MiB"],
    );
}

#[test]
fn the_grammar_of_one_line() {
    for (text, expected) in [
        ("", "1:1: found the end of the line, expected a kind such as file(disk.img), or a value"),
        ("log(file(disk.img)", "1:19: found the end of the line, expected \",\" or \")\""),
        ("log(null))", "1:10: found \")\", expected the end, or a setting of the stack such as shards=4"),
        ("log(null) shards", "1:17: found the end of the line, expected \"=\" and a value"),
        ("log(null,, map=radix)", "1:10: found \",\", expected a kind such as file(disk.img), or a value"),
        ("log(null map=radix)", "1:10: found \"m\", expected \",\" or \")\""),
        ("log(\"on\"=null)", "1:9: found \"=\", expected \",\" or \")\": only a word can be a key"),
        ("file(\"disk.img)", "1:6: this text has no end: expected another \""),
        ("file(\"a\\q\")", "1:8: unknown escape, expected one of \\\" \\\\ \\n \\r \\t \\u{HEX}"),
        ("mirror([null, null)", "1:19: found \")\", expected \",\" or \"]\""),
        ("\"null\"", "1:1: expected a kind such as file(disk.img), not a text or a list"),
        (
            "log(null, radix)",
            "1:11: a value too many for kind \"log\". It takes only on without a key, and KEY=VALUE with on, map, fail",
        ),
        ("log(null, on=null)", "1:11: key \"on\" of kind \"log\" is given twice"),
    ] {
        assert_messages(&line(text), &[expected]);
    }
    let problems = line("log(\n  null,\n  mpa=radix)");
    assert!(problems.to_string().ends_with(" 3 |   mpa=radix)\n   |   ^^^"), "{problems}");
}

#[test]
fn what_is_nested_too_deeply() {
    let nested = |depth: usize| format!("{}null{}", "log(".repeat(depth), ")".repeat(depth));
    assert!(Stack::from_line("x", &nested(63), &registry()).is_ok());
    assert_messages(
        &line(&nested(64)),
        &["1:1: \"top\" is on level 65 of the stack; expected at most 64 levels"],
    );
    assert_messages(&line(&nested(100_000)), &["1:517: nested too deeply: expected at most 129 levels"]);
    assert_messages(&line(&"[".repeat(100_000)), &["1:130: nested too deeply: expected at most 129 levels"]);
    let section = |number: usize| format!("[device.d{number}]\nkind = \"log\"\non = \"d{}\"\n", number + 1);
    let chain = (0..64).map(section).collect::<String>() + "[device.d64]\nkind = \"null\"\n";
    assert_messages(&toml(&chain), &["1:9: \"d0\" is on level 65 of the stack; expected at most 64 levels"]);
}

#[test]
fn what_is_too_much() {
    let many = (0..1025).map(|number| format!("[device.d{number}]\nkind = \"null\"\n")).collect::<String>();
    assert_messages(&toml(&many), &["2049:9: 1025 parts: expected at most 1024"]);
    let wrong = (0..200).map(|number| format!("wrong{number} = 1\n")).collect::<String>();
    let problems = toml(&format!("[device.a]\nkind = \"null\"\n{wrong}"));
    assert_eq!(problems.count(), 200);
    assert!(problems.to_string().ends_with("\n\n... and 150 more"), "{problems}");
    let long = " ".repeat((1 << 20) + 1);
    assert_eq!(
        toml(&long).to_string(),
        "examples/quick.toml: stack of 1048577 bytes: expected at most 1048576; a file that holds data is a device of a stack, such as \
         'file(examples/quick.toml)'"
    );
}

#[test]
fn files_that_are_not_there() {
    let problems = Stack::load("no/such/stack.toml", &registry()).unwrap_err().to_string();
    assert!(problems.starts_with("no/such/stack.toml: can't read this stack file: "), "{problems}");
}

#[test]
fn stacks_that_are_no_tree_stay_toml() {
    let shared = "[device.n]\nkind = \"null\"\n[device.m]\nkind = \"mirror\"\ndevices = [\"n\", \"n\"]\n";
    let refusal = |text: &str| {
        let stack = Stack::from_toml("s.toml", text, &registry()).unwrap();
        stack.to_line().unwrap_err().to_string()
    };
    assert_eq!(
        refusal(shared),
        "s.toml:1:9: \"n\" is used 2 times: one line holds only a tree, so keep this stack in TOML\n \
         1 | [device.n]\n   |         ^"
    );
    let tops = "[device.a]\nkind = \"null\"\n[device.b]\nkind = \"null\"\n";
    assert!(
        refusal(tops).starts_with("s.toml:3:9: no part is above \"a\" or \"b\": one line holds only a tree")
    );
    let doors =
        "[device.a]\nkind = \"null\"\n[door.x]\nkind = \"nbd\"\ndevice = \"a\"\n[door.y]\nkind = \"nbd\"\n";
    assert!(refusal(doors).contains("no part is above door \"x\" or door \"y\""));
}

#[test]
fn problems_as_json() {
    let problems = line("nul");
    assert_eq!(
        problems.iter().next().unwrap().to_json(),
        serde_json::json!({
            "source": "stack",
            "line": 1,
            "column": 1,
            "message": "unknown kind \"nul\": did you mean \"null\"? Kinds: file, ram, null, log, mirror, writecache, \
                        cut, liar, nbd",
            "nearest": "null",
        })
    );
}
