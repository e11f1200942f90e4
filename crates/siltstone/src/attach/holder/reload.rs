//! Replacement of the server by one of another program: an upgrade under a node that stays in use.
//!
//! The server is killed and replaced as a lost one, so only a stack whose acknowledged writes survive its
//! server can be reloaded. The next server is of the file at the path of the holder's program, which an
//! upgrade has replaced. If it doesn't start, the next one is of the holder's own program again. The holder
//! stays; an operator's request is refused while the node has no server.

use super::{Holder, PROGRAM, Phase, State, answer};
use block::{Error, Result};
use runtime::net::Stream;
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Ending of the target of `/proc/self/exe` after the file was replaced (proc(5)).
const DELETED: &str = " (deleted)";

/// Path of the installed program.
fn installed(own: &str) -> PathBuf {
    own.strip_suffix(DELETED).unwrap_or(own).into()
}

/// Checks that a program can be started. Blocks the thread.
fn check(program: &PathBuf) -> Result<()> {
    let shown = program.display();
    let started = Command::new(program).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).status();
    match started {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(Error::io(format!("{shown} --version ended with {status}; the former server continues")))
        }
        Err(error) => Err(Error::from_io(&error, &format!("starting {shown}; the former server continues"))),
    }
}

impl Holder {
    /// Begins to replace the server; the operator is answered when the next one serves, or at once with an
    /// error.
    pub(super) async fn reload(&mut self, stream: Stream) {
        match self.replace().await {
            Ok(()) => self.reloading = Some(stream),
            Err(error) => answer(&stream, error.detail()).await,
        }
    }

    async fn replace(&mut self) -> Result<()> {
        let name = self.plan.folder.name().to_owned();
        let (Phase::Held, Some(State::Attached), Some((_, ready))) =
            (self.phase, self.state(), &self.connection)
        else {
            return Err(Error::busy(format!("{name} has no server that could be replaced: try again later")));
        };
        if let Some(why) = ready.why_not_replaced(self.plan.driver) {
            return Err(Error::busy(format!(
                "{name} can't be reloaded: {why}; unmount it, detach {name} and attach it again"
            )));
        }
        let own = std::fs::read_link(PROGRAM).map_err(|error| Error::from_io(&error, PROGRAM))?;
        let program = installed(&own.to_string_lossy());
        let checked = program.clone();
        runtime::blocking(move || check(&checked)).await?;
        self.program = program;
        if let Some((process, _)) = &self.server {
            tracing::warn!("process {} is replaced by a server of {}", process.id, self.program.display());
            process.signal(Signal::KILL);
        }
        Ok(())
    }

    /// Makes the next server one of the holder's own program.
    pub(super) fn return_to_own_program(&mut self, error: &Error) {
        if self.reloading.is_some() {
            let program = std::mem::replace(&mut self.program, PROGRAM.into());
            self.answer_reload(&format!(
                "the server of {} didn't start: {}; one of the former program is started",
                program.display(),
                error.detail()
            ));
        }
    }

    /// Answers the operator who waits for the next server, if there is one.
    pub(super) fn answer_reload(&mut self, text: &str) {
        if let Some(stream) = self.reloading.take() {
            let text = text.to_owned();
            runtime::spawn(async move { answer(&stream, &text).await }).detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_program_has_the_path_of_the_replaced_one() {
        for own in ["/usr/bin/siltstone", "/usr/bin/siltstone (deleted)"] {
            assert_eq!(installed(own), PathBuf::from("/usr/bin/siltstone"));
        }
    }

    #[test]
    fn a_program_that_cannot_start_is_told_before_the_server_ends() {
        for (program, text) in [("/bin/false", "exit status: 1"), ("/no/program", "starting /no/program")] {
            let error = check(&program.into()).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        check(&"/bin/true".into()).unwrap();
    }
}
