//! Status of swap space as text for operators.

use crate::output::counted;
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::Value;
use std::fmt::Write;

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn size(value: &Value, name: &str) -> String {
    units::bytes(number(value, name) as f64)
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// Returns the status of an attachment that is used as swap space, as text.
pub fn page(space: &Value) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}: {} of {} used, priority {}, {} ({}, {})",
        crate::table::plain(space["name"].as_str().unwrap_or("?")),
        size(space, "used_bytes"),
        size(space, "size_bytes"),
        space["priority"],
        space["node"].as_str().unwrap_or("?"),
        space["state"].as_str().unwrap_or("?"),
        counted(number(space, "lost_servers"), "server lost", "servers lost"),
    );
    let device = &space["device"];
    if device.is_null() {
        return out;
    }
    let mut rows = Grid::default();
    let mut row = |name: &str, text: String| rows.push(vec![Cell::Word(name.to_owned()), Cell::Word(text)]);
    let (stored, same) = (number(device, "stored_pages"), number(device, "same_filled_pages"));
    row("pages", format!("{stored} stored, {same} of one pattern, {} lost", number(device, "lost_pages")));
    let (page_bytes, live) = (number(device, "page_bytes"), number(device, "live_bytes"));
    let ratio = if live > 0 { format!("{:.2} : 1", page_bytes as f64 / live as f64) } else { "-".to_owned() };
    row("compression", format!("{ratio}, packing included"));
    row(
        "on the nodes",
        format!(
            "{} live, {} stale, in {} copies",
            size(device, "live_bytes"),
            size(device, "stale_bytes"),
            number(device, "copies")
        ),
    );
    row("reads without a node", share(number(device, "hits"), number(device, "reads")));
    row(
        "memory",
        format!("{} locked, {} of it for the map", size(device, "memory_bytes"), size(device, "map_bytes")),
    );
    let is_protected = number(device, "copies") > 1 || !device["backup"].is_null();
    let safety = match (device["survives_loss_of_a_node"] == true, number(device, "zones_with_one_copy")) {
        (true, _) => "no page would be lost".to_owned(),
        _ if !is_protected => "the pages on it would be lost: give copies = 2, or backup".to_owned(),
        (false, 0) => "pages that are written now would be lost: too few nodes answer".to_owned(),
        (false, zones) => {
            let groups = counted(zones, "group has", "groups have");
            format!("pages would be lost: {groups} one copy or none; it is made again as far as nodes answer")
        }
    };
    row("if a node is lost", safety);
    if let Some(stuck) = device["stuck"].as_str() {
        row("writes fail", crate::table::plain(stuck).to_string());
    }
    rows.write(2, &mut out);
    out.push('\n');
    write_nodes(device, &mut out);
    out
}

fn write_nodes(device: &Value, out: &mut String) {
    let mut nodes = Grid::default();
    let head = ["node", "state", "used", "size", "read p50", "p99", "losses"];
    nodes.push(head.iter().map(|name| Cell::Word((*name).to_owned())).collect());
    for node in device["nodes"].as_array().into_iter().flatten() {
        let time = |name: &str| format!("{:.0} us", node[name].as_f64().unwrap_or(0.0));
        nodes.push(vec![
            Cell::Word(crate::table::plain(node["name"].as_str().unwrap_or("?")).to_string()),
            Cell::Word(node["state"].as_str().unwrap_or("?").to_owned()),
            Cell::Word(size(node, "used_bytes")),
            Cell::Word(size(node, "bytes")),
            Cell::Word(time("read_p50_us")),
            Cell::Word(time("read_p99_us")),
            Cell::Word(number(node, "losses").to_string()),
        ]);
    }
    nodes.write(2, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_says_what_would_be_lost() {
        let mut space = json!({
            "name": "far", "node": "/dev/loop0", "state": "attached", "lost_servers": 1, "size_bytes": 1 << 30, "used_bytes": 1 << 20, "priority": 100,
            "device": {
                "stored_pages": 256, "same_filled_pages": 3, "lost_pages": 0, "page_bytes": 1 << 20, "live_bytes": 1 << 19, "stale_bytes": 4096, "copies": 1,
                "hits": 1, "reads": 4, "memory_bytes": 64 << 20, "map_bytes": 2 << 20, "survives_loss_of_a_node": false, "zones_with_one_copy": 1, "stuck": null,
                "nodes": [{"name": "node 0", "state": "up", "bytes": 1 << 30, "used_bytes": 8 << 20, "read_p50_us": 20.4, "read_p99_us": 55.0, "losses": 2}],
            },
        });
        let text = page(&space);
        assert!(
            text.starts_with(
                "far: 1 MiB of 1 GiB used, priority 100, /dev/loop0 (attached, 1 server lost)\n"
            ),
            "{text}"
        );
        for expected in
            ["2.00 : 1, packing included", "25.0 %", "would be lost: give copies = 2, or backup", "20 us"]
        {
            assert!(text.contains(expected), "{text}");
        }
        space["device"]["copies"] = 2.into();
        assert!(page(&space).contains("1 group has one copy"));
        space["device"]["zones_with_one_copy"] = 2.into();
        space["lost_servers"] = 0.into();
        let text = page(&space);
        assert!(
            text.contains("2 groups have one copy") && text.contains("(attached, 0 servers lost)"),
            "{text}"
        );
        space["device"]["zones_with_one_copy"] = 0.into();
        assert!(page(&space).contains("too few nodes answer"));
        space["device"]["survives_loss_of_a_node"] = true.into();
        assert!(page(&space).contains("no page would be lost"));
        space["device"] = Value::Null;
        assert_eq!(page(&space).lines().count(), 1);
    }
}
