//! Addresses of the command line.

use crate::failure::Failure;
use block::Error;
use runtime::net::Address;

/// Parses the address of an option, which the error names, and makes a relative path in it absolute: clients may have another working directory.
///
/// # Errors
/// [`Failure::Usage`] for another text, and for a path that is too long or not UTF-8.
pub fn address(option: &str, text: &str) -> Result<Address, Failure> {
    let wrong = |reason: &str| Failure::Usage(format!("{option} {text}: {reason}"));
    let parse = |text: &str| {
        text.parse::<Address>()
            .map_err(|error: Error| Failure::Usage(format!("{option}: {}", error.detail())))
    };
    match parse(text)? {
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
