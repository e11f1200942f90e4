//! `siltstone attach`, `list`, `reload` and `detach`: block device nodes.

use crate::arguments::{Attach, Detach, List, LogLevel, Reload};
use crate::attach::driver::Driver;
use crate::attach::folder::{self, Folder};
use crate::attach::holder::{self, Plan};
use crate::attach::machine;
use crate::attach::record::Record;
use crate::attach::requests;
use crate::attach::{node, systemd};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::metrics::Endpoint;
use crate::output::{print_json, print_line, say};
use crate::overwriting;
use crate::table;
use crate::warnings::warn_command;
use block::{Error, Result};
use runtime::Config;
use serde_json::{Value, json};
use stack::{Contract, Stack};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Attaches a stack, and prints its link.
///
/// # Errors
/// A wrong stack or name; a requirement of the node that is missing; errors of the server and of the node.
pub fn attach(arguments: &Attach, log: LogLevel) -> Result<(), Failure> {
    match attach_or_print(arguments, log)? {
        Some(said) if arguments.json => print_json(&said),
        Some(said) => print_line(&link(&said)),
        None => Ok(()),
    }
}

/// Attaches a stack in the background, and returns the record.
///
/// # Errors
/// Errors of [`attach`].
pub fn attach_in_background(arguments: &Attach, log: LogLevel) -> Result<Value, Failure> {
    Ok(attach_or_print(arguments, log)?.unwrap_or_default())
}

/// Attaches a stack. Returns the record of an attachment in the background; `None` after printing in the
/// foreground.
fn attach_or_print(arguments: &Attach, log: LogLevel) -> Result<Option<Value>, Failure> {
    if arguments.stack == "-" {
        return Err(Failure::Usage(
            "stack \"-\": standard input can't be attached; expected a file or one line: write the stack to a file".into(),
        ));
    }
    let stack = load::stack(&arguments.stack, &registry())?;
    let top = stack.top().map_err(|error| Failure::Usage(error.detail().to_owned()))?;
    stack.check(arguments.format)?;
    overwriting::check(
        &stack,
        &arguments.format.into(),
        "if it may be lost, run siltstone format with --force first, and attach without --format",
    )?;
    let name = arguments.name.clone().unwrap_or_else(|| folder::name_for(&arguments.stack, top.name()));
    let folder = Folder::of(&name).map_err(|error| Failure::Usage(error.detail().to_owned()))?;
    if arguments.systemd {
        return print_units(arguments, &name).map(|()| None);
    }
    let is_root = rustix::process::geteuid().is_root();
    let (driver, why) = match top.kind().contract {
        Contract::Zones => machine::choose(arguments.via, is_root, machine::INSTEAD_OF_ZONES, |driver| {
            driver.node_driver().check_zoned()
        }),
        _ => machine::choose(arguments.via, is_root, machine::INSTEAD, |driver| driver.node_driver().check()),
    }?;
    if arguments.sector_size.is_some() && !driver.node_driver().sets_sector_size() {
        return Err(Failure::Usage(
            "--sector-size is for nodes over NBD and FUSE: give --via nbd or --via fuse".into(),
        ));
    }
    match arguments.foreground || arguments.background {
        true => hold(arguments, plan_of(arguments, log, &stack, driver, folder)?).map(|()| None),
        false => hold_in_background(arguments, log, &name, (driver, &why)).map(Some),
    }
}

fn absolute(stack: &str) -> String {
    let path = Path::new(stack);
    let found = path.is_file().then(|| std::fs::canonicalize(path).ok()).flatten();
    found.map_or_else(|| stack.to_owned(), |path| path.display().to_string())
}

/// Returns the option of the server for warnings, with an absolute path.
fn warn_option(arguments: &Attach) -> Result<Option<String>, Failure> {
    let program = warn_command(arguments.warnings.warn_command.as_deref())?;
    Ok(program.map(|program| format!("--warn-command={}", program.display())))
}

fn print_units(arguments: &Attach, name: &str) -> Result<(), Failure> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("siltstone"));
    let mut others = vec![format!("--recover-within={}ms", arguments.recover_within.as_millis())];
    others.extend(arguments.via.map(|via| format!("--via={}", via.word())));
    others.extend(arguments.sector_size.map(|size| format!("--sector-size={size}")));
    others.extend(warn_option(arguments)?);
    others.extend(metrics_words(arguments)?);
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    print_line(&systemd::units(&program, &folder, &absolute(&arguments.stack), name, &others))
}

/// Returns the arguments of servers for their metrics, whose address has no relative path.
fn metrics_words(arguments: &Attach) -> Result<Vec<String>, Failure> {
    let Some(endpoint) = Endpoint::of(&arguments.metrics, arguments.allow_remote)? else {
        return Ok(Vec::new());
    };
    let mut words = vec![format!("--metrics={}", endpoint.address())];
    if let Some(folder) = &arguments.metrics.metrics_tls {
        let folder = std::path::absolute(folder)
            .map_err(|error| Failure::Usage(format!("--metrics-tls {}: {error}", folder.display())))?;
        words.push(format!("--metrics-tls={}", folder.display()));
    }
    words.extend(arguments.allow_remote.then(|| "--allow-remote".to_owned()));
    Ok(words)
}

/// Returns the plan of an attachment, with the arguments of its servers.
fn plan_of(
    arguments: &Attach,
    log: LogLevel,
    parsed: &Stack,
    driver: Driver,
    folder: Folder,
) -> Result<Plan, Failure> {
    let stack = absolute(&arguments.stack);
    let mut words = vec!["--log", log.word(), "serve", "--holder"];
    words.extend(arguments.swap.then_some("--swap"));
    let warn_command = warn_option(arguments)?;
    words.extend(warn_command.as_deref());
    let metrics_words = metrics_words(arguments)?;
    words.extend(metrics_words.iter().map(String::as_str));
    words.push(&stack);
    Ok(Plan {
        server_arguments: words.into_iter().map(str::to_owned).collect(),
        text: Path::new(&stack).is_file().then(|| parsed.to_toml()),
        stack,
        folder,
        driver,
        format: arguments.format,
        sector_size: arguments.sector_size,
        recover_within: arguments.recover_within,
    })
}

/// Holds the attachment in this process until it is detached.
fn hold(arguments: &Attach, plan: Plan) -> Result<(), Failure> {
    let (as_json, background) = (arguments.json, arguments.background);
    if background {
        rustix::process::setsid().map_err(|error| Failure::World(format!("setsid: {error}")))?;
    }
    let log_file = background.then(|| plan.folder.log());
    let operator = match background {
        true => Some(operators_pipe()?),
        false => None,
    };
    let attached = move |record: &Record| {
        if background {
            // Without the operator's process the path of the node would be unknown.
            let gone = |_| Error::cancelled("siltstone attach ended before the node was there");
            writeln!(std::io::stdout(), "{}", record.to_json()).map_err(gone)?;
            leave_output();
            return Ok(());
        }
        let _printed = match as_json {
            true => print_line(&record.to_json().to_string()),
            false => print_line(&link(&record.to_json())),
        };
        Ok(())
    };
    let held = runtime::run(Config::default(), move || async move {
        let lock = plan.folder.create()?;
        if let Some(log_file) = log_file {
            redirect_errors(&log_file)?;
        }
        holder::hold(plan, lock, operator, attached).await
    })?;
    match (held, background) {
        (Err(error), true) => {
            print_line(&json!({ "error": error.to_string() }).to_string())?;
            Err(Failure::Said)
        }
        (held, _) => Ok(held?),
    }
}

fn link(record: &Value) -> String {
    record["link"].as_str().unwrap_or_default().to_owned()
}

/// Redirects standard error of this process and of servers to a file.
fn redirect_errors(log: &Path) -> Result<()> {
    // Opened for appending: the holder truncates the file while others write.
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(log);
    let redirected = opened.and_then(|file| Ok(rustix::stdio::dup2_stderr(&file)?));
    redirected.map_err(|error| Error::from_io(&error, &format!("the log {}", log.display())))
}

/// Returns the pipe that closes when the operator's process ends: standard input of this holder, which
/// servers don't inherit.
fn operators_pipe() -> Result<OwnedFd> {
    let pipe = std::io::stdin().as_fd().try_clone_to_owned();
    pipe.map_err(|error| Error::from_io(&error, "duplicating standard input"))
}

/// Closes the pipe to the operator, which waits for its end.
fn leave_output() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _left = rustix::stdio::dup2_stdout(&null);
    }
}

/// Starts a holder that outlives this process.
fn hold_in_background(
    arguments: &Attach,
    log: LogLevel,
    name: &str,
    (driver, why): (Driver, &str),
) -> Result<Value, Failure> {
    let world = |error: std::io::Error| Failure::World(format!("starting the holder: {error}"));
    let mut command = Command::new(holder::PROGRAM);
    command.arg0(holder::NAME);
    command.args(["--log", log.word(), "attach", "--background", "--name", name]);
    command.arg(format!("--recover-within={}ms", arguments.recover_within.as_millis()));
    command.args(arguments.sector_size.map(|size| format!("--sector-size={size}")));
    command.arg(format!("--via={}", driver.word()));
    command.args(warn_option(arguments)?);
    command.args(arguments.format.then_some("--format"));
    command.args(arguments.swap.then_some("--swap"));
    command.args(metrics_words(arguments)?);
    command.arg("--").arg(&arguments.stack);
    // The holder detects by the end of its standard input that this process has ended, by Ctrl-C or
    // otherwise.
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(world)?;
    let _operator = child.stdin.take();
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(world)?;
    }
    let said: Value = serde_json::from_str(&line).unwrap_or_default();
    if let Some(error) = said["error"].as_str() {
        return Err(Failure::World(error.to_owned()));
    }
    if said["node"].is_null() {
        return Err(Failure::World(
            "the holder ended before the node was there; run attach with --foreground to see why".into(),
        ));
    }
    let node = said["node"].as_str().unwrap_or_default();
    say(&format!("{node} via {}: {why}", driver.word()));
    Ok(said)
}

/// Lists attachments.
///
/// # Errors
/// Errors of reading the records.
pub fn list(arguments: &List) -> Result<(), Failure> {
    let mut all = Vec::new();
    for folder in Folder::all()? {
        let mut entry = match Record::read(&folder) {
            Ok(Some(record)) => record.to_json(),
            // Only root may read the record.
            Err(Error::PermissionDenied(_)) => json!({ "name": folder.name(), "state": "unknown" }),
            Err(error) => return Err(error.into()),
            Ok(None) => json!({ "name": folder.name(), "state": "attaching" }),
        };
        if !folder.is_alive() {
            entry["state"] = "lost".into();
        }
        all.push(entry);
    }
    if arguments.json {
        return print_json(&Value::Array(all));
    }
    if all.is_empty() {
        say("nothing is attached");
        return Ok(());
    }
    let mut out = String::new();
    let objects = all.iter().filter_map(Value::as_object);
    table::rows(&mut out, 0, objects.map(|entry| (None, entry)));
    print_line(&out)
}

/// Replaces the server of a node by one of the installed program.
///
/// # Errors
/// A stack whose server can't be replaced; a program that doesn't start; an unknown name.
pub fn reload(arguments: &Reload) -> Result<(), Failure> {
    Ok(requests::reload(&find(&arguments.name)?)?)
}

/// Detaches a node.
///
/// # Errors
/// [`Error::Busy`] while the node is in use; an unknown name.
pub fn detach(arguments: &Detach) -> Result<(), Failure> {
    let folder = find(&arguments.name)?;
    if requests::detach(&folder)?.is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::World(format!("detaching {} needs root: run it with sudo", folder.name())));
    }
    say(&format!(
        "the holder of {} has ended; removing the node, mounts and files of the attachment",
        folder.name()
    ));
    let removed = runtime::run(Config::default(), move || async move { remove_lost(&folder).await })?;
    Ok(removed?)
}

/// Returns the attachment of this name, link or node.
///
/// # Errors
/// [`Failure::World`] without such an attachment; errors of reading the records.
pub fn find(name: &str) -> Result<Folder, Failure> {
    let all = Folder::all()?;
    let path = std::fs::canonicalize(name).ok();
    let is_it = |folder: &&Folder| {
        let record = Record::read(folder).ok().flatten().filter(Record::has_node);
        let node = record.map(|record| record.node);
        folder.name() == name || folder.link() == Path::new(name) || node.is_some() && node == path
    };
    let expected = || match all.as_slice() {
        [] => "no stack is attached".to_owned(),
        _ => format!("expected one of: {}", all.iter().map(Folder::name).collect::<Vec<_>>().join(", ")),
    };
    // Several attachments may have the node's path; one with a holder takes precedence.
    all.iter().filter(is_it).max_by_key(|folder| folder.is_alive()).cloned().ok_or_else(|| {
        Failure::World(format!("attachment \"{name}\": nothing of this name is attached; {}", expected()))
    })
}

/// Removes the node, mount and folder of an attachment without a holder.
async fn remove_lost(folder: &Folder) -> Result<()> {
    let lock = folder.lock()?;
    node::detach_lost(folder).await?;
    let removed = folder.remove();
    drop(lock);
    removed
}
