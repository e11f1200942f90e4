//! `[table.NAME]`: a command that prints a table, run once, before the measurements.
//!
//! The command prints JSON that [`Table`](crate::results::Table) describes: columns with titles and units,
//! and rows. The plan may add rows, such as published figures of others.

use super::reader::{Entry, Reader, find, list_of, option_of, place, table_of};
use super::{check_placeholders, required_command};
use stack::RawValue;

/// Command that prints a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCommand {
    /// Name in the plan.
    pub name: String,
    /// Title for display.
    pub title: Option<String>,
    /// Description for readers.
    pub about: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Rows that are added below those of the command: texts, by the names of columns.
    pub rows: Vec<Vec<(String, String)>>,
    /// Programs that must be installed besides the first word of its command.
    pub requires: Vec<String>,
}

impl TableCommand {
    /// Programs that must be installed for the command.
    pub fn programs(&self) -> Vec<&str> {
        crate::peer::needed(self.command.first().map(String::as_str), &self.requires)
    }
}

pub(super) fn table(reader: &mut Reader, entry: &Entry) -> Option<TableCommand> {
    let entries = reader.table(entry);
    let what = format!("[table.{}]", entry.key.value);
    reader.check_keys(&what, entries, &["title", "about", "command", "rows", "requires"]);
    let command = required_command(reader, entry, entries, &what);
    let words: Vec<&String> = command.iter().flatten().collect();
    check_placeholders(reader, place(entries, "command", entry), "command", &words, false);
    let rows = find(entries, "rows").and_then(|found| {
        let cell = |cell: &Entry| Some((cell.key.value.clone(), option_of(&cell.value.value)?));
        let row = |row: &RawValue| table_of(row)?.iter().map(cell).collect();
        let rows = list_of(&found.value.value, row);
        if rows.is_none() {
            let message = "rows: expected a list of rows, such as [{ name = \"a\", value = \"3\" }]";
            reader.refuse(&found.value.span, message);
        }
        rows
    });
    let title = reader.text(entries, "title");
    let about = reader.text(entries, "about");
    let requires = reader.texts(entries, "requires").unwrap_or_default();
    let rows = rows.unwrap_or_default();
    Some(TableCommand { name: entry.key.value.clone(), title, about, command: command?, rows, requires })
}
