//! Target of the program's messages: standard error, a file that SIGHUP makes it open again (as logrotate
//! expects), or syslog, for a server that has left its terminal.
//!
//! A message that can't be written is lost. Nothing waits for a file or syslog: a thread writes
//! ([`writer`]), and the end of the process waits for it for at most [`FLUSH_LIMIT`].

mod writer;

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use writer::Writer;

/// Socket of syslog(3), also of systemd's journal.
const SYSLOG: &str = "/dev/log";
/// Facility `daemon` of syslog, shifted as in a priority.
const DAEMON: u8 = 3 << 3;
/// Severity of warnings in syslog(3).
const WARNING: u8 = 4;
/// Time limit for writing the last messages of the process.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for a copy to standard error, and the bytes that a pipe that is ready takes at once.
const COPY_LIMIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const COPIED_AT_ONCE: usize = 4096;

/// Whether there is a syslog.
pub fn has_syslog() -> bool {
    Path::new(SYSLOG).exists()
}

/// Value of `--log-to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    StandardError,
    Syslog,
    File(PathBuf),
}

impl FromStr for LogTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("expected stderr, syslog or a path".to_owned()),
            "stderr" => Ok(LogTarget::StandardError),
            "syslog" => Ok(LogTarget::Syslog),
            path => Ok(LogTarget::File(path.into())),
        }
    }
}

/// Writer of the target; not set for standard error.
static TARGET: OnceLock<Writer> = OnceLock::new();
/// Descriptor of the target, which stays open also when the target is opened again, and whether it is syslog.
static DESCRIPTOR: OnceLock<(RawFd, bool)> = OnceLock::new();
/// Whether clients are served: the program that started this server no longer reads standard error.
static IS_SERVING: AtomicBool = AtomicBool::new(false);

/// Announces that clients are served: messages to syslog are no longer copied to standard error.
pub fn serving() {
    IS_SERVING.store(true, Ordering::Relaxed);
}

/// Ends the process at once, without an orderly end of the runtime, after its last messages are written.
#[expect(clippy::disallowed_methods, reason = "the messages are written")]
pub fn exit(status: i32) -> ! {
    flush();
    std::process::exit(status);
}

/// Ends the process at once, even if messages are lost: for a request in progress that must not execute any
/// more. A log that hangs would delay that.
#[expect(clippy::disallowed_methods, reason = "lost messages are accepted")]
pub fn exit_without_flush(status: i32) -> ! {
    std::process::exit(status);
}

/// Writes all messages, for at most [`FLUSH_LIMIT`]. Call it before the process ends.
pub fn flush() {
    if let Some(target) = TARGET.get() {
        target.flush(FLUSH_LIMIT);
    }
}

/// Returns the descriptor of the target and a message for it, for a process that can only call write(2);
/// `None` for standard error.
pub fn last_message(text: &str) -> Option<(RawFd, String)> {
    let (descriptor, is_syslog) = *DESCRIPTOR.get()?;
    Some((
        descriptor,
        if is_syslog { format!("{}{text}", head(severity(Level::ERROR))) } else { format!("{text}\n") },
    ))
}

/// Head of a message to syslog.
fn head(severity: u8) -> String {
    format!("<{}>siltstone[{}]: ", DAEMON | severity, std::process::id())
}

/// Makes `old` refer to what `new` does; its number stays the same.
fn replace(old: &mut OwnedFd, new: OwnedFd) -> io::Result<()> {
    Ok(rustix::io::dup3(new, old, rustix::io::DupFlags::CLOEXEC)?)
}

/// Opens a log. Not one that blocks until another process reads it.
fn open_file(path: &Path) -> io::Result<OwnedFd> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().append(true).create(true).custom_flags(nonblocking).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_fifo() {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, "a pipe")),
        false => Ok(file.into()),
    }
}

/// A log that is opened again after SIGHUP.
struct LogFile {
    path: PathBuf,
    file: OwnedFd,
    hangup: &'static AtomicBool,
}

impl LogFile {
    fn write(&mut self, text: &[u8]) {
        if self.hangup.swap(false, Ordering::Relaxed) {
            let opened = open_file(&self.path).and_then(|file| replace(&mut self.file, file));
            if opened.is_err() {
                // The next message tries again.
                self.hangup.store(true, Ordering::Relaxed);
            }
        }
        let mut rest = text;
        while !rest.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, rest)) {
                Ok(length) if length > 0 => rest = &rest[length..],
                _ => return,
            }
        }
    }
}

/// Connection to syslog.
struct Syslog {
    path: PathBuf,
    socket: OwnedFd,
}

impl Syslog {
    fn connect(path: &Path) -> io::Result<Syslog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Syslog { path: path.to_owned(), socket: socket.into() })
    }

    fn write(&mut self, severity: u8, text: &[u8]) {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let message = [head(severity).as_bytes(), text].concat();
        match rustix::io::write(&self.socket, &message) {
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => return,
            Err(_) => {}
        }
        // Syslog may have been started again.
        let again = Syslog::connect(&self.path).and_then(|again| replace(&mut self.socket, again.socket));
        if again.is_ok() {
            let _ = rustix::io::write(&self.socket, &message);
        }
    }
}

/// Copies a message to standard error, unless that is a pipe that stays full.
fn copy(text: &[u8]) {
    let mut stderr = io::stderr();
    for piece in text.chunks(COPIED_AT_ONCE) {
        let mut output = [PollFd::new(&stderr, PollFlags::OUT)];
        if rustix::event::poll(&mut output, Some(&COPY_LIMIT)) != Ok(1) {
            return;
        }
        let _ = stderr.write_all(piece);
    }
}

/// Opens the target for all later messages of the process. Call it once, before threads start.
///
/// # Errors
/// [`Failure::Usage`] for a path that can't be opened; [`Failure::World`] without syslog.
pub fn open(target: &LogTarget) -> Result<(), Failure> {
    let writer = match target {
        LogTarget::StandardError => return Ok(()),
        LogTarget::File(path) => {
            let path = std::path::absolute(path)
                .map_err(|error| Failure::Usage(format!("--log-to {}: {error}", path.display())))?;
            let file = open_file(&path).map_err(|error| {
                Failure::Usage(format!(
                    "--log-to {}: {error}; expected a file that this user may append to",
                    path.display()
                ))
            })?;
            let mut log = LogFile { path, file, hangup: runtime::catch_hangup()? };
            let _first = DESCRIPTOR.set((log.file.as_raw_fd(), false));
            Writer::start(move |message| log.write(&message.text))
        }
        LogTarget::Syslog => {
            let mut log = Syslog::connect(Path::new(SYSLOG)).map_err(|error| {
                Failure::World(format!(
                    "--log-to syslog: {SYSLOG}: {error}; expected a running syslog or journal"
                ))
            })?;
            let _first = DESCRIPTOR.set((log.socket.as_raw_fd(), true));
            Writer::start(move |message| {
                log.write(message.severity, &message.text);
                // The program that started this server reads this until the server is ready.
                if !IS_SERVING.load(Ordering::Relaxed) {
                    copy(&message.text);
                }
            })
        }
    };
    let writer = writer.map_err(|error| Failure::World(format!("--log-to: starting its thread: {error}")))?;
    // A second call would be a fault of the program; the first target stays.
    let _ = TARGET.set(writer);
    Ok(())
}

/// Writes a whole message to the target.
fn write(severity: u8, text: Vec<u8>) {
    match TARGET.get() {
        Some(target) => target.send(writer::Message { severity, text }),
        None => {
            // A measurement continues and writes its files even if standard error is closed.
            let _ = io::stderr().write_all(&text);
        }
    }
}

/// Severity of syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => WARNING,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes a line of the program itself, without time and level.
pub fn write_line(text: &str) {
    write(severity(Level::ERROR), format!("{text}\n").into_bytes());
}

/// Makes the writer of each message of `tracing`, which collects it and writes it as a whole.
pub struct Messages;

impl<'a> MakeWriter<'a> for Messages {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message { severity: severity(Level::INFO), text: Vec::new() }
    }

    fn make_writer_for(&'a self, metadata: &tracing::Metadata<'_>) -> Message {
        Message { severity: severity(*metadata.level()), text: Vec::new() }
    }
}

/// A message, written when it is dropped.
pub struct Message {
    severity: u8,
    text: Vec<u8>,
}

impl Write for Message {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        write(self.severity, std::mem::take(&mut self.text));
    }
}

/// Whether messages may have colours.
pub fn is_terminal() -> bool {
    TARGET.get().is_none() && io::IsTerminal::is_terminal(&io::stderr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_log_that_could_not_be_opened_again_is_tried_again() {
        static HANGUP: AtomicBool = AtomicBool::new(false);
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        let file = open_file(&path).unwrap();
        let mut log = LogFile { path: path.clone(), file, hangup: &HANGUP };
        log.write(b"one\n");
        std::fs::rename(&path, &old).unwrap();
        // A folder can't be opened for writing, also by root.
        std::fs::create_dir(&path).unwrap();
        HANGUP.store(true, Ordering::Relaxed);
        log.write(b"two\n");
        std::fs::remove_dir(&path).unwrap();
        log.write(b"three\n");
        assert_eq!((text(&old).as_str(), text(&path).as_str()), ("one\ntwo\n", "three\n"));
    }

    #[test]
    fn pipes_and_folders_are_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        open_file(&pipe).unwrap_err();
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        assert!(open_file(&pipe).unwrap_err().to_string().contains("a pipe"));
        open_file(folder.path()).unwrap_err();
    }

    #[test]
    fn messages_reach_a_syslog_that_was_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let listen = || {
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let received = |socket: &UnixDatagram| {
            let mut buffer = [0; 256];
            let length = socket.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let first = listen();
        let mut log = Syslog::connect(&path).unwrap();
        log.write(3, b"one\n");
        assert_eq!(received(&first), format!("<27>siltstone[{}]: one", std::process::id()));
        drop(first);
        std::fs::remove_file(&path).unwrap();
        log.write(3, b"lost\n");
        let second = listen();
        log.write(4, b"two\n");
        assert_eq!(received(&second), format!("<28>siltstone[{}]: two", std::process::id()));
    }
}
