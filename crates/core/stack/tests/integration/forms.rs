//! Both forms are equivalent.

use crate::fixtures::registry;
use proptest::prelude::*;
use stack::{Contract, Part, Stack, Value, quote};

fn from_toml(text: &str) -> Stack {
    Stack::from_toml("stack.toml", text, &registry())
        .unwrap_or_else(|problems| panic!("{problems}\n\n{text}"))
}

fn from_line(text: &str) -> Stack {
    Stack::from_line("stack", text, &registry()).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn toml_to_line() {
    let stack = from_toml(
        "[device.disk]   # any name\nkind = \"file\"\npath = \"disk.img\"\nsize = \"4096MiB\"\n\n\
         [device.vol]\nkind = \"log\"\non   = \"disk\"\nmap  = \"radix\"\n\n\
         [door.vol]\nkind   = \"nbd\"\ndevice = \"vol\"\nsocket = \"vol.sock\"\n\n[stack]\nshards = 4\n",
    );
    let line = "nbd(log(file(disk.img, 4GiB), map=radix), socket=vol.sock) shards=4";
    assert_eq!(stack.to_line().unwrap(), line);
    assert_eq!(stack.shards(), 4);
    assert_eq!(stack.part("disk").unwrap().value("size"), Some(&Value::Size(4 << 30)));
    assert_eq!(stack.door("vol").unwrap().kind().name, "nbd");
    assert!(stack.part("vol").is_some_and(|part| part.kind().contract == Contract::Device));
    assert_eq!(from_line(line).to_line().unwrap(), line);
}

#[test]
fn line_to_toml() {
    let expected = "[device.file1]\nkind = \"file\"\npath = \"disk.img\"\nsize = \"4GiB\"\n\n\
                    [device.top]\nkind = \"log\"\non = \"file1\"\nmap = \"radix\"\n";
    assert_eq!(from_line("log(file(disk.img, size=4GiB), map=radix)").to_toml(), expected);
    let expected = "[stack]\nshards = 2\n\n[device.ram1]\nkind = \"ram\"\nsize = \"1GiB\"\n\n\
                    [device.file1]\nkind = \"file\"\npath = \"slow disk.img\"\n\n\
                    [device.top]\nkind = \"writecache\"\nfast = \"ram1\"\norigin = \"file1\"\n";
    let line = "writecache(fast=ram(size=1GiB), origin=file(\"slow disk.img\")) shards=2";
    assert_eq!(from_line(line).to_toml(), expected);
    let expected = "[device.top]\nkind = \"null\"\n\n[door.top]\nkind = \"nbd\"\ndevice = \"top\"\nsocket = \"\\u0001\\\"\"\n";
    assert_eq!(from_line("nbd(null(), socket=\"\\u{1}\\\"\")").to_toml(), expected);
}

#[test]
fn values_without_a_key() {
    let lines = [
        ("mirror(null, null, null)", "mirror(null, null, null)"),
        ("mirror([null, null,],)", "mirror(null, null)"),
        ("mirror(devices=[null, null], zones=cut(null))", "mirror(null, null, zones=cut(null))"),
        ("mirror( null , zones=cut(null), null )", "mirror(null, null, zones=cut(null))"),
        ("nbd(exports=[null, null])", "nbd(exports=[null, null])"),
        ("file(1MiB, path=x)", ""),
        ("file(size=1MiB, x)", "file(x, 1MiB)"),
        ("file(x, tags=[a, \"b c\", \"\"])", "file(x, tags=[a, \"b c\", \"\"])"),
        ("file(ünïcode.img, note=\"a\\u{e4}\\t\\\\\")", "file(ünïcode.img, note=\"aä\\t\\\\\")"),
        ("file(x, levels=\"90, 80%,9 %, 90%\")", "file(x, levels=\"9%, 80%, 90%\")"),
        ("file(x, levels=[100%, 1])", "file(x, levels=\"1%, 100%\")"),
        ("file(x, levels=7)", "file(x, levels=7%)"),
        ("file(x, levels=[])", "file(x, levels=never)"),
        ("file(x, levels=0)", ""),
        ("file(x, levels=\"\")", ""),
        ("file(x, levels=\"80%,\")", ""),
        ("file(x, levels=80%%)", ""),
        ("file(x, levels=256)", ""),
        ("file(x, seed=18446744073709551615, rate=-0)", "file(x, seed=18446744073709551615, rate=0.0)"),
        ("file(x, latency=1000us, direct=false, note=true)", "file(x, direct=false, latency=1ms, note=true)"),
    ];
    for (line, expected) in lines {
        match Stack::from_line("stack", line, &registry()) {
            Ok(stack) => assert_eq!(stack.to_line().unwrap(), expected, "{line}"),
            Err(problems) => assert_eq!(expected, "", "{problems}"),
        }
    }
}

#[test]
fn made_up_names_are_never_the_same() {
    let stack = from_line("nbd(mirror(log(ram(2MiB)), log(ram(2MiB))), exports=[null])");
    let names = stack.parts().map(Part::name).collect::<Vec<_>>();
    assert_eq!(names, ["ram1", "log1", "ram2", "log2", "top", "null1", "top"]);
}

#[test]
fn stacks_load_from_files_and_lines() {
    let folder = std::env::temp_dir().join(format!("siltstone-stack-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("one.toml");
    std::fs::write(&file, "[device.a]\nkind = \"null\"\n").unwrap();
    let loaded = Stack::load(file.to_str().unwrap(), &registry());
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(loaded.unwrap(), from_toml("[device.a]\nkind = \"null\"\n"));
    assert_eq!(Stack::load("log(null)", &registry()).unwrap(), from_line("log(null)"));
}

/// A part of a random stack: its kind, its keys in TOML, and the keys that name other parts.
#[derive(Debug, Clone)]
struct Tree {
    kind: &'static str,
    name: String,
    keys: Vec<(&'static str, toml::Value)>,
    below: Vec<(&'static str, bool, Vec<Tree>)>,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z./_-]{1,12}", "[ -~]{0,12}", ".{0,6}", "[\n\t\\\\\"äß€\u{1}(,)=#']{1,6}"]
}

fn keys(
    entries: Vec<(&'static str, BoxedStrategy<toml::Value>)>,
) -> impl Strategy<Value = Vec<(&'static str, toml::Value)>> {
    let entry = |(key, value)| prop::option::of(value).prop_map(move |value| value.map(|value| (key, value)));
    entries.into_iter().map(entry).collect::<Vec<_>>().prop_map(|given| given.into_iter().flatten().collect())
}

fn leaf() -> impl Strategy<Value = Tree> {
    let path = text()
        .prop_filter("a path has characters, and no zero", |path| !path.is_empty() && !path.contains('\0'));
    let texts = prop::collection::vec(text(), 0..3).prop_map(toml::Value::from);
    let size = prop_oneof![
        (0..i64::MAX).prop_map(toml::Value::from),
        (0_u64..1 << 20, prop::sample::select(vec!["", "k", "KiB", "mib", "G", "TiB"]))
            .prop_map(|(number, unit)| toml::Value::from(format!("{number}{unit}"))),
    ];
    let duration = (0_u32..100_000, prop::sample::select(vec!["ns", "us", "ms", "s", "m"]))
        .prop_map(|(number, unit)| toml::Value::from(format!("{number}{unit}")));
    let optional = keys(vec![
        ("size", size.boxed()),
        ("direct", any::<bool>().prop_map(toml::Value::from).boxed()),
        ("latency", duration.boxed()),
        ("depth", (1_i64..=256).prop_map(toml::Value::from).boxed()),
        ("rate", (0.0..1e9).prop_map(toml::Value::from).boxed()),
        ("note", text().prop_map(toml::Value::from).boxed()),
        ("tags", texts.boxed()),
        ("mode", prop::sample::select(vec!["fast", "safe"]).prop_map(toml::Value::from).boxed()),
        ("levels", prop::collection::vec(1_i64..=100, 0..4).prop_map(toml::Value::from).boxed()),
    ]);
    let file = (path, optional).prop_map(|(path, mut keys)| {
        keys.push(("path", path.into()));
        ("file", keys)
    });
    let null = Just(("null", Vec::new()));
    (prop_oneof![4 => file, 1 => null], text()).prop_map(|((kind, keys), name)| Tree {
        kind,
        name,
        keys,
        below: Vec::new(),
    })
}

fn tree() -> impl Strategy<Value = Tree> {
    leaf().prop_recursive(6, 40, 4, |inner| {
        let log = (inner.clone(), prop::option::of(prop::sample::select(vec!["btree", "hash"]))).prop_map(
            |(on, map)| {
                let keys = map.map(|map| ("map", map.into())).into_iter().collect();
                ("log", keys, vec![("on", false, vec![on])])
            },
        );
        let cut = |on: Tree| {
            let name = format!("cut {}", on.name);
            Tree { kind: "cut", name, keys: Vec::new(), below: vec![("on", false, vec![on])] }
        };
        let mirror = (prop::collection::vec(inner.clone(), 1..4), prop::option::of(inner.clone())).prop_map(
            move |(devices, zones)| {
                let zones = zones.map(|on| ("zones", false, vec![cut(on)]));
                ("mirror", Vec::new(), Vec::from_iter([("devices", true, devices)].into_iter().chain(zones)))
            },
        );
        let writecache = (inner.clone(), inner).prop_map(|(a, b)| {
            ("writecache", Vec::new(), vec![("fast", false, vec![a]), ("origin", false, vec![b])])
        });
        (prop_oneof![log, mirror, writecache], text()).prop_map(|((kind, keys, below), name)| Tree {
            kind,
            name,
            keys,
            below,
        })
    })
}

/// Writes the tree into a document and returns the name of its part.
fn put(tree: &Tree, document: &mut toml::Table, count: &mut usize) -> String {
    let printable = tree.name.chars().filter(|letter| !letter.is_control()).collect::<String>();
    let name = format!("{printable}{count}");
    *count += 1;
    let mut section = toml::Table::new();
    section.insert("kind".to_owned(), tree.kind.into());
    section.extend(tree.keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    for (key, is_list, below) in &tree.below {
        let names =
            below.iter().map(|tree| toml::Value::from(put(tree, document, count))).collect::<Vec<_>>();
        let value = if *is_list { names.into() } else { names[0].clone() };
        section.insert((*key).to_owned(), value);
    }
    let contract = if tree.kind == "cut" { "zones" } else { "device" };
    let sections = document.entry(contract).or_insert_with(|| toml::Table::new().into());
    sections.as_table_mut().unwrap().insert(name.clone(), section.into());
    name
}

/// Text of a part and all parts below it, with everything except their names.
fn structure(stack: &Stack, part: &Part) -> String {
    let child = |name: &String| structure(stack, stack.part(name).unwrap());
    let value = |(key, value): (&str, &Value)| match value {
        Value::Part(_) | Value::Parts(_) => {
            format!("{key}: {:?}", value.children().iter().map(child).collect::<Vec<_>>())
        }
        value => format!("{key}: {value:?}"),
    };
    format!("{} {:?}", part.kind().name, part.values().map(value).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_goes_to_a_line_and_back(tree in tree(), shards in 1_i64..=256, served in any::<bool>()) {
        let mut document = toml::Table::new();
        let top = put(&tree, &mut document, &mut 0);
        if served {
            let door = toml::toml! { kind = "nbd" };
            let mut door = door;
            door.insert("device".to_owned(), top.clone().into());
            let doors = toml::Table::from_iter([("out there".to_owned(), door.into())]);
            document.insert("door".to_owned(), doors.into());
        }
        document.insert("stack".to_owned(), toml::Table::from_iter([("shards".to_owned(), shards.into())]).into());
        let written = from_toml(&document.to_string());
        // TOML to TOML keeps names and everything else.
        prop_assert_eq!(&from_toml(&written.to_toml()), &written);
        // TOML to line to TOML keeps everything except names.
        let line = written.to_line().unwrap();
        let read = from_line(&line);
        prop_assert_eq!(read.to_line().unwrap(), line.clone());
        prop_assert_eq!(&from_toml(&read.to_toml()), &read);
        prop_assert_eq!(read.shards(), written.shards());
        prop_assert_eq!(read.parts().count(), written.parts().count());
        let tops = (read.part("top").unwrap(), written.part(&top).unwrap());
        prop_assert_eq!(structure(&read, tops.0), structure(&written, tops.1));
        prop_assert_eq!(read.door("top").is_some(), served);
    }

    #[test]
    fn any_text_can_be_quoted(text in text()) {
        let stack = from_line(&format!("file(x, note={})", quote(&text)));
        prop_assert_eq!(stack.part("top").unwrap().value("note"), Some(&Value::Text(text)));
    }
}
