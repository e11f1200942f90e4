//! Building from the bottom up, closing from the top down, and failures in between.

use crate::fixtures::{events, registry, run};
use block::{BlockIndex, Buffer, Call, Durability, Error, Payload};
use stack::{Built, BuiltStack, Contract, Key, Kind, Stack, User, ValueKind};
use std::cell::RefCell;

const SERVED: &str = "
[stack]
shards = 2

[door.vol]
kind   = \"nbd\"
device = \"vol\"

[device.vol]
kind = \"log\"
on   = \"both\"

[device.both]
kind    = \"mirror\"
devices = [\"a\", \"b\"]
zones   = \"z\"

[zones.z]
kind = \"cut\"
on   = \"c\"

[device.a]
kind = \"ram\"
size = \"2MiB\"

[device.b]
kind = \"ram\"
size = \"2MiB\"

[device.c]
kind = \"ram\"
size = \"1MiB\"
";

fn build(text: &str) -> block::Result<BuiltStack> {
    let stack = match text.contains('\n') {
        true => Stack::from_toml("stack.toml", text, &registry()),
        false => Stack::from_line("stack", text, &registry()),
    };
    let plan = stack.unwrap().check(true).unwrap();
    run(plan.build())
}

#[test]
fn the_kinds_of_these_tests_are_declared_well() {
    registry().verify().unwrap();
}

#[test]
fn builds_from_the_bottom_up_and_closes_from_the_top_down() {
    let built = build(SERVED).unwrap();
    let order = ["build a", "build b", "build c", "build z", "build both", "build vol", "build door vol"];
    assert_eq!(events(), order);
    run(built.start()).unwrap();
    assert_eq!(events(), ["start door vol"]);
    run(built.close()).unwrap();
    let order = [
        "stop door vol",
        "close door vol",
        "close vol",
        "close both",
        "close z",
        "close c",
        "close b",
        "close a",
    ];
    assert_eq!(events(), order);
}

#[test]
fn parts_can_be_observed_for_all_users_and_for_doors() {
    let plan = Stack::from_toml("stack.toml", SERVED, &registry()).unwrap().check(true).unwrap();
    let seen = RefCell::new(Vec::new());
    let observe = |user: User<'_>, part: Built| {
        let kind = part.part().kind();
        seen.borrow_mut().push(match user {
            User::All(user) if user.is_leaf() => format!("leaf {kind} {}", user.name()),
            User::All(user) => format!("{kind} {}", user.name()),
            User::Door { door, part } => format!("{} for door {}", part.name(), door.name()),
        });
        part
    };
    let built = run(plan.build_observed(&observe)).unwrap();
    let expected =
        ["leaf ram a", "leaf ram b", "leaf ram c", "cut z", "mirror both", "log vol", "vol for door vol"];
    assert_eq!(seen.into_inner(), expected);
    run(built.close()).unwrap();
    events();
}

#[test]
fn parts_are_found_by_name() {
    fn shared_by_all_shards<T: Send + Sync>(_: &T) {}
    let built = build(SERVED).unwrap();
    shared_by_all_shards(&built);
    assert_eq!(block::Part::kind(&*built.top().unwrap()), "log");
    assert_eq!(block::Part::kind(&*built.device("both").unwrap()), "mirror");
    assert_eq!(block::Part::kind(&*built.zones("z").unwrap()), "cut");
    let missing = built.device("z").err().unwrap();
    assert_eq!(missing.to_string(), "device \"z\": expected one of a, b, c, both, vol (not found)");
    let missing = built.zones("a").err().unwrap();
    assert_eq!(missing.to_string(), "zones \"a\": expected one of z (not found)");
    let doors = built.doors().map(|(name, door)| (name, door.addresses())).collect::<Vec<_>>();
    assert_eq!(doors, [("vol", vec!["vol.sock".to_owned()])]);
    let status = run(built.status());
    assert_eq!(status["devices"]["a"], serde_json::json!({"kind": "ram", "bytes": 2 << 20}));
    assert_eq!(status["zones"]["z"]["kind"], "cut");
    assert_eq!(status["doors"]["vol"]["kind"], "nbd");
}

#[test]
fn operators_find_parts_by_name_or_kind() {
    let built = build(SERVED).unwrap();
    let found = |word: &str| {
        let part = built.part(word).map_err(|error| error.to_string())?;
        Ok::<_, String>((part.name.as_str(), part.kind))
    };
    assert_eq!(found("vol"), Ok(("vol", "log")), "the door has this name, too");
    assert_eq!(found("log"), Ok(("vol", "log")));
    assert_eq!(found("nbd"), Ok(("vol", "nbd")));
    assert_eq!(
        found("ram").unwrap_err(),
        "3 parts are of kind \"ram\": expected the name of one of them: \"c\" (ram), \"b\" (ram), \"a\" (ram) \
         (invalid argument)"
    );
    let missing = found("bott").unwrap_err();
    assert!(
        missing
            .starts_with("there is no part \"bott\": did you mean \"both\"? expected one of \"vol\" (nbd), ")
    );
    assert_eq!(built.part_of_kind("cut").unwrap().name, "z");
    let missing = built.part_of_kind("fs").unwrap_err().to_string();
    assert!(
        missing.starts_with("this stack has no part of kind \"fs\": its parts are \"vol\" (nbd), "),
        "{missing}"
    );
    // A name has precedence over a kind.
    let named =
        build("[device.null]\nkind = \"ram\"\nsize = \"1MiB\"\n[device.b]\nkind = \"null\"\n").unwrap();
    assert_eq!(named.part("null").unwrap().kind, "ram");
    assert_eq!(named.part_of_kind("null").unwrap().name, "b");
}

#[test]
fn what_lies_below_a_part_is_built_alone() {
    let plan = Stack::from_toml("stack.toml", SERVED, &registry()).unwrap().check(false).unwrap();
    let below = |name: &str| {
        let built = run(plan.build_below(name)).unwrap();
        let names = built.parts().map(|part| part.name.clone()).collect::<Vec<_>>().join(" ");
        run(built.close()).unwrap();
        (names, built)
    };
    let (names, built) = below("both");
    assert_eq!(names, "a b c z");
    assert!(built.top().err().unwrap().detail().contains("2 devices on top (a, b)"));
    assert_eq!(block::Part::kind(&*built.zones("z").unwrap()), "cut");
    assert_eq!(below("z").0, "c");
    assert_eq!(block::Part::kind(&*below("vol").1.top().unwrap()), "mirror", "not the door of this name");
    assert_eq!(below("a").0, "");
    let missing = run(plan.build_below("none")).err().unwrap();
    assert_eq!(missing.detail(), "part \"none\": expected one of vol, both, z, a, b, c");
}

#[test]
fn what_is_written_at_the_top_is_read_below() {
    let built = build("log(log(ram(3MiB)))").unwrap();
    let top = built.top().unwrap();
    let handle = run(top.open()).unwrap();
    let payload = Payload::from(Buffer::copy_of(&[7; 512]).freeze());
    run(handle.write(BlockIndex(3), payload, Durability::Visible)).unwrap();
    let below = run(built.device("ram1").unwrap().open()).unwrap();
    let (outcome, buffer) = run(below.read(BlockIndex(3), Buffer::new(512)));
    outcome.unwrap();
    assert_eq!(buffer.filled(), [7; 512]);
}

#[test]
fn a_stack_may_have_several_tops_or_none() {
    let two = build("[device.a]\nkind = \"null\"\n[device.b]\nkind = \"null\"\n").unwrap();
    let error = two.top().err().unwrap();
    assert_eq!(error.detail(), "this stack has 2 devices on top (a, b): name one of them");
    let none = build("cut(null)").unwrap();
    assert!(none.top().err().unwrap().detail().starts_with("this stack has no device on top, only zones"));
    // Doors don't hide the top, also several that share it.
    let doors = "[door.x]\nkind = \"nbd\"\ndevice = \"a\"\n[door.y]\nkind = \"nbd\"\ndevice = \"a\"\n";
    let served = build(&format!("[device.a]\nkind = \"null\"\n{doors}")).unwrap();
    assert_eq!(block::Part::kind(&*served.top().unwrap()), "null");
}

#[test]
fn a_failed_build_closes_what_was_built() {
    let error = build("mirror(ram(1MiB), log(ram(2MiB), fail=build), ram(1MiB))").err().unwrap();
    assert_eq!(error, block::Error::io("log \"log1\": it was told to fail"));
    assert_eq!(events(), ["build ram1", "build ram2", "build log1", "close ram2", "close ram1"]);
}

/// Works without devices that can't be built, and records them.
static TEAM: Kind = Kind {
    name: "team",
    contract: Contract::Device,
    summary: "a device on those that are there",
    keys: &[Key::required("devices", ValueKind::Devices, "who plays").may_be_missing()],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "team(devices=[null])",
    plan: |arguments| Ok(arguments.shapes("devices")?[0].clone()),
    build: |arguments| {
        Call::new(async move {
            let (there, missing): (Vec<_>, Vec<_>) =
                arguments.devices_or_errors("devices")?.into_iter().partition(|device| device.is_ok());
            let missing: Vec<_> = missing.into_iter().filter_map(|device| device.err()).collect();
            MISSING.set(missing);
            there.into_iter().next().unwrap_or_else(|| Err(Error::io("nobody is there"))).map(Built::Device)
        })
    },
};

thread_local! {
    static MISSING: RefCell<Vec<Error>> = const { RefCell::new(Vec::new()) };
}

fn build_team(line: &str, format: bool) -> block::Result<BuiltStack> {
    let mut registry = registry();
    registry.kinds.push(&TEAM);
    registry.verify().unwrap();
    run(Stack::from_line("stack", line, &registry).unwrap().check(format).unwrap().build())
}

#[test]
fn a_kind_that_says_so_does_without_parts_that_cant_be_built() {
    let failing = "log(ram(4MiB), fail=build)";
    let team = format!("log(team(devices=[ram(2MiB), log({failing}), ram(2MiB)]))");
    let built = build_team(&team, false).unwrap();
    let error = Error::io("log \"log2\": it was told to fail");
    // A part above it, through a key whose parts may not be missing, is also missing.
    assert_eq!(MISSING.take(), [error.in_context("log \"log1\"")]);
    let order = ["build ram1", "build ram2", "build log2", "build ram3", "build top"];
    assert_eq!(events(), order);
    let missing: Vec<_> = built.missing().map(|(name, _)| name).collect();
    assert_eq!(missing, ["log2", "log1"]);
    assert_eq!(run(built.status())["devices"]["log2"]["missing"], error.to_string());
    let named = built.part("log1").err().unwrap();
    assert!(named.detail().starts_with("part \"log1\" is missing: log \"log1\": "), "{named}");
    run(built.close()).unwrap();
    assert_eq!(events(), ["close top", "close ram1", "close ram3", "close ram2", "close ram1"]);

    // All devices are missing.
    let nobody = build_team(&format!("team(devices=[{failing}])"), false).err().unwrap();
    assert_eq!(nobody.detail(), "team \"top\": nobody is there");
    // For formatting, all devices have to exist.
    let refused = build_team(&team, true).err().unwrap();
    assert_eq!(refused.detail(), "log \"log2\": it was told to fail");
    // Other kinds need all their parts.
    let refused = build_team(&format!("log(mirror({failing}, log(ram(4MiB))))"), false).err().unwrap();
    assert_eq!(refused.detail(), "log \"log1\": it was told to fail");
}

#[test]
fn every_part_is_closed_even_when_some_fail() {
    let built = build("nbd(log(log(ram(4MiB, fail=close)), fail=close), fail=stop)").unwrap();
    events();
    let error = run(built.close()).unwrap_err();
    assert_eq!(error, block::Error::busy("stopping \"top\": it was told to fail"));
    assert_eq!(events(), ["stop door top", "close door top", "close top", "close log1", "close ram1"]);
    let built = build("log(ram(4MiB, fail=close), fail=close)").unwrap();
    assert_eq!(run(built.close()).unwrap_err(), block::Error::io("closing log \"top\": it was told to fail"));
}

#[test]
fn doors_that_were_started_are_stopped_when_one_can_not() {
    let door = |name: &str, fail: &str| {
        format!("[door.{name}]\nkind = \"nbd\"\ndevice = \"a\"\nfail = \"{fail}\"\n")
    };
    let doors = door("x", "never") + &door("y", "start") + &door("z", "never");
    let built = build(&format!("[device.a]\nkind = \"null\"\n{doors}")).unwrap();
    events();
    assert_eq!(run(built.start()).unwrap_err(), block::Error::busy("door \"y\": it was told to fail"));
    assert_eq!(events(), ["start door x", "start door y", "stop door x"]);
}

#[test]
fn a_kind_that_builds_something_else_is_found_out() {
    let error = build("liar").err().unwrap();
    assert_eq!(error.detail(), "liar \"top\": it was built as a device, but its kind declares zones");
    assert_eq!(events(), ["build top", "close top"]);
}

#[test]
fn a_plan_knows_sizes() {
    let stack = Stack::from_toml("stack.toml", SERVED, &registry()).unwrap();
    let plan = stack.check(false).unwrap();
    assert_eq!(plan.shape("vol"), Some(stack::Shape::new(1 << 20, 512)));
    assert_eq!(plan.shape("nothing"), None);
    assert_eq!(plan.stack(), &stack);
}
