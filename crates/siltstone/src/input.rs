//! Files of the command line that can't be read, in the words of error messages.

use crate::failure::Failure;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Example of a stack in one line.
const STACK: &str = "a stack file, or one line such as 'file(disk.img, size=1GiB)'";

/// Describes an error of opening or reading a file.
pub fn describe(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::IsADirectory => "a directory".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        ErrorKind::InvalidData => "not a text in UTF-8".to_owned(),
        _ => error.to_string(),
    }
}

/// Returns the usage error for a file that can't be read.
pub fn unreadable(kind: &str, path: &Path, error: &Error, expected: &str) -> Failure {
    Failure::Usage(format!("{kind} \"{}\": {}; expected {expected}", path.display(), describe(error)))
}

/// Refuses an argument that names a stack file that can't be read. Other arguments are stacks in one line.
///
/// # Errors
/// [`Failure::Usage`].
pub fn check_stack(argument: &str) -> Result<(), Failure> {
    if argument.contains('(') {
        return Ok(());
    }
    let path = Path::new(argument);
    let is_meant_as_file = argument.contains('/') || argument.ends_with(".toml");
    // A pipe is read once, by the stack's reader. A folder may have the name of a kind, such as `null`.
    let is_other = |found: std::fs::Metadata| match found.is_dir() {
        true => !is_meant_as_file,
        false => !found.is_file(),
    };
    if std::fs::metadata(path).is_ok_and(is_other) {
        return Ok(());
    }
    match stack::read_file(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound && !is_meant_as_file => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::FileTooLarge) => {
            Err(Failure::Usage(format!(
                "stack \"{argument}\": {}; expected {STACK}; to use it as a disk: 'file({})'",
                describe(&error),
                stack::quote(argument)
            )))
        }
        Err(error) => Err(unreadable("stack", path, &error, STACK)),
    }
}
