//! Help, completions, and stacks that are shown and converted; the files in `examples` are valid.

use crate::common::{command, files, is_stack, repository, run};
use bench::job_file::JobFile;
use bench::plan::Plan;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

#[test]
fn help_teaches_by_example() {
    for verb in [
        &[][..],
        &["bench"],
        &["serve"],
        &["status"],
        &["top"],
        &["trace"],
        &["report"],
        &["metrics"],
        &["message"],
        &["snapshot"],
        &["snapshot", "create"],
        &["snapshot", "list"],
        &["snapshot", "delete"],
        &["snapshot", "clone"],
        &["snapshot", "diff"],
        &["resize"],
        &["memory-node"],
        &["check"],
        &["dump"],
        &["format"],
        &["completions"],
        &["stack"],
        &["stack", "check"],
        &["stack", "show"],
        &["stack", "kinds"],
        &["model"],
        &["model", "list"],
        &["model", "show"],
        &["model", "job"],
        &["model", "fit"],
        &["record"],
        &["record", "show"],
        &["record", "replay"],
        &["record", "export"],
        &["zns"],
        &["objects"],
        &["objects", "status"],
        &["objects", "check"],
        &["objects", "gc"],
        &["objects", "fence"],
        &["objects", "drain"],
    ] {
        let ran = run(Path::new("/"), &[verb, &["--help"]].concat());
        let example = format!("Examples:\n  siltstone {}", verb.join(" "));
        assert!(ran.code == Some(0) && ran.stdout.contains(example.trim_end()), "{verb:?}: {}", ran.stdout);
    }
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(Path::new("/"), &["completions", shell]);
        assert!(
            ran.code == Some(0) && ran.stdout.contains("bench") && ran.stdout.contains("replay"),
            "{shell}"
        );
    }
}

/// Converts a text through standard input and output.
fn converted(form: &str, text: &str) -> String {
    let mut child =
        command(Path::new("/"), &["stack", "show", form, "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn lines_and_toml_convert_into_each_other() {
    let stacks = files("examples", "toml").into_iter().filter(|path| is_stack(path));
    for path in stacks {
        let line = run(Path::new("/"), &["stack", "show", "--line", path.to_str().unwrap()]).stdout;
        assert_eq!(line.lines().count(), 1, "{line}");
        let toml = converted("--toml", &line);
        assert!(["[device.", "[zones."].iter().any(|section| toml.contains(section)), "{toml}");
        assert_eq!(converted("--line", &toml), line);
    }
    let kinds: serde_json::Value =
        serde_json::from_str(&run(Path::new("/"), &["stack", "kinds", "--json"]).stdout).unwrap();
    for kind in kinds.as_array().unwrap() {
        let example = kind["example"].as_str().unwrap();
        assert_eq!(converted("--line", &converted("--toml", example)), converted("--line", example));
    }
}

#[test]
fn kinds_are_explained() {
    let ran = run(Path::new("/"), &["stack", "kinds", "file"]);
    for part in ["path", "required", "default 4KiB", "file(disk.img, size=4GiB)", "[device."] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let ran = run(Path::new("/"), &["stack", "kinds", "fault"]);
    assert!(ran.stdout.contains("Messages:\n  rules on\n      apply the rules"), "{}", ran.stdout);
    let ran = run(Path::new("/"), &["stack", "kinds", "log", "--json"]);
    let kind: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(kind["messages"][0]["words"], "snapshot create NAME");
}

#[test]
fn check_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(folder.path(), &["stack", "check", "--json", "file(disk.img, sise=1MiB)"]);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(ran.code, Some(2));
    assert_eq!(value["fine"], false);
    assert_eq!(
        (&value["problems"][0]["column"], &value["problems"][0]["nearest"]),
        (&16.into(), &"size".into())
    );
    let ran = run(folder.path(), &["stack", "check", "--json", "file(disk.img, size=1MiB)"]);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (ran.code, &value["fine"], &value["stack"]["parts"][0]["bytes"]),
        (Some(0), &true.into(), &(1 << 20).into())
    );
}

#[test]
fn what_lies_in_the_repository_is_good() {
    for path in files("examples", "toml").into_iter().chain(files("bench/plans", "toml")) {
        let name = path.to_str().unwrap();
        if is_stack(&path) {
            let ran = run(repository(), &["stack", "check", name]);
            assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        } else {
            let plan = Plan::parse(name, &std::fs::read_to_string(&path).unwrap()).unwrap();
            assert!(!plan.runs().is_empty());
        }
    }
    for path in files("examples", "fio") {
        JobFile::parse("example", &std::fs::read_to_string(&path).unwrap(), &|_| None).unwrap();
    }
}
