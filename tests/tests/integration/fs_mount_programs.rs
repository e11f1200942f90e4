//! Foreign programs on the mounted file system: databases over kills, git, and compilers.

use rustix::process::Signal;
use siltstone_tests::foreign::{Background, Mount, has_fuse, run, run_shell, skip};
use siltstone_tests::{need, need_root};
use std::path::PathBuf;

/// Payload of a row of a database: it follows from the row's number.
const BLOB: &str = "replace(hex(zeroblob(50 + a * 37 % 900)), '00', char(97 + a % 26))";

/// Runs transactions by the `sqlite3` shell, kills the server of the file system meanwhile, mounts again, and
/// looks for each transaction that was acknowledged. A transaction appends a row and changes an older one.
fn sqlite_over_kills(journal: &str) {
    let mut mount = Mount::new(&[]);
    let database = mount.at("t.db").display().to_string();
    let sql = |text: &str| run("sqlite3", &["-bail", &database, text]).ok();
    let said = sql(&format!(
        "pragma journal_mode={journal}; create table t(a integer primary key, b text, c integer default 0);"
    ));
    assert_eq!(said.trim(), journal);
    let mut random = runtime::Random::new(7);
    let mut last = 0_u64;
    for life in 0..5 {
        // `full` doesn't sync the directory that has lost the journal, with which a transaction commits.
        let mut script = String::from("pragma synchronous=extra;\n");
        for number in last + 1..last + 3000 {
            script += &format!(
                "begin; insert into t(a) values({number}); update t set b={BLOB} where a={number};\n\
                 update t set c={number} where a=1+{number}*7919%{number}; commit; select {number};\n"
            );
        }
        let file = mount.beside("script");
        std::fs::write(&file, script).expect("a file");
        // Each number is written when its transaction has been acknowledged.
        let shell = format!("exec stdbuf -oL sqlite3 -bail '{database}' <'{}'", file.display());
        let mut client = Background::start("sh", &["-c".to_owned(), shell]);
        let wanted = 5 + random.below(60) as usize;
        client.wait_until("transactions", |client| client.out().lines().count() >= wanted);
        // The shell would keep running. SQLite takes a directory that it can't open, to sync it, for one that
        // needs no sync.
        client.stop();
        mount = mount.killed();
        client.signal(Signal::KILL);
        client.wait();
        let said = client.out();
        let whole = &said[..said.rfind('\n').expect("lines")];
        let acknowledged: u64 = whole.lines().last().expect("a line").parse().expect("a number");
        mount = mount.mounted();
        assert_eq!(sql("pragma integrity_check"), "ok\n", "{journal}, life {life}");
        let found = sql(&format!(
            "select count(*), max(a), max(c), (select count(*) from t where b is not {BLOB}) from t"
        ));
        let found: Vec<u64> = found.trim().split('|').map(|it| it.parse().expect("a number")).collect();
        println!("{journal}, life {life}: {acknowledged} acknowledged, {} found", found[1]);
        let newest = found[1];
        assert!(
            newest == acknowledged || newest == acknowledged + 1,
            "{journal}, life {life}: {acknowledged} were acknowledged: {found:?}"
        );
        assert_eq!(found, [newest, newest, newest, 0], "{journal}, life {life}");
        last = newest;
    }
    let mount = mount.unmounted();
    mount.is_sound();
}

#[test]
fn sqlite_with_a_rollback_journal_loses_no_transaction_over_kills() {
    need!("sqlite3", "stdbuf");
    if has_fuse() {
        sqlite_over_kills("delete");
    }
}

#[test]
fn sqlite_with_a_write_ahead_log_loses_no_transaction_over_kills() {
    need!("sqlite3", "stdbuf");
    if has_fuse() {
        sqlite_over_kills("wal");
    }
}

/// Folder with the programs of the newest PostgreSQL that is installed; if there is none, reports why the
/// test is skipped.
pub(crate) fn postgresql() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = versions.map(|version| version.path().join("bin"));
    let found = folders.filter(|folder| {
        ["initdb", "pg_ctl", "pgbench", "pg_test_fsync"].iter().all(|name| folder.join(name).is_file())
    });
    let number = |folder: &PathBuf| {
        let version = folder.parent().and_then(|it| it.file_name()).and_then(|it| it.to_str());
        version.and_then(|version| version.parse::<u32>().ok())
    };
    let newest = found.max_by_key(number);
    if newest.is_none() {
        skip("PostgreSQL (postgresql) is not installed in /usr/lib/postgresql");
    }
    newest
}

#[test]
fn postgresql_s_test_of_fsync_finds_no_failure() {
    let Some(programs) = postgresql() else { return };
    if !has_fuse() {
        return;
    }
    let mount = Mount::new(&[]);
    let file = mount.at("fsync").display().to_string();
    let said = run(&programs.join("pg_test_fsync").display().to_string(), &["-s", "1", "-f", &file]).ok();
    println!("{said}");
    for method in ["open_datasync", "fdatasync", "fsync", "open_sync", "Non-sync"] {
        assert!(said.contains(method), "{said}");
    }
    // `fsync_writethrough` is the only method that Linux doesn't have.
    let refused = said.lines().filter(|line| line.contains("n/a") && !line.contains("fsync_writethrough"));
    assert_eq!(refused.count(), 0, "{said}");
    mount.unmounted();
}

/// Processes of a PostgreSQL server, which are killed when this is dropped.
struct Processes {
    /// File with the process id of the oldest process, outside of the file system, so that it can be read
    /// without the server.
    noted: PathBuf,
}

/// A PostgreSQL cluster in the mounted file system, of the user `postgres`.
pub(crate) struct Cluster {
    processes: Processes,
    pub(crate) mount: Mount,
    programs: PathBuf,
    /// Folder of the socket and of the log.
    beside: PathBuf,
}

impl Processes {
    /// Kills all processes.
    fn kill(&self) {
        let Ok(pid) = std::fs::read_to_string(&self.noted) else { return };
        self.ended();
        // The oldest one is stopped first, so that it can't start others meanwhile.
        run_shell(&format!(
            "kill -STOP {pid} && kill -KILL $(ps -o pid= --ppid {pid}) {pid} 2>/dev/null || true"
        ))
        .ok();
    }

    /// Waits for the end of the processes after an orderly stop. `pg_ctl stop` returns once the oldest one
    /// has removed its file with the process id; for a moment after that it uses the file system.
    fn stopped(&self) {
        let pid = std::fs::read_to_string(&self.noted).expect("a file");
        run_shell(&format!("while test -e /proc/{}/cwd; do sleep 0.01; done", pid.trim())).ok();
        self.ended();
    }

    /// Notes that the processes have ended.
    fn ended(&self) {
        std::fs::remove_file(&self.noted).expect("a file");
    }
}

impl Cluster {
    pub(crate) fn new(programs: PathBuf, mount: Mount) -> Cluster {
        let beside = mount.beside("run");
        std::fs::create_dir(&beside).expect("a folder");
        let processes = Processes { noted: mount.beside("pid") };
        let cluster = Cluster { processes, mount, programs, beside };
        let (top, run) = (cluster.mount.beside("").display().to_string(), cluster.beside.display());
        cluster.mount.shell(&format!("mkdir data; chmod 755 '{top}'; chown postgres data '{run}'"));
        cluster.program("initdb", "--auth=trust --no-locale --encoding=UTF8 --no-instructions");
        cluster
    }

    fn data(&self) -> PathBuf {
        self.mount.at("data")
    }

    /// A line of shell that runs a program of PostgreSQL with these arguments.
    fn line(&self, program: &str, arguments: &str) -> String {
        format!(
            "cd '{run}' && export PGDATA='{data}' PGHOST='{run}' && exec runuser -u postgres -- '{program}' {arguments}",
            run = self.beside.display(),
            data = self.data().display(),
            program = self.programs.join(program).display()
        )
    }

    #[track_caller]
    pub(crate) fn program(&self, program: &str, arguments: &str) -> String {
        run_shell(&self.line(program, arguments)).ok()
    }

    #[track_caller]
    fn sql(&self, text: &str) -> String {
        self.program("psql", &format!("-qAtX -d postgres -c \"{text}\"")).trim().to_owned()
    }

    /// Starts the server, which recovers first. It is refused while processes of a killed server are still
    /// ending.
    #[track_caller]
    pub(crate) fn start(&self) {
        let log = self.beside.join("log");
        let options = format!("-c unix_socket_directories='{}' -c listen_addresses=", self.beside.display());
        let start =
            self.line("pg_ctl", &format!("-w -t 60 -s -l '{}' -o \"{options}\" start", log.display()));
        let again = format!(
            "for attempt in $(seq 50); do ( {start} ) && exit; sleep 0.1; done; cat '{}'; exit 1",
            log.display()
        );
        run_shell(&again).ok();
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).expect("a running server");
        std::fs::write(&self.processes.noted, text.lines().next().expect("a line")).expect("a file");
    }

    /// Runs transactions until they fail, and calls `end` meanwhile. Returns the number of acknowledged ones.
    pub(crate) fn transactions_until(&self, end: impl FnOnce()) -> u64 {
        let shell = self.line("pgbench", "-n -c 4 -T 60 postgres");
        let before = self.history();
        let mut client = Background::start("sh", &["-c".to_owned(), shell]);
        for _ in 0..1000 {
            if self.history() > before + 100 {
                break;
            }
        }
        end();
        client.wait();
        let said = client.out();
        let counted = said.lines().find_map(|line| line.split_once("actually processed: "));
        let counted = counted.unwrap_or_else(|| panic!("{said}{}", client.err())).1;
        let acknowledged: Option<u64> = counted.split('/').next().and_then(|count| count.trim().parse().ok());
        before + acknowledged.unwrap_or_else(|| panic!("{said}"))
    }

    fn history(&self) -> u64 {
        self.sql("select count(*) from pgbench_history").parse().expect("a number")
    }

    /// Compares the tables, each of which has the sum of all transactions.
    pub(crate) fn check(&self, acknowledged: u64) {
        let sums = self.sql(
            "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), \
             (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches), \
             (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches), \
             (select count(*) from pgbench_accounts)",
        );
        assert_eq!(sums, "t|t|t|100000");
        let found = self.history();
        println!("{acknowledged} transactions were acknowledged, {found} are there");
        // Each client may have one transaction that was committed and not acknowledged.
        assert!(
            (acknowledged..=acknowledged + 4).contains(&found),
            "{acknowledged} acknowledged, {found} found"
        );
    }
}

impl Cluster {
    /// Kills all processes of PostgreSQL.
    pub(crate) fn kill(&self) {
        self.processes.kill();
    }

    /// Stops PostgreSQL in an orderly way.
    pub(crate) fn stop(&self) {
        self.program("pg_ctl", "-w -s -m fast stop");
        self.processes.stopped();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn postgresql_recovers_all_transactions_after_kills() {
    let Some(programs) = postgresql() else { return };
    need!("runuser", "ps");
    need_root!("run PostgreSQL as another user");
    if !has_fuse() {
        return;
    }
    let mut cluster = Cluster::new(programs, Mount::new(&[]));
    cluster.start();
    cluster.program("pgbench", "-i -q -s 1 postgres");
    // PostgreSQL is killed, and then the server of the file system below it.
    let acknowledged = cluster.transactions_until(|| cluster.kill());
    cluster.start();
    cluster.check(acknowledged);
    let pid = cluster.mount.server_pid();
    let acknowledged = cluster.transactions_until(|| {
        run_shell(&format!("kill -KILL {pid}")).ok();
    });
    cluster.kill();
    cluster.mount = cluster.mount.killed().mounted();
    cluster.start();
    cluster.check(acknowledged);
    cluster.stop();
    cluster.mount = cluster.mount.unmounted();
    cluster.mount.is_sound();
}

#[test]
fn git_clones_and_the_compiler_builds_a_crate() {
    need!("git", "cc");
    if !has_fuse() {
        return;
    }
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let repository = repository.canonicalize().expect("the repository").display().to_string();
    if run("git", &["-C", &repository, "rev-parse", "HEAD"]).code != Some(0) {
        return skip("the source isn't in a git repository");
    }
    let mount = Mount::new(&[]);
    mount.shell(&format!(
        "git clone -q --no-local '{repository}' clone && cd clone && git fsck --full --strict 2>&1
         test \"$(git rev-parse HEAD)\" = \"$(git -C '{repository}' rev-parse HEAD)\" && test -z \"$(git status --short)\"
         git gc -q && git fsck --full"
    ));
    // Objects, an archive and a program, which runs from the mount.
    mount.shell(
        "mkdir c && cd c
         for n in $(seq 30); do echo \"int f$n(int x) { return x + $n; }\" >f$n.c; done
         { for n in $(seq 30); do echo \"int f$n(int);\"; done; echo 'int main(void) { int s = 0;'
           for n in $(seq 30); do echo \"s += f$n(0);\"; done; echo 'return s != 465; }'; } >main.c
         cc -g -c *.c && ar rcs libf.a f*.o && cc -g -o program main.o libf.a && ./program
         cp program moved && mv moved program && ./program",
    );
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Its dependencies are on this machine, because this test itself was built.
    let build = format!(
        "cd clone && CARGO_TARGET_DIR=\"$PWD/target\" CARGO_INCREMENTAL=1 '{cargo}' build --offline -q -p siltstone-block 2>&1"
    );
    mount.shell(&build);
    mount.shell("touch clone/crates/core/block/src/lib.rs");
    mount.shell(&build);
    let mount = mount.unmounted();
    mount.is_sound();
    let mount = mount.mounted();
    mount.shell("cd clone && git fsck --full && test -z \"$(git status --short)\"; ../c/program");
    mount.unmounted();
}

/// Editors and package managers replace files in this way, and rely on the result after a kill at any time.
#[test]
fn a_file_written_and_renamed_over_another_is_the_old_or_the_new_one_after_a_kill() {
    if !has_fuse() {
        return;
    }
    let mut mount = Mount::new(&[]);
    let mut random = runtime::Random::new(3);
    let mut seen = std::collections::BTreeSet::new();
    for life in 0..6_u32 {
        let shell = format!(
            "cd '{}'; n=0; while n=$((n + 1)); do
               head -c 40000 /dev/zero | tr '\\0' $((n % 10)) >new && mv new file; [ $n -lt 3 ] || echo $n; done",
            mount.at("").display()
        );
        let mut client = Background::start("sh", &["-euc".to_owned(), shell]);
        let wanted = 1 + random.below(40) as usize;
        client.wait_until("files", |client| client.out().lines().count() >= wanted);
        mount = mount.killed();
        drop(client);
        mount = mount.mounted();
        // Without an fsync the first file may be missing.
        match std::fs::read(mount.at("file")) {
            Ok(found) => {
                let first = found.first().copied();
                assert!(
                    first.is_some_and(|byte| byte.is_ascii_digit()),
                    "life {life}: {} bytes",
                    found.len()
                );
                assert!(
                    found.len() == 40_000 && found.iter().all(|byte| Some(*byte) == first),
                    "life {life}: torn"
                );
                seen.insert(first);
            }
            Err(error) => {
                assert!(life == 0 && error.kind() == std::io::ErrorKind::NotFound, "life {life}: {error}")
            }
        }
        mount.shell("rm -f new; sync file || true");
    }
    println!("{} contents", seen.len());
    mount.unmounted().is_sound();
}

#[test]
fn a_full_mount_refuses_writes_and_lets_files_be_removed() {
    if !has_fuse() {
        return;
    }
    let mount = Mount::formatted(&["--size", "64MiB"]);
    mount.shell("mkdir d && echo kept >d/kept && head -c 3000000 /dev/urandom >d/data && sha256sum d/* >/dev/null && sync d/*");
    let sums = mount.shell("sha256sum d/*");
    let said = mount.shell(
        "n=0; while n=$((n + 1)) && head -c 1000000 /dev/zero >f$n 2>err$n && sync f$n 2>>err$n; do rm err$n; [ $n -lt 100 ]; done
         cat err$n 2>/dev/null || true; echo; echo $n",
    );
    let files: u64 = said.lines().last().and_then(|line| line.parse().ok()).expect("a number");
    assert!((20..90).contains(&files), "{files} files of 1 MB in 64 MiB: {said}");
    // An allocation is refused, and existing files stay intact.
    let refused = mount.shell("fallocate -l 60M more 2>&1 || true");
    assert!(refused.contains("No space left"), "{refused}");
    assert_eq!(mount.shell("sha256sum d/*"), sums);
    mount.shell("rm f* && for n in 1 2 3; do head -c 5000000 /dev/urandom >g$n && sync g$n; done && mkdir e && mv g1 e && sync e/g1");
    assert_eq!(mount.shell("sha256sum d/*"), sums);
    let mount = mount.unmounted();
    mount.is_sound();
    assert_eq!(mount.status()["replayed_records"], 0);
}
