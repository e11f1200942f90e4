//! Commands about the server and the connection: `AUTH`, `CLIENT`, `COMMAND`, `CONFIG`, `HELLO`, `INFO`. They
//! don't use the store.

use crate::command::{Failure, SYNTAX, is, wrong_arity};
use crate::facts::{Facts, REDIS_VERSION, Session};
use crate::table::{COMMANDS, Command};
use crate::users::Rights;
use block::Status;
use kv::MAX_VALUE_BYTES;
use resp::{Arguments, Protocol, Replies, integer};
use std::borrow::Cow;
use std::fmt::Write;

/// Maximum length of the name of a connection or of a client's library, in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Executes one of these commands, except those with any number of arguments (`execute/server`).
///
/// # Errors
/// The error reply.
pub fn carry_out(
    command: &Command,
    arguments: Arguments<'_>,
    facts: &Facts,
    session: &mut Session,
    replies: &mut Replies,
) -> Result<(), Failure> {
    match command.name {
        "auth" => auth(arguments.from(1), facts, session, replies),
        "client" => client(arguments, session, replies),
        "command" => commands(arguments, replies),
        "config" => config(arguments, facts),
        _ => hello(arguments, facts, session, replies),
    }
}

/// Error of an unknown subcommand.
fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Failure {
    let shown = &subcommand[..subcommand.len().min(128)];
    let text = [b"ERR unknown subcommand '", shown, b"'. Try ", command.to_uppercase().as_bytes(), b" HELP."]
        .concat();
    Failure(Cow::Owned(text))
}

/// Checks the number of arguments of a subcommand; a negative `arity` is a minimum.
fn check_arity(arguments: Arguments<'_>, arity: i32, name: &str) -> Result<(), Failure> {
    let wanted = arity.unsigned_abs() as usize;
    let fits = if arity < 0 { arguments.len() >= wanted } else { arguments.len() == wanted };
    if fits { Ok(()) } else { Err(wrong_arity(name)) }
}

/// Returns the rights of a user.
fn log_in(facts: &Facts, user: &[u8], password: &[u8]) -> Result<Rights, Failure> {
    facts.users.log_in(user, password).ok_or_else(|| {
        facts.count_failed_login();
        Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.")
    })
}

fn auth(
    arguments: Arguments<'_>,
    facts: &Facts,
    session: &mut Session,
    replies: &mut Replies,
) -> Result<(), Failure> {
    session.rights = match arguments.len() {
        1 if !facts.users.is_open() => log_in(facts, b"default", arguments.at(0))?,
        1 => {
            return Err(Failure::fixed(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ));
        }
        2 => log_in(facts, arguments.at(0), arguments.at(1))?,
        _ => return Err(SYNTAX),
    };
    replies.ok();
    Ok(())
}

/// Checks the name of a connection or of a client's library: only visible ASCII characters.
fn check_name(name: &[u8], error: &'static str) -> Result<(), Failure> {
    match name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic) {
        true => Ok(()),
        false => Err(Failure::fixed(error)),
    }
}

fn check_connection_name(name: &[u8]) -> Result<(), Failure> {
    check_name(name, "ERR Client names cannot contain spaces, newlines or special characters.")
}

fn hello(
    arguments: Arguments<'_>,
    facts: &Facts,
    session: &mut Session,
    replies: &mut Replies,
) -> Result<(), Failure> {
    let mut protocol = session.protocol;
    if let Some(version) = arguments.get(1) {
        protocol = match integer(version) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Failure::fixed("NOPROTO unsupported protocol version")),
            None => return Err(Failure::fixed("ERR Protocol version is not an integer or out of range")),
        };
    }
    let mut name = None;
    let mut rights = session.rights;
    let mut index = 2;
    while let Some(option) = arguments.get(index) {
        let following = arguments.len() - 1 - index;
        if is(option, "auth") && following >= 2 {
            rights = log_in(facts, arguments.at(index + 1), arguments.at(index + 2))?;
            index += 3;
        } else if is(option, "setname") && following >= 1 {
            name = arguments.get(index + 1);
            check_connection_name(arguments.at(index + 1))?;
            index += 2;
        } else {
            return Err(Failure(Cow::Owned([b"ERR Syntax error in HELLO option '", option, b"'"].concat())));
        }
    }
    session.rights = rights;
    if rights == Rights::None {
        return Err(Failure::fixed(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ));
    }
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    session.protocol = protocol;
    replies.protocol = protocol;
    replies.map(7);
    let texts = [("server", "redis"), ("version", REDIS_VERSION)];
    texts.into_iter().flat_map(|(name, text)| [name, text]).for_each(|text| replies.bulk(text.as_bytes()));
    replies.bulk(b"proto");
    replies.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(session.id as i64);
    let texts = [("mode", "standalone"), ("role", "master")];
    texts.into_iter().flat_map(|(name, text)| [name, text]).for_each(|text| replies.bulk(text.as_bytes()));
    replies.bulk(b"modules");
    replies.array(0);
    Ok(())
}

fn client(arguments: Arguments<'_>, session: &mut Session, replies: &mut Replies) -> Result<(), Failure> {
    let (subcommand, argument) = (arguments.at(1), arguments.at(2));
    match subcommand.to_ascii_lowercase().as_slice() {
        b"id" => {
            check_arity(arguments, 2, "client|id")?;
            replies.integer(session.id as i64);
        }
        b"getname" => {
            check_arity(arguments, 2, "client|getname")?;
            match session.name.as_slice() {
                [] => replies.null(),
                name => replies.bulk(name),
            }
        }
        b"setname" => {
            check_arity(arguments, 3, "client|setname")?;
            check_connection_name(argument)?;
            session.name = argument.to_vec();
            replies.ok();
        }
        b"setinfo" => {
            check_arity(arguments, 4, "client|setinfo")?;
            let (index, error) = match argument {
                option if is(option, "lib-name") => {
                    (0, "ERR lib-name cannot contain spaces, newlines or special characters.")
                }
                option if is(option, "lib-ver") => {
                    (1, "ERR lib-ver cannot contain spaces, newlines or special characters.")
                }
                other => {
                    return Err(Failure(Cow::Owned([b"ERR Unrecognized option '", other, b"'"].concat())));
                }
            };
            check_name(arguments.at(3), error)?;
            session.library[index] = arguments.at(3).to_vec();
            replies.ok();
        }
        b"info" => {
            check_arity(arguments, 2, "client|info")?;
            let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let [library, version] = session.library.each_ref().map(|text| shown(text));
            let line = format!(
                "id={} name={} age={} db=0 resp={} lib-name={library} lib-ver={version}\n",
                session.id,
                shown(&session.name),
                session.age(),
                if session.protocol == Protocol::Resp3 { 3 } else { 2 },
            );
            replies.text(&line);
        }
        // Without effect: closing clients frees no memory, and reading a key doesn't change it.
        name @ (b"no-evict" | b"no-touch") => {
            check_arity(
                arguments,
                3,
                if name == b"no-evict" { "client|no-evict" } else { "client|no-touch" },
            )?;
            if !is(argument, "on") && !is(argument, "off") {
                return Err(SYNTAX);
            }
            replies.ok();
        }
        _ => return Err(unknown_subcommand("client", subcommand)),
    }
    Ok(())
}

fn commands(arguments: Arguments<'_>, replies: &mut Replies) -> Result<(), Failure> {
    let subcommand = arguments.at(1);
    if arguments.len() == 1 {
        replies.array(COMMANDS.len());
        COMMANDS.iter().for_each(|command| describe(command, replies));
        return Ok(());
    }
    match subcommand.to_ascii_lowercase().as_slice() {
        b"count" => {
            check_arity(arguments, 2, "command|count")?;
            replies.count(COMMANDS.len());
        }
        b"list" => {
            check_arity(arguments, 2, "command|list")?;
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| replies.bulk(command.name.as_bytes()));
        }
        b"info" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(command, replies));
        }
        b"docs" => {
            replies.map(COMMANDS.len());
            COMMANDS.iter().for_each(|command| document(command, replies));
        }
        _ => return Err(unknown_subcommand("command", subcommand)),
    }
    Ok(())
}

/// Appends the ten fields of a command: name, arity, flags, three for its keys; categories, tips, key
/// specifications and subcommands are empty.
pub fn describe(command: &Command, replies: &mut Replies) {
    replies.array(10);
    replies.bulk(command.name.as_bytes());
    replies.integer(command.arity.into());
    let flags = command.flags.split(' ');
    replies.set(flags.clone().count());
    flags.for_each(|flag| replies.simple(flag));
    let keys = command.keys;
    [keys.first, keys.last, keys.step].iter().for_each(|position| replies.integer((*position).into()));
    replies.set(0);
    replies.set(0);
    replies.array(0);
    replies.array(0);
}

/// Appends the name and documentation of a command.
pub fn document(command: &Command, replies: &mut Replies) {
    replies.bulk(command.name.as_bytes());
    replies.map(2);
    let texts = ["summary", command.summary, "group", command.group];
    texts.iter().for_each(|text| replies.bulk(text.as_bytes()));
}

/// Settings that clients ask for, by redis's names.
pub fn settings(facts: &Facts) -> Vec<(&'static str, String)> {
    let unix = facts.addresses.iter().find_map(|address| address.strip_prefix("unix:"));
    vec![
        // Every write is logged before its reply.
        ("appendonly", "yes".into()),
        ("databases", "1".into()),
        ("maxclients", facts.clients.max.to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("port", facts.port.to_string()),
        ("proto-max-bulk-len", MAX_VALUE_BYTES.to_string()),
        ("save", String::new()),
        ("timeout", "0".into()),
        ("unixsocket", unix.unwrap_or_default().into()),
    ]
}

fn config(arguments: Arguments<'_>, facts: &Facts) -> Result<(), Failure> {
    let subcommand = arguments.at(1);
    match subcommand.to_ascii_lowercase().as_slice() {
        // With names, `execute/server` handles it.
        b"get" => Err(wrong_arity("config|get")),
        b"set" => {
            check_arity(arguments, -4, "config|set")?;
            let name = arguments.at(2);
            let is_known = settings(facts).iter().any(|(known, _)| is(name, known));
            let text = match is_known {
                true => [
                    &b"ERR CONFIG SET failed (possibly related to argument '"[..],
                    name,
                    b"') - can't set immutable config",
                ],
                false => [b"ERR Unknown option or number of arguments for CONFIG SET - '", name, b"'"],
            };
            Err(Failure(Cow::Owned(text.concat())))
        }
        _ => Err(unknown_subcommand("config", subcommand)),
    }
}

/// Sections of `INFO`.
const SECTIONS: [&str; 7] = ["Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "Store"];

/// Sections that a client requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sections {
    are_named: bool,
    named: [bool; SECTIONS.len()],
}

impl Sections {
    /// Adds a section by its name, or all sections.
    pub fn add(&mut self, name: &[u8]) {
        self.are_named = true;
        let is_all = ["default", "all", "everything"].iter().any(|all| is(name, all));
        for (section, wanted) in SECTIONS.iter().zip(&mut self.named) {
            *wanted |= is_all || is(name, section);
        }
    }

    /// Whether a section is requested; without names, all sections are.
    fn has(&self, name: &str) -> bool {
        !self.are_named || SECTIONS.iter().zip(self.named).any(|(section, wanted)| wanted && *section == name)
    }
}

/// Appends the reply to `INFO`; `status` is the store's.
pub fn info(wanted: Sections, facts: &Facts, status: &Status, replies: &mut Replies) {
    let server = [
        ("redis_version", REDIS_VERSION.into()),
        ("redis_mode", "standalone".into()),
        ("os", "Linux".into()),
        ("arch_bits", usize::BITS.to_string()),
        ("process_id", std::process::id().to_string()),
        ("tcp_port", facts.port.to_string()),
        ("uptime_in_seconds", facts.uptime().to_string()),
        ("uptime_in_days", (facts.uptime() / 86400).to_string()),
        ("siltstone_version", env!("CARGO_PKG_VERSION").into()),
    ];
    let clients = [
        ("connected_clients", facts.clients.connected().to_string()),
        ("maxclients", facts.clients.max.to_string()),
        ("blocked_clients", "0".into()),
    ];
    let memory = [("client_buffer_bytes", facts.buffered().to_string()), ("maxmemory", "0".into())];
    let persistence = [("loading", "0".into()), ("aof_enabled", "1".into())];
    let stats = [
        ("total_connections_received", facts.accepted().to_string()),
        ("total_commands_processed", facts.commands().to_string()),
        ("rejected_connections", facts.clients.refused().to_string()),
    ];
    let replication = [("role", "master".into()), ("connected_slaves", "0".to_owned())];
    let sections: [(&str, &[(&str, String)]); 6] = [
        ("Server", &server),
        ("Clients", &clients),
        ("Memory", &memory),
        ("Persistence", &persistence),
        ("Stats", &stats),
        ("Replication", &replication),
    ];
    let is_wanted = |name: &str| wanted.has(name);
    let mut text = String::new();
    let begin = |text: &mut String, name: &str| {
        let gap = if text.is_empty() { "" } else { "\r\n" };
        let _ = write!(text, "{gap}# {name}\r\n");
    };
    for (name, lines) in sections.iter().filter(|(name, _)| is_wanted(name)) {
        begin(&mut text, name);
        for (field, value) in lines.iter() {
            let _ = write!(text, "{field}:{value}\r\n");
        }
    }
    if is_wanted("Store") {
        begin(&mut text, "Store");
        write_status(&mut text, "", status);
    }
    replies.text(&text);
}

/// Writes the store's status, one line for each number or text; the name of a nested object and a dot precede
/// the names of its members.
fn write_status(text: &mut String, prefix: &str, status: &Status) {
    for (name, value) in status {
        match value {
            serde_json::Value::Object(inner) => write_status(text, &format!("{prefix}{name}."), inner),
            serde_json::Value::String(value) => {
                let value = value.replace(['\r', '\n'], " ");
                let _ = write!(text, "{prefix}{name}:{value}\r\n");
            }
            value => {
                let _ = write!(text, "{prefix}{name}:{value}\r\n");
            }
        }
    }
}
