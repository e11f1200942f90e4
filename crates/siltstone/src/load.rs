//! Stacks of the command line: a file, one line, or `-` for standard input.

use crate::failure::Failure;
use crate::input;
use stack::{Registry, Stack};
use std::io::Read;
use std::path::Path;

/// Reads a stack.
///
/// # Errors
/// [`Failure::Usage`] with all problems of the stack.
pub fn stack(argument: &str, registry: &Registry) -> Result<Stack, Failure> {
    if argument == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|error| Failure::World(format!("reading a stack from standard input: {error}")))?;
        let stack = match is_toml(&text) {
            true => Stack::from_toml("-", &text, registry)?,
            false => Stack::from_line("-", text.trim(), registry)?,
        };
        return Ok(stack);
    }
    let Some(text) = input::read_stack(argument)? else {
        return Ok(Stack::from_line("stack", argument, registry)?);
    };
    let folder = Path::new(argument).parent().unwrap_or(Path::new(""));
    Ok(Stack::from_toml(argument, &text, registry)?.with_base_directory(folder))
}

/// Whether a text is TOML rather than one line: its first line of code is a section or `key = value`.
fn is_toml(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let Some(first) = lines.next() else { return true };
    let before_bracket = first.split('(').next().unwrap_or_default();
    first.starts_with('[') || before_bracket.contains('=')
}

#[cfg(test)]
mod tests {
    use super::is_toml;

    #[test]
    fn the_two_forms_are_told_apart() {
        assert!(is_toml("# a disk\n[device.disk]\nkind = \"ram\""));
        assert!(is_toml("shards = 2\n[device.disk]"));
        assert!(is_toml(""));
        assert!(!is_toml("ram(1GiB)\n"));
        assert!(!is_toml("null"));
        assert!(!is_toml("\nstats(file(disk.img, size=1GiB))"));
    }
}
