//! Import cycles among the modules of each crate: none may become longer.
//!
//! A module is a file or folder directly in `src/`, with all files below it. It imports another one where its
//! code has a path that begins with `crate::` or `super::` and leads there; names that `lib.rs` re-exports
//! aren't followed. Modules that import each other, directly or through others, are a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::documents::{crates, name, read};

/// Modules in the longest cycle of each crate; crates without a line have no cycle.
const LONGEST_CYCLES: [(&str, usize); 10] = [
    ("bench", 3),
    ("fs", 4),
    ("fuse", 3),
    ("redis-door", 2),
    ("logkit", 6),
    ("memory-node", 2),
    ("redis-device", 4),
    ("runtime", 5),
    ("spinor", 2),
    ("zns", 2),
];

/// Imports of each module, by the names of modules.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Words and marks of code, without comments; the tests at its end are left out.
fn tokens(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        code.lines().flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"]).collect();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut tokens: Vec<String> = Vec::new();
    let mut last = ' ';
    for letter in code.chars() {
        match tokens.last_mut() {
            Some(token) if is_word(letter) && is_word(last) || letter == ':' && token == ":" => {
                token.push(letter)
            }
            _ if letter.is_whitespace() => {}
            _ => tokens.push(letter.to_string()),
        }
        last = letter;
    }
    tokens
}

/// Paths that begin at a position of the tokens, each as its words; a group in braces is several paths.
/// Returns the position after them.
fn paths_at(tokens: &[String], mut at: usize, mut path: Vec<String>, paths: &mut Vec<Vec<String>>) -> usize {
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    if token(at) == "{" {
        at += 1;
        while !["}", ""].contains(&token(at)) {
            at = paths_at(tokens, at, path.clone(), paths);
            while ![",", "}", ""].contains(&token(at)) {
                at += 1;
            }
            at += usize::from(token(at) == ",");
        }
        return at + 1;
    }
    path.push(token(at).to_owned());
    if token(at + 1) == "::" {
        return paths_at(tokens, at + 2, path, paths);
    }
    paths.push(path);
    at + 1
}

/// First components of the paths in the code of a file, below `src/`; `depth` is 1 for `src/a.rs`.
fn targets(text: &str, module: &str, depth: usize) -> BTreeSet<String> {
    let tokens = tokens(text);
    let mut paths = Vec::new();
    for at in 0..tokens.len() {
        let is_first =
            (at == 0 || tokens[at - 1] != "::") && tokens.get(at + 1).is_some_and(|next| next == "::");
        if is_first && ["crate", "super"].contains(&&*tokens[at]) {
            paths_at(&tokens, at, Vec::new(), &mut paths);
        }
    }
    let first = |path: Vec<String>| {
        let ups = path.iter().take_while(|word| *word == "super").count();
        let is_inside = ups > 0 && ups < depth;
        let name = if ups > 0 { path.get(ups) } else { path.get(1) };
        if is_inside { Some(module.to_owned()) } else { name.cloned() }
    };
    paths.into_iter().filter_map(first).collect()
}

/// Adds the imports of all files below a folder; `module` is `None` for `src/` itself.
fn add_imports(folder: &Path, module: Option<&str>, depth: usize, imports: &mut Imports) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_root = module.is_none() && ["lib", "main"].contains(&&*name);
        if is_root || name == "tests" {
            continue;
        }
        let module = module.unwrap_or(&name);
        if path.is_dir() {
            add_imports(&path, Some(module), depth + 1, imports);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            imports.entry(module.to_owned()).or_default().extend(targets(&read(&path), module, depth));
        }
    }
}

/// Modules that are reached from one, over one import or more.
fn reached(imports: &Imports, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(module) = pending.pop() {
        let known = imports.get(module).into_iter().flatten().filter(|target| imports.contains_key(*target));
        pending.extend(known.filter(|target| reached.insert((*target).clone())).map(String::as_str));
    }
    reached
}

/// The longest cycle: modules of which each reaches all others; empty if there is none.
fn longest_cycle(imports: &Imports) -> BTreeSet<String> {
    let imports: Imports = imports
        .iter()
        .map(|(from, to)| (from.clone(), to.iter().filter(|to| *to != from).cloned().collect()))
        .collect();
    let reached: Imports = imports.keys().map(|from| (from.clone(), reached(&imports, from))).collect();
    let cycle =
        |from: &String| reached[from].iter().filter(|to| reached[*to].contains(from)).cloned().collect();
    reached.keys().map(cycle).max_by_key(BTreeSet::len).unwrap_or_default()
}

#[test]
fn no_import_cycle_of_a_crate_becomes_longer() {
    let mut permitted: BTreeMap<_, _> = LONGEST_CYCLES.into_iter().collect();
    let mut wrong = Vec::new();
    for folder in crates() {
        let name = name(&folder);
        let mut imports = Imports::new();
        add_imports(&folder.join("src"), None, 1, &mut imports);
        let cycle = longest_cycle(&imports);
        let permitted = permitted.remove(&*name).unwrap_or(0);
        if cycle.len() > permitted {
            wrong.push(format!(
                "{name}: cycle of {} modules, permitted are {permitted}: {cycle:?}",
                cycle.len()
            ));
        } else if cycle.len() < permitted {
            wrong.push(format!(
                "{name}: permitted are {permitted} modules; lower the number to {}",
                cycle.len()
            ));
        }
    }
    wrong.extend(permitted.keys().map(|name| format!("{name}: no such crate")));
    assert!(wrong.is_empty(), "import cycles of crates, and LONGEST_CYCLES: {wrong:#?}");
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn paths_in_code_and_in_groups_are_imports() {
    let text = "pub(crate) use crate::a::{B, c::{D as X, E}};\nuse crate::{\n    d::F,\n    e,\n};\n\
        fn f() -> crate::g::G { $crate::h!() } // crate::comment::X\n\
        use std::crate_name::Y;\n#[cfg(test)]\nmod tests {\n    use crate::late::Z;\n}\n";
    assert_eq!(targets(text, "m", 1), set(&["a", "d", "e", "g", "h"]));
}

#[test]
fn a_path_upwards_leads_to_a_neighbour_or_stays_inside() {
    let text = "use super::a::B;\nuse super::super::c::D;\nuse super::{e, f::G};\n";
    assert_eq!(targets("use super::a::B;", "m", 1), set(&["a"]));
    assert_eq!(targets(text, "m", 2), set(&["m", "c"]));
    assert_eq!(targets(text, "m", 3), set(&["m"]));
}

#[test]
fn the_longest_cycle_is_found_and_none_in_a_tree() {
    let imports = |edges: &[(&str, &[&str])]| -> Imports {
        edges.iter().map(|(from, to)| ((*from).to_owned(), set(to))).collect()
    };
    let tree = imports(&[("a", &["b", "c", "a"]), ("b", &["c"]), ("c", &["Name"])]);
    assert_eq!(longest_cycle(&tree), set(&[]));
    let two = imports(&[
        ("a", &["b"]),
        ("b", &["a"]),
        ("c", &["d", "a"]),
        ("d", &["e", "d"]),
        ("e", &["c"]),
        ("f", &["c"]),
    ]);
    assert_eq!(longest_cycle(&two), set(&["c", "d", "e"]));
}
