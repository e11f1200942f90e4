//! Failures of the program: the text for users, and the exit code for scripts.

use rustix::io::Errno;
use std::fmt;
use std::process::ExitCode;

/// Failure of a verb.
#[derive(Debug)]
pub enum Failure {
    /// Usage error: wrong arguments, stack, plan or job file. Exit code 2.
    Usage(String),
    /// Failure of a valid request. Exit code 1.
    World(String),
    /// Failure that was reported already. Exit code 1.
    Said,
    /// End of a server in the background, which has reported it, with its exit code; `None` after a signal.
    Ended(Option<u8>),
    /// Ctrl-C or SIGTERM, after the results so far have been written. Exit code 130.
    Interrupted,
}

impl Failure {
    /// Returns the exit code of the failure.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::World(_) | Failure::Said => 1,
            Failure::Ended(code) => code.unwrap_or(1),
            Failure::Interrupted => 130,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) => formatter.write_str(text),
            Failure::World(text) => write!(formatter, "{text}{}", advice(text)),
            Failure::Said | Failure::Ended(_) | Failure::Interrupted => Ok(()),
        }
    }
}

impl From<stack::Problems> for Failure {
    fn from(problems: stack::Problems) -> Self {
        Failure::Usage(problems.to_string())
    }
}

/// Expectation and remedy for a message that ends in an error of the kernel, which is reported as it is.
pub fn advice(message: &str) -> &'static str {
    let number = message.rsplit_once("(os error ").and_then(|(_, rest)| rest.strip_suffix(')'));
    let Some(number) = number.and_then(|number| number.parse().ok()) else { return "" };
    match Errno::from_raw_os_error(number) {
        Errno::ADDRINUSE => {
            "; expected an address that no program listens on; end that program, or choose another address"
        }
        Errno::ADDRNOTAVAIL => "; expected an address of this machine; ip address lists them",
        Errno::NOENT => "; expected it to exist; check the path",
        Errno::NOTDIR => "; expected a folder before each /; check the path",
        Errno::CONNREFUSED => "; expected a server that listens there; start it, or check the address",
        Errno::ACCESS | Errno::PERM => {
            "; expected the permission for it; run the command as a user that has it"
        }
        Errno::NOSPC => "; expected free space; free some, or choose another place",
        _ => "",
    }
}

impl From<block::Error> for Failure {
    fn from(error: block::Error) -> Self {
        Failure::World(error.to_string())
    }
}
