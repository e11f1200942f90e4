//! A C program with the header and the static library, and a comparison of the header with the code.
#![allow(clippy::unwrap_used)] // All of this is tests.

use std::path::{Path, PathBuf};
use std::process::Command;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn has(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(program).is_file())
}

fn skip(why: &str) {
    let thread = std::thread::current();
    println!("SKIPPED: {}: {why}", thread.name().unwrap_or("a test"));
}

/// Builds the static library, and returns its path. Cargo doesn't build it for the tests of its crate.
fn library() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["rustc", "--quiet", "--package", "siltstone-spinor-c", "--lib", "--crate-type", "staticlib"])
        .arg("--message-format=json")
        .current_dir(crate_folder())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let end = text.find("libsiltstone_spinor.a\"").expect("cargo names the library")
        + "libsiltstone_spinor.a".len();
    let start = text[..end].rfind('"').unwrap() + 1;
    PathBuf::from(&text[start..end])
}

/// Compiles a program of the folder `tests` with further arguments for cc, and runs it. It prints "ok: " at
/// its end.
fn run_in_c(source: &str, compile: &[&Path], arguments: &[&Path]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let built = Command::new("cc")
        .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-o"])
        .arg(&program)
        .arg("-I")
        .arg(crate_folder().join("include"))
        .arg(crate_folder().join("tests").join(source))
        .args(compile)
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new("timeout").arg("600").arg(&program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("ok: "), "{said}");
    println!("{said}");
}

#[test]
fn a_program_in_c_drives_the_chip() {
    if !has("cc") {
        return skip("cc is not installed");
    }
    run_in_c("drive.c", &[Path::new("-Werror")], &[]);
}

/// Folder with the C sources of littlefs, which the crate littlefs2-sys contains; `None` if cargo hasn't
/// fetched it.
fn littlefs() -> Option<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(crate_folder())
        .output()
        .unwrap();
    // Fails if the package of any platform is missing.
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let packages = metadata["packages"].as_array()?;
    let package = packages.iter().find(|package| package["name"] == "littlefs2-sys")?;
    Some(Path::new(package["manifest_path"].as_str()?).parent()?.join("littlefs"))
}

/// Text of a chip file with an array of 64 KiB, small enough to be loaded for each cut.
fn small_chip() -> String {
    let (_, text) = spinor::CHIPS.iter().find(|(name, _)| *name == "W25Q64JV").unwrap();
    let small = text.replace("\nsize = 8388608\n", "\nsize = 65536\n");
    assert!(small != *text);
    // Its SFDP area has the real chip's size; without one, it is generated from the file.
    match (small.find("\nsfdp_of"), small.rfind("\"\"\"\n")) {
        (Some(start), Some(end)) => format!("{}\n{}", &small[..start], &small[end + 4..]),
        _ => small,
    }
}

#[test]
fn littlefs_keeps_what_it_acknowledged() {
    if !has("cc") {
        return skip("cc is not installed");
    }
    let Some(littlefs) = littlefs() else {
        return skip("the C sources of littlefs are not there: run cargo fetch");
    };
    let folder = tempfile::tempdir().unwrap();
    let chip = folder.path().join("small.toml");
    std::fs::write(&chip, small_chip()).unwrap();
    let quiet = ["-DLFS_NO_DEBUG", "-DLFS_NO_WARN", "-DLFS_NO_ERROR", "-I"].map(Path::new);
    let sources = [&*littlefs, &littlefs.join("lfs.c"), &littlefs.join("lfs_util.c")];
    run_in_c("littlefs.c", &[&quiet[..], &sources[..]].concat(), &[&chip]);
}

#[test]
fn the_header_is_what_cbindgen_makes() {
    // Other versions have another syntax, and lay the header out differently.
    let version = Command::new("cbindgen").arg("--version").output();
    let is_known = version.is_ok_and(|said| said.stdout.starts_with(b"cbindgen 0.29."));
    if !is_known {
        return skip("cbindgen 0.29 is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made.h");
    let output = Command::new("cbindgen")
        .args(["--config", "cbindgen.toml", "--output"])
        .arg(&made)
        .current_dir(crate_folder())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let committed = std::fs::read_to_string(crate_folder().join("include/siltstone_spinor.h")).unwrap();
    let made = std::fs::read_to_string(made).unwrap();
    assert!(
        made == committed,
        "make the header again: cbindgen --config cbindgen.toml --output include/siltstone_spinor.h"
    );
}

/// The header has every exported function. Runs without cbindgen.
#[test]
fn the_header_names_every_function() {
    let header = std::fs::read_to_string(crate_folder().join("include/siltstone_spinor.h")).unwrap();
    let mut count = 0;
    for file in ["src/lib.rs", "src/block.rs"] {
        let source = std::fs::read_to_string(crate_folder().join(file)).unwrap();
        for part in source.split("extern \"C\" fn ").skip(1) {
            let name = &part[..part.find('(').unwrap()];
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
}
