//! `siltstone stack`: checks, draws and converts stacks, and explains the kinds.

use crate::arguments::StackVerb;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::load;
use crate::output::{print, print_json, print_line};
use serde_json::json;
use stack::{Contract, Key, Kind, Problems, Stack};
use std::fmt::Write;

/// Runs one of the verbs.
///
/// # Errors
/// Problems of the stack, or an unknown kind.
pub fn stack(verb: &StackVerb) -> Result<(), Failure> {
    match verb {
        StackVerb::Check { stack, format, json } => check(stack, *format, *json),
        StackVerb::Show { stack, json: true, .. } => print_json(&load::stack(stack, &registry())?.to_json()),
        StackVerb::Show { stack, line: true, .. } => {
            let line = load::stack(stack, &registry())?.to_line();
            print_line(&line.map_err(|problem| Failure::from(Problems::from(problem)))?)
        }
        StackVerb::Show { stack, toml: true, .. } => print(&load::stack(stack, &registry())?.to_toml()),
        StackVerb::Show { stack, .. } => {
            let stack = load::stack(stack, &registry())?;
            // A stack whose files are missing is drawn without sizes.
            print(&stack.check(false).map_or_else(|_| stack.draw(), |plan| plan.draw()))
        }
        StackVerb::Kinds { kind: None, json } => kinds(*json),
        StackVerb::Kinds { kind: Some(name), json } => explain(name, *json),
    }
}

fn check(argument: &str, format: bool, as_json: bool) -> Result<(), Failure> {
    let registry = registry();
    if !as_json {
        let stack = load::stack(argument, &registry)?;
        stack.check(format)?;
        let parts = stack.parts().count();
        return print_line(&format!(
            "{argument}: fine, {parts} {}",
            if parts == 1 { "part" } else { "parts" }
        ));
    }
    let checked = match argument {
        "-" => load::stack(argument, &registry)?.check(format),
        _ => Stack::load(argument, &registry).and_then(|stack| stack.check(format)),
    };
    match checked {
        Ok(plan) => print_json(&json!({ "fine": true, "problems": [], "stack": plan.to_json() })),
        Err(problems) => {
            let list: Vec<_> = problems.iter().map(stack::Problem::to_json).collect();
            print_json(&json!({ "fine": false, "problems": list, "count": problems.count() }))?;
            Err(Failure::Usage(String::new()))
        }
    }
}

fn kinds(as_json: bool) -> Result<(), Failure> {
    let registry = registry();
    if as_json {
        return print_json(&registry.kinds.iter().map(|kind| kind_json(kind)).collect());
    }
    let widest = registry.kinds.iter().map(|kind| kind.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for contract in Contract::ALL {
        let _ = writeln!(text, "[{}.NAME]", contract.section());
        for kind in registry.kinds.iter().filter(|kind| kind.contract == contract) {
            let _ = writeln!(text, "  {:widest$}  {}", kind.name, kind.summary);
        }
        text.push('\n');
    }
    text.push_str(
        "siltstone stack kinds KIND explains one of them, with its keys, messages and an example.\n",
    );
    print(&text)
}

fn explain(name: &str, as_json: bool) -> Result<(), Failure> {
    let registry = registry();
    let kind = registry.kind(name).ok_or_else(|| {
        let known = registry.kinds.iter().map(|kind| kind.name);
        let meant = stack::did_you_mean(name, known.clone()).replacen(':', ";", 1);
        let end = if meant.is_empty() { ";" } else { "" };
        let list = known.collect::<Vec<_>>().join(", ");
        Failure::Usage(format!("kind \"{name}\": unknown{meant}{end} expected one of {list}"))
    })?;
    if as_json {
        return print_json(&kind_json(kind));
    }
    let mut text = format!("{}, {}: {}\n\nKeys:\n", kind.name, kind.contract.noun(), kind.summary);
    let widest = kind.keys.iter().map(|key| key.name.len()).max().unwrap_or(0);
    if kind.keys.is_empty() {
        text.push_str("  none\n");
    }
    for key in kind.keys {
        let _ = writeln!(text, "  {:widest$}  {}", key.name, key.help);
        let _ = writeln!(text, "  {:widest$}  {}; {}", "", key.value, need(key));
    }
    if !kind.messages.is_empty() {
        text.push_str("\nMessages:\n");
    }
    for form in kind.messages {
        let _ = writeln!(text, "  {}\n      {}", form.words, form.does);
    }
    let _ = write!(text, "\nExample:\n  {}\n\nThe same in a stack file:\n", kind.example);
    let example = Stack::from_line("example", kind.example, &registry)?;
    example.to_toml().lines().for_each(|line| {
        let _ = writeln!(text, "  {line}");
    });
    print(&text)
}

fn need(key: &Key) -> String {
    match (key.required, key.default) {
        (true, _) => "required".into(),
        (false, Some("")) | (false, None) => "optional".into(),
        (false, Some(default)) => format!("default {default}"),
    }
}

fn kind_json(kind: &Kind) -> serde_json::Value {
    let key = |key: &Key| {
        json!({
            "name": key.name,
            "expected": key.value.to_string(),
            "required": key.required,
            "positional": key.positional,
            "default": key.default,
            "help": key.help,
        })
    };
    json!({
        "name": kind.name,
        "contract": kind.contract.section(),
        "summary": kind.summary,
        "keys": kind.keys.iter().map(key).collect::<Vec<_>>(),
        "messages": kind.messages.iter().map(|form| json!({ "words": form.words, "does": form.does })).collect::<Vec<_>>(),
        "example": kind.example,
    })
}
