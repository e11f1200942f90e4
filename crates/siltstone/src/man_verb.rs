//! `siltstone man-pages`: manual pages of all verbs, made from the texts of `--help`.

use crate::arguments::CommandLine;
use crate::failure::Failure;
use crate::output::print_line;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::Path;

/// Exit codes, which the help of the program lists.
const EXIT_STATUS: &str =
    "0 success; 1 failure; 2 usage error: wrong arguments, stack, plan or job file; 130 stopped by Ctrl-C.";

/// Writes a page for each verb.
///
/// # Errors
/// A directory that doesn't exist or can't be written to.
pub fn man_pages(directory: &Path) -> Result<(), Failure> {
    if !directory.is_dir() {
        return Err(Failure::Usage(format!(
            "{}: not a directory; expected an existing one for the pages; create it first",
            directory.display()
        )));
    }
    let mut command = CommandLine::command();
    command.build();
    let mut pages = 0;
    write(&command, "siltstone", directory, &mut pages)
        .map_err(|error| Failure::World(format!("{}: {error}", directory.display())))?;
    print_line(&format!("{}: {pages} pages", directory.display()))
}

/// Writes the page of a verb and of those below it: `siltstone-fs-mount.1` for `siltstone fs mount`.
fn write(command: &Command, name: &str, directory: &Path, pages: &mut u32) -> std::io::Result<()> {
    std::fs::write(directory.join(format!("{name}.1")), page(command, name)?)?;
    *pages += 1;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        write(verb, &format!("{name}-{}", verb.get_name()), directory, pages)?;
    }
    Ok(())
}

fn page(command: &Command, name: &str) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone()).title(name);
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut more = Roff::new();
    let (examples, notes) = parts(&help);
    if !examples.is_empty() {
        more.control("SH", ["EXAMPLES"]);
    }
    for (command, effect) in examples {
        more.control("TP", []).text([bold(command)]).text([roman(effect)]);
    }
    if !notes.is_empty() {
        more.control("SH", ["NOTES"]);
    }
    for paragraph in notes {
        more.control("PP", []).text([roman(paragraph)]);
    }
    more.control("SH", ["EXIT STATUS"]).text([roman(EXIT_STATUS)]);
    more.to_writer(&mut page)?;
    Ok(page)
}

/// Splits the text after a help into examples, each a command and its effect, and the paragraphs after them.
fn parts(help: &str) -> (Vec<(&str, &str)>, Vec<String>) {
    let (mut examples, mut notes) = (Vec::new(), Vec::new());
    for paragraph in help.split("\n\n").filter(|paragraph| !paragraph.starts_with("Exit codes:")) {
        let Some(lines) = paragraph.strip_prefix("Examples:\n") else {
            notes.push(paragraph.replace('\n', " "));
            continue;
        };
        for line in lines.lines() {
            let (command, effect) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
            examples.push((command, effect.trim()));
        }
    }
    (examples, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_split_into_commands_and_effects() {
        let help = "Examples:\n  a b     does it\n  c -d 'e f'\n\nNote one\ncontinues.\n\nExit codes: 0.";
        let (examples, notes) = parts(help);
        assert_eq!(examples, [("a b", "does it"), ("c -d 'e f'", "")]);
        assert_eq!(notes, ["Note one continues."]);
    }

    #[test]
    fn each_verb_has_a_page_with_its_options_and_examples() {
        let folder = tempfile::tempdir().unwrap();
        man_pages(folder.path()).unwrap();
        let page = std::fs::read_to_string(folder.path().join("siltstone-fs-mount.1")).unwrap();
        for part in ["shards", "EXAMPLES", "siltstone fs unmount /mnt", "EXIT STATUS"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("own\\-session"), "hidden options have no entry");
        assert!(man_pages(&folder.path().join("none")).is_err());
    }
}
