//! Servers in the background: this program started again in a session of its own, until it serves.
//!
//! A server that is ready keeps no descriptor of the program that started it, so that pipes of that program
//! end. Its messages go to syslog, or to the file of `--log-to`; until it is ready also to standard error.

use crate::attach::process::name_thread;
use crate::failure::Failure;
use crate::log_target;
use crate::output::print_line;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};

/// Longest text that a server prints when it is ready.
const MAX_READY_TEXT: usize = 64 << 10;

/// Outcome of a start.
pub enum Started {
    /// The server is ready, and has printed this text.
    Ready(String),
    /// The server has ended before.
    Ended(ExitStatus),
}

/// Command that runs this program in a session of its own. The caller adds the verb.
pub fn command() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--own-session");
    command
}

/// Target of the messages of a server for which none is given: syslog if there is one.
pub fn default_log() -> Option<&'static str> {
    log_target::has_syslog().then_some("--log-to=syslog")
}

/// Starts a server, and waits until it is ready or has ended. Its messages are copied to standard error
/// meanwhile.
///
/// # Errors
/// Errors of the kernel.
pub fn start(mut command: Command) -> std::io::Result<Started> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn()?;
    let errors = server.stderr.take();
    let copying = std::thread::Builder::new().spawn(move || {
        if let Some(mut errors) = errors {
            // It ends with the server, or with this process.
            let _ = std::io::copy(&mut errors, &mut std::io::stderr());
        }
    })?;
    let mut printed = Vec::new();
    if let Some(output) = &mut server.stdout {
        // A server prints everything with one call. A stack may be without doors that have an address.
        let mut piece = vec![0; MAX_READY_TEXT];
        while printed.last() != Some(&b'\n') {
            match output.read(&mut piece)? {
                0 => break,
                length => printed.extend_from_slice(&piece[..length]),
            }
        }
    }
    if !printed.is_empty() {
        return Ok(Started::Ready(String::from_utf8_lossy(&printed).into_owned()));
    }
    let status = server.wait()?;
    let _ = copying.join();
    Ok(Started::Ended(status))
}

/// Leaves the terminal's session, which could end the server. Call it before threads start.
pub fn start_session() {
    name_thread();
    ignore_hangup();
    // It fails only for the first process of a session.
    let _ = rustix::process::setsid();
}

/// Ignores SIGHUP, for servers without a terminal: logrotate may send it to every process of this name.
pub fn ignore_hangup() {
    runtime::catch_hangup().map_or_else(|error| tracing::warn!("{error}"), |_flag| ());
}

/// Starts this program's own command in the background, and prints what the server prints.
///
/// # Errors
/// The failure of the server, which it has reported; errors of the kernel.
pub fn run(has_log: bool) -> Result<(), Failure> {
    let mut command = command();
    command.args(default_log().filter(|_| !has_log));
    command.args(std::env::args_os().skip(1).filter(|argument| argument != "--background"));
    match start(command).map_err(|error| Failure::World(format!("starting the server: {error}")))? {
        Started::Ready(text) => print_line(&text),
        Started::Ended(status) => Err(Failure::Ended(status.code().and_then(|code| u8::try_from(code).ok()))),
    }
}
