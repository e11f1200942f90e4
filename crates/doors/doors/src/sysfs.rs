//! Attributes of the machine's block devices, in sysfs. All functions block their thread.

use std::path::{Path, PathBuf};

const FOLDER: &str = "/sys/block";

/// Folder of a block device's attributes and partitions; `None` for a path without a file name.
pub fn folder(node: &Path) -> Option<PathBuf> {
    Some(Path::new(FOLDER).join(node.file_name()?))
}

/// Text of an attribute of a block device, such as `loop/backing_file` of `/dev/loop0`, without the newline;
/// `None` if the device or its attribute doesn't exist.
pub fn attribute(node: &Path, attribute: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder(node)?.join(attribute)).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// Nodes of the machine's block devices that fulfil a condition; none without sysfs.
pub fn nodes(is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return Vec::new() };
    let nodes = entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name()));
    nodes.filter(|node| is_wanted(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_those_of_the_device() {
        assert_eq!(folder(Path::new("/dev/nbd3")), Some("/sys/block/nbd3".into()));
        assert_eq!(folder(Path::new("/")), None);
        assert_eq!(attribute(Path::new("/dev/no-such-device"), "size"), None);
        assert_eq!(nodes(|_| false), Vec::<PathBuf>::new());
        for node in nodes(|_| true) {
            let sectors = attribute(&node, "size").map(|text| text.parse::<u64>());
            assert!(matches!(sectors, None | Some(Ok(_))), "{}: {sectors:?}", node.display());
        }
    }
}
