//! The stacks of a benchmark: parsing, checks against the workloads, description.

use super::{Setting, What};
use crate::environment::Environment;
use crate::job::Job;
use crate::peer::{Context, Server};
use crate::plan::{Filling, Formatting, Plan, StackSource, StackSubject, Subject};
use stack::{Contract, Stack, Value};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Default workloads of a stack.
const USUAL: &str = r#"
[plan]
repetitions = 1
warm_up = "500ms"

[workload."random reads"]
rw = "randread"
bs = "4KiB"
iodepth = [1, 32]
runtime = "3s"
time_based = true

[workload."sequential reads"]
rw = "read"
bs = "1MiB"
iodepth = 8
runtime = "3s"
time_based = true
"#;

/// Further default workloads if writes are allowed.
const USUAL_WRITES: &str = r#"
[workload."random writes"]
rw = "randwrite"
bs = "4KiB"
iodepth = [1, 32]
runtime = "3s"
time_based = true

[workload."sequential writes"]
rw = "write"
bs = "1MiB"
iodepth = 8
runtime = "3s"
time_based = true
"#;

/// Default plan of a stack.
pub(super) fn usual_plan(name: &str, argument: &str, writes: bool) -> Result<Plan, String> {
    let is_file = argument.ends_with(".toml") || Path::new(argument).is_file();
    let mut text = format!("{USUAL}{}", if writes { USUAL_WRITES } else { "" });
    text.push_str("[stack.stack]\nline = \"null\"\n");
    let mut plan = Plan::parse(argument, &text).map_err(|problems| problems.to_string())?;
    name.clone_into(&mut plan.name);
    plan.title = Some(argument.into());
    if let Some(stack) = plan.stacks.first_mut() {
        stack.fill = if writes { Filling::InOrder } else { Filling::No };
        stack.source = match is_file {
            true => StackSource::File(argument.into()),
            false => StackSource::Line(argument.into()),
        };
    }
    Ok(plan)
}

/// Parses a stack of the plan and checks that its parts fit together. Placeholders such as `{socket}` in its
/// line are replaced for this job.
pub(super) fn plan_subject(
    subject: &StackSubject,
    (job, server): (&Job, Option<&Server>),
    setting: Setting<'_>,
    format: bool,
) -> Result<stack::Plan, String> {
    let place = format!("{}: [stack.{}]", subject.place, subject.name);
    let stack = match &subject.source {
        StackSource::Line(text) => {
            let stop = AtomicBool::new(false);
            let context = Context { directory: setting.directory, program: setting.program, stop: &stop };
            let text = context.fill_in(text, job, server);
            let stack = Stack::from_line(&place, &text, setting.registry);
            stack.map(|stack| stack.with_base_directory(setting.directory))
        }
        StackSource::File(path) => {
            Stack::load(&setting.directory.join(path).display().to_string(), setting.registry)
        }
    };
    let said = |problems: stack::Problems| match &subject.source {
        StackSource::Line(_) => problems.to_string(),
        StackSource::File(_) => format!("{place}: {problems}"),
    };
    let stack = stack.map_err(said)?;
    let stack = match subject.shards {
        1 => stack,
        shards => stack.with_shards(shards as usize),
    };
    stack.check(format).map_err(said)
}

/// Name of the device on top, if there is exactly one.
fn top(stack: &Stack) -> Option<&str> {
    let devices_and_zones = || stack.parts().filter(|part| part.kind().contract != Contract::Door);
    let is_used = |name: &str| {
        devices_and_zones().flat_map(|part| part.values()).any(|(_, value)| match value {
            Value::Part(other) => other == name,
            Value::Parts(others) => others.iter().any(|other| other == name),
            _ => false,
        })
    };
    let mut tops = devices_and_zones()
        .filter(|part| part.kind().contract == Contract::Device && !is_used(part.name()))
        .map(|part| part.name());
    let first = tops.next();
    first.filter(|_| tops.next().is_none())
}

/// Refuses jobs that don't fit a device, as far as its shape is known.
pub(super) fn check_jobs<'j>(
    plan: &stack::Plan,
    device: Option<&str>,
    jobs: impl IntoIterator<Item = &'j Job>,
) -> Result<(), String> {
    let Some(device) = device.or_else(|| top(plan.stack())) else {
        return Err("it has no device on top, or more than one: name one by device = \"NAME\"".into());
    };
    let shape = plan.shape(device).ok_or_else(|| format!("it has no device \"{device}\""))?;
    for job in jobs {
        if let (Some(bytes), Some(block_size)) = (shape.bytes, shape.block_size) {
            job.region(bytes, block_size.into()).map_err(|error| error.detail().to_owned())?;
        }
    }
    Ok(())
}

/// Checks the stacks of a plan, and whether the workloads fit them.
pub(super) fn check_plan(plan: &Plan, setting: Setting<'_>) -> Result<(), String> {
    let mut problems = Vec::new();
    for subject in &plan.stacks {
        let jobs = || {
            let workloads = plan.workloads.iter().filter(|it| it.subjects.contains(&subject.name));
            workloads.map(|workload| &workload.job)
        };
        let any = Job::new(&subject.name);
        let server = plan.server_of(Subject::Stack(subject));
        let format = subject.format != Formatting::No;
        let planned = plan_subject(subject, (jobs().next().unwrap_or(&any), server), setting, format);
        let checked = planned.and_then(|planned| {
            check_jobs(&planned, subject.device.as_deref(), jobs())
                .map_err(|message| format!("{}: [stack.{}]: {message}", subject.place, subject.name))
        });
        problems.extend(checked.err());
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n\n")) }
}

/// Stacks that are formatted before a run.
pub(super) fn formatted(what: &What, setting: Setting<'_>) -> Vec<Stack> {
    match what {
        What::Files(files) if files.on_stack == Some(true) => {
            files.stacks().map(|planned| planned.stack().clone()).collect()
        }
        What::Files(_) => Vec::new(),
        What::Plan(plan) => {
            let subjects = plan.stacks.iter().filter(|subject| subject.format != Formatting::No);
            let planned = subjects.filter_map(|subject| {
                let server = plan.server_of(Subject::Stack(subject));
                plan_subject(subject, (&Job::new("any"), server), setting, true).ok()
            });
            planned.map(|planned| planned.stack().clone()).collect()
        }
    }
}

/// Adds the versions of the programs that are used, and the file systems of the files.
pub(super) fn describe(what: &What, setting: Setting<'_>, environment: &mut Environment) {
    let mut add_files = |stack: &Stack| {
        for part in stack.parts().filter(|part| part.kind().contract == Contract::Device) {
            if let Some(Value::Path(path)) = part.value("path") {
                environment.add_file(path, &setting.directory.join(path));
            }
        }
    };
    match what {
        What::Files(files) => files.stacks().for_each(|planned| add_files(planned.stack())),
        What::Plan(plan) => {
            for subject in &plan.stacks {
                let any = Job::new("any");
                let server = plan.server_of(Subject::Stack(subject));
                let format = subject.format != Formatting::No;
                if let Ok(planned) = plan_subject(subject, (&any, server), setting, format) {
                    add_files(planned.stack());
                }
            }
            let servers = plan.servers.iter().flat_map(Server::programs);
            let tables = plan.tables.iter().flat_map(|table| table.programs());
            let used = plan.peers.iter().flat_map(|peer| peer.programs()).chain(servers).chain(tables);
            for program in used.collect::<BTreeSet<_>>() {
                environment.add_program(program);
            }
        }
    }
}
