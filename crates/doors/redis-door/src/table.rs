//! Table of commands: names, numbers of arguments, and properties for the command `COMMAND`.

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Name in lower case.
    pub name: &'static str,
    /// Number of arguments including the name; a negative one is a minimum.
    pub arity: i32,
    /// Properties, as redis names them, separated by spaces.
    pub flags: &'static str,
    /// Positions of the keys.
    pub keys: Keys,
    /// Group in redis's documentation.
    pub group: &'static str,
    /// Effect, for operators.
    pub summary: &'static str,
}

impl Command {
    /// Whether `arguments` is a valid number of arguments, including the name.
    pub fn takes(&self, arguments: usize) -> bool {
        let wanted = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { arguments >= wanted } else { arguments == wanted }
    }
}

/// Positions of keys among the arguments: first, last and step; a negative last position counts from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// First position; 0 if the command has no keys.
    pub first: i32,
    /// Last position.
    pub last: i32,
    /// Distance between keys.
    pub step: i32,
}

const NO_KEYS: Keys = Keys { first: 0, last: 0, step: 0 };
const ONE_KEY: Keys = Keys { first: 1, last: 1, step: 1 };
const ALL_KEYS: Keys = Keys { first: 1, last: -1, step: 1 };
const PAIRS: Keys = Keys { first: 1, last: -1, step: 2 };

const fn string(
    name: &'static str,
    arity: i32,
    flags: &'static str,
    keys: Keys,
    summary: &'static str,
) -> Command {
    Command { name, arity, flags, keys, group: "string", summary }
}

const fn generic(
    name: &'static str,
    arity: i32,
    flags: &'static str,
    keys: Keys,
    summary: &'static str,
) -> Command {
    Command { name, arity, flags, keys, group: "generic", summary }
}

const fn connection(name: &'static str, arity: i32, summary: &'static str) -> Command {
    let flags = "noscript loading stale fast";
    Command { name, arity, flags, keys: NO_KEYS, group: "connection", summary }
}

const fn server(name: &'static str, arity: i32, flags: &'static str, summary: &'static str) -> Command {
    Command { name, arity, flags, keys: NO_KEYS, group: "server", summary }
}

/// A command that redis doesn't have.
const fn own(name: &'static str, arity: i32, flags: &'static str, summary: &'static str) -> Command {
    Command { name, arity, flags, keys: NO_KEYS, group: "module", summary }
}

/// All commands, in the order of their names.
pub const COMMANDS: &[Command] = &[
    string(
        "append",
        3,
        "write denyoom fast",
        ONE_KEY,
        "Appends to a value; creates the key if it doesn't exist.",
    ),
    connection("auth", -2, "Logs the connection in."),
    connection("client", -2, "Names the connection, and returns its name and number."),
    server("command", -1, "loading stale", "Returns the commands and their properties."),
    server("config", -2, "admin noscript loading stale", "Returns settings."),
    server("dbsize", 1, "readonly", "Counts the keys by reading them all."),
    string("decr", 2, "write denyoom fast", ONE_KEY, "Subtracts one from an integer."),
    string("decrby", 3, "write denyoom fast", ONE_KEY, "Subtracts a number from an integer."),
    generic("del", -2, "write", ALL_KEYS, "Deletes keys."),
    connection("echo", 2, "Returns its argument."),
    generic("exists", -2, "readonly fast", ALL_KEYS, "Counts those of the keys that exist."),
    generic("expire", -3, "write fast", ONE_KEY, "Sets the time to live in seconds."),
    generic("expireat", -3, "write fast", ONE_KEY, "Sets the time of expiry in seconds since 1970."),
    generic("expiretime", 2, "readonly fast", ONE_KEY, "Returns the time of expiry in seconds since 1970."),
    server("flushall", -1, "write", "Deletes all keys."),
    server("flushdb", -1, "write", "Deletes all keys."),
    string("get", 2, "readonly fast", ONE_KEY, "Returns a value."),
    string("getdel", 2, "write fast", ONE_KEY, "Returns a value and deletes the key."),
    string("getex", -2, "write fast", ONE_KEY, "Returns a value and changes the time of expiry."),
    connection("hello", -1, "Returns facts of the server; may choose the version of the protocol."),
    string("incr", 2, "write denyoom fast", ONE_KEY, "Adds one to an integer."),
    string("incrby", 3, "write denyoom fast", ONE_KEY, "Adds a number to an integer."),
    server("info", -1, "loading stale", "Returns facts and counters of the server."),
    generic("keys", 2, "readonly", NO_KEYS, "Returns the keys that match a pattern."),
    own("kv.compact", 1, "write", "Merges all tables down to the last level."),
    own("kv.release", 1, "readonly", "Ends the snapshot of the connection."),
    own("kv.scan", -1, "readonly", "Returns the keys of a range in order, with values and times of expiry."),
    // Needs full rights: while a connection has a snapshot, nothing that it can read is erased.
    own("kv.snapshot", 1, "admin", "Lets KV.SCAN on this connection read a snapshot of this moment."),
    string("mget", -2, "readonly fast", ALL_KEYS, "Returns several values."),
    string("mset", -3, "write denyoom", PAIRS, "Sets several values atomically."),
    string(
        "msetnx",
        -3,
        "write denyoom",
        PAIRS,
        "Sets several values atomically if none of the keys exists.",
    ),
    generic("persist", 2, "write fast", ONE_KEY, "Removes the time of expiry."),
    generic("pexpire", -3, "write fast", ONE_KEY, "Sets the time to live in milliseconds."),
    generic("pexpireat", -3, "write fast", ONE_KEY, "Sets the time of expiry in milliseconds since 1970."),
    generic(
        "pexpiretime",
        2,
        "readonly fast",
        ONE_KEY,
        "Returns the time of expiry in milliseconds since 1970.",
    ),
    connection("ping", -1, "Answers."),
    string("psetex", 4, "write denyoom", ONE_KEY, "Sets a value and its time to live in milliseconds."),
    generic("pttl", 2, "readonly fast", ONE_KEY, "Returns the time to live in milliseconds."),
    connection("quit", -1, "Closes the connection."),
    connection("reset", 1, "Resets the connection's name and version of the protocol."),
    generic("scan", -2, "readonly", NO_KEYS, "Returns keys, a part with each call."),
    connection("select", 2, "Selects database 0, the only one."),
    string("set", -3, "write denyoom", ONE_KEY, "Sets a value; may have conditions and a time of expiry."),
    string("setex", 4, "write denyoom", ONE_KEY, "Sets a value and its time to live in seconds."),
    string("setnx", 3, "write denyoom fast", ONE_KEY, "Sets a value if the key doesn't exist."),
    string("strlen", 2, "readonly fast", ONE_KEY, "Returns the length of a value."),
    generic("ttl", 2, "readonly fast", ONE_KEY, "Returns the time to live in seconds."),
    generic("type", 2, "readonly fast", ONE_KEY, "Returns the type of a value, which is string."),
    generic("unlink", -2, "write fast", ALL_KEYS, "Deletes keys."),
    generic("wait", 3, "noscript", NO_KEYS, "Returns the number of replicas, which is 0."),
];

/// Length of the longest name.
const MAX_NAME: usize = 16;

/// Returns a command by its name, ignoring case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; MAX_NAME];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let position = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower));
    position.ok().map(|position| &COMMANDS[position])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|left, right| left.name < right.name));
        for command in COMMANDS {
            assert!(command.name.len() <= MAX_NAME);
            assert_eq!(find(command.name.to_uppercase().as_bytes()), Some(command));
        }
        assert!(find(b"").is_none() && find(b"getx").is_none() && find(&[b'g'; 100]).is_none());
    }
}
