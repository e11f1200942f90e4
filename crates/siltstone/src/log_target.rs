//! Target of the program's messages: standard error, a file that SIGHUP makes it open again (as logrotate
//! expects), or syslog, for a server that has left its terminal.
//!
//! A message that can't be written is lost: nothing waits for its log.

use crate::failure::Failure;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

/// Socket of syslog(3), also of systemd's journal.
const SYSLOG: &str = "/dev/log";
/// Facility `daemon` of syslog, shifted as in a priority.
const DAEMON: u8 = 3 << 3;

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

/// An open target.
enum Open {
    File { path: PathBuf, file: Mutex<File>, hangup: &'static AtomicBool },
    Syslog(UnixDatagram),
}

/// `None` inside, or not set, for standard error.
static TARGET: OnceLock<Open> = OnceLock::new();

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Opens the target for all later messages of the process. Call it once, before threads start.
///
/// # Errors
/// [`Failure::Usage`] for a path that can't be opened; [`Failure::World`] without syslog.
pub fn open(target: &LogTarget) -> Result<(), Failure> {
    let opened = match target {
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
            Open::File { path, file: Mutex::new(file), hangup: runtime::catch_hangup()? }
        }
        LogTarget::Syslog => {
            let socket = UnixDatagram::unbound().and_then(|socket| {
                socket.connect(SYSLOG)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            Open::Syslog(socket.map_err(|error| {
                Failure::World(format!(
                    "--log-to syslog: {SYSLOG}: {error}; expected a running syslog or journal"
                ))
            })?)
        }
    };
    // A second call would be a fault of the program; the first target stays.
    let _ = TARGET.set(opened);
    Ok(())
}

impl Open {
    /// Writes a whole message.
    fn write(&self, severity: u8, text: &[u8]) {
        match self {
            Open::File { path, file, hangup } => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                if hangup.swap(false, Ordering::Relaxed)
                    && let Ok(reopened) = open_file(path)
                {
                    *file = reopened;
                }
                let _ = file.write_all(text);
            }
            Open::Syslog(socket) => {
                let text = text.strip_suffix(b"\n").unwrap_or(text);
                let mut message =
                    format!("<{}>siltstone[{}]: ", DAEMON | severity, std::process::id()).into_bytes();
                message.extend_from_slice(text);
                let _ = socket.send(&message);
                // The program that started this server reads this until the server is ready.
                let _ = io::stderr().write_all(&[text, b"\n"].concat());
            }
        }
    }
}

/// Severity of syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Writes a line of the program itself, without time and level.
pub fn write_line(text: &str) {
    let line = format!("{text}\n");
    match TARGET.get() {
        Some(target) => target.write(severity(Level::ERROR), line.as_bytes()),
        None => {
            // A measurement continues and writes its files even if standard error is closed.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
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
        match TARGET.get() {
            Some(target) => target.write(self.severity, &self.text),
            None => {
                let _ = io::stderr().write_all(&self.text);
            }
        }
    }
}

/// Whether messages may have colours.
pub fn is_terminal() -> bool {
    TARGET.get().is_none() && io::IsTerminal::is_terminal(&io::stderr())
}
