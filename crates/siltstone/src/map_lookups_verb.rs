//! `siltstone map-lookups`: measures the maps of the log device alone, and prints a table that plans can
//! include.

use crate::arguments::MapLookups;
use crate::failure::Failure;
use crate::output::{print, print_json, say};
use bench::results::{Column, Table, Unit};
use log::map::measure::{BATCH, Contents, Measured, Rates, measure};
use log::map::{NAMES, PAGE_BLOCKS};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Number of 4 KiB blocks of a disk of 1.92 TB, for which the sizes of the maps of ls-bdd were published.
const PUBLISHED_BLOCKS: f64 = 1.92e12 / 4096.0;

/// Measures the maps of the arguments, one after the other.
///
/// # Errors
/// An unknown map; a number of blocks that isn't a multiple of the page size of a map; too little memory.
pub fn map_lookups(arguments: &MapLookups) -> Result<(), Failure> {
    let unknown = arguments.map.iter().find(|name| !NAMES.contains(&name.as_str()));
    if let Some(name) = unknown {
        return Err(Failure::Usage(format!("--map {name}: unknown; expected one of {}", NAMES.join(", "))));
    }
    if arguments.blocks == 0 || !arguments.blocks.is_multiple_of(PAGE_BLOCKS) {
        return Err(Failure::Usage(format!(
            "--blocks {}: expected a multiple of {PAGE_BLOCKS}, above 0",
            arguments.blocks
        )));
    }
    let is_wanted =
        |name: &&str| arguments.map.is_empty() || arguments.map.iter().any(|wanted| wanted == *name);
    let mut table = Table { columns: columns(), ..Table::default() };
    for name in NAMES.into_iter().filter(|name| is_wanted(name)) {
        say(&format!("{name}, {} blocks", arguments.blocks));
        let time = Duration::from_millis(arguments.time);
        let random = measure(name, arguments.blocks, Contents::Random, time)?;
        // Only the memory of this run is used.
        let sequential = measure(name, arguments.blocks, Contents::Sequential, Duration::from_millis(1))?;
        if table.rows.is_empty() {
            table.rows.push(row_of_array(&random.array));
        }
        table.rows.push(row(&random, &sequential));
    }
    match arguments.json {
        true => print_json(&json!({ "columns": table.columns, "rows": table.rows })),
        false => print(&bench::table::of_table(&table)),
    }
}

fn columns() -> Vec<Column> {
    let column = |name: &str, title: &str, unit| Column { name: name.into(), title: title.into(), unit };
    vec![
        column("map", "map", Unit::Number),
        column("bytes_random", "bytes/block, random", Unit::Number),
        column("bytes_sequential", "bytes/block, sequential", Unit::Number),
        column("gigabytes_published", "GB for 1.92 TB", Unit::Number),
        column("lookups_single", "lookups/s", Unit::Count),
        column("lookups_batched", &format!("in batches of {BATCH}"), Unit::Count),
        column("lookups_dependent", "dependent", Unit::Count),
        column("changes", "changes/s", Unit::Count),
        column("pages_loaded", "pages loaded/s", Unit::Count),
    ]
}

fn row(random: &Measured, sequential: &Measured) -> Map<String, Value> {
    let mut row = rates(random.map, &random.lookups);
    row.insert("bytes_random".into(), random.bytes_per_block().into());
    row.insert("bytes_sequential".into(), sequential.bytes_per_block().into());
    row.insert("gigabytes_published".into(), (random.bytes_per_block() * PUBLISHED_BLOCKS / 1e9).into());
    row.insert("changes".into(), random.inserts.into());
    row.insert("pages_loaded".into(), random.pages_loaded.into());
    row
}

/// Row of the plain array.
fn row_of_array(array: &Rates) -> Map<String, Value> {
    let mut row = rates("plain array", array);
    for name in ["bytes_random", "bytes_sequential"] {
        row.insert(name.into(), 4.into());
    }
    row.insert("gigabytes_published".into(), (4.0 * PUBLISHED_BLOCKS / 1e9).into());
    row
}

fn rates(name: &str, rates: &Rates) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("map".into(), name.into());
    row.insert("lookups_single".into(), rates.single.into());
    row.insert("lookups_batched".into(), rates.batched.into());
    row.insert("lookups_dependent".into(), rates.dependent.into());
    row
}
