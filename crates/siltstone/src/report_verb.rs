//! `siltstone report`: one tar file for a bug report, with facts of the machine, the stack and its server,
//! and without data.
//!
//! # Promises
//! - No file is opened for writing but the new one, whose mode is 0600; an existing file is refused. The new
//!   one gets its name when it is complete ([`mod@file`]). The stack isn't opened.
//! - Of images ([`EXAMINED`]) the first [`SIGNATURE_BYTES`] bytes are read, to name their format; none of
//!   these bytes is in the report. Of other files, such as password and key files, it has only the owner and
//!   the mode.
//! - Values of keys for secrets are masked in every file of the report ([`mask`]).
//! - A server that doesn't answer is waited for as long as [`Client`] does; each file has a bounded size.

mod file;
mod machine;
mod mask;

use crate::arguments::Report;
use crate::control::client::Client;
use crate::control::place::{self, Identity};
use crate::control::protocol::Request;
use crate::failure::Failure;
use crate::input;
use crate::kinds::registry;
use crate::load;
use crate::output::{counted, print_line};
use bench::units;
use file::ReportFile;
use mask::Mask;
use stack::{Stack, Value};
use std::fmt::Write as _;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes at the start of a file that are examined for known formats.
const SIGNATURE_BYTES: u64 = 128 << 10;
/// Keys of kinds that name an image.
const EXAMINED: [&str; 2] = ["path", "timeline"];
/// Most bytes of the end of a log.
const LOG_BYTES: u64 = 256 << 10;
/// Most bytes of a file of the report.
const MAX_BYTES: usize = 4 << 20;
/// Folder inside of the tar file.
const FOLDER: &str = "siltstone-report";

/// Writes a report, and prints its name and its contents.
///
/// # Errors
/// [`Failure::Usage`] for a STACK that is no stack file; [`Failure::World`] for a file that exists or can't
/// be written.
pub fn report(arguments: &Report) -> Result<(), Failure> {
    let now = runtime::wall_clock().as_secs();
    let mut contents = Contents::new(Mask::default());
    // Created first: nothing is gathered for a name that is taken.
    let file = ReportFile::new(arguments.output.clone(), now)?;
    gather(arguments, &mut contents)?;
    contents.add_read_me(now);
    let path = file.write(|file| write(&contents, file, now))?;
    let bytes: usize = contents.files.iter().map(|(_, _, text)| text.len()).sum();
    let count = counted(contents.files.len() as u64, "file", "files");
    let mut text = format!("{}: {count}, {}\n", path.display(), units::bytes(bytes as f64));
    for (name, what, _) in &contents.files {
        let _ = writeln!(text, "  {name:14}{what}");
    }
    for missing in &contents.missing {
        let _ = writeln!(text, "Not available: {}", contents.mask.apply(missing).replace('\n', "\n  "));
    }
    let _ = write!(
        text,
        "Look at it before you send it: it names files, parts, users' processes and addresses. It has no data, and no \
         contents of password and key files.\n  tar -xOf {} | less",
        path.display()
    );
    print_line(&text)
}

/// Files of the report.
struct Contents {
    mask: Mask,
    /// Name, description and text of each file.
    files: Vec<(&'static str, &'static str, String)>,
    /// Notes on what couldn't be gathered.
    missing: Vec<String>,
}

impl Contents {
    fn new(mask: Mask) -> Self {
        Contents { mask, files: Vec::new(), missing: Vec::new() }
    }

    fn add(&mut self, name: &'static str, what: &'static str, text: &str) {
        let mut text = self.mask.apply(text);
        if text.len() > MAX_BYTES {
            let end = (0..=MAX_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
            text.push_str("\n[cut off]\n");
        }
        self.files.push((name, what, text));
    }

    fn add_read_me(&mut self, now: u64) {
        let mut text = format!(
            "Report of siltstone {}, made at {} UTC.\n\nFiles:\n",
            env!("CARGO_PKG_VERSION"),
            units::date(now)
        );
        for (name, what, contents) in &self.files {
            let _ = writeln!(text, "  {name:14}{what} ({})", units::bytes(contents.len() as f64));
        }
        text.push_str(
            "\nLeft out:\n  \
             data: no block, key or value of any device or store\n  \
             contents and sizes of password and key files; only their paths are here\n  \
             the environment of processes, and the machine's name\n",
        );
        let _ = writeln!(
            text,
            "  values of keys such as password, secret, token and key, and passwords in addresses: {} replaced by {}",
            counted(self.mask.count(), "value", "values"),
            stack::secrets::MASKED
        );
        if !self.missing.is_empty() {
            text.push_str("\nNot available:\n");
        }
        for missing in &self.missing {
            let _ = writeln!(text, "  {}", missing.replace('\n', "\n  "));
        }
        text.push_str("\nPaths, names of parts, users' processes and addresses are not masked: check them before you send this.\n");
        let text = self.mask.apply(&text);
        self.files.insert(0, ("README.txt", "what is in the report, and what was left out", text));
    }
}

fn write(contents: &Contents, file: &std::fs::File, now: u64) -> std::io::Result<()> {
    let mut tar = tar::Builder::new(std::io::BufWriter::new(file));
    for (name, _, text) in &contents.files {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        tar.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    tar.into_inner()?.flush()?;
    file.sync_all()
}

fn gather(arguments: &Report, contents: &mut Contents) -> Result<(), Failure> {
    let stack = match &arguments.stack {
        Some(argument) => gather_stack(argument, contents)?,
        None => None,
    };
    contents.add("machine.txt", "version, kernel, processors, memory, limits, devices", &machine::facts());
    let log = gather_server(arguments, stack.as_ref(), contents);
    if let Some(stack) = &stack {
        contents.add("files.txt", "files and sockets of the stack, with sizes and formats", &files(stack));
    }
    match arguments.server_log.clone().or(log) {
        Some(path) => match log_end(&path) {
            Ok(text) => contents.add("log.txt", "end of the server's log", &text),
            Err(error) => contents.missing.push(format!("log {}: {error}", path.display())),
        },
        None => contents.missing.push("log: no file is known; --server-log FILE names it".to_owned()),
    }
    Ok(())
}

/// Adds the text of a stack, its drawing and its problems. Returns the stack if it is valid.
fn gather_stack(argument: &str, contents: &mut Contents) -> Result<Option<Stack>, Failure> {
    let text = match argument {
        "-" => {
            return Err(Failure::Usage("STACK -: standard input; expected a stack file or one line".into()));
        }
        _ => input::read_stack(argument)?.unwrap_or_else(|| argument.to_owned()),
    };
    // Secrets of the stack are masked wherever they are quoted, so its text is first.
    contents.mask.learn(&text);
    let loaded = load::stack(argument, &registry());
    // A file that isn't a stack at all may have been named by mistake.
    let is_stack = loaded.is_ok() || argument.ends_with(".toml") || !Path::new(argument).is_file();
    if !is_stack {
        return Err(Failure::Usage(format!(
            "stack \"{argument}\": not a stack; expected a stack file, or one line"
        )));
    }
    contents.add("stack.txt", "text of the stack, with secrets masked", &text);
    let problems = match &loaded {
        Ok(stack) => {
            let (drawing, problems) = match stack.check(false) {
                Ok(plan) => (plan.draw(), None),
                Err(problems) => (stack.draw(), Some(problems.to_string())),
            };
            contents.add("drawing.txt", "the stack as siltstone stack show draws it", &drawing);
            problems
        }
        Err(failure) => Some(failure.to_string()),
    };
    if let Some(problems) = problems {
        contents.add("problems.txt", "errors of the stack", &problems);
    }
    Ok(loaded.ok())
}

/// Adds the answers of the stack's server. Returns the file of its log, if its command line names one.
fn gather_server(arguments: &Report, stack: Option<&Stack>, contents: &mut Contents) -> Option<PathBuf> {
    let mut client = match server(arguments, stack) {
        Ok(Some(client)) => client,
        Ok(None) => {
            contents.missing.push("status: not served".to_owned());
            return None;
        }
        Err(failure) => {
            contents.missing.push(format!("status: {failure}"));
            return None;
        }
    };
    let mut log = None;
    if let Ok(process) = runtime::peer_process(client.stream().as_fd()) {
        let (text, its_log) = machine::process(process);
        contents.add("server.txt", "command line, memory and limits of the server", &text);
        log = its_log;
    }
    let requests = [
        ("status.json", "status of the parts", Request::Status),
        ("observe.json", "counts and latencies of calls, begun by this report", Request::Observe),
    ];
    for (name, what, request) in requests {
        match client.ask(&request) {
            Ok(Ok(answer)) => contents.add(name, what, &format!("{answer:#}\n")),
            Ok(Err(refusal)) => contents.missing.push(format!("{name}: {refusal}")),
            Err(failure) => {
                contents.missing.push(format!("{name}: {failure}"));
                break;
            }
        }
    }
    log
}

/// Connects to the server of the stack; the first one, if it has several.
fn server(arguments: &Report, stack: Option<&Stack>) -> Result<Option<Client>, Failure> {
    let client = match (&arguments.control, &arguments.stack) {
        (Some(path), _) => Some(Client::at(path)?),
        (None, Some(argument)) => {
            let identity = match (Identity::of_file(argument), stack) {
                (Some(identity), _) => identity,
                (None, Some(stack)) => Identity::of_text(stack)?,
                (None, None) => return Ok(None),
            };
            let first = place::servers(&identity)?.into_iter().next();
            first.map(|(path, stream)| Client::new(path, stream)).transpose()?.flatten()
        }
        (None, None) => None,
    };
    let Some(client) = client else { return Ok(None) };
    client.limit_answers()?;
    Ok(Some(client))
}

/// Describes the files of a stack.
fn files(stack: &Stack) -> String {
    let mut text = String::new();
    for part in stack.parts() {
        for (key, value) in part.values() {
            let Value::Path(path) = value else { continue };
            let absolute = stack.absolute(Path::new(path)).unwrap_or_else(|_| path.into());
            let _ = writeln!(text, "{} \"{}\", {key}: {}", part.kind().name, part.name(), absolute.display());
            let _ = writeln!(text, "  {}", describe(&absolute, EXAMINED.contains(&key)));
        }
    }
    if text.is_empty() {
        text.push_str("The stack names no files.\n");
    }
    text
}

/// Describes a file by its owner and mode, and an image also by its size and its format.
fn describe(path: &Path, is_image: bool) -> String {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) => return input::describe(&error),
    };
    let kind = found.file_type();
    let noun = match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "folder",
        () if kind.is_socket() => "socket",
        () if kind.is_block_device() => "block device",
        () => "special file",
    };
    let mode = found.mode() & 0o7777;
    let mut text = format!("{noun}, mode {mode:04o}, owner {}:{}", found.uid(), found.gid());
    if !is_image {
        return text;
    }
    if kind.is_file() {
        let (bytes, allocated) =
            (units::bytes(found.len() as f64), units::bytes(found.blocks() as f64 * 512.0));
        let _ = write!(text, ", {bytes} ({} bytes), {allocated} allocated", found.len());
    }
    if kind.is_file() || kind.is_block_device() {
        let mut first = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|file| file.take(SIGNATURE_BYTES).read_to_end(&mut first));
        let _ = match read {
            Ok(_) => write!(text, ", begins with {}", format_of(&first)),
            Err(error) => write!(text, ", {}", input::describe(&error)),
        };
    }
    text
}

/// Names the format of the first bytes of a file.
fn format_of(bytes: &[u8]) -> String {
    let what = zones::sector::foreign(bytes).unwrap_or_else(|| zones::sector::describe(bytes));
    // Data of users may begin as a superblock does; its version is small.
    let version = bytes.get(8..12).and_then(|version| version.try_into().ok()).map(u32::from_le_bytes);
    match version {
        Some(version) if bytes.starts_with(b"SILT") && version < 1000 => {
            format!("{what} (version {version})")
        }
        _ => what.to_owned(),
    }
}

/// Returns the last lines of a log.
fn log_end(path: &Path) -> std::io::Result<String> {
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    let mut file = std::fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(match length > LOG_BYTES {
        true => text.split_once('\n').map_or("", |(_, whole_lines)| whole_lines).to_owned(),
        false => text.into_owned(),
    })
}
