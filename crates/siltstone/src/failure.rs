//! How the program ends: the words for people, and the exit code for scripts.

use std::fmt;
use std::process::ExitCode;

/// Why a verb didn't do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// It was asked for wrongly: arguments, a stack, a plan or a job file. Exit code 2.
    Usage(String),
    /// It was asked for rightly, and the world said no. Exit code 1.
    World(String),
    /// It is said already. Exit code 1.
    Said,
    /// Ctrl-C or SIGTERM, after what was there has been written. Exit code 130.
    Interrupted,
}

impl Failure {
    /// The exit code that stands for it.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Usage(_) => 2,
            Failure::World(_) | Failure::Said => 1,
            Failure::Interrupted => 130,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::World(text) => formatter.write_str(text),
            Failure::Said | Failure::Interrupted => Ok(()),
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
