//! Reading of a stack from either of its text forms, or from a file.

use crate::kind::Registry;
use crate::model::Stack;
use crate::problem::{Collector, Problem, Problems, Source};
use crate::raw::RawStack;
use crate::{line_form, resolve, toml_form};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Longest text of a stack, in bytes.
const MAX_TEXT: usize = 1 << 20;

impl Stack {
    /// Parses a stack from TOML. `name` precedes line and column in problems, and is usually the path of the
    /// file. Relative paths are resolved against the working directory, unless
    /// [`with_base_directory`](Self::with_base_directory) sets another folder.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_toml(name: &str, text: &str, registry: &Registry) -> Result<Stack, Problems> {
        read(name, text, registry, toml_form::read)
    }

    /// Parses a stack from its one-line form, as [`from_toml`](Self::from_toml) does from TOML.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_line(name: &str, text: &str, registry: &Registry) -> Result<Stack, Problems> {
        read(name, text, registry, |source, problems| line_form::read(source, registry, problems))
    }

    /// Loads the stack of a command line's argument: a TOML file if there is one with this path or the
    /// argument ends in `.toml`, else the one-line form. Relative paths in a file are resolved against its
    /// folder.
    ///
    /// # Errors
    /// All problems of the text, or the error of reading the file.
    pub fn load(argument: &str, registry: &Registry) -> Result<Stack, Problems> {
        let path = Path::new(argument);
        if !argument.ends_with(".toml") && !path.is_file() {
            return Stack::from_line("stack", argument, registry);
        }
        let text = read_file(path).map_err(|error| {
            let message = format!("can't read this stack file: {error}");
            Problems::from(Problem::without_place(argument, message))
        })?;
        let stack = Stack::from_toml(argument, &text, registry)?;
        Ok(stack.with_base_directory(path.parent().unwrap_or(Path::new(""))))
    }
}

/// Reads the text of a stack from a file. A long file, such as the image of a disk, isn't read.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`] for more than 1 MiB, [`ErrorKind::InvalidData`] for a text that isn't UTF-8;
/// errors of opening and reading.
pub fn read_file(path: &Path) -> io::Result<String> {
    let file = std::fs::File::open(path)?;
    let mut text = String::new();
    if file.metadata()?.len() <= MAX_TEXT as u64
        && file.take(MAX_TEXT as u64 + 1).read_to_string(&mut text)? <= MAX_TEXT
    {
        return Ok(text);
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than the {MAX_TEXT} bytes of a stack")))
}

fn read(
    name: &str,
    text: &str,
    registry: &Registry,
    form: impl FnOnce(&Source, &mut Collector) -> RawStack,
) -> Result<Stack, Problems> {
    if text.len() > MAX_TEXT {
        let message = format!(
            "stack of {} bytes: expected at most {MAX_TEXT}; a file that holds data is a device of a stack, such as 'file({name})'",
            text.len()
        );
        return Err(Problem::without_place(name, message).into());
    }
    let source = Source::new(name, text);
    let mut problems = Collector::default();
    let raw = form(&source, &mut problems);
    resolve::resolve(source, raw, registry, problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_disk_is_not_read_as_a_stack() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let refused = read_file(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        assert_eq!(refused.to_string(), "more than the 1048576 bytes of a stack");
        std::fs::write(&path, "ram(1MiB)").unwrap();
        assert_eq!(read_file(&path).unwrap(), "ram(1MiB)");
    }
}
