//! Command line: `report`.

use super::STACK_HELP;
use clap::Args;
use std::path::PathBuf;

/// Write one tar file for a bug report, without data and without secrets
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone report stack.toml                             write siltstone-report-DATE.tar
  siltstone report stack.toml -o bug.tar                  an existing file is refused
  siltstone report stack.toml --server-log /var/log/vol.log
  siltstone report                                        facts of the machine only
  tar -xOf bug.tar | less                                 look at all of it before you send it

It has the version, the kernel, processors, memory, limits, modules and devices; the text of the stack, its drawing and its \
problems; sizes, owners and formats of its files; the status and the counters of its server, if there is one; and the end of the \
server's log. README.txt lists the files and what was left out.

It has no data, and no contents of password and key files; values of keys such as password, secret, token and key are masked. \
Paths, names and addresses are not. The stack isn't opened: for a stack that can't be opened, add what siltstone status STACK \
--log debug prints.")]
pub struct Report {
    #[arg(help = STACK_HELP)]
    pub stack: Option<String>,
    /// Write the report to this file, which must not exist [default: siltstone-report-DATE.tar]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Include the end of this log [default: the file of the server's --log-to]
    #[arg(long, value_name = "FILE")]
    pub server_log: Option<PathBuf>,
    /// Ask the server that listens on this control socket
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}
