//! Command line: `bench`, `serve`, `attach`, `list`, `detach`, `status`, `message`, `snapshot`, `resize`,
//! `warm`, `check`, `dump`, `format`, `stack`, `record`, `model`, `spi`, `zns`, `fs`, `kv`, `memory-node`,
//! `swap`, `map-lookups`. The only crate that depends on all others.

mod address;
mod arguments;
mod attach;
mod attach_verb;
mod bench_verb;
mod check_verb;
mod control;
mod dump_verb;
mod failure;
mod fs_verb;
mod input;
mod kinds;
mod kv_verb;
mod lifted;
mod load;
mod map_lookups_verb;
mod memory_node_verb;
mod message_verb;
mod model_verb;
mod output;
mod overwriting;
mod progress;
mod record_verb;
mod serve_verb;
mod snapshot_verb;
mod spi_verb;
mod stack_verb;
mod status_verb;
mod stop;
mod swap_verb;
mod table;
mod unix_connect;
mod warm_verb;
mod zns_verb;

use arguments::{CommandLine, LogLevel, Verb};
use clap::{CommandFactory, Parser};
use failure::Failure;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    if fuse::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    let command_line = CommandLine::parse();
    start_log(command_line.log);
    attach::record::Record::remove_lost_links();
    match carry_out(command_line.verb, command_line.log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                output::say(&text);
            }
            failure.exit_code()
        }
    }
}

fn carry_out(verb: Verb, log: LogLevel) -> Result<(), Failure> {
    match verb {
        Verb::Bench(bench) => bench_verb::bench(&bench),
        Verb::Serve(serve) => serve_verb::serve(&serve),
        Verb::Attach(attach) => attach_verb::attach(&attach, log),
        Verb::List(list) => attach_verb::list(&list),
        Verb::Detach(detach) => attach_verb::detach(&detach),
        Verb::Status(status) => status_verb::status(&status),
        Verb::Message(message) => message_verb::message(message),
        Verb::Snapshot(verb) => snapshot_verb::snapshot(&verb),
        Verb::Resize(resize) => snapshot_verb::resize(&resize),
        Verb::Warm(verb) => warm_verb::warm(verb),
        Verb::Check(check) => check_verb::check(&check),
        Verb::Dump(dump) => dump_verb::dump(&dump),
        Verb::Format(format) => serve_verb::format(&format),
        Verb::Stack(verb) => stack_verb::stack(&verb),
        Verb::Record(verb) => record_verb::record(verb),
        Verb::Spi(verb) => spi_verb::spi(verb),
        Verb::Zns(verb) => zns_verb::zns(verb),
        Verb::Fs(verb) => fs_verb::fs(&verb),
        Verb::Kv(verb) => kv_verb::kv(verb),
        Verb::MemoryNode(arguments) => memory_node_verb::memory_node(&arguments),
        Verb::Swap(verb) => swap_verb::swap(verb, log),
        Verb::Model(verb) => model_verb::model(&verb),
        Verb::MapLookups(map_lookups) => map_lookups_verb::map_lookups(&map_lookups),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut CommandLine::command(), "siltstone", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    }
}

fn start_log(level: LogLevel) {
    let filter = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .init();
}
