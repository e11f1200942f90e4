//! Files of the command line that can't be read, in the words of error messages.

use crate::failure::Failure;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt;
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

/// Reads the text of a stack file; `None` for an argument that is a stack in one line.
///
/// # Errors
/// [`Failure::Usage`] for a file that can't be read, and those of [`check_line`].
pub fn read_stack(argument: &str) -> Result<Option<String>, Failure> {
    let path = Path::new(argument);
    if !argument.ends_with(".toml") && !path.is_file() {
        return check_line(argument).map(|()| None);
    }
    match stack::read_file(path) {
        Ok(text) => Ok(Some(text)),
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

/// Refuses a path as a stack in one line. A folder may have the name of a kind, such as `null`.
///
/// # Errors
/// [`Failure::Usage`].
pub fn check_line(argument: &str) -> Result<(), Failure> {
    if std::fs::metadata(argument).is_ok_and(|found| found.file_type().is_socket()) {
        return Err(Failure::Usage(format!(
            "stack \"{argument}\": a socket; expected {STACK}; siltstone stop takes unix:{argument}, other verbs a stack and \
             --control {argument}"
        )));
    }
    if argument.contains('(') || !argument.contains('/') {
        return Ok(());
    }
    let path = Path::new(argument);
    let error = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => ErrorKind::IsADirectory.into(),
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    Err(unreadable("stack", path, &error, STACK))
}
