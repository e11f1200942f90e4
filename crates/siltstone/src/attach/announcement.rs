//! Announcement of a node to udev and systemd, for which a path such as `/dev/siltstone/NAME` exists once a
//! rule of udev has named it for a device: a mount of it in `/etc/fstab` waits for that.
//!
//! The file `/run/siltstone/.nodes/SEQUENCE` names the attachment of the block device with this sequence
//! number of the kernel, so an old file names no other device. `packaging/60-siltstone.rules` reads it at
//! each event of the device. The link itself is the holder's alone.

use block::{Error, Result};
use doors::sysfs;
use std::path::{Path, PathBuf};

/// Folder of the files. An attachment's name doesn't begin with a dot.
const FOLDER: &str = "/run/siltstone/.nodes";
/// Beginning of the line in a file.
const KEY: &str = "SILTSTONE_NAME=";

/// Announces the node of an attachment whose link exists.
///
/// # Errors
/// Errors of the kernel.
pub fn announce(name: &str, node: &Path, sequence_number: u64) -> Result<()> {
    let failed =
        |error: std::io::Error| Error::from_io(&error, &format!("announcing {} to udev", node.display()));
    write(Path::new(FOLDER), name, sequence_number).map_err(failed)?;
    match sysfs::folder(node) {
        Some(folder) => std::fs::write(folder.join("uevent"), "change").map_err(failed),
        None => Ok(()),
    }
}

/// Withdraws the announcements of an attachment that ends.
pub fn withdraw(name: &str) {
    // Files that stay name no device.
    let _withdrawn = remove(Path::new(FOLDER), name);
}

fn write(folder: &Path, name: &str, sequence_number: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(sequence_number.to_string()), format!("{KEY}{name}\n"))
}

fn remove(folder: &Path, name: &str) -> std::io::Result<()> {
    let files: Vec<PathBuf> = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    let is_its_own = |file: &&PathBuf| {
        std::fs::read_to_string(file).is_ok_and(|text| text.trim_end() == format!("{KEY}{name}"))
    };
    files.iter().filter(is_its_own).try_for_each(std::fs::remove_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_attachment_withdraws_its_own_announcements() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = folder.path().join("nodes");
        for (name, number) in [("vol", 7), ("vol", 8), ("vol2", 9)] {
            write(&nodes, name, number).unwrap();
        }
        assert_eq!(std::fs::read_to_string(nodes.join("7")).unwrap(), "SILTSTONE_NAME=vol\n");
        remove(&nodes, "vol").unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&nodes).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["9"]);
    }
}
