//! `siltstone kv` as programs use it: a store while it is served and while it isn't, damage, copies, and
//! redis's own clients.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use conformance::certificates::Authority;
use serde_json::Value;
use siltstone_tests::foreign::{Finished, Server, binary, run};
use siltstone_tests::need;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn siltstone(arguments: &[&str]) -> Finished {
    run(&binary().display().to_string(), arguments)
}

/// A folder with a stack of a store on an emulated drive.
struct Store {
    folder: TempDir,
    stack: String,
}

impl Store {
    fn new(keys: &str) -> Store {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[zones.flash]\nkind = \"zns-emulator\"\npath = \"kv.zns\"\nzones = 32\nzone_size = \"4MiB\"\ntime = \"none\"\n\n\
             [door.store]\nkind = \"kv\"\non = \"flash\"\nlisten = \"unix:kv.sock\"\n{keys}\n"
        );
        let stack = folder.path().join("kv.toml");
        std::fs::write(&stack, text).unwrap();
        Store { stack: stack.display().to_string(), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self, options: &[&str]) -> Server {
        let arguments = [&["kv", "serve", self.stack.as_str()], options].concat();
        let server = Server::start_with(&arguments, self.path("kv.sock"));
        assert_eq!(server.addresses, [format!("unix://{}", self.path("kv.sock").display())]);
        server
    }

    /// Runs a verb on the store.
    fn verb(&self, verb: &str, arguments: &[&str]) -> Finished {
        siltstone(&[&["kv", verb, self.stack.as_str()], arguments].concat())
    }

    fn ok(&self, verb: &str, arguments: &[&str]) -> String {
        self.verb(verb, arguments).ok()
    }

    fn json(&self, verb: &str, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(verb, &[arguments, &["--json"]].concat())).unwrap()
    }
}

/// Uses all verbs, whether the store is served or not.
fn session(store: &Store, is_served: bool) {
    let told = store.verb("put", &["name", "value"]);
    assert_eq!(told.err.starts_with("live: answered by its server"), is_served, "{told:#?}");
    told.ok();
    assert_eq!(store.ok("get", &["name"]), "value\n");
    assert_eq!(store.ok("get", &["name", "--raw"]), "value");
    let missing = store.verb("get", &["nothing"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""));
    assert!(missing.err.contains("key \"nothing\": there is no such key"), "{}", missing.err);

    store.ok("put", &["session", "4711", "--expires-in", "2h"]);
    let expires = store.json("get", &["session"])["expires"].as_u64().unwrap();
    assert!(expires > 1_700_000_000_000);
    store.ok("put", &["brief", "x", "--expires-in", "1ms"]);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(store.verb("get", &["brief"]).code, Some(1));

    store.ok("put", &["00ff0a", "c3a45c1b", "--hex"]);
    assert_eq!(store.ok("get", &["00ff0a", "--hex"]), "c3a45c1b\n");
    assert_eq!(store.ok("scan", &["--limit", "1"]), "\\x00\\xff\\x0a\t\u{e4}\\\\\\x1b\n");
    let line: Value = serde_json::from_str(&store.ok("scan", &["--limit", "1", "--json"])).unwrap();
    assert_eq!(line["key_hex"], "00ff0a");
    assert_eq!(store.ok("delete", &["00ff0a", "ffff", "--hex"]), "deleted 1 of 2 keys\n");

    for number in 0..20 {
        store.ok("put", &[&format!("row{number:02}"), &format!("{number}")]);
    }
    assert_eq!(store.ok("scan", &["--from", "row03", "--to", "row06"]), "row03\t3\nrow04\t4\nrow05\t5\n");
    assert_eq!(
        store.ok("scan", &["--prefix", "row1", "--reverse", "--limit", "2", "--keys"]),
        "row19\nrow18\n"
    );
    assert_eq!(store.ok("scan", &["--prefix", "row", "--to", "row01", "--keys"]), "row00\n");
    assert_eq!(store.ok("scan", &["--limit", "0"]), "");
    assert_eq!(store.json("delete", &["row00", "row01", "none"])["deleted"], 2);
    let status = store.json("status", &[]);
    assert_eq!((&status["shards"], &status["zones"]), (&1.into(), &32.into()), "{status}");
    let page = store.ok("status", &[]);
    assert!(page.starts_with("1 shard: ") && page.contains("\nwrite buffers"), "{page}");
    assert_eq!(store.json("compact", &[])["tables"], 1);
    assert_eq!(store.ok("scan", &["--prefix", "row", "--keys"]).lines().count(), 18);
}

#[test]
fn a_store_is_used_in_the_same_way_whether_it_is_served_or_not() {
    let store = Store::new("acknowledge = \"flushed\"\ndelete_persistence = \"10m\"");
    let server = store.serve(&["--format"]);
    session(&store, true);
    let promise = store.ok("status", &[]);
    assert!(promise.contains("every copy of a deleted key is erased within 10m"), "{promise}");
    let refused = store.verb("check", &[]).refused();
    assert!(refused.contains("stop the server of the store first"), "{refused}");
    server.stop();
    let page = store.ok("check", &[]);
    assert!(page.contains("closed cleanly; 1 table ") && page.ends_with("no damage\n"), "{page}");
    session(&store, false);
    let server = store.serve(&[]);
    assert_eq!(store.ok("get", &["row19"]), "19\n", "it is served again");
    server.stop();
}

#[test]
fn values_come_from_standard_input() {
    let store = Store::new("");
    store.serve(&["--format"]).stop();
    let mut put = Command::new(binary());
    put.args(["kv", "put", &store.stack, "large", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut put = put.spawn().unwrap();
    let value: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    put.stdin.take().unwrap().write_all(&value).unwrap();
    assert!(put.wait().unwrap().success());
    let mut get = Command::new(binary());
    get.args(["kv", "get", &store.stack, "large", "--raw"]).stderr(Stdio::null());
    assert_eq!(get.output().unwrap().stdout, value);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let store = Store::new("");
    let usage = |arguments: &[&str], expected: &str| {
        let told = siltstone(arguments);
        assert!(told.code == Some(2) && told.err.contains(expected), "{told:#?}");
    };
    let stack = store.stack.as_str();
    usage(&["kv", "get", stack], "<KEY>");
    usage(&["kv", "get", "ram(64MiB)", "key"], "this stack has no part of kind \"kv\"");
    usage(&["kv", "serve", "ram(64MiB)"], "this stack has no part of kind \"kv\"");
    usage(&["kv", "get", stack, "key", "--part", "other"], "expected a part of kind \"kv\": store");
    usage(&["kv", "get", stack, "0g", "--hex"], "expected pairs of hexadecimal digits");
    usage(&["kv", "put", stack, "key", "value", "--expires-in", "soon"], "expected a whole number with");
    usage(
        &["kv", "put", stack, &"k".repeat(40_000), "value"],
        "key of 40000 bytes; expected up to 32768 bytes",
    );
    usage(&["kv", "status", "nowhere/kv.toml"], "no such file");
    let none = store.verb("get", &["key"]);
    assert!(none.code == Some(1) && none.err.contains("kv.zns: no such file"), "{none:#?}");
    assert!(!store.path("kv.zns").exists(), "it was created");
    let other = "kv(ram(64MiB))";
    let none = siltstone(&["kv", "get", other, "key"]);
    assert!(none.code == Some(1) && none.err.contains("it holds no key-value store"), "{none:#?}");
}

/// Inverts a byte of each place where a file has these bytes; returns the number of places.
fn damage(path: &Path, wanted: &[u8]) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let places = conformance::images::find_all(&bytes, wanted);
    places.iter().for_each(|at| bytes[*at] ^= 0xFF);
    std::fs::write(path, bytes).unwrap();
    places.len()
}

#[test]
fn a_check_names_the_table_of_a_flipped_byte_and_other_keys_stay_readable() {
    let store = Store::new("compression = \"none\"");
    let server = store.serve(&["--format"]);
    for number in 0..10 {
        store.ok("put", &[&format!("key{number}"), &format!("{number}").repeat(3000)]);
    }
    store.ok("put", &["needle", "here is the needle"]);
    store.ok("compact", &[]);
    server.stop();
    assert!(store.json("check", &[])["sound"].as_bool().unwrap());
    assert!(damage(&store.path("kv.zns"), b"here is the needle") > 0);
    let found = store.verb("check", &["--json"]);
    assert_eq!(found.code, Some(1), "{found:#?}");
    let report: Value = serde_json::from_str(&found.out).unwrap();
    let problems = report["problems"].as_array().unwrap();
    assert_eq!((report["sound"].as_bool(), problems.len()), (Some(false), 1), "{report}");
    assert!(problems[0]["table"].is_u64() && problems[0]["shard"] == 0, "{report}");
    assert!(problems[0]["detail"].as_str().unwrap().contains("checksum"), "{report}");
    let page = store.verb("check", &[]).refused();
    assert!(page.contains("shard 0, table ") && page.contains("\nDAMAGED\n"), "{page}");
    let error = store.verb("get", &["needle"]);
    assert!(error.code == Some(1) && error.err.contains("checksum"), "{error:#?}");
    assert_eq!(store.ok("get", &["key1"]), "1".repeat(3000) + "\n");

    // A backup doesn't leave out damaged keys, unless the store is salvaged: then it copies the others and
    // reports the missing ones.
    let copy = Store::new("compression = \"none\"");
    let refused = store.verb("backup", &[&copy.stack]);
    assert!(refused.code == Some(1) && refused.err.contains("checksum"), "{refused:#?}");
    let text = std::fs::read_to_string(&store.stack).unwrap();
    std::fs::write(&store.stack, text + "salvage = true\n").unwrap();
    let told = store.verb("backup", &[&copy.stack, "--format"]);
    assert!(told.err.contains("salvage: 1 damaged parts"), "{told:#?}");
    let copied = told.ok();
    assert!(copied.starts_with("copied "), "{copied}");
    assert_eq!(copy.ok("get", &["key1"]), "1".repeat(3000) + "\n");
    assert!(copy.json("check", &[])["sound"].as_bool().unwrap());
    let refused = store.verb("put", &["key1", "x"]).refused();
    assert!(refused.contains("takes no writes"), "{refused}");
}

#[test]
fn a_backup_has_all_keys_with_their_expiry_and_replaces_nothing_unasked() {
    let (store, copy) = (Store::new(""), Store::new("shards = 2"));
    let server = store.serve(&["--format"]);
    for number in 0..30 {
        store.ok("put", &[&format!("key{number:02}"), &format!("value {number}")]);
    }
    store.ok("put", &["session", "4711", "--expires-in", "2h"]);
    store.ok("delete", &["key07"]);
    let copied = store.json("backup", &[&copy.stack]);
    assert_eq!(copied["keys"], 30);
    let same = |of: &Store| of.ok("scan", &["--json"]);
    assert_eq!(same(&store), same(&copy));
    assert_eq!(copy.json("status", &[])["shards"], 2);

    let refused = store.verb("backup", &[&copy.stack]).refused();
    assert!(refused.contains("zones that aren't empty") && refused.contains("--format"), "{refused}");
    store.ok("put", &["key07", "again"]);
    assert_ne!(same(&store), same(&copy));
    store.ok("backup", &[&copy.stack, "--format"]);
    assert_eq!(same(&store), same(&copy));
    server.stop();
    // A store that isn't served, and a copy that can be checked.
    store.ok("delete", &["key08"]);
    store.ok("backup", &[&copy.stack, "--format"]);
    assert_eq!(same(&store), same(&copy));
    assert!(copy.json("check", &[])["sound"].as_bool().unwrap());
    let itself = store.verb("backup", &[&store.stack, "--format"]).refused();
    assert!(itself.contains("in use"), "{itself}");
    assert_eq!(store.ok("get", &["key09"]), "value 9\n");
}

#[test]
fn redis_cli_uses_a_store() {
    need!("redis-cli");
    let store = Store::new("shards = 2");
    let server = store.serve(&["--format"]);
    let socket = store.path("kv.sock").display().to_string();
    let cli = |words: &[&str]| run("redis-cli", &[&["-s", &socket], words].concat()).ok();
    assert_eq!(cli(&["set", "a", "1", "ex", "100"]), "OK\n");
    assert_eq!(cli(&["mset", "b", "2", "c", "3", "d", "4"]), "OK\n");
    assert_eq!(cli(&["incrby", "b", "40"]), "42\n");
    assert_eq!(cli(&["mget", "a", "b", "x"]), "1\n42\n\n");
    assert_eq!(store.ok("get", &["b"]), "42\n");
    let mut keys: Vec<String> = cli(&["--scan"]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b", "c", "d"]);
    assert!(cli(&["info", "store"]).contains("shards:2"));
    assert_eq!(cli(&["flushall"]), "OK\n");
    assert_eq!(cli(&["dbsize"]), "0\n");
    server.stop();
    assert_eq!(store.ok("scan", &[]), "");
}

#[test]
fn redis_benchmark_runs_on_a_store() {
    need!("redis-benchmark");
    let store = Store::new("shards = 2");
    let server = store.serve(&["--format"]);
    let socket = store.path("kv.sock").display().to_string();
    let arguments = [
        "-s",
        &socket,
        "-q",
        "-t",
        "set,get,incr,mset",
        "-P",
        "16",
        "-c",
        "20",
        "-r",
        "1000",
        "-d",
        "100",
        "-n",
        "10000",
    ];
    let text = run("redis-benchmark", &arguments).ok();
    println!("{}", text.replace('\r', "\n"));
    for test in ["SET", "GET", "INCR", "MSET (10 keys)"] {
        let line = text.split(['\r', '\n']).rfind(|line| line.starts_with(test));
        assert!(line.is_some_and(|line| line.contains("requests per second")), "{test} in {text}");
    }
    server.stop();
    assert!(store.json("check", &[])["sound"].as_bool().unwrap());
}

/// A store that asks for certificates and passwords, and its options for a user.
struct Protected {
    store: Store,
    pki: PathBuf,
}

impl Protected {
    fn new() -> Protected {
        let store = Store::new("");
        let pki = store.path("pki");
        let own = store.path("own");
        let authority = Authority::new("authority");
        for folder in [&pki, &own] {
            std::fs::create_dir(folder).unwrap();
            authority.fill(folder);
        }
        let secret = |name: &str, text: &str| {
            std::fs::write(store.path(name), text).unwrap();
            std::fs::set_permissions(store.path(name), PermissionsExt::from_mode(0o640)).unwrap();
        };
        secret("admin", "very secret\nthe second line\n");
        secret("reader", "for-readers");
        secret("users", "user reader on >for-readers ~* +@read\n");
        let text = std::fs::read_to_string(&store.stack).unwrap();
        let keys = "tls = \"pki\"\npassword_file = \"admin\"\n";
        std::fs::write(&store.stack, text + keys).unwrap();
        Protected { store, pki }
    }

    fn server(&self) -> Server {
        let socket = self.store.path("kv.sock");
        Server::start_with(&["kv", "serve", &self.store.stack, "--format"], socket)
    }

    fn verb(&self, verb: &str, arguments: &[&str]) -> Finished {
        self.store.verb(verb, arguments)
    }

    fn option(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.store.path(file).display())
    }
}

#[test]
fn verbs_reach_a_server_in_tls_with_a_password() {
    let protected = Protected::new();
    let server = protected.server();
    // With the folder and the file of the stack.
    assert!(protected.verb("put", &["name", "value"]).err.starts_with("live: answered by its server"));
    assert_eq!(protected.verb("get", &["name"]).ok(), "value\n");
    let status: Value = serde_json::from_str(&protected.verb("status", &["--json"]).ok()).unwrap();
    assert_eq!(status["zones"], 32, "{status}");
    // With options.
    let own = protected.option("tls", "own");
    assert_eq!(protected.verb("get", &["name", &own, "--tls-hostname=127.0.0.1"]).ok(), "value\n");
    let admin = protected.option("password-file", "admin");
    assert_eq!(protected.verb("scan", &["--keys", &admin, "--user=default"]).ok(), "name\n");
    // Refusals.
    let wrong = protected.option("password-file", "reader");
    let refused = protected.verb("get", &["name", &wrong]).refused();
    assert!(refused.contains("refuses the login: invalid username-password pair"), "{refused}");
    assert!(refused.contains("--password-file FILE") && !refused.contains("for-readers"), "{refused}");
    let refused = protected.verb("get", &["name", "--tls-hostname=example.org"]).refused();
    assert!(refused.contains("fails: TLS: ") && refused.contains("certificate"), "{refused}");
    assert!(refused.contains("--tls-hostname NAME for another name than localhost"), "{refused}");
    // A client that doesn't know of TLS.
    let other = protected.store.path("other.toml").display().to_string();
    let text = std::fs::read_to_string(&protected.store.stack).unwrap().replace("tls = \"pki\"\n", "");
    std::fs::write(&other, text).unwrap();
    let refused = siltstone(&["kv", "get", &other, "name"]).refused();
    assert!(
        refused.contains("isn't understood") && refused.contains("if it uses TLS, give --tls"),
        "{refused}"
    );
    // A password that all users may read.
    std::fs::set_permissions(protected.store.path("admin"), PermissionsExt::from_mode(0o644)).unwrap();
    let warned = protected.verb("get", &["name", &admin]);
    assert!(warned.err.contains("all users may access it: mode 644; expected 600 or 640"), "{warned:#?}");
    assert_eq!(warned.ok(), "value\n");
    // A client without a certificate.
    std::fs::remove_file(protected.pki.join("client-cert.pem")).unwrap();
    std::fs::remove_file(protected.pki.join("client-key.pem")).unwrap();
    let refused = protected.verb("get", &["name"]).refused();
    assert!(refused.contains("fails: ") && refused.contains("expected certificates"), "{refused}");
    assert_eq!(protected.verb("get", &["name", &own]).ok(), "value\n");
    // A foreign authority.
    let foreign = protected.store.path("foreign");
    std::fs::create_dir(&foreign).unwrap();
    Authority::new("other").fill(&foreign);
    let refused = protected.verb("get", &["name", &protected.option("tls", "foreign")]).refused();
    assert!(refused.contains("fails: TLS: ") && refused.contains("expected certificates"), "{refused}");
    for (options, text) in [
        (["--user=reader", &own], "--password-file"),
        ([&protected.option("password-file", "none"), &own], "No such file"),
        ([&protected.option("tls", "none"), &own[..0]], "ca-cert.pem"),
    ] {
        let options: Vec<&str> = options.into_iter().filter(|option| !option.is_empty()).collect();
        let ran = protected.verb("get", &[&["name"], &options[..]].concat());
        assert!(ran.code == Some(2) && ran.err.contains(text), "{ran:#?}");
    }
    let copy = Store::new("");
    std::fs::write(&copy.stack, std::fs::read_to_string(&copy.stack).unwrap().replace("listen", "#"))
        .unwrap();
    protected.verb("backup", &[&copy.stack, &own, &admin]).ok();
    assert_eq!(copy.ok("get", &["name"]), "value\n");
    server.stop();
    // Opened by the verb itself.
    std::fs::remove_dir_all(&protected.pki).unwrap();
    let refused = protected.verb("get", &["name"]);
    assert!(refused.err.contains("server-cert.pem") || refused.err.contains("ca-cert.pem"), "{refused:#?}");
}

#[test]
fn a_user_without_rights_is_told_so() {
    let protected = Protected::new();
    let text = std::fs::read_to_string(&protected.store.stack).unwrap();
    std::fs::write(&protected.store.stack, text + "users_file = \"users\"\n").unwrap();
    let server = protected.server();
    protected.verb("put", &["name", "value"]).ok();
    let reader = protected.option("password-file", "reader");
    assert_eq!(protected.verb("get", &["name", "--user=reader", &reader]).ok(), "value\n");
    let refused = protected.verb("put", &["name", "other", "--user=reader", &reader]).refused();
    assert!(refused.contains("no permissions to run the 'set' command"), "{refused}");
    assert_eq!(protected.verb("get", &["name"]).ok(), "value\n");
    server.stop();
}
