//! Addresses of the command line.

use crate::failure::Failure;
use block::Error;
use runtime::net::Address;

/// Parses the address of an option, which the error names. Makes a relative path in it absolute: clients may
/// have another working directory.
///
/// # Errors
/// [`Failure::Usage`] for an invalid address, for a path that is too long or not UTF-8, and without
/// `allow_remote` for an address that other machines can reach.
pub fn address(option: &str, text: &str, allow_remote: bool) -> Result<Address, Failure> {
    let permission = "give --allow-remote if you trust all machines of the network";
    address_with(option, text, (allow_remote, permission))
}

/// Parses an address as [`address`] does; what permits one that other machines can reach, and whether it is
/// given, is `permission`.
///
/// # Errors
/// As [`address`].
pub fn address_with(
    option: &str,
    text: &str,
    (is_permitted, permission): (bool, &str),
) -> Result<Address, Failure> {
    let wrong = |reason: &str| Failure::Usage(format!("{option} {text}: {reason}"));
    let refused = |error: Error| Failure::Usage(format!("{option}: {}", error.detail()));
    let parse = |text: &str| text.parse::<Address>().map_err(refused);
    let parsed = parse(text)?;
    parsed.check_reach(is_permitted, permission).map_err(refused)?;
    match parsed {
        Address::Unix(path) => {
            let path = std::path::absolute(path).map_err(|error| wrong(&error.to_string()))?;
            let path = path.to_str().ok_or_else(|| {
                wrong(
                    "the working directory's path is not UTF-8; expected one that is; give an absolute path",
                )
            })?;
            parse(&format!("unix:{path}"))
        }
        tcp => Ok(tcp),
    }
}
