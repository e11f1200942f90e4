//! Kinds of parts. This is the only list: a new kind is one line here.

use stack::Registry;

/// Returns all kinds, in the order of display.
pub fn registry() -> Registry {
    Registry::new(vec![
        &disks::file::KIND,
        &disks::ram::KIND,
        &disks::null::KIND,
        &doors::nbd::client::KIND,
        &memory_node::KIND,
        &redis_device::KIND,
        &layers::stats::KIND,
        &layers::fault::KIND,
        &layers::record::KIND,
        &layers::model::KIND,
        &layers::linear::KIND,
        &layers::stripe::KIND,
        &cache::KIND,
        &writecache::KIND,
        &mirror::KIND,
        &crypt::KIND,
        &remote::KIND,
        &log::KIND,
        &log::SNAPSHOT_KIND,
        &zones::on_device::KIND,
        &zones::ram::KIND,
        &zns::KIND,
        &layers::stats::ZONES_KIND,
        &layers::fault::ZONES_KIND,
        &layers::record::ZONES_KIND,
        &doors::nbd::door::KIND,
        &doors::fuse::door::KIND,
        &doors::vhost_user::door::KIND,
        &doors::ublk::door::KIND,
        &fs::KIND,
        &redis_door::KIND,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use stack::Stack;

    #[test]
    fn declarations_are_sound_and_examples_fit() {
        let registry = registry();
        registry.verify().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for kind in &registry.kinds {
            let stack = Stack::from_line(kind.name, kind.example, &registry).unwrap_or_else(|problems| {
                panic!("the example of {}: {problems}", kind.name);
            });
            let plan = stack.with_base_directory(folder.path()).check(true);
            plan.unwrap_or_else(|problems| panic!("the example of {}: {problems}", kind.name));
        }
    }

    /// Each `KIND` declaration of the workspace is in the list.
    #[test]
    fn every_declaration_is_listed() {
        fn declarations(folder: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let count = |path: std::path::PathBuf| match path {
                path if path.is_dir() => declarations(&path),
                path if path.extension().is_some_and(|it| it == "rs") => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    text.lines()
                        .filter(|line| line.starts_with("pub const") && line.contains("KIND: Kind ="))
                        .count()
                }
                _ => 0,
            };
            entries.map(count).sum()
        }
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let declared =
            ["core", "doors", "flash", "storage", "tools"].map(|group| declarations(&crates.join(group)));
        let declared: usize = declared.iter().sum();
        assert_eq!(declared, registry().kinds.len());
    }
}
