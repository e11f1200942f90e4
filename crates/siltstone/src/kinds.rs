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
        &objects::KIND,
        &zone_writecache::KIND,
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

    /// Kinds whose example needs a server, a client or a device of the kernel.
    const UNCHECKED: [&str; 6] = ["memory-node", "redis", "objects", "fuse", "ublk", "vhost-user"];

    /// Each metric is a number of the status of its kind's example.
    #[test]
    fn declared_metrics_are_numbers_of_the_status() {
        let registry = registry();
        let is_checked = |kind: &&stack::Kind| !kind.metrics.is_empty() && !UNCHECKED.contains(&kind.name);
        for kind in registry.kinds.iter().copied().filter(is_checked) {
            let line = match kind.name {
                "kv" => kind.example.replacen("listen", "delete_persistence=1h, listen", 1),
                _ => kind.example.to_owned(),
            };
            let folder = tempfile::tempdir().unwrap();
            let stack = Stack::from_line(kind.name, &line, &registry).unwrap();
            let stack = stack.with_base_directory(folder.path());
            let is_started = ["nbd", "kv"].contains(&kind.name);
            let plan = stack.check(stack::Format::Everything).unwrap();
            let main = move || async move {
                let built = plan.build().await.unwrap();
                if is_started {
                    built.start().await.unwrap();
                }
                let part = built.parts().find(|part| part.kind == kind.name).unwrap();
                let all = built.status().await;
                let of_contract = ["devices", "zones", "doors"].map(|key| all[key].get(&part.name).cloned());
                let is_it = |status: &serde_json::Value| status["kind"] == kind.name;
                let status = of_contract.into_iter().flatten().find(is_it).unwrap();
                let status = status.as_object().unwrap().clone();
                built.close().await.unwrap();
                status
            };
            let status = runtime::run(runtime::Config::default(), main).unwrap();
            for metric in kind.all_metrics() {
                assert!(!metric.read(&status).is_empty(), "{}: {} in {status:?}", kind.name, metric.path);
            }
        }
    }

    /// The page of the book has every metric with its meaning.
    #[test]
    fn the_book_lists_all_metrics() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../book/src/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut rows = std::collections::BTreeMap::<_, (String, Vec<&str>)>::new();
        for kind in registry().kinds {
            for metric in kind.all_metrics() {
                let ending = if metric.metric_type == stack::MetricType::Counter { "_total" } else { "" };
                let labels = [metric.label.map(|it| it.0), metric.of_each.map(|it| it.0)];
                let labels = labels.into_iter().flatten().map(|it| format!(" `{it}`")).collect::<String>();
                let row = rows.entry(format!("`{}{ending}`{labels}", metric.name)).or_default();
                row.0 = metric.help.to_owned();
                if !row.1.contains(&kind.name) {
                    row.1.push(kind.name);
                }
            }
        }
        let rows =
            rows.iter().map(|(name, (help, kinds))| format!("| {name} | {} | {help} |", kinds.join(", ")));
        let rows: Vec<String> = rows.collect();
        let missing: Vec<_> = rows.iter().filter(|row| !page.contains(row.as_str())).cloned().collect();
        assert!(missing.is_empty(), "the table of book/src/metrics.md lacks:\n{}", missing.join("\n"));
        let listed = page.lines().filter(|line| line.starts_with("| `")).count();
        assert!(listed >= rows.len(), "{listed} rows");
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
