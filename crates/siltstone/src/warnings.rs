//! Warnings of served parts that fill up: a line in the log and, if operators have named one, a command, once
//! for each level of the part's key `warn_at`.
//!
//! A task of shard 0 asks each part for its fullness every 10 s. Nothing on the I/O path knows of it.
//! `stack::warning` decides which level is due; the module `command` runs the command.

mod command;

pub use command::warn_command;

use bench::units;
use block::{Call, Fullness};
use command::WarnCommand;
use runtime::JoinHandle;
use stack::{BuiltStack, FullnessWarning};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Interval of the questions.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time limit of an answer: a shard that hangs doesn't keep other parts from being asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A part whose fullness is watched.
pub struct WatchedPart {
    kind: &'static str,
    name: String,
    fullness: Box<dyn Fn() -> Call<'static, Option<Fullness>>>,
    warning: Arc<FullnessWarning>,
}

impl WatchedPart {
    /// Watches the fullness that `fullness` returns.
    pub fn new(
        kind: &'static str,
        name: String,
        warning: Arc<FullnessWarning>,
        fullness: impl Fn() -> Call<'static, Option<Fullness>> + 'static,
    ) -> Self {
        WatchedPart { kind, name, fullness: Box::new(fullness), warning }
    }

    /// Parts of a stack that have levels.
    pub fn all_of(stack: &BuiltStack) -> Vec<Self> {
        let watched = |part: &stack::BuiltPart| {
            let (built, warning) = (part.built.clone(), part.warning.clone()?);
            let fullness = move || {
                let built = built.clone();
                Call::new(async move { built.part().fullness().await })
            };
            Some(WatchedPart::new(part.kind, part.name.clone(), warning, fullness))
        };
        stack.parts().filter_map(watched).collect()
    }

    /// Asks the part. Returns the warning that is due, if any. A part that doesn't answer is asked again the
    /// next time.
    async fn check(&self) -> Option<Warning> {
        let fullness = runtime::timeout(ANSWER_LIMIT, (self.fullness)()).await.ok()??;
        let level = self.warning.note(&fullness)?;
        Some(Warning { kind: self.kind, part: self.name.clone(), level, fullness })
    }
}

/// A level that a part has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Kind of the part.
    pub kind: &'static str,
    /// Name of the part.
    pub part: String,
    /// Level in percent.
    pub level: u8,
    /// Use of the part.
    pub fullness: Fullness,
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fullness { resource, used_bytes, limit_bytes, remedy, .. } = self.fullness;
        let [used, limit] = [used_bytes, limit_bytes].map(|bytes| units::bytes(bytes as f64));
        write!(
            formatter,
            "{} \"{}\": {}% of its {resource} is used (warning level {}%): {used} of {limit}; {remedy}",
            self.kind,
            self.part,
            self.fullness.percent(),
            self.level
        )
    }
}

/// The watch over the parts of a server; dropping it ends the watch. A command in progress continues.
#[must_use = "dropping it ends the watch"]
pub struct FullnessWatch(Option<JoinHandle<()>>);

impl FullnessWatch {
    /// Watches the parts from now on. Warnings go to the log and to the program of [`warn_command`].
    pub fn start(parts: Vec<WatchedPart>, program: Option<PathBuf>) -> Self {
        let command = program.map(WarnCommand::new);
        Self::start_with(parts, move |warning| {
            tracing::warn!("{warning}");
            if let Some(command) = &command {
                command.start(warning);
            }
        })
    }

    /// Watches the parts, and passes each warning to `warn`, which doesn't wait.
    fn start_with(parts: Vec<WatchedPart>, warn: impl Fn(Warning) + 'static) -> Self {
        let watching = async move {
            loop {
                for part in &parts {
                    if let Some(warning) = part.check().await {
                        warn(warning);
                    }
                }
                runtime::sleep(INTERVAL).await;
            }
        };
        FullnessWatch(Some(runtime::spawn(watching)))
    }
}

impl Drop for FullnessWatch {
    fn drop(&mut self) {
        if let Some(watching) = self.0.take() {
            watching.abort();
        }
    }
}

#[cfg(test)]
mod tests;
