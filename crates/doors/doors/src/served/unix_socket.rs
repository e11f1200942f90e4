//! Keys of a door's unix socket: its permissions and owner.

use block::Result;
use runtime::net::{Access, Owner};
use stack::{Arguments, Key, ValueKind};

/// `mode`: permissions of the socket.
pub const MODE: Key = Key::optional(
    "mode",
    ValueKind::Text,
    "permissions of the unix socket, such as 0660; default: those of the umask",
);
/// `owner`: user and group of the socket.
pub const OWNER: Key = Key::optional(
    "owner",
    ValueKind::Text,
    "owner of the unix socket: USER, USER:GROUP or :GROUP, names or numbers; default: the server's",
);

/// Checks the keys as far as possible without the database of users.
///
/// # Errors
/// [`Error::Invalid`](block::Error::Invalid) for wrong permissions.
pub fn check(arguments: &Arguments) -> Result<()> {
    mode(arguments).map(drop)
}

/// Returns the access to the socket, with the numbers of user and group.
///
/// # Errors
/// As [`check`], and for unknown users and groups.
pub fn access(arguments: &Arguments) -> Result<Access> {
    let owner = match arguments.optional_text("owner")? {
        Some(text) => text.parse().map_err(|error: block::Error| refuse(arguments, "owner", &error))?,
        None => Owner::default(),
    };
    Ok(Access { mode: mode(arguments)?, owner })
}

fn mode(arguments: &Arguments) -> Result<Option<u32>> {
    let text = arguments.optional_text("mode")?;
    let mode = text.map(|text| Access::parse_mode(&text));
    mode.transpose().map_err(|error| refuse(arguments, "mode", &error))
}

fn refuse(arguments: &Arguments, key: &'static str, error: &block::Error) -> block::Error {
    arguments.refuse(key, error.detail().to_owned())
}
