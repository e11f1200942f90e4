//! SQLite on the mounted file system, over power cuts of the disk below.
//!
//! Promises: a run of transactions by the `sqlite3` shell is recorded at the disk. For the cut after every
//! flush of the run, and for states between them, with writes reordered and torn at sectors of 512 bytes, the
//! image is mounted and the database opened. It must be intact, and hold exactly the rows that the first N
//! transactions make: at least those whose `commit` had returned before the cut, and none that hadn't begun.
//! The expected rows come from the same transactions in memory. Versions that are broken on purpose are
//! caught.
//!
//! SQLite's own crash tests simulate the file system inside of their process, so they wouldn't test ours.

use conformance::budget::{Budget, is_left_out, is_long};
use layers::record::Timeline;
use layers::record::format::Submission;
use layers::record::replay::{Choice, CrashState, CrashStates, History, Image, Search};
use layers::record::timeline::EventKind;
use siltstone_tests::foreign::{Mount, has_fuse, run};
use siltstone_tests::{need, oracle};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// Number of accounts, which take about 20 pages of 4 KiB.
const ACCOUNTS: u64 = 80;
/// Shares of the budget that each test takes.
const SHARES: u32 = 6;
const DISK: &str = "[device.disk]\nkind = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n\
                    [device.recorded]\nkind = \"record\"\non = \"disk\"\ntimeline = \"run.timeline\"\n";
/// A disk that reports flushes as done without flushing, once the rules are on.
const LIES: &str =
    "[device.lies]\nkind = \"fault\"\non = \"recorded\"\nrules = [\"flush lie\", \"write lie\"]\n";

/// Method by which SQLite makes its transactions atomic.
struct Mode {
    journal: &'static str,
    synchronous: &'static str,
    page_size: u32,
    /// Largest number of acknowledged transactions that a power cut may take.
    may_lose: u64,
    transactions: u64,
}

/// A recorded run.
struct Run {
    mode: Mode,
    /// Folder of the timeline.
    _mount: Mount,
    history: Arc<History>,
    /// Cuts right after a flush.
    flushed: Vec<u64>,
    /// Number of events when the database existed, without a transaction.
    first: u64,
    /// Numbers of events right before each transaction began and after it was acknowledged.
    transactions: Vec<(u64, u64)>,
    /// Digests of the database by number of transactions.
    digests: Vec<String>,
}

/// Transactions of a run that a cut left.
struct Found {
    transactions: u64,
    acknowledged: u64,
}

/// The `sqlite3` shell, one request after another.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(database: &str) -> Shell {
        // Each line is written when it is complete.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "sqlite3", "-batch", "-bail", database]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sqlite3 runs");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Shell { child, input, output: BufReader::new(output) }
    }

    /// Returns the output of these lines.
    fn ask(&mut self, text: &str) -> String {
        writeln!(self.input, "{text}\n.print end").expect("sqlite3 runs on");
        let mut said = String::new();
        while !said.ends_with("end\n") {
            let count = self.output.read_line(&mut said).expect("text");
            assert!(count > 0, "sqlite3 ended: {said}");
        }
        said.trim_end_matches("end\n").trim().to_owned()
    }

    /// Closes the database.
    fn close(mut self) {
        writeln!(self.input, ".quit").expect("sqlite3 runs on");
        assert!(self.child.wait().expect("a child").success());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The control socket of a served stack.
struct Control(BufReader<UnixStream>);

impl Control {
    fn connect(path: &Path) -> Control {
        Control(BufReader::new(UnixStream::connect(path).expect("the server listens")))
    }

    fn ask(&mut self, request: &str) -> serde_json::Value {
        writeln!(self.0.get_mut(), "{request}").expect("the server listens");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        let answer: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(answer["error"].is_null(), "{line}");
        answer["answer"].clone()
    }

    /// Number of events recorded so far.
    fn events(&mut self) -> u64 {
        let status = self.ask("{\"verb\":\"status\"}");
        status["devices"]["recorded"]["events"].as_u64().expect("a number")
    }
}

/// Text that follows from a number, of 100 to 999 bytes.
fn filler(number: u64) -> String {
    let letter = char::from(b'a' + (number % 26) as u8);
    letter.to_string().repeat(100 + (number * 37 % 900) as usize)
}

/// Makes the tables.
fn tables() -> String {
    let mut text = String::from(
        "begin; create table account(id integer primary key, balance integer, changed integer, filler text);\n\
         create table entry(number integer primary key, debit integer, credit integer, amount integer, filler text);\n\
         create index by_change on account(changed, filler);\n",
    );
    for id in 0..ACCOUNTS {
        text += &format!("insert into account values({id}, 0, 0, '{}');\n", filler(id));
    }
    text + "commit;"
}

/// SQL of the transaction with this number: an entry and the two accounts whose balances it changes. Some
/// change many more accounts, so that pages are written before the commit, and some delete entries.
fn transaction(number: u64) -> String {
    let mut random = runtime::Random::new(number);
    let (debit, credit, amount) = (random.below(ACCOUNTS), random.below(ACCOUNTS), 1 + random.below(1000));
    let filler = filler(random.below(1000));
    let mut text = format!(
        "begin; insert into entry values({number}, {debit}, {credit}, {amount}, '{filler}');\n\
         update account set changed = {number}, balance = balance - {amount}, filler = '{filler}' where id = {debit};\n\
         update account set changed = {number}, balance = balance + {amount} where id = {credit};\n"
    );
    if number % 5 == 2 {
        let third = number % 3;
        text += &format!(
            "update account set changed = {number}, filler = '{filler}' || id where id % 3 = {third};\n"
        );
    }
    if number % 7 == 3 {
        text += &format!("delete from entry where number < {number} - 4;\n");
    }
    text + "commit;"
}

/// Digests of the database after each number of transactions.
fn digests(transactions: u64) -> Vec<String> {
    let mut shell = Shell::start(":memory:");
    let mut digests = vec![shell.ask(&format!("{}\n.sha3sum", tables()))];
    digests.extend((1..=transactions).map(|number| shell.ask(&format!("{}\n.sha3sum", transaction(number)))));
    shell.close();
    digests
}

impl Run {
    /// Records transactions on the file system of this stack.
    fn record(mode: Mode, lies: bool) -> Run {
        let (layer, on) = if lies { (LIES, "lies") } else { ("", "recorded") };
        let door = format!("[door.files]\nkind = \"fs\"\non = \"{on}\"\nmount = \"mnt\"\n");
        let mount = Mount::of_stack(&format!("{DISK}{layer}{door}"));
        let mut control = Control::connect(&mount.beside("control"));
        let mut rules = |which: &str| {
            if lies {
                control
                    .ask(&format!("{{\"verb\":\"message\",\"part\":\"lies\",\"text\":\"rules {which}\"}}"));
            }
        };
        rules("off");
        let database = mount.at("t.db").display().to_string();
        let Mode { journal, synchronous, page_size, transactions: count, .. } = mode;
        let mut shell = Shell::start(&database);
        // `full` doesn't sync the directory after the removal of the journal.
        let said = shell.ask(&format!(
            "pragma page_size = {page_size}; pragma journal_mode = {journal}; pragma synchronous = extra;\n{}",
            tables()
        ));
        assert_eq!(said, journal);
        shell.close();
        File::open(mount.at("")).and_then(|folder| folder.sync_all()).expect("the directory is synced");
        rules("on");
        let first = control.events();
        let mut shell = Shell::start(&database);
        // Pages are written before the commit, and the log is copied into the database every few
        // transactions.
        shell.ask(&format!(
            "pragma journal_mode = {journal}; pragma synchronous = {synchronous};\n\
             pragma cache_size = -32; pragma wal_autocheckpoint = 24;"
        ));
        let transactions = (1..=count).map(|number| {
            let begun = control.events();
            shell.ask(&transaction(number));
            (begun, control.events())
        });
        let transactions = transactions.collect();
        shell.close();
        let mount = mount.stopped();
        let timeline = read(mount.beside("run.timeline"));
        let history = History::new(&timeline, 0).expect("a device");
        let digests = digests(count);
        Run { mode, _mount: mount, flushed: flushes(&timeline), history, first, transactions, digests }
    }

    /// The state right after each flush, from the first transaction on, without any later write.
    fn after_flushes(&self) -> impl Iterator<Item = CrashState> + '_ {
        let search = Search { seed: 0, single: 0, subsets: 0, torn: 0, scattered: 0 };
        let states = self.states(search);
        states.filter(|state| state.choice == Choice::Nothing && self.flushed.contains(state.cuts.start()))
    }

    fn states(&self, search: Search) -> CrashStates {
        CrashStates::new(self.history.clone(), self.first..self.history.events() + 1, search)
    }

    /// Mounts a state of the disk, and looks for the transactions in the database.
    fn check(&self, state: &CrashState, cut: &mut Option<Mount>) -> Result<Found, String> {
        let name = format!(
            "{}, {}: cut {}, {}",
            self.mode.journal,
            self.mode.synchronous,
            state.cuts.start(),
            state.choice
        );
        // Printed before the mount, in case the state can't be mounted.
        println!("{name}");
        let mount = cut.take().unwrap_or_else(Mount::without_image);
        write(&state.image, &mount.image());
        let mount = mount.mounted();
        let database = mount.at("t.db").display().to_string();
        let count = "select max(changed), sum(balance) from account;";
        let intact = "select group_concat(integrity_check, '; ') from pragma_integrity_check;";
        // The database must work afterwards.
        let write = "update account set changed = 0 where id % 2 = 0;";
        let said = run("sqlite3", &["-batch", "-bail", &database, intact, count, ".sha3sum", write, intact]);
        *cut = Some(mount.unmounted());
        let found = self.judge(state, &format!("{}{}", said.out, said.err));
        found.map_err(|why| format!("{name}: {why}"))
    }

    fn judge(&self, state: &CrashState, said: &str) -> Result<Found, String> {
        let begun = self.transactions.iter().filter(|(begun, _)| begun < state.cuts.start()).count() as u64;
        // The image is the same for all cuts of the state.
        let is_over = |(_, acknowledged): &&(u64, u64)| acknowledged <= state.cuts.end();
        let acknowledged = self.transactions.iter().filter(is_over).count() as u64;
        let [integrity, counts, digest, after] = said.lines().collect::<Vec<_>>()[..] else {
            return Err(format!("the database can't be used: {said}"));
        };
        if (integrity, after) != ("ok", "ok") {
            return Err(format!("the database isn't intact: {said}"));
        }
        let (transactions, sum) = counts.split_once('|').unwrap_or_default();
        let transactions: u64 = transactions.parse().map_err(|_| format!("no number: {said}"))?;
        if sum != "0" || self.digests.get(transactions as usize).is_none_or(|expected| expected != digest) {
            return Err(format!("not the rows of {transactions} whole transactions: {said}"));
        }
        let expected = acknowledged.saturating_sub(self.mode.may_lose)..=begun.max(acknowledged);
        match expected.contains(&transactions) {
            true => Ok(Found { transactions, acknowledged }),
            false => Err(format!("{transactions} transactions; expected {expected:?}")),
        }
    }
}

fn read(path: PathBuf) -> Timeline {
    let read = runtime::run(runtime::Config::default(), move || async move { Timeline::read(&path).await });
    read.expect("the runtime runs").expect("a recorded run")
}

/// Cuts right after flushes that succeeded.
fn flushes(timeline: &Timeline) -> Vec<u64> {
    let is_flush = |submitted: u64| {
        matches!(timeline.events[submitted as usize].what, EventKind::Submitted(Submission::Flush))
    };
    let cuts = timeline.events.iter().zip(1..).filter_map(|(event, cut)| match &event.what {
        EventKind::Completed(completion) if completion.errno == 0 && is_flush(completion.submitted) => {
            Some(cut)
        }
        _ => None,
    });
    cuts.collect()
}

fn write(image: &Image, path: &str) {
    let file = File::create(path).expect("a file");
    file.set_len(image.history().geometry().bytes()).expect("a sparse file");
    for range in image.data_ranges(4096) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        image.read(range.start, &mut bytes);
        file.write_all_at(&bytes, range.start).expect("it is written");
    }
}

/// Records a run, and checks all states after flushes, and those between that fit into these shares of the
/// budget; 0: all.
fn keeps_its_transactions(test: &str, mode: Mode, shares: u32) {
    if !has_fuse() {
        return;
    }
    let seed = oracle::seed(test, 1);
    let factor = if is_long() { 2 } else { 1 };
    let run = Run::record(Mode { transactions: mode.transactions * factor, ..mode }, false);
    let mut cut = None;
    let (mut after_flushes, mut between, mut lost) = (0, 0, 0);
    let mut count = |state: &CrashState| {
        let found = run.check(state, &mut cut).unwrap_or_else(|why| panic!("{why}"));
        lost += u64::from(found.transactions < found.acknowledged);
    };
    for state in run.after_flushes() {
        count(&state);
        after_flushes += 1;
    }
    let others = || run.states(Search::brief(seed)).filter(|state| state.choice != Choice::Nothing);
    let total = others().count() as u64;
    let budget = if shares == 0 { Budget::unlimited() } else { Budget::of(shares) };
    for (number, state) in (0..).zip(others()) {
        if budget.allows(number, total) {
            count(&state);
            between += 1;
        }
    }
    let (events, flushes) = (run.history.events() - run.first, run.flushed.len());
    println!(
        "{} transactions, {events} events, {flushes} flushes; {after_flushes} states after flushes and {between} others; \
         {lost} without an acknowledged transaction",
        run.transactions.len()
    );
    assert!(after_flushes > 20, "too little was flushed");
    // The last image that was mounted, with the changes of SQLite.
    cut.expect("states were tried").is_sound();
}

#[test]
fn a_rollback_journal_keeps_all_transactions_over_power_cuts() {
    need!("sqlite3", "stdbuf");
    let mode =
        Mode { journal: "delete", synchronous: "extra", page_size: 4096, may_lose: 0, transactions: 5 };
    keeps_its_transactions("a_rollback_journal_keeps_all_transactions_over_power_cuts", mode, SHARES);
}

/// The directory isn't synced after the removal of the journal, which commits a transaction: the last one can
/// be lost.
#[test]
fn a_rollback_journal_whose_removal_is_not_synced_loses_the_last_transaction_only() {
    if is_left_out() {
        return;
    }
    need!("sqlite3", "stdbuf");
    let mode = Mode { journal: "delete", synchronous: "full", page_size: 512, may_lose: 1, transactions: 5 };
    keeps_its_transactions(
        "a_rollback_journal_whose_removal_is_not_synced_loses_the_last_transaction_only",
        mode,
        0,
    );
}

#[test]
fn a_truncated_journal_keeps_all_transactions_over_power_cuts() {
    need!("sqlite3", "stdbuf");
    let mode =
        Mode { journal: "truncate", synchronous: "full", page_size: 1024, may_lose: 0, transactions: 5 };
    keeps_its_transactions("a_truncated_journal_keeps_all_transactions_over_power_cuts", mode, SHARES);
}

#[test]
fn a_write_ahead_log_keeps_all_transactions_over_power_cuts() {
    need!("sqlite3", "stdbuf");
    let mode = Mode { journal: "wal", synchronous: "full", page_size: 4096, may_lose: 0, transactions: 12 };
    keeps_its_transactions("a_write_ahead_log_keeps_all_transactions_over_power_cuts", mode, SHARES);
}

/// The log is synced only before it is copied into the database: the last transactions can be lost, and
/// nothing else.
#[test]
fn a_write_ahead_log_that_is_synced_rarely_stays_intact_over_power_cuts() {
    need!("sqlite3", "stdbuf");
    let mode =
        Mode { journal: "wal", synchronous: "normal", page_size: 4096, may_lose: u64::MAX, transactions: 24 };
    keeps_its_transactions(
        "a_write_ahead_log_that_is_synced_rarely_stays_intact_over_power_cuts",
        mode,
        SHARES,
    );
}

/// Finds the first of these states that breaks a promise.
fn first_broken(run: &Run, states: impl Iterator<Item = CrashState>) -> String {
    let mut cut = None;
    let broken = states.map(|state| run.check(&state, &mut cut)).find_map(Result::err);
    let broken = broken.expect("a state that isn't as promised");
    println!("{broken}");
    broken
}

/// Proof that a lost transaction is noticed.
#[test]
fn a_disk_that_lies_about_flushes_is_found_out_by_sqlite() {
    need!("sqlite3", "stdbuf");
    if !has_fuse() {
        return;
    }
    for (journal, synchronous) in [("delete", "extra"), ("wal", "full")] {
        let mode = Mode { journal, synchronous, page_size: 4096, may_lose: 0, transactions: 2 };
        let run = Run::record(mode, true);
        // All writes since the rules are on are lost. If only some were, mounting could fail.
        let acknowledged = run.transactions[0].1;
        let states = run.states(Search::brief(1));
        let states =
            states.filter(|state| state.choice == Choice::Nothing && *state.cuts.start() >= acknowledged);
        let broken = first_broken(&run, states);
        assert!(broken.contains(": 0 transactions; expected 1"), "{broken}");
    }
}

/// Proof that half of a transaction is noticed: without a journal SQLite can't undo it.
#[test]
fn a_database_without_a_journal_is_found_out() {
    need!("sqlite3", "stdbuf");
    if !has_fuse() {
        return;
    }
    let mode = Mode { journal: "off", synchronous: "full", page_size: 4096, may_lose: 0, transactions: 5 };
    let run = Run::record(mode, false);
    let broken = first_broken(&run, run.states(Search::brief(1)).step_by(3));
    assert!(broken.contains("isn't intact") || broken.contains("not the rows of"), "{broken}");
}
