//! `[table.NAME]`: a command that prints a table, run once, before anything is measured.
//!
//! The command prints JSON that [`Table`](crate::results::Table) describes: columns with titles and units, and rows.
//! The plan may put rows of its own beside them, such as what others have published.

use super::reader::{Entry, Kind, Reader, find};
use super::{check_placeholders, required_command};

/// A command that prints a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCommand {
    /// Its name in the plan.
    pub name: String,
    /// What it shows, for people.
    pub title: Option<String>,
    /// What a reader should know of it.
    pub about: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// Rows that are put below those of the command: texts, by the names of columns.
    pub rows: Vec<Vec<(String, String)>>,
    /// Programs that must be installed besides the first word of its command.
    pub requires: Vec<String>,
}

impl TableCommand {
    /// Every program that must be installed for it.
    pub fn programs(&self) -> Vec<&str> {
        crate::peer::needed(self.command.first().map(String::as_str), &self.requires)
    }
}

pub(super) fn table(reader: &mut Reader, entry: &Entry) -> Option<TableCommand> {
    let entries = reader.table(entry);
    let what = format!("[table.{}]", entry.key);
    reader.check_keys(&what, entries, &["title", "about", "command", "rows", "requires"]);
    let command = required_command(reader, entry, entries, &what);
    check_placeholders(reader, entries, "command", &command.iter().flatten().collect::<Vec<_>>(), false);
    let mut rows = Vec::new();
    if let Some(found) = find(entries, "rows") {
        let items = match &found.value.kind {
            Kind::List(items) => &items[..],
            _ => &[],
        };
        let is_list = matches!(found.value.kind, Kind::List(_));
        let row = |item: &super::reader::Value| match &item.kind {
            Kind::Table(cells) => {
                cells.iter().map(|cell| Some((cell.key.clone(), cell.value.as_option()?))).collect()
            }
            _ => None,
        };
        match items.iter().map(row).collect::<Option<Vec<_>>>().filter(|_| is_list) {
            Some(read) => rows = read,
            None => reader.refuse(
                found.value.place,
                "rows: expected a list of rows, such as [{ name = \"a\", value = \"3\" }]",
            ),
        }
    }
    let title = reader.text(entries, "title");
    let about = reader.text(entries, "about");
    let requires = reader.texts(entries, "requires").unwrap_or_default();
    Some(TableCommand { name: entry.key.clone(), title, about, command: command?, rows, requires })
}
