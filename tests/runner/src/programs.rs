//! The test programs that cargo built, and the tests in them.

use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Package that it tests.
    pub package: String,
    /// Name of cargo's target: the library's, or that of the file below `tests`.
    pub target: String,
    pub executable: PathBuf,
    /// Folder of the package: tests run there, as under `cargo test`.
    pub folder: PathBuf,
    /// Variables of the environment, beside those that `cargo test` sets.
    pub variables: Vec<(&'static str, OsString)>,
}

/// A test of a program.
#[derive(Clone, Debug)]
pub struct Test<'a> {
    pub program: &'a Program,
    /// Path of the test's function in its program.
    pub name: String,
    /// Whether the test is `#[ignore]`d: counted as skipped.
    pub is_ignored: bool,
}

impl Program {
    /// A command that runs this program as `cargo test` would.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.folder).envs(self.variables.iter().cloned());
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        // With one thread, tests would run in the main thread; they take their name from that of their
        // thread.
        command.env("RUST_TEST_THREADS", "2");
        command
    }
}

/// Artifacts that cargo built.
#[derive(Debug)]
pub struct Built {
    programs: Vec<Program>,
    /// Programs that aren't tests, by the names of their targets.
    others: Vec<(String, PathBuf)>,
}

impl Built {
    /// Reads the messages of `cargo test --no-run --message-format=json`.
    pub fn parse(messages: &str) -> Result<Self, String> {
        let (mut programs, mut others) = (Vec::new(), Vec::new());
        for line in messages.lines().filter(|line| line.starts_with('{')) {
            let message: Value = serde_json::from_str(line)
                .map_err(|error| format!("cargo's messages aren't JSON: {error}"))?;
            let is_artifact = message["reason"] == "compiler-artifact";
            let (Some(executable), true) = (message["executable"].as_str(), is_artifact) else { continue };
            let target = message["target"]["name"].as_str().unwrap_or_default().to_owned();
            if message["profile"]["test"] != true {
                others.push((target, executable.into()));
                continue;
            }
            let manifest = message["manifest_path"].as_str().ok_or("a test program has no manifest")?;
            let folder = Path::new(manifest).parent().ok_or("a manifest has no folder")?.to_owned();
            let package = package_name(&message["package_id"]).ok_or("a test program has no package")?;
            let (executable, variables) = (executable.into(), Vec::new());
            programs.push(Program { package, target, executable, folder, variables });
        }
        Ok(Built { programs, others })
    }

    /// Returns the path of a program that isn't a test.
    pub fn other(&self, target: &str) -> Option<&Path> {
        self.others.iter().rfind(|(name, _)| name == target).map(|(_, path)| path.as_path())
    }

    /// Returns the test programs of `packages`, of all if none is named.
    pub fn programs_of(&self, packages: &[String]) -> Result<Vec<Program>, String> {
        let is_wanted = |program: &&Program| packages.is_empty() || packages.contains(&program.package);
        let programs: Vec<Program> = self.programs.iter().filter(is_wanted).cloned().collect();
        if programs.is_empty() {
            return Err("cargo built no test program for these packages".to_owned());
        }
        Ok(programs)
    }
}

/// Name in a package id: `path+file:///folder/block#siltstone-block@0.1.0`, or `…/siltstone#0.1.0` where the
/// folder has the name of the package.
fn package_name(id: &Value) -> Option<String> {
    let (path, fragment) = id.as_str()?.rsplit_once('#')?;
    let name = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(name.to_owned())
}

/// Lists the tests of all programs that have one of `texts` in their names.
pub fn tests<'a>(programs: &'a [Program], texts: &[String]) -> Result<Vec<Test<'a>>, String> {
    let mut tests = Vec::new();
    for program in programs {
        let ignored = list(program, &["--ignored"])?;
        for name in list(program, &[])? {
            if is_selected(&name, texts) {
                let is_ignored = ignored.contains(&name);
                tests.push(Test { program, name, is_ignored });
            }
        }
    }
    Ok(tests)
}

/// Whether a name has one of `texts` in it, or there are none.
fn is_selected(name: &str, texts: &[String]) -> bool {
    texts.is_empty() || texts.iter().any(|text| name.contains(text.as_str()))
}

fn list(program: &Program, arguments: &[&str]) -> Result<Vec<String>, String> {
    let path = program.executable.display();
    let output = program
        .command()
        .args(["--list", "--format", "terse"])
        .args(arguments)
        .output()
        .map_err(|error| format!("can't run {path}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{path} --list failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(names(&String::from_utf8_lossy(&output.stdout)))
}

/// Names of the tests in the output of a test program's `--list --format terse`.
fn names(list: &str) -> Vec<String> {
    list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_that_contain_tests() {
        let messages = concat!(
            "warning: something\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/block#siltstone-block@0.1.0","manifest_path":"/w/crates/block/Cargo.toml","target":{"name":"block"},"profile":{"test":true},"executable":"/w/target/debug/deps/block-1"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/siltstone#0.1.0","manifest_path":"/w/crates/siltstone/Cargo.toml","target":{"name":"siltstone"},"profile":{"test":false},"executable":"/w/target/debug/siltstone"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/siltstone#0.1.0","manifest_path":"/w/crates/siltstone/Cargo.toml","target":{"name":"integration"},"profile":{"test":true},"executable":"/w/target/debug/deps/integration-2"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let built = Built::parse(messages).expect("cargo's messages");
        let programs = built.programs_of(&[]).expect("all packages");
        let names: Vec<_> = programs.iter().map(|program| (&*program.package, &*program.target)).collect();
        assert_eq!(names, [("siltstone-block", "block"), ("siltstone", "integration")]);
        assert_eq!(programs[1].folder, Path::new("/w/crates/siltstone"));
        assert_eq!(built.programs_of(&["siltstone".to_owned()]).expect("one package").len(), 1);
        assert!(built.programs_of(&["siltstone-fs".to_owned()]).is_err());
        assert_eq!(built.other("siltstone"), Some(Path::new("/w/target/debug/siltstone")));
        assert_eq!(built.other("integration"), None);
    }

    #[test]
    fn names_of_tests_are_listed_and_selected() {
        let list =
            names("crash_log::a: test\nworlds::b: test\nbench::c: benchmark\n\n2 tests, 1 benchmark\n");
        assert_eq!(list, ["crash_log::a", "worlds::b"]);
        let selected = |texts: &[&str]| -> Vec<bool> {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            list.iter().map(|name| is_selected(name, &texts)).collect()
        };
        assert_eq!(selected(&[]), [true, true]);
        assert_eq!(selected(&["log::", "nothing"]), [true, false]);
        assert_eq!(selected(&["a", "s::b"]), [true, true]);
        assert_eq!(selected(&["nothing"]), [false, false]);
    }
}
