//! Plans in TOML: stacks, peers, workloads and repetitions.
//!
//! ```toml
//! [plan]
//! name = "quick"
//! repetitions = 5
//! warm_up = "1s"                  # before each measurement, as fio's ramp_time
//!
//! [stack.file]                    # ours: a one-line stack, or file = "stack.toml"
//! line = "file(quick.img, size=1GiB)"
//! fill = true                     # written once before the first run, so that reads meet data
//!
//! [workload.randread]             # fio's words; lists make a matrix
//! rw = "randread"
//! bs = "4KiB"
//! iodepth = [1, 32]
//! runtime = "3s"
//! time_based = true
//!
//! [peer.fio]                      # fio on the same file
//! kind = "fio"
//! filename = "quick.img"
//!
//! [compare]
//! baseline = "fio"
//! ```
//!
//! A peer may also be a `command` that prints fio's JSON, and may use a `[server.NAME]` that is restarted for
//! every run. So may a stack (`server = "NAME"`, `line = "nbd-client(unix:{socket})"`, and `ours = false` if
//! the server is another program). A command that prints a table instead of running a workload is a
//! `[table.NAME]`. Published figures of others are in `[published.NAME]`, the changes for a full run in
//! `[full]`. A plan is parsed and checked as a whole, all problems are reported together, and no run is
//! started here: [`Plan::runs`] is the ordered list of runs. The crate `stack` parses a stack's line;
//! [`runner`](crate::runner) executes the list.

mod full;
mod published;
mod reader;
mod runs;
mod tables;
mod workload;

pub use published::Published;
pub use runs::{Role, Run, Subject};
pub use tables::TableCommand;

use crate::job::Job;
use crate::peer::fio::Fio;
use crate::peer::{PLACEHOLDERS, Peer, PeerKind, Server};
use reader::{Choice, Entry, Reader, find, option_of, place, table_of};
use stack::{Collector, Problem, Problems, RawValue, Source, Span, did_you_mean};
use std::time::Duration;
use workload::Extras;

/// A checked plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name.
    pub name: String,
    /// Title for display.
    pub title: Option<String>,
    /// Stacks, in the order of the text.
    pub stacks: Vec<StackSubject>,
    /// Peers, in the order of the text.
    pub peers: Vec<Peer>,
    /// Servers of the peers.
    pub servers: Vec<Server>,
    /// Workloads, with their matrices expanded.
    pub workloads: Vec<Workload>,
    /// Commands that print tables, in the order of the text.
    pub tables: Vec<TableCommand>,
    /// Pairs of subject and baseline whose ratios are computed.
    pub pairs: Vec<(String, String)>,
    /// Published figures of others about the subjects.
    pub published: Vec<Published>,
    /// Source of the published figures, for display.
    pub published_in: Option<String>,
    /// The plan of a full run, if the plan has a table `full`.
    pub full: Option<Box<Plan>>,
}

/// A stack that runs workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSubject {
    /// Name in the plan.
    pub name: String,
    /// Source of the stack.
    pub source: StackSource,
    /// Position of the source: `FILE:LINE:COLUMN` of the plan.
    pub place: String,
    /// Device of a stack file that is driven; `None`: the stack's top.
    pub device: Option<String>,
    /// Number of shards of the stack's runtime.
    pub shards: u32,
    /// Filling before the first run.
    pub fill: Filling,
    /// Formatting before runs, as with `--format`.
    pub format: Formatting,
    /// Name of the stack's server in the plan, which replaces `{socket}` in its line.
    pub server: Option<String>,
    /// Whether the measured program is part of Siltstone: false for a client on another program's server.
    pub ours: bool,
}

/// Filling of a stack before it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    /// None.
    No,
    /// The whole device, from start to end.
    InOrder,
    /// The whole device, from start to end, and then every 4 KiB again in random order: the state of a volume
    /// in use.
    AtRandom,
}

/// Formatting of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formatting {
    /// Opened without formatting.
    No,
    /// Formatted before its first run.
    Once,
    /// Formatted whenever the stack is built: for stacks on memory.
    Always,
}

/// Source of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StackSource {
    /// One-line form.
    Line(String),
    /// Stack file, relative to the plan's folder.
    File(String),
}

/// Point of a workload's matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Name, with the options that distinguish it from the matrix's other points: `randread iodepth=32`.
    pub name: String,
    /// Name of its section: `randread`.
    pub section: String,
    /// Options that distinguish it from the matrix's other points, in the order of the text: `("iodepth",
    /// "32")`.
    pub choices: Vec<(String, String)>,
    /// Whether all points of the matrix run on a stack that is built and filled once.
    pub one_setup: bool,
    /// Job to run.
    pub job: Job,
    /// Names of the stacks and peers that run it.
    pub subjects: Vec<String>,
    /// Number of runs per subject.
    pub repetitions: u32,
    /// Rate limit as a share of a subject's unlimited rate, which is measured first.
    pub rate_share: Option<RateShare>,
}

/// Share of a measured rate: `rate_iops = "50% of fio"`.
#[derive(Debug, Clone, PartialEq)]
pub struct RateShare {
    /// Percentage.
    pub percent: f64,
    /// Subject of the rate.
    pub of: String,
    /// Position in the plan.
    pub(crate) span: Span,
}

/// Keys of a workload in addition to fio's options.
const WORKLOAD_KEYS: &[&str] = &["subjects", "repetitions", "one_setup"];

impl Plan {
    /// Parses a plan. `file` is its name in messages.
    ///
    /// # Errors
    /// All problems of the plan, in the order of the text.
    pub fn parse(file: &str, text: &str) -> Result<Plan, Problems> {
        let mut reader = Reader { source: Source::new(file, text), problems: Collector::default() };
        let mut document = stack::document(&reader.source, &mut reader.problems);
        let full = document.iter().position(|entry| entry.key.value == "full").map(|at| document.remove(at));
        let mut plan = Plan::read(&mut reader, file, &document);
        if let Some(full) = full {
            let document = full::laid_over(&mut reader, &document, &full);
            let mut whole = Plan::read(&mut reader, file, &document);
            if whole.name == plan.name {
                whole.name.push_str("-full");
            }
            plan.full = Some(Box::new(whole));
        }
        reader.problems.finish(plan)
    }

    /// Parses a document, and collects its problems.
    fn read(reader: &mut Reader, file: &str, document: &[Entry]) -> Plan {
        let sections =
            ["plan", "stack", "workload", "peer", "server", "table", "compare", "published", "full"];
        reader.check_keys("a plan", document, &sections);
        let section = |reader: &mut Reader, key: &str| -> &[Entry] {
            find(document, key).map_or(&[], |entry| reader.table(entry))
        };

        let head = section(reader, "plan");
        reader.check_keys("[plan]", head, &["name", "title", "repetitions", "warm_up", "published_in"]);
        let stem =
            std::path::Path::new(file).file_stem().map_or("plan".into(), |stem| stem.to_string_lossy());
        let name = reader.text(head, "name").unwrap_or_else(|| stem.into_owned());
        let title = reader.text(head, "title");
        let repetitions = reader.integer(head, "repetitions", 1..=1000).unwrap_or(5);
        let warm_up = reader.time(head, "warm_up").unwrap_or_default();

        let stacks: Vec<_> =
            section(reader, "stack").iter().filter_map(|it| stack(reader, it, document)).collect();
        let servers: Vec<_> = section(reader, "server").iter().filter_map(|it| server(reader, it)).collect();
        let peers: Vec<_> =
            section(reader, "peer").iter().filter_map(|it| peer(reader, it, document)).collect();
        let tables: Vec<_> =
            section(reader, "table").iter().filter_map(|it| tables::table(reader, it)).collect();
        let entries = section(reader, "published");
        let published = entries.iter().filter_map(|it| published::published(reader, it)).collect();
        let mut plan = Plan {
            name,
            title,
            stacks,
            peers,
            servers,
            workloads: Vec::new(),
            tables,
            pairs: Vec::new(),
            published,
            published_in: reader.text(head, "published_in"),
            full: None,
        };
        // All names in the text: an error in a stack must not also make its name unknown.
        let subjects = subject_names(reader, document);
        for entry in section(reader, "workload") {
            plan.add_workload(reader, entry, &subjects, (repetitions, warm_up));
        }
        let compare = section(reader, "compare");
        plan.pairs = pairs(reader, compare, &subjects, &plan);
        for entry in entries {
            check_name(reader, &entry.key.span, "subject", &entry.key.value, &subjects);
            plan.check_workload(reader, entry);
        }
        if reader.problems.count() == 0 && (plan.workloads.is_empty() || subjects.is_empty()) {
            let message = "a plan needs at least one [workload.NAME] and one [stack.NAME] or [peer.NAME]";
            reader.problems.add(|| Problem::without_place(file, message));
        }
        plan
    }

    /// Refuses published figures of an unknown workload.
    fn check_workload(&self, reader: &mut Reader, entry: &Entry) {
        let published = self.published.iter().find(|published| published.subject == entry.key.value);
        let Some(name) = published.and_then(|published| published.workload.as_ref()) else { return };
        let mut known: Vec<String> = Vec::new();
        for workload in &self.workloads {
            for name in [&workload.section, &workload.name] {
                if !known.contains(name) {
                    known.push(name.clone());
                }
            }
        }
        check_name(reader, &entry.key.span, "workload", name, &known);
    }

    fn add_workload(
        &mut self,
        reader: &mut Reader,
        entry: &Entry,
        subjects: &[String],
        (repetitions, warm_up): (u32, Duration),
    ) {
        let entries = reader.table(entry);
        let mut extras = Extras {
            subjects: Some(subjects.to_vec()),
            repetitions: reader.integer(entries, "repetitions", 1..=1000).unwrap_or(repetitions),
            warm_up,
            one_setup: reader.boolean(entries, "one_setup").unwrap_or(false),
        };
        if let Some(chosen) = reader.texts(entries, "subjects") {
            let place = place(entries, "subjects", entry);
            chosen.iter().for_each(|name| check_name(reader, place, "subject", name, subjects));
            extras.subjects = Some(chosen);
        }
        let points = workload::points(reader, entry, entries, &extras);
        for share in points.iter().filter_map(|point| point.rate_share.as_ref()) {
            check_name(reader, &share.span, "subject", &share.of, subjects);
        }
        self.workloads.extend(points);
    }

    /// Removes every peer and every stack on a server for which a program is missing. Returns a note for
    /// each.
    pub fn leave_out_missing(&mut self, is_installed: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut notes = Vec::new();
        let servers = &self.servers;
        let mut is_complete = |name: &str, programs: Vec<&str>, server: &Option<String>| {
            let server = servers.iter().find(|found| Some(&found.name) == server.as_ref());
            let mut needed = programs.into_iter().chain(server.into_iter().flat_map(Server::programs));
            let missing = needed.find(|program| !is_installed(program));
            if let Some(program) = missing {
                notes.push(format!("{name} is left out: {program} is not installed"));
            }
            missing.is_none()
        };
        self.stacks.retain(|stack| is_complete(&stack.name, Vec::new(), &stack.server));
        self.peers.retain(|peer| is_complete(&peer.name, peer.programs(), &peer.server));
        self.tables.retain(|table| is_complete(&table.name, table.programs(), &None));
        let names: Vec<String> = self.subject_names().map(str::to_owned).collect();
        for workload in &mut self.workloads {
            workload.subjects.retain(|subject| names.contains(subject));
        }
        self.workloads.retain(|workload| match &workload.rate_share {
            Some(share) if !names.contains(&share.of) => {
                notes.push(format!("{} is left out: its rate is a share of {}", workload.name, share.of));
                false
            }
            _ => true,
        });
        self.pairs.retain(|(subject, baseline)| names.contains(subject) && names.contains(baseline));
        notes
    }

    /// Shortens the plan for a trial: sets the repetitions and the runtime of every workload, and limits the
    /// warm-up to the runtime.
    pub fn shorten(&mut self, repetitions: Option<u32>, runtime: Option<Duration>) {
        for workload in &mut self.workloads {
            workload.repetitions = repetitions.unwrap_or(workload.repetitions);
            if let Some(runtime) = runtime {
                workload.job.runtime = Some(runtime);
                workload.job.ramp_time = workload.job.ramp_time.min(runtime);
            }
        }
    }

    /// Names of stacks and peers.
    pub fn subject_names(&self) -> impl Iterator<Item = &str> {
        let stacks = self.stacks.iter().map(|stack| stack.name.as_str());
        stacks.chain(self.peers.iter().map(|peer| peer.name.as_str()))
    }

    /// Server of a subject.
    pub fn server_of(&self, subject: Subject<'_>) -> Option<&Server> {
        let name = match subject {
            Subject::Stack(stack) => stack.server.as_ref(),
            Subject::Peer(peer) => peer.server.as_ref(),
        };
        self.servers.iter().find(|server| Some(&server.name) == name)
    }
}

fn subject_names(reader: &mut Reader, document: &[Entry]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for section in ["stack", "peer"] {
        for Entry { key, .. } in subsections(document, section) {
            if names.contains(&key.value) {
                reader.refuse(&key.span, format!("{}: a stack and a peer of the same name", key.value));
            }
            let is_fine = |letter: char| letter.is_alphanumeric() || "-_.+ ".contains(letter);
            if key.value.is_empty() || !key.value.chars().all(is_fine) {
                let message = format!("{:?}: expected a name of letters, digits and -_.+", key.value);
                reader.refuse(&key.span, message);
            }
            names.push(key.value.clone());
        }
    }
    names
}

/// Tables inside of a section, if it exists.
fn subsections<'a>(document: &'a [Entry], section: &str) -> &'a [Entry] {
    find(document, section).and_then(|entry| table_of(&entry.value.value)).unwrap_or_default()
}

fn check_name(reader: &mut Reader, place: &Span, what: &str, name: &str, known: &[String]) {
    if !known.iter().any(|it| it == name) {
        let near = did_you_mean(name, known.iter().map(String::as_str));
        let list = match known {
            [] => "none".into(),
            known => known.join(", "),
        };
        reader.refuse(place, format!("there is no {what} \"{name}\"{near} (known: {list})"));
    }
}

fn stack(reader: &mut Reader, entry: &Entry, document: &[Entry]) -> Option<StackSubject> {
    let entries = reader.table(entry);
    let what = format!("[stack.{}]", entry.key.value);
    let known = ["line", "file", "device", "shards", "fill", "format", "server", "ours"];
    reader.check_keys(&what, entries, &known);
    let server = server_name(reader, entry, entries, document);
    let line = reader.text(entries, "line");
    let file = reader.text(entries, "file");
    let device = reader.text(entries, "device");
    let source_entry = ["line", "file"].iter().find_map(|key| find(entries, key));
    let place = source_entry.map_or(&entry.key.span, |found| &found.value.span).start;
    let source = match (line, file) {
        (Some(line), None) => StackSource::Line(line),
        (None, Some(file)) => StackSource::File(file),
        _ => {
            let message = format!("{what}: expected either line = \"file(…)\" or file = \"stack.toml\"");
            reader.refuse(&entry.key.span, message);
            return None;
        }
    };
    if let (StackSource::Line(_), Some(_), Some(found)) = (&source, &device, find(entries, "device")) {
        let message = format!("{what}: device chooses from a stack file; a line has only its top");
        reader.refuse(&found.key.span, message);
    }
    if let StackSource::Line(line) = &source {
        check_placeholders(reader, self::place(entries, "line", entry), "line", &[line], server.is_some());
    }
    Some(StackSubject {
        name: entry.key.value.clone(),
        source,
        place: reader.source.place(place),
        device,
        shards: shards(reader, entries),
        fill: match reader.boolean_or(entries, "fill", "random") {
            None | Some(Choice::No) => Filling::No,
            Some(Choice::Yes) => Filling::InOrder,
            Some(Choice::Word) => Filling::AtRandom,
        },
        format: match reader.boolean_or(entries, "format", "always") {
            None | Some(Choice::No) => Formatting::No,
            Some(Choice::Yes) => Formatting::Once,
            Some(Choice::Word) => Formatting::Always,
        },
        server,
        ours: reader.boolean(entries, "ours").unwrap_or(true),
    })
}

/// Number of shards of a stack: a number, or the number of this machine's processors.
fn shards(reader: &mut Reader, entries: &[Entry]) -> u32 {
    let is_word = |entry: &&Entry| matches!(&entry.value.value, RawValue::Text(text) if text == "cores");
    match find(entries, "shards").filter(is_word) {
        Some(_) => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(256) as u32),
        None => reader.integer(entries, "shards", 1..=1024).unwrap_or(1),
    }
}

/// Server that a stack or a peer names.
fn server_name(reader: &mut Reader, entry: &Entry, entries: &[Entry], document: &[Entry]) -> Option<String> {
    let server = reader.text(entries, "server")?;
    let known = subsections(document, "server").iter().map(|it| it.key.value.clone()).collect::<Vec<_>>();
    check_name(reader, place(entries, "server", entry), "server", &server, &known);
    Some(server)
}

fn server(reader: &mut Reader, entry: &Entry) -> Option<Server> {
    let entries = reader.table(entry);
    let what = format!("[server.{}]", entry.key.value);
    reader.check_keys(&what, entries, &["command", "prepare", "after_start", "socket", "requires"]);
    let command = required_command(reader, entry, entries, &what);
    let prepare = reader.lists_of_texts(entries, "prepare").unwrap_or_default();
    let after_start = reader.lists_of_texts(entries, "after_start").unwrap_or_default();
    for (key, words) in [
        ("command", command.iter().flatten().collect()),
        ("prepare", prepare.iter().flatten().collect()),
        ("after_start", after_start.iter().flatten().collect()),
    ] {
        let words: Vec<&String> = words;
        check_placeholders(reader, place(entries, key, entry), key, &words, true);
    }
    let socket = reader.text(entries, "socket").unwrap_or_else(|| format!("{}.sock", entry.key.value));
    let requires = reader.texts(entries, "requires").unwrap_or_default();
    let name = entry.key.value.clone();
    Some(Server { name, command: command?, prepare, after_start, socket, requires })
}

fn peer(reader: &mut Reader, entry: &Entry, document: &[Entry]) -> Option<Peer> {
    let entries = reader.table(entry);
    let what = format!("[peer.{}]", entry.key.value);
    let server = server_name(reader, entry, entries, document);
    let shared = ["kind", "server", "requires", "ours"];
    let kind = match reader.text(entries, "kind").as_deref() {
        Some("fio") => {
            let known = [&shared[..], &["filename", "ioengine", "direct", "options"]].concat();
            reader.check_keys(&what, entries, &known);
            PeerKind::Fio(fio(reader, entry, entries, server.is_some()))
        }
        Some("command") => {
            reader.check_keys(&what, entries, &[&shared[..], &["command"]].concat());
            let command = required_command(reader, entry, entries, &what)?;
            let words: Vec<&String> = command.iter().collect();
            let place = place(entries, "command", entry);
            check_placeholders(reader, place, "command", &words, server.is_some());
            PeerKind::Command(command)
        }
        other => {
            let place = place(entries, "kind", entry);
            let found = other.map_or_else(String::new, |other| format!(", found \"{other}\""));
            reader.refuse(place, format!("{what}: expected kind = \"fio\" or kind = \"command\"{found}"));
            return None;
        }
    };
    let requires = reader.texts(entries, "requires").unwrap_or_default();
    let ours = reader.boolean(entries, "ours").unwrap_or(false);
    Some(Peer { name: entry.key.value.clone(), kind, server, requires, ours })
}

fn fio(reader: &mut Reader, entry: &Entry, entries: &[Entry], has_server: bool) -> Fio {
    let filename = reader.text(entries, "filename");
    let mut options = Vec::new();
    if let Some(found) = find(entries, "options") {
        for option in reader.table(found) {
            let (key, span) = (&option.key.value, &option.value.span);
            match option_of(&option.value.value) {
                Some(value) => {
                    check_placeholders(reader, span, "options", &[&value], has_server);
                    options.push((key.clone(), value));
                }
                None => reader.refuse(span, format!("{key}: expected one value")),
            }
        }
    }
    let ioengine = reader.text(entries, "ioengine").unwrap_or_else(|| "io_uring".into());
    // These have an address of their own, or need none.
    let needs_file = !["nbd", "null", "cpuio", "net", "http", "rados", "rbd"].contains(&ioengine.as_str());
    if needs_file && filename.is_none() {
        let stack::At { value: name, span } = &entry.key;
        let message = format!("[peer.{name}]: expected filename = \"…\" for ioengine {ioengine}");
        reader.refuse(span, message);
    }
    let direct = reader.boolean(entries, "direct").unwrap_or(true);
    Fio { filename, ioengine, direct, options }
}

fn required_command(
    reader: &mut Reader,
    entry: &Entry,
    entries: &[Entry],
    what: &str,
) -> Option<Vec<String>> {
    if find(entries, "command").is_none() {
        let message = format!("{what}: expected command = [\"program\", \"argument\", …]");
        reader.refuse(&entry.key.span, message);
    }
    let command = reader.texts(entries, "command")?;
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        let place = place(entries, "command", entry);
        reader.refuse(place, format!("{what}: command: expected at least a program"));
        return None;
    }
    Some(command)
}

/// Refuses unknown placeholders.
fn check_placeholders(reader: &mut Reader, place: &Span, key: &str, words: &[&String], has_server: bool) {
    for word in words {
        let mut rest = word.as_str();
        while let Some((_, after)) = rest.split_once('{') {
            rest = after;
            let Some((name, _)) = after.split_once('}') else { break };
            let looks_meant = !name.is_empty() && name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
            if looks_meant && !PLACEHOLDERS.contains(&name) {
                let near = did_you_mean(name, PLACEHOLDERS.iter().copied());
                let known = PLACEHOLDERS.join(", ");
                reader.refuse(place, format!("{key}: unknown placeholder {{{name}}}{near} (known: {known})"));
            }
            if name == "socket" && !has_server {
                reader.refuse(place, format!("{key}: {{socket}} needs a server: add server = \"NAME\""));
            }
            if name == "fio_arguments" && word.as_str() != "{fio_arguments}" {
                reader.refuse(
                    place,
                    format!(
                        "{key}: {{fio_arguments}} expands to several words: expected it as a word of its own"
                    ),
                );
            }
        }
    }
}

/// Position of an omitted key.
static NOWHERE: Span = 0..0;

/// Pairs of `[compare]`; without it, every stack and every peer marked as ours against every other peer.
fn pairs(reader: &mut Reader, entries: &[Entry], subjects: &[String], plan: &Plan) -> Vec<(String, String)> {
    reader.check_keys("[compare]", entries, &["baseline", "pairs"]);
    let mut result = Vec::new();
    let place = |key| find(entries, key).map_or(&NOWHERE, |found| &found.value.span);
    if let Some(baseline) = reader.text(entries, "baseline") {
        check_name(reader, place("baseline"), "subject", &baseline, subjects);
        let others = subjects.iter().filter(|subject| **subject != baseline);
        result.extend(others.map(|subject| (subject.clone(), baseline.clone())));
    }
    for pair in reader.lists_of_texts(entries, "pairs").unwrap_or_default() {
        let [subject, baseline] = &pair[..] else {
            reader.refuse(place("pairs"), "pairs: expected [\"SUBJECT\", \"BASELINE\"]");
            continue;
        };
        check_name(reader, place("pairs"), "subject", subject, subjects);
        check_name(reader, place("pairs"), "subject", baseline, subjects);
        result.push((subject.clone(), baseline.clone()));
    }
    if entries.is_empty() {
        let stacks = plan.stacks.iter().map(|stack| (&stack.name, stack.ours));
        let subjects: Vec<_> = stacks.chain(plan.peers.iter().map(|peer| (&peer.name, peer.ours))).collect();
        for (baseline, _) in subjects.iter().filter(|(_, ours)| !ours) {
            let ours = subjects.iter().filter(|(_, ours)| *ours);
            result.extend(ours.map(|(name, _)| ((*name).clone(), (*baseline).clone())));
        }
    }
    result
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
