//! `siltstone model`: profiles of the kind `model`, and new ones, fitted to fio's report of a real device.

use crate::arguments::{ModelFit, ModelVerb};
use crate::failure::Failure;
use crate::input;
use crate::output::{print, print_json, say};
use layers::model::fill;
use layers::model::fit::{self, Fitted};
use layers::model::profile::known;
use serde_json::json;
use std::path::Path;

/// Runs one of the verbs.
///
/// # Errors
/// An unknown name; a report that can't be read or isn't fio's.
pub fn model(verb: &ModelVerb) -> Result<(), Failure> {
    match verb {
        ModelVerb::List { json } => list(*json),
        ModelVerb::Show { name } => show(name),
        ModelVerb::Job { fill: true } => print(fill::JOB),
        ModelVerb::Job { fill: false } => print(fit::JOB),
        ModelVerb::Fit(wanted) => {
            let text = read(&wanted.report)?;
            let log = wanted.fill.as_deref().map(read).transpose()?;
            if let (Some(path), Some(log)) = (&wanted.fill, &log) {
                fill::fit(log)
                    .map_err(|error| Failure::World(format!("{}: {}", path.display(), error.detail())))?;
            }
            let title = wanted.title.as_deref().unwrap_or(&wanted.name);
            let fitted = fit::fit(&text, title, wanted.rpm, log.as_deref()).map_err(|error| {
                Failure::World(format!("{}: {}", wanted.report.display(), error.detail()))
            })?;
            show_fitted(wanted, &fitted)
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let expected = "a report of fio in JSON, or a log of fio for --fill";
    let bytes = std::fs::read(path).map_err(|error| input::unreadable("file", path, &error, expected))?;
    // Bytes that aren't UTF-8 fail later, with the error that this isn't fio's report or log.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn list(json: bool) -> Result<(), Failure> {
    let known = known()?;
    if json {
        let profiles = known.iter().map(|(name, profile)| json!({ "name": name, "title": profile.title() }));
        return print_json(&json!({ "profiles": profiles.collect::<Vec<_>>() }));
    }
    let width = known.keys().map(String::len).max().unwrap_or(0);
    let line =
        |(name, profile): (&String, &layers::model::Profile)| format!("{name:width$}  {}\n", profile.title());
    print(&known.iter().map(line).collect::<String>())
}

fn show(name: &str) -> Result<(), Failure> {
    let known = known()?;
    match known.get(name) {
        Some(profile) => print(&profile.to_toml(name)),
        None => {
            let names = known.keys().cloned().collect::<Vec<_>>().join(", ");
            Err(Failure::Usage(format!("profile \"{name}\": unknown; expected one of {names}")))
        }
    }
}

/// Prints the profile to standard output, for a file, and its deviation to standard error.
fn show_fitted(wanted: &ModelFit, fitted: &Fitted) -> Result<(), Failure> {
    let name = wanted.name.as_str();
    let toml = fitted.profile.to_toml(name);
    if wanted.json {
        let job = |(job, measured, modelled): &(&str, f64, f64)| json!({ "job": job, "measured_iops": measured, "modelled_iops": modelled });
        let jobs: Vec<_> = fitted.compared.iter().map(job).collect();
        return print_json(&json!({ "name": name, "toml": toml, "jobs": jobs }));
    }
    say(&format!("{:<14} {:>12} {:>12} {:>8}", "job", "measured", "modelled", ""));
    for (job, measured, modelled) in &fitted.compared {
        say(&format!("{job:<14} {measured:>12.0} {modelled:>12.0} {:>7.0}%", 100.0 * modelled / measured));
    }
    if let Some(log) = &wanted.fill {
        let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
        say(&match &fitted.filled {
            Some(found) => format!(
                "write buffer: {:.0} MiB; {:.0} MiB/s for the first {:.0} MiB, then {:.0} MiB/s",
                mebibytes(found.buffer.size as f64),
                mebibytes(found.fast),
                mebibytes(found.written),
                mebibytes(found.buffer.drain as f64)
            ),
            None => format!("{}: writes became no slower, so no write buffer is fitted", log.display()),
        });
    }
    print(&toml)
}
