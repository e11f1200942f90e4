//! Check for foreign contents that formatting a stack would overwrite: file systems, partition tables and the
//! like, recognised by their signatures as in wipefs(8). Siltstone's own formats aren't refused: a stack can
//! be formatted again.

use crate::failure::Failure;
use stack::{Format, Part, Stack, Value};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes at the start of a file that are searched for signatures.
const SIGNATURE_BYTES: u64 = 128 << 10;
/// Kinds, each with the key that names the device or the file that formatting overwrites. The origin of a
/// cache isn't overwritten.
const OVERWRITTEN: &[(&str, &str)] = &[
    ("log", "on"),
    ("kv", "on"),
    ("fs", "on"),
    ("zones", "on"),
    ("mirror", "on"),
    ("crypt", "on"),
    ("cache", "cache"),
    ("writecache", "cache"),
    ("zone-writecache", "fast"),
    ("zns-emulator", "path"),
];

/// Refuses to format a stack if that would overwrite foreign contents. `advice` names the option that permits
/// it.
///
/// # Errors
/// [`Failure::World`] with the files and their contents.
pub fn check(stack: &Stack, format: &Format, advice: &str) -> Result<(), Failure> {
    let mut files = Vec::new();
    for part in stack.parts().filter(|part| is_formatted(format, part)) {
        let keys = OVERWRITTEN.iter().filter(|(kind, _)| *kind == part.kind().name);
        for value in keys.filter_map(|(_, key)| part.value(key)) {
            files_below(stack, value, &mut files);
        }
    }
    files.sort();
    files.dedup();
    let found: Vec<String> = files.iter().filter_map(|path| held(path)).collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(Failure::World(format!(
            "{}; expected nothing that would be lost; {advice}",
            found.join(", ")
        ))),
    }
}

fn is_formatted(format: &Format, part: &Part) -> bool {
    match format {
        Format::Nothing => false,
        Format::Everything => true,
        Format::Only(names) => names.iter().any(|name| name == part.name()),
    }
}

/// Adds the value's own file, and the files of all parts below the value. Below an encrypted volume there are
/// its header, which isn't overwritten unless the volume is formatted itself, and ciphertext.
fn files_below(stack: &Stack, value: &Value, files: &mut Vec<PathBuf>) {
    if let Value::Path(path) = value {
        files.extend(stack.absolute(Path::new(path)));
    }
    for part in value.children().iter().filter_map(|name| stack.part(name)) {
        match part.kind().name {
            "crypt" if part.value("passphrase_file").is_some() => {}
            "file" => part.value("path").into_iter().for_each(|path| files_below(stack, path, files)),
            _ => part.values().filter(|(_, value)| !value.children().is_empty()).for_each(|(_, value)| {
                files_below(stack, value, files);
            }),
        }
    }
}

/// Describes the contents of a file or block device, as "PATH holds an XFS file system"; `None` for
/// unrecognised contents.
fn held(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    // Opening the stack reports an unreadable file.
    std::fs::File::open(path).ok()?.take(SIGNATURE_BYTES).read_to_end(&mut bytes).ok()?;
    zones::sector::foreign(&bytes).map(|what| format!("{} holds {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::registry;

    #[test]
    fn what_others_have_made_is_told_and_own_formats_and_origins_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, at: usize, magic: &[u8]| {
            let mut bytes = vec![0; 256 << 10];
            bytes[at..at + magic.len()].copy_from_slice(magic);
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        write("xfs", 0, b"XFSB");
        write("btrfs", 0x10040, b"_BHRfS_M");
        write("swap", 4086, b"SWAPSPACE2");
        write("own", 0, b"SILTZSUP");
        write("luks", 0, b"LUKS\xba\xbe\0\x02");
        write("empty", 0, b"");
        let check_line = |line: &str, format: Format| {
            let stack = Stack::from_line("stack", line, &registry()).unwrap();
            check(&stack.with_base_directory(folder.path()), &format, "give --force")
                .err()
                .map(|it| it.to_string())
        };
        let said = |line: &str| check_line(line, Format::Everything).unwrap_or_default();
        assert!(said("log(file(xfs))").contains("xfs holds an XFS file system; expected"));
        assert!(
            said("fs(stats(linear(file(own), file(btrfs))), mnt)")
                .contains("btrfs holds a btrfs file system")
        );
        assert!(said("writecache(file(empty), file(swap))").contains("swap holds a swap area"));
        assert!(said("crypt(file(luks), passphrase_file=p)").contains("luks holds a LUKS volume"));
        assert!(said("log(crypt(file(xfs), key_file=k))").contains("xfs holds an XFS"));
        for fine in [
            "log(file(own))",
            "log(file(empty))",
            "writecache(file(xfs), file(own))",
            "stats(file(xfs))",
            "log(file(new, size=64MiB))",
        ] {
            assert_eq!(check_line(fine, Format::Everything), None, "{fine}");
        }
        // Of these two the log alone.
        let log = || Format::Only(vec!["top".to_owned()]);
        assert_eq!(check_line("log(crypt(file(luks), passphrase_file=p))", log()), None);
        assert!(check_line("log(crypt(file(xfs), key_file=k))", log()).is_some());
        // The stack isn't formatted.
        assert_eq!(check_line("log(file(xfs))", Format::Nothing), None);
    }
}
