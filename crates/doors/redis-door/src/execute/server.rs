//! Commands about the server with any number of arguments: their replies are built and sent in pieces.

use super::{Executor, Flow};
use crate::command::{Failure, is};
use crate::pattern::Pattern;
use crate::server_commands::{self, Sections};
use crate::table::{self, Command};
use block::{Result, Status};
use resp::Arguments;

impl Executor {
    /// Executes a command about the server or the connection.
    pub(super) async fn server_command(
        &mut self,
        command: &'static Command,
        arguments: Arguments<'_>,
    ) -> Result<Result<Flow, Failure>> {
        let (subcommand, rest) = (arguments.at(1), arguments.from(2));
        match command.name {
            "command" if is(subcommand, "info") && !rest.is_empty() => self.describe(rest).await?,
            "command" if is(subcommand, "docs") && !rest.is_empty() => self.document(rest).await?,
            "config" if is(subcommand, "get") && !rest.is_empty() => {
                return Ok(self.config_get(rest).await?.map(|()| Flow::Continue));
            }
            "info" => self.info(arguments.from(1)).await,
            _ => {
                let (facts, session, replies) = (&self.facts, &mut self.session, &mut self.replies);
                let carried_out = server_commands::carry_out(command, arguments, facts, session, replies);
                return Ok(carried_out.map(|()| Flow::Continue));
            }
        }
        Ok(Ok(Flow::Continue))
    }

    /// `COMMAND INFO` for these names.
    async fn describe(&mut self, names: Arguments<'_>) -> Result<()> {
        self.replies.array(names.len());
        for name in names.iter() {
            match table::find(name) {
                Some(command) => server_commands::describe(command, &mut self.replies),
                None => self.replies.null(),
            }
            self.step().await?;
        }
        Ok(())
    }

    /// `COMMAND DOCS` for these names.
    async fn document(&mut self, names: Arguments<'_>) -> Result<()> {
        let mut found = 0;
        for name in names.iter() {
            found += usize::from(table::find(name).is_some());
            self.pause().await;
        }
        self.replies.map(found);
        for command in names.iter().filter_map(table::find) {
            server_commands::document(command, &mut self.replies);
            self.step().await?;
        }
        Ok(())
    }

    async fn config_get(&mut self, names: Arguments<'_>) -> Result<Result<(), Failure>> {
        let settings = server_commands::settings(&self.facts);
        // Number of each setting found, with its name as the client spelled it.
        let mut found: Vec<(usize, &[u8])> = Vec::new();
        for wanted in names.iter() {
            self.pause().await;
            let pattern = match Pattern::parse_name(wanted) {
                Ok(pattern) => pattern,
                Err(failure) => return Ok(Err(failure)),
            };
            let is_name = !wanted.iter().any(|byte| b"[*?".contains(byte));
            for (index, (name, _)) in settings.iter().enumerate() {
                let is_new = !found.iter().any(|(known, _)| *known == index);
                if is_new && pattern.matches(name.as_bytes()) {
                    found.push((index, if is_name { wanted } else { name.as_bytes() }));
                }
            }
        }
        self.replies.map(found.len());
        for (index, name) in found {
            self.replies.bulk(name);
            self.replies.bulk(settings[index].1.as_bytes());
        }
        Ok(Ok(()))
    }

    async fn info(&mut self, names: Arguments<'_>) {
        let mut wanted = Sections::default();
        for name in names.iter() {
            wanted.add(name);
            self.pause().await;
        }
        let status = self
            .store
            .status()
            .await
            .unwrap_or_else(|error| Status::from_iter([("error".to_owned(), error.to_string().into())]));
        server_commands::info(wanted, &self.facts, &status, &mut self.replies);
    }
}
