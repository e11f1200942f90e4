//! Operators' requests to stacks, served and unserved, and invalid input to a control socket.

use crate::common::{Ran, command, signal, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// User with a working directory and a folder for sockets.
struct User {
    folder: tempfile::TempDir,
}

impl User {
    fn new() -> User {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        User { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(self.folder.path(), arguments);
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        ran(self.command(arguments))
    }

    /// Returns the output of a verb with `--json`.
    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Starts a server and waits until it is ready.
    fn serve(&self, arguments: &[&str]) -> Server {
        ready(self.command(&[&["serve"], arguments, &["--json"]].concat()))
    }

    /// Returns the sockets in the default folder.
    fn sockets(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path("run/siltstone")) else { return Vec::new() };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn ready(mut command: Command) -> Server {
    let mut child = command.spawn().unwrap();
    let said = wait_for(child.stdout.take().unwrap(), "addresses");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let control = said["control"].as_str().map(PathBuf::from);
    Server { child, control }
}

/// Server, killed when dropped by a failed test.
struct Server {
    child: Child,
    control: Option<PathBuf>,
}

impl Server {
    fn control(&self) -> &Path {
        self.control.as_deref().unwrap()
    }

    fn connect(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(self.control()).unwrap())
    }

    /// Requests the server to stop, and checks that it closes cleanly.
    fn stop(mut self) {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(self.control.as_ref().is_none_or(|path| !path.exists()), "the socket went with the server");
    }

    fn kill(mut self) -> PathBuf {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.control.clone().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const STATUS: &str = "{\"verb\":\"status\"}\n";

fn ask(client: &mut BufReader<UnixStream>, text: &str) -> serde_json::Value {
    client.get_mut().write_all(text.as_bytes()).unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

/// Stack that locks its file: other programs can't open it.
const STACK: &str = r#"
[device.disk]
kind = "file"
path = "disk.img"
size = "1MiB"
[device.faulty]
kind = "fault"
on = "disk"
rules = ["write error=EIO"]
[device.vol]
kind = "stats"
on = "faulty"
[door.vol]
kind = "nbd"
device = "vol"
socket = "vol.sock"
"#;

#[test]
fn status_of_a_stack_that_is_served_and_of_one_that_is_not() {
    let user = User::new();
    user.write("s.toml", STACK);
    let server = user.serve(&["s.toml", "--nbd", "unix:more.sock"]);
    let shown = user.run(&["status", "s.toml"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert_eq!(
        shown.stderr.trim(),
        format!("live: answered by its server, through {}", server.control().display())
    );
    let more = format!("unix:{}", user.path("more.sock").display());
    for part in [
        format!("server\n  process     {}\n", server.child.id()),
        format!("door \"{more}\", nbd\n"),
        "door \"vol\", nbd\n".into(),
        "device \"vol\", stats\n".into(),
        "device \"disk\", file\n".into(),
        "  write_fua              0    0 B       0          0\n".into(),
    ] {
        assert!(shown.stdout.contains(&part), "{part}: {}", shown.stdout);
    }
    let status = user.json(&["status", &user.path("run/../s.toml").display().to_string()]);
    assert_eq!((&status["live"], &status["server"]["process"]), (&true.into(), &server.child.id().into()));
    assert_eq!(status["server"]["addresses"].as_array().unwrap().len(), 2);
    assert_eq!(status["doors"][&more]["connections"], 0);
    // The server answers, although the file is wrong by now.
    user.write("s.toml", "nonsense");
    assert_eq!(user.run(&["status", "s.toml"]).code, Some(0));
    user.write("s.toml", STACK);
    server.stop();

    let shown = user.run(&["status", "s.toml"]);
    assert_eq!(
        (shown.code, shown.stderr.trim()),
        (Some(0), "not served: opened for this request, and closed again")
    );
    assert!(
        shown.stdout.starts_with("door \"vol\", nbd\n") && shown.stdout.contains("device \"disk\", file\n")
    );
    let status = user.json(&["status", "s.toml"]);
    assert_eq!((&status["live"], status.get("server")), (&false.into(), None));
    assert_eq!(status["doors"]["vol"]["connections"], 0, "the door has no clients");
    assert!(!user.path("vol.sock").exists());
}

#[test]
fn messages_reach_parts() {
    let user = User::new();
    let line = "stats(fault(file(disk.img, size=1MiB), \"write error=EIO\"))";
    let server = user.serve(&[line, "--nbd", "unix:vol.sock"]);
    let told = user.run(&["message", line, "fault", "rules", "off"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "rules off\n"), "{told:?}");
    assert!(told.stderr.starts_with("live: "), "{told:?}");
    assert_eq!(user.run(&["message", line, "top", "clear_stats"]).stdout, "cleared\n");
    assert_eq!(user.json(&["message", line, "fault", "rules on"])["answer"], "rules on");

    for (arguments, code, expected) in [
        (
            &["fautl", "rules off"][..],
            2,
            "there is no part \"fautl\": did you mean \"fault\"? expected one of \"top\" (stats),",
        ),
        (
            &["fault", "rules of"],
            1,
            "message \"rules of\": unknown to fault; expected one of \"rules on\", \"rules off\" (not supported)",
        ),
        (&["file", "hello"], 1, "message \"hello\": unknown to file; expected one of \"resize SIZE\""),
        (&["fault"], 2, "required arguments were not provided"),
        (&["fault", "--rules", "off"], 2, "unexpected argument '--rules'"),
    ] {
        for served in [true, false] {
            let line = if served { line } else { "stats(fault(ram(1MiB), \"write error=EIO\"))" };
            let line =
                if arguments[0] == "file" && !served { "stats(file(other.img, size=1MiB))" } else { line };
            let told = user.run(&[&["message", line], arguments].concat());
            assert_eq!((told.code, told.stdout.as_str()), (Some(code), ""), "{told:?}");
            assert!(told.stderr.contains(expected), "{expected}: {}", told.stderr);
        }
    }
    server.stop();
    let told = user.run(&["message", line, "fault", "rules", "off"]);
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "rules off\n"), "{told:?}");
    assert!(told.stderr.starts_with("not served: "), "{told:?}");
}

/// A missing or foreign file makes a leg unavailable.
#[test]
fn a_mirror_is_served_without_a_leg_that_cant_be_opened() {
    let user = User::new();
    let stack = |more: &str| {
        format!(
            "[stack]\nshards = 2\n[door.nbd]\nkind = \"nbd\"\ndevice = \"vol\"\nsocket = \"vol.sock\"\n\
             [device.vol]\nkind = \"mirror\"\non = [\"fast\", \"slow\"]\n{more}\n\
             [device.fast]\nkind = \"file\"\npath = \"fast.img\"\n\
             [device.slow]\nkind = \"writecache\"\non = \"far\"\ncache = \"log\"\n\
             [device.far]\nkind = \"file\"\npath = \"far.img\"\n\
             [device.log]\nkind = \"file\"\npath = \"log.img\"\n"
        )
    };
    let set = |more: &str| user.write("mirror.toml", &stack(more));
    for name in ["fast.img", "far.img", "log.img"] {
        std::fs::File::create(user.path(name)).unwrap().set_len(16 << 20).unwrap();
    }
    set("");
    let made = user.run(&["format", "mirror.toml"]);
    assert_eq!(made.code, Some(0), "{made:?}");

    std::fs::rename(user.path("log.img"), user.path("elsewhere.img")).unwrap();
    let refused = user.run(&["serve", "mirror.toml"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in ["mirror \"vol\"", "writecache \"slow\": file \"log\"", "no such file", "degraded = true"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }

    set("degraded = true");
    let server = user.serve(&["mirror.toml"]);
    let status = user.json(&["status", "mirror.toml"]);
    assert_eq!(status["devices"]["vol"]["state"], "degraded", "{status}");
    assert_eq!(status["devices"]["vol"]["legs"][1]["state"], "missing", "{status}");
    let missing = status["devices"]["slow"]["missing"].as_str().unwrap();
    assert!(missing.contains("log.img"), "{missing}");
    assert_eq!(user.run(&["status", "mirror.toml"]).code, Some(0), "as a table");
    let refused = user.run(&["message", "mirror.toml", "slow", "flush"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("\"slow\" is missing"), "{refused:?}");
    let refused = user.run(&["message", "mirror.toml", "vol", "re-add", "slow"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("couldn't be opened"), "{refused:?}");
    server.stop();

    // The other leg has recorded the loss by now. The log's file is replaced by foreign bytes.
    set("");
    std::fs::write(user.path("log.img"), vec![7; 16 << 20]).unwrap();
    let server = user.serve(&["mirror.toml"]);
    let status = user.json(&["status", "mirror.toml"]);
    let error = status["devices"]["vol"]["legs"][1]["error"].as_str().unwrap();
    assert!(error.contains("no write cache begins here") && error.contains("doesn't know"), "{error}");
    server.stop();

    std::fs::rename(user.path("elsewhere.img"), user.path("log.img")).unwrap();
    let server = user.serve(&["mirror.toml"]);
    let status = user.json(&["status", "mirror.toml"]);
    assert_eq!(status["devices"]["vol"]["legs"][1]["state"], "faulty", "{status}");
    let said = user.run(&["message", "mirror.toml", "vol", "re-add", "slow"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    server.stop();
}

#[test]
fn snapshots_are_for_logs() {
    let user = User::new();
    for arguments in [
        &["snapshot", "create", "ram(1MiB)", "monday"][..],
        &["snapshot", "list", "ram(1MiB)"],
        &["snapshot", "delete", "ram(1MiB)", "monday"],
        &["snapshot", "clone", "ram(1MiB)", "monday", "new"],
        &["snapshot", "diff", "ram(1MiB)", "monday"],
        &["resize", "ram(1MiB)", "2GiB"],
    ] {
        let refused = user.run(arguments);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        let expected = "ram(1MiB): this stack has no part of kind \"log\": its parts are \"top\" (ram)";
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
    for (arguments, expected) in [
        (
            &["snapshot", "create", "ram(1MiB)", "two words"][..],
            "snapshot \"two words\": expected a name without spaces",
        ),
        (&["resize", "ram(1MiB)", "2GB"], "size \"2GB\": unknown unit \"GB\""),
        (&["resize", "ram(1MiB)"], "required arguments were not provided"),
        (&["snapshot", "crate", "ram(1MiB)", "x"], "unrecognized subcommand 'crate'"),
        (&["snapshot", "list", "ram(1MiB)", "--jsno"], "unexpected argument '--jsno'"),
        (&["status", "raam(1MiB)"], "did you mean \"ram\"?"),
        (&["status", "none.toml"], "no such file; expected a stack file"),
        (&["serve", "ram(1MiB)", "--nbd", "unix:x", "--control", "c", "--no-control"], "cannot be used with"),
    ] {
        let refused = user.run(arguments);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{expected}: {}", refused.stderr);
    }
    let told = user.run(&["snapshot", "list", "stats(ram(1MiB))", "--part", "stats"]);
    assert_eq!(told.code, Some(1), "a part that doesn't know the message: {told:?}");
    assert!(told.stderr.contains("unknown to stats; expected one of \"clear_stats\""), "{told:?}");
}

#[test]
fn a_stack_file_has_one_server() {
    let user = User::new();
    user.write("s.toml", STACK);
    let first = user.serve(&["s.toml"]);
    let second = user.run(&["serve", "s.toml"]);
    assert_eq!((second.code, second.stdout.as_str()), (Some(1), ""), "{second:?}");
    let expected = format!("control socket {}: another server of this stack", first.control().display());
    assert!(second.stderr.contains(&expected) && second.stderr.contains("--no-control"), "{second:?}");
    assert_eq!(user.json(&["status", "s.toml"])["server"]["process"], first.child.id());
    // Another socket doesn't help: the file is locked.
    for option in [&["--no-control"][..], &["--control", "other.sock"]] {
        let second = user.run(&[&["serve", "s.toml"], option].concat());
        assert!(second.code == Some(1) && second.stderr.contains("disk.img"), "{second:?}");
        assert!(!user.path("other.sock").exists());
    }
    assert_eq!(user.run(&["status", "s.toml"]).code, Some(0), "the first one serves on");
    first.stop();
    assert_eq!(user.sockets(), [""; 0].map(PathBuf::from));
}

/// A system service, for example, has no XDG_RUNTIME_DIR.
#[test]
fn a_server_of_another_environment_is_found() {
    let user = User::new();
    user.write("s.toml", STACK);
    let mut command = user.command(&["serve", "s.toml", "--json"]);
    command.env_remove("XDG_RUNTIME_DIR");
    let server = ready(command);
    let folders = ["/tmp", "/run"];
    assert!(folders.iter().any(|folder| server.control().starts_with(folder)), "{:?}", server.control);
    assert_eq!(user.json(&["status", "s.toml"])["server"]["process"], server.child.id());
    let second = user.run(&["serve", "s.toml"]);
    let expected = format!("control socket {}: another server", server.control().display());
    assert!(second.code == Some(1) && second.stderr.contains(&expected), "{second:?}");
    server.stop();
}

#[test]
fn servers_of_the_same_line_are_told_apart() {
    let user = User::new();
    let servers =
        ["a.sock", "b.sock"].map(|socket| user.serve(&["ram(1MiB)", "--nbd", &format!("unix:{socket}")]));
    assert_ne!(servers[0].control, servers[1].control);
    let refused = user.run(&["status", "ram(1MiB)"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{refused:?}");
    for server in &servers {
        let control = server.control().display().to_string();
        assert!(refused.stderr.contains(&format!("--control {control}\n")), "{refused:?}");
        let status = user.json(&["status", "ram(1MiB)", "--control", &control]);
        assert_eq!(status["server"]["process"], server.child.id());
    }
    let [first, second] = servers;
    first.stop();
    assert_eq!(user.json(&["status", "ram( size=1024KiB )"])["server"]["process"], second.child.id());
    assert_eq!(user.json(&["status", "ram(2MiB)"])["live"], false);
    second.stop();
}

#[test]
fn a_server_that_was_killed_leaves_nothing_in_the_way() {
    let user = User::new();
    user.write("s.toml", STACK);
    let socket = user.serve(&["s.toml"]).kill();
    assert!(socket.exists(), "a killed server can't remove it");
    let status = user.run(&["status", "s.toml"]);
    assert_eq!((status.code, status.stderr.lines().count()), (Some(0), 1), "{status:?}");
    assert!(status.stderr.starts_with("not served"), "{status:?}");
    let server = user.serve(&["s.toml"]);
    assert_eq!(server.control(), socket);
    assert_eq!(user.json(&["status", "s.toml"])["live"], true);
    server.stop();

    // The socket of a killed server that isn't started again is removed as well.
    let socket = user.serve(&["s.toml"]).kill();
    let is_dead = || UnixStream::connect(&socket).is_err();
    while !is_dead() {
        std::thread::yield_now();
    }
    let other = user.serve(&["ram(1MiB)", "--nbd", "unix:other.sock"]);
    assert_eq!(user.sockets(), [other.control()]);
    other.stop();

    let own = user.serve(&["s.toml", "--control", "own.sock"]).kill();
    assert_eq!(own, user.path("own.sock"));
    let nobody = user.run(&["status", "s.toml", "--control", "own.sock"]);
    assert!(nobody.code == Some(1) && nobody.stderr.contains("no server "), "{nobody:?}");
    user.serve(&["s.toml", "--control", "own.sock"]).stop();
}

#[test]
fn where_a_socket_is_and_who_may_use_it() {
    let user = User::new();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    // The mode doesn't depend on the user's umask.
    let program = env!("CARGO_BIN_EXE_siltstone");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask 0; exec {program} serve 'ram(1MiB)' --nbd unix:vol.sock --json")]);
    shell.current_dir(user.folder.path()).env("XDG_RUNTIME_DIR", user.path("run"));
    shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let server = ready(shell);
    assert_eq!((mode(server.control()), mode(&user.path("run/siltstone"))), (0o600, 0o700));
    assert_eq!(mode(&user.path("vol.sock")), 0o777, "the user's mode is back for everything else");
    assert_eq!(user.sockets(), [server.control()]);
    server.stop();

    let without = user.serve(&["file(disk.img, size=1MiB)", "--nbd", "unix:vol.sock", "--no-control"]);
    assert_eq!((&without.control, user.sockets().len()), (&None, 0));
    let status = user.run(&["status", "file(disk.img, size=1MiB)"]);
    assert!(status.code == Some(1) && status.stderr.contains("disk.img"), "its file is held: {status:?}");
    without.stop();

    for (name, make) in [("file", true), ("folder", false)] {
        match make {
            true => user.write(name, "precious"),
            false => std::fs::create_dir(user.path(name)).unwrap(),
        }
        let refused = user.run(&["serve", "ram(1MiB)", "--nbd", "unix:vol.sock", "--control", name]);
        assert!(refused.code == Some(1) && refused.stderr.contains("not a socket"), "{refused:?}");
        assert!(!std::fs::metadata(user.path(name)).unwrap().file_type().is_socket());
    }
    // An XDG_RUNTIME_DIR that is too long for the address of a socket is skipped.
    let long = "x".repeat(120);
    std::fs::create_dir(user.path(&long)).unwrap();
    let mut command = user.command(&["serve", "ram(1MiB)", "--nbd", "unix:vol.sock", "--json"]);
    command.env("XDG_RUNTIME_DIR", user.path(&long));
    let elsewhere = ready(command);
    let control = elsewhere.control().to_str().unwrap().to_owned();
    let expected = ["/run/siltstone-control/", "/run/user/", "/tmp/siltstone-"];
    assert!(expected.iter().any(|folder| control.starts_with(folder)), "{control}");
    elsewhere.stop();
    for (path, expected) in [("none/c.sock", "opening folder"), (&format!("{long}.sock"), "at most 107 fit")]
    {
        let refused = user.run(&["serve", "ram(1MiB)", "--nbd", "unix:vol.sock", "--control", path]);
        assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{refused:?}");
    }
    // A folder that others may write to.
    std::fs::set_permissions(user.path("run/siltstone"), PermissionsExt::from_mode(0o777)).unwrap();
    let refused = user.run(&["serve", "ram(1MiB)", "--nbd", "unix:vol.sock"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("may write to"), "{refused:?}");
    assert!(!user.path("vol.sock").exists(), "nothing was opened");
}

#[test]
fn strangers_hold_nobody_up() {
    let user = User::new();
    let server = user.serve(&["stats(ram(1MiB)) shards=2", "--nbd", "unix:vol.sock"]);
    let mut random = runtime::Random::new(11);
    for _ in 0..50 {
        let mut bytes = vec![0; random.below(5000) as usize];
        random.fill(&mut bytes);
        // The server may close the connection before everything is sent.
        let _ = server.connect().get_mut().write_all(&bytes);
    }
    let mut long = server.connect();
    let _ = long.get_mut().write_all(&vec![b'{'; 1 << 20]);
    let mut said = String::new();
    let _ = long.read_line(&mut said);
    assert!(said.contains("expected at most 65536 in a line"), "{said}");
    let mut deep = server.connect();
    let answer = ask(&mut deep, &format!("{}\n", "[".repeat(60_000)));
    assert!(answer["error"]["text"].as_str().unwrap().contains("recursion limit"), "{answer}");
    assert_eq!(
        ask(&mut deep, STATUS)["answer"]["devices"]["top"]["kind"],
        "stats",
        "the connection stays open"
    );

    // One client never receives, one doesn't end its line, and one is silent.
    let deaf = server.connect();
    deaf.get_ref().set_write_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let questions = STATUS.repeat(1000);
    let mut sent = 0;
    while let Ok(count) = deaf.get_ref().write(questions.as_bytes()) {
        sent += count;
        assert!(sent < 1 << 30, "the server takes in no more than it answers");
    }
    let mut half = server.connect();
    half.get_mut().write_all(b"{\"verb\":").unwrap();
    let silent = server.connect();
    assert_eq!(user.json(&["status", "stats(ram(1MiB)) shards=2"])["live"], true);
    server.stop();
    drop((deaf, half, silent));
}

/// Another program listens at the address.
#[test]
fn who_answers_must_be_a_server() {
    let user = User::new();
    let listener = std::os::unix::net::UnixListener::bind(user.path("other.sock")).unwrap();
    let ran = user.run(&["stop", "other.sock"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("siltstone stop takes unix:other.sock"), "{ran:?}");
    for (said, expected) in [
        ("{NBDMAGIC\n", "isn't JSON"),
        ("NBDMAGICIHAVEOPT", "what listens there isn't a control socket"),
        ("{}\n", "neither"),
        ("", "no server answers there: the connection was closed"),
        ("{\"answer\":{\"protocol\":2,\"process\":7}}\n", "(process 7) speaks version 2"),
        ("{\"error\":{\"errno\":16,\"text\":\"too many\"}}\n", "too many (busy)"),
    ] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0]).unwrap();
                stream.write_all(said.as_bytes()).unwrap();
            });
            let ran = user.run(&["status", "ram(1MiB)", "--control", "other.sock"]);
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
            assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
        });
    }
}

#[test]
fn a_verb_waits_for_a_server_that_was_started_before_and_a_server_for_a_verb() {
    let user = User::new();
    let stack = "[device.disk]\nkind = \"file\"\npath = \"log.img\"\nsize = \"64MiB\"\n\
                 [device.vol]\nkind = \"log\"\non = \"disk\"\nzone_size = \"1MiB\"\n\
                 [door.vol]\nkind = \"nbd\"\ndevice = \"vol\"\nsocket = \"log.sock\"\n";
    user.write("log.toml", stack);
    // The image has an older log, whose snapshot a second format would delete.
    assert_eq!(user.run(&["format", "log.toml"]).code, Some(0));
    for _ in 0..3 {
        let child = user.command(&["serve", "log.toml", "--format", "--json"]).spawn().unwrap();
        let server = Server { control: None, child };
        let taken = user.run(&["snapshot", "create", "log.toml", "before"]);
        assert_eq!(taken.code, Some(0), "{taken:?}");
        assert!(taken.stderr.contains("live: answered by its server"), "{taken:?}");
        let listed = user.run(&["snapshot", "list", "log.toml"]);
        assert!(listed.stdout.contains("before"), "{listed:?}");
        server.stop();
    }
}

/// Plan that formats its stack.
const PLAN: &str = r#"
[plan]
repetitions = 1
[stack.own]
line = "LINE"
format = true
[workload.read]
rw = "randread"
runtime = "1s"
time_based = true
"#;

#[test]
fn what_others_have_made_is_not_formatted_without_force() {
    let user = User::new();
    user.write("disk.img", "");
    let image = std::fs::File::options().read(true).write(true).open(user.path("disk.img")).unwrap();
    image.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"\x53\xef", 1080).unwrap();
    let line = "log(file(disk.img), zone_size=1MiB)";
    user.write("job.fio", "[job]\nrw=randread\nsize=1m\nruntime=1\ntime_based\n");
    user.write("plan.toml", &PLAN.replace("LINE", line));
    let store = "kv(file(disk.img), listen=unix:kv.sock)";
    for arguments in [
        &["format", line][..],
        &["serve", line, "--format", "--nbd", "unix:a.sock"],
        &["bench", "job.fio", "--on", line, "--format"],
        &["bench", "plan.toml"],
        &["kv", "serve", store, "--format"],
        &["kv", "backup", "kv(ram(64MiB))", store, "--format"],
    ] {
        let refused = user.run(arguments);
        let told = refused.stderr.contains("disk.img holds an ext2, ext3 or ext4 file system");
        assert!(refused.code != Some(0) && told && refused.stderr.contains("--force"), "{refused:?}");
    }
    let mut found = [0; 2];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut found, 1080).unwrap();
    assert_eq!(&found, b"\x53\xef");
    for arguments in [&["format", line, "--force"][..], &["format", line]] {
        let formatted = user.run(arguments);
        assert_eq!(formatted.code, Some(0), "{formatted:?}");
    }
}
