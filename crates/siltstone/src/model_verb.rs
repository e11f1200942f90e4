//! `siltstone model`: the profiles that `model` knows, and new ones, fitted to what fio says of a real device.

use crate::arguments::ModelVerb;
use crate::failure::Failure;
use crate::output::{print, print_json, say};
use layers::model::fit::{self, Fitted};
use layers::model::profile::known;
use serde_json::json;

/// Carries out one of the verbs.
///
/// # Errors
/// A name that isn't known, a report that can't be read or isn't one.
pub fn model(verb: &ModelVerb) -> Result<(), Failure> {
    match verb {
        ModelVerb::List { json } => list(*json),
        ModelVerb::Show { name } => show(name),
        ModelVerb::Job => print(fit::JOB),
        ModelVerb::Fit { report, name, title, rpm, json } => {
            let text = std::fs::read_to_string(report)
                .map_err(|error| Failure::World(format!("{}: {error}", report.display())))?;
            let title = title.as_deref().unwrap_or(name);
            let fitted = fit::fit(&text, title, *rpm)
                .map_err(|error| Failure::World(format!("{}: {}", report.display(), error.detail())))?;
            show_fitted(name, &fitted, *json)
        }
    }
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
            Err(Failure::Usage(format!("there is no profile \"{name}\": expected one of {names}")))
        }
    }
}

/// The profile goes to standard output, to be put into a file; how near it comes, to standard error.
fn show_fitted(name: &str, fitted: &Fitted, json: bool) -> Result<(), Failure> {
    let toml = fitted.profile.to_toml(name);
    if json {
        let job = |(job, measured, modelled): &(&str, f64, f64)| json!({ "job": job, "measured_iops": measured, "modelled_iops": modelled });
        let jobs: Vec<_> = fitted.compared.iter().map(job).collect();
        return print_json(&json!({ "name": name, "toml": toml, "jobs": jobs }));
    }
    say(&format!("{:<14} {:>12} {:>12} {:>8}", "job", "measured", "modelled", ""));
    for (job, measured, modelled) in &fitted.compared {
        say(&format!("{job:<14} {measured:>12.0} {modelled:>12.0} {:>7.0}%", 100.0 * modelled / measured));
    }
    print(&toml)
}
