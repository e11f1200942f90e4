//! Runs the commands that print tables.

use super::{Session, Step, command_text};
use crate::job::Job;
use crate::peer::process::{self, Limit};
use crate::plan::TableCommand;
use crate::results::Table;
use block::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of a command.
const LONGEST: Duration = Duration::from_secs(3600);

impl Session<'_> {
    /// Runs one command and keeps its table.
    pub(super) fn table(&mut self, command: &TableCommand, step: &Step) {
        self.observer.begin(step, &Arc::default());
        let table = self.printed(command);
        self.observer.end(step, &table.as_ref().map(|_| None).map_err(Error::clone));
        match table {
            Ok(table) => self.results.tables.push(table),
            Err(error) => self.fail(&format!("table {}", command.name), &error),
        }
    }

    fn printed(&self, command: &TableCommand) -> Result<Table> {
        let context = self.context();
        let nothing = Job::new(&command.name);
        let words: Vec<String> =
            command.command.iter().map(|word| context.fill_in(word, &nothing, None)).collect();
        let limit = Limit { time: LONGEST, stop: context.stop };
        let output = process::run(&words, context.directory, &limit)?;
        let mut table: Table = serde_json::from_str(&output.stdout).map_err(|error| {
            let beginning: String = output.stdout.chars().take(100).collect();
            Error::protocol(format!("expected a table as JSON, found {beginning:?} ({error})"))
        })?;
        table.name.clone_from(&command.name);
        table.title = command.title.clone().or(table.title);
        table.about = command.about.clone().or(table.about);
        table.command = command_text(&words, &context);
        for row in &command.rows {
            if let Some((unknown, _)) = row.iter().find(|(key, _)| table.column(key).is_none()) {
                let known: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
                return Err(Error::invalid(format!(
                    "rows: there is no column \"{unknown}\" (known: {})",
                    known.join(", ")
                )));
            }
            let cells = row.iter().map(|(key, value)| (key.clone(), value.clone().into()));
            table.rows.push(cells.collect());
        }
        Ok(table)
    }
}
