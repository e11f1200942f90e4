//! Failures of the program: the text for users, and the exit code for scripts.

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
            Failure::Usage(text) | Failure::World(text) => formatter.write_str(text),
            Failure::Said | Failure::Ended(_) | Failure::Interrupted => Ok(()),
        }
    }
}

impl From<stack::Problems> for Failure {
    fn from(problems: stack::Problems) -> Self {
        Failure::Usage(problems.to_string())
    }
}

impl From<block::Error> for Failure {
    fn from(error: block::Error) -> Self {
        Failure::World(error.to_string())
    }
}
