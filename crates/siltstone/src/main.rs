//! Command line: `bench`, `serve`, `attach`, `list`, `reload`, `detach`, `stop`, `status`, `top`, `trace`,
//! `metrics`, `message`, `snapshot`, `resize`, `warm`, `check`, `dump`, `format`, `stack`, `record`,
//! `report`, `model`, `spi`, `zns`, `objects`, `fs`, `kv`, `memory-node`, `swap`, `map-lookups`; helpers of
//! mount(8). It is the only crate that depends on all others.

mod address;
mod arguments;
mod attach;
mod attach_verb;
mod background;
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
mod log_target;
mod man_verb;
mod map_lookups_verb;
mod memory_node_verb;
mod message_verb;
mod metrics;
mod metrics_verb;
mod model_verb;
mod mount_helper;
mod objects_verb;
mod operator_clients;
mod operators;
mod output;
mod overwriting;
mod prices;
mod progress;
mod record_verb;
mod report_verb;
mod serve_verb;
mod server_process;
mod service;
mod snapshot_verb;
mod spi_verb;
mod stack_verb;
mod status_verb;
mod stdio;
mod stop;
mod stop_verb;
mod swap_verb;
mod table;
mod top_verb;
mod trace_verb;
mod unix_connect;
mod warm_verb;
mod warnings;
mod zns_verb;

use arguments::{CommandLine, LogLevel, Verb};
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use failure::Failure;
use log_target::LogTarget;
use std::any::TypeId;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    if fuse::run_if_asked() {
        return ExitCode::SUCCESS;
    }
    if let Some(exit_code) = mount_helper::run_if_called() {
        return exit_code;
    }
    let command_line = command_line();
    if command_line.own_session {
        background::start_session();
    } else if std::env::var_os("NOTIFY_SOCKET").is_some() {
        background::ignore_hangup();
    }
    let done = log_target::open(&command_line.log_to).and_then(|()| {
        if command_line.verb.is_in_background() {
            return background::run(command_line.log_to != LogTarget::StandardError);
        }
        start_log(command_line.log);
        attach::record::Record::remove_lost_links();
        carry_out(command_line.verb, command_line.log)
    });
    let exit_code = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                output::say(&text);
            }
            failure.exit_code()
        }
    };
    log_target::flush();
    exit_code
}

/// Parses the command line, or ends the process with a message.
fn command_line() -> CommandLine {
    let matches = with_negative_values(CommandLine::command()).get_matches();
    CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Takes `-1` as a value that is out of range, rather than as an unknown option; also `-5ms` after an option
/// whose value isn't a text, so that its parser reports it.
fn with_negative_values(command: Command) -> Command {
    let permitted = |arg: Arg| {
        let takes_values = arg.get_action().takes_values();
        let values = arg.get_value_parser().type_id();
        let is_text = [TypeId::of::<String>(), TypeId::of::<PathBuf>()].iter().any(|text| values == *text);
        let takes_hyphens = takes_values && !is_text && !arg.is_positional();
        arg.allow_negative_numbers(takes_values).allow_hyphen_values(takes_hyphens)
    };
    command.mut_args(permitted).mut_subcommands(with_negative_values)
}

fn carry_out(verb: Verb, log: LogLevel) -> Result<(), Failure> {
    match verb {
        Verb::Bench(bench) => bench_verb::bench(&bench),
        Verb::Serve(serve) => serve_verb::serve(&serve),
        Verb::Attach(attach) => attach_verb::attach(&attach, log),
        Verb::List(list) => attach_verb::list(&list),
        Verb::Stop(stop) => stop_verb::stop(&stop),
        Verb::Reload(reload) => attach_verb::reload(&reload),
        Verb::Detach(detach) => attach_verb::detach(&detach),
        Verb::Status(status) => status_verb::status(&status),
        Verb::Top(top) => top_verb::top(&top),
        Verb::Trace(trace) => trace_verb::trace(trace),
        Verb::Metrics(metrics) => metrics_verb::metrics(&metrics),
        Verb::Message(message) => message_verb::message(message),
        Verb::Snapshot(verb) => snapshot_verb::snapshot(&verb),
        Verb::Resize(resize) => snapshot_verb::resize(&resize),
        Verb::Warm(verb) => warm_verb::warm(verb),
        Verb::Check(check) => check_verb::check(&check),
        Verb::Dump(dump) => dump_verb::dump(&dump),
        Verb::Format(format) => serve_verb::format(&format),
        Verb::Stack(verb) => stack_verb::stack(&verb),
        Verb::Record(verb) => record_verb::record(verb),
        Verb::Report(report) => report_verb::report(&report),
        Verb::Spi(verb) => spi_verb::spi(verb),
        Verb::Zns(verb) => zns_verb::zns(verb),
        Verb::Objects(verb) => objects_verb::objects(&verb),
        Verb::Fs(verb) => fs_verb::fs(&verb),
        Verb::Kv(verb) => kv_verb::kv(verb),
        Verb::MemoryNode(arguments) => memory_node_verb::memory_node(&arguments),
        Verb::Swap(verb) => swap_verb::swap(verb, log),
        Verb::Model(verb) => model_verb::model(&verb),
        Verb::MapLookups(map_lookups) => map_lookups_verb::map_lookups(&map_lookups),
        Verb::ManPages { directory } => man_verb::man_pages(&directory),
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
    tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_writer(log_target::Messages)
        .with_ansi(log_target::is_terminal())
        .init();
}
