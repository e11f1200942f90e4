//! Documents that the compiler doesn't check: the table of crates in ARCHITECTURE.md, links between Markdown
//! files, and the functions in their numbered ways of a request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders of the crates in `crates/`, which are grouped there.
pub fn crates() -> Vec<PathBuf> {
    let folders = |at: PathBuf| std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path());
    let (mut crates, groups): (Vec<_>, Vec<_>) =
        folders(root().join("crates")).partition(|folder| folder.join("Cargo.toml").exists());
    crates.extend(groups.into_iter().flat_map(folders));
    crates
}

/// Last part of a path.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Crates of the workspace that each crate in `crates/` depends on outside of tests, by the names of their
/// folders.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let folders = crates();
    let names: BTreeSet<String> = folders.iter().map(|folder| name(folder)).collect();
    let of = |folder: &Path| {
        let manifest = read(&folder.join("Cargo.toml"));
        let section = manifest.split("\n[").find(|section| section.starts_with("dependencies]"));
        let keys = section.unwrap_or_default().lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        keys.filter(|key| names.contains(*key)).map(str::to_owned).collect()
    };
    folders.iter().map(|folder| (name(folder), of(folder))).collect()
}

/// Crates in the rows of the table of ARCHITECTURE.md, in their order.
fn listed() -> Vec<String> {
    let text = read(&root().join("ARCHITECTURE.md"));
    let table = text.split("| layer | crate |").nth(1).expect("ARCHITECTURE.md has the table of crates");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.split('|').nth(2).unwrap().trim().trim_matches(['[', ']', '`']).to_owned()).collect()
}

#[test]
fn the_architecture_lists_every_crate_after_those_it_depends_on() {
    let (dependencies, listed) = (dependencies(), listed());
    assert_eq!(
        listed.iter().cloned().collect::<BTreeSet<_>>(),
        dependencies.keys().cloned().collect::<BTreeSet<_>>(),
        "the table of crates in ARCHITECTURE.md, and the folders in crates/"
    );
    for (at, name) in listed.iter().enumerate() {
        let earlier: BTreeSet<String> = listed[..at].iter().cloned().collect();
        let later: Vec<_> = dependencies[name].difference(&earlier).collect();
        assert!(later.is_empty(), "ARCHITECTURE.md lists {name} before crates that it depends on: {later:?}");
    }
}

/// Markdown files below a folder, without those of builds and of fuzzing.
fn markdown_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = name(&path);
        if path.is_dir() && !name.starts_with('.') && !["target", "corpus", "artifacts"].contains(&&*name) {
            markdown_files(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Targets of the links of a Markdown text, without code.
fn targets(text: &str) -> Vec<String> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let mut targets = Vec::new();
    for line in lines {
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let reference = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, to)| to);
        targets.extend(inline.chain(reference).map(|to| to.trim().to_owned()));
    }
    targets
}

#[test]
fn links_between_documents_lead_to_files() {
    assert_eq!(targets("[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n[g]: h.md"), ["b.md", "h.md"]);
    let mut files = Vec::new();
    markdown_files(&root(), &mut files);
    assert!(files.len() > 40, "{} Markdown files", files.len());
    let mut dead = Vec::new();
    for file in &files {
        for target in targets(&read(file)) {
            let path = target.split('#').next().unwrap_or_default();
            let is_elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
            if !is_elsewhere && !file.parent().unwrap().join(path).exists() {
                dead.push(format!("{}: {target}", file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(dead.is_empty(), "links to files that don't exist: {dead:#?}");
}

/// Files and functions at the beginning of numbered lines: "1. `src/file.rs` `function`, `function`: …".
fn steps(text: &str) -> Vec<(String, String)> {
    let mut steps = Vec::new();
    for line in text.lines() {
        let Some((number, rest)) = line.split_once(". `") else { continue };
        if number.parse::<u8>().is_err() {
            continue;
        }
        let way = rest.split(':').next().unwrap_or_default();
        let mut file = "";
        for named in way.split('`').step_by(2) {
            match named.ends_with(".rs") {
                true => file = named,
                false if !file.is_empty() => steps.push((file.to_owned(), named.to_owned())),
                false => break,
            }
        }
    }
    steps
}

#[test]
fn the_ways_of_requests_lead_through_functions() {
    let text = "1. `a.rs` `f`, `g`: x `h`\n2. `b.rs` `i`, `c.rs` `j`, only now: y\n3. `k`: z\nx. `d.rs` `l`:";
    let step = |file: &str, name: &str| (file.to_owned(), name.to_owned());
    assert_eq!(steps(text), [step("a.rs", "f"), step("a.rs", "g"), step("b.rs", "i"), step("c.rs", "j")]);
    let mut documents = vec![root().join("ARCHITECTURE.md")];
    documents.extend(crates().iter().map(|folder| folder.join("DESIGN.md")).filter(|path| path.exists()));
    let (mut count, mut lost) = (0, Vec::new());
    for document in &documents {
        for (file, function) in steps(&read(document)) {
            count += 1;
            let folders = [document.parent().unwrap().to_owned(), root().join("crates")];
            let code = folders.iter().find_map(|folder| std::fs::read_to_string(folder.join(&file)).ok());
            if !code.is_some_and(|code| code.contains(&format!("fn {function}"))) {
                lost.push(format!("{}: {file} {function}", document.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(lost.is_empty(), "functions that aren't where a document says: {lost:#?}");
    assert!(count > 40, "{count} functions");
}
