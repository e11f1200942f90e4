//! Cost of a page: processor time per page written and read, beside that of the compressor alone.
//!
//! Usage: page-cost MIB [--noise=BYTES]
//!
//! Two nodes in memory of this process; 32 tasks with a page each. Each page has `noise` bytes that can't be
//! compressed (default: 2048). All pages are written in order, as a kernel swaps them out, then read in
//! random order, most of them from the nodes. Processor time is that of the whole process, so it includes the
//! nodes' copies of bytes. Prints a table; times are microseconds.

use block::{BlockIndex, BlockSize, Buffer, Data, DevicePart, Durability, Error, Part, Result};
use disks::ram::RamPart;
use remote::{Compression, Config, RemotePart};
use runtime::Random;
use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const DEPTH: u64 = 32;
/// Number of different page contents.
const CONTENTS: usize = 256;

fn contents(noise: usize) -> Vec<Data> {
    let mut random = Random::new(1);
    let page = |number: usize| {
        let mut bytes = vec![number as u8; PAGE];
        random.fill(&mut bytes[..noise]);
        Data::copy_of(&bytes)
    };
    (0..CONTENTS).map(page).collect()
}

/// Processor time of `work` per page, in microseconds.
async fn cost(pages: u64, work: impl AsyncFnOnce() -> Result<()>) -> Result<f64> {
    let before = runtime::process_cpu_time();
    work().await?;
    Ok((runtime::process_cpu_time() - before).as_secs_f64() * 1e6 / pages as f64)
}

/// Runs an operation for each of `pages`, by several tasks.
async fn each<F: Future<Output = Result<()>> + 'static>(
    pages: u64,
    operation: impl Fn(u64) -> F + Clone + 'static,
) -> Result<()> {
    let next = Rc::new(Cell::new(0));
    let task = |_| {
        let (next, operation) = (next.clone(), operation.clone());
        runtime::spawn(async move {
            while next.get() < pages {
                operation(next.replace(next.get() + 1)).await?;
            }
            Ok::<_, Error>(())
        })
    };
    let tasks: Vec<_> = (0..DEPTH).map(task).collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

async fn measure(pages: u64, noise: usize, compression: Compression) -> Result<serde_json::Value> {
    let bytes = pages * PAGE as u64;
    let block = BlockSize::new(PAGE as u64)?;
    let node = |name: &str| -> Result<(String, Arc<dyn DevicePart>)> {
        Ok((name.to_owned(), Arc::new(RamPart::new(bytes + (256 << 20), block)?)))
    };
    let nodes = vec![node("one")?, node("two")?];
    let part = RemotePart::open(Config { size: Some(bytes), compression, ..Config::new(nodes) }).await?;
    let device = part.open().await?;
    let contents = Rc::new(contents(noise));
    // The first round allocates the nodes' memory.
    let mut out = 0.0;
    for _ in 0..2 {
        let (device, contents) = (device.clone(), contents.clone());
        let write = move |page: u64| {
            let (device, data) = (device.clone(), contents[page as usize % CONTENTS].clone());
            async move { device.write(BlockIndex(page), data.into(), Durability::Visible).await }
        };
        out = cost(pages, async || each(pages, write).await).await?;
    }
    runtime::sleep(Duration::from_millis(500)).await;
    let random = Rc::new(Cell::new(Random::new(2).next_u64()));
    let read = {
        let device = device.clone();
        move |_| {
            let next = Random::new(random.get()).next_u64();
            random.set(next);
            let device = device.clone();
            async move { device.read(BlockIndex(next % pages), Buffer::new(PAGE)).await.0 }
        }
    };
    let before = part.status().await;
    let inward = cost(pages, async || each(pages, read).await).await?;
    let after = part.status().await;
    let since = |key: &str| {
        let number = |status: &block::Status| status[key].as_f64().unwrap_or(0.0);
        number(&after) - number(&before)
    };
    let hits = 100.0 * since("hits") / since("reads").max(1.0);
    let mut compressor = remote::Compressor::new(compression);
    let mut page = [0; PAGE];
    let mut packed = Vec::new();
    let compress = cost(pages, async || {
        for number in 0..pages {
            let data = &contents[number as usize % CONTENTS];
            page.copy_from_slice(data);
            let found = compressor.compress(&page).map(|(encoding, bytes)| (encoding, bytes.len()));
            std::hint::black_box(found);
        }
        Ok(())
    })
    .await?;
    for data in contents.iter() {
        page.copy_from_slice(data);
        packed.extend(compressor.compress(&page).map(|(encoding, bytes)| (encoding, bytes.to_vec())));
    }
    let decompress = cost(pages, async || {
        for number in 0..pages as usize {
            if let Some((encoding, bytes)) = packed.get(number % CONTENTS) {
                compressor.decompress(*encoding, bytes, &mut page)?;
            }
        }
        Ok(())
    })
    .await?;
    drop(device);
    part.close().await?;
    Ok(serde_json::json!({
        "compression": format!("{compression:?}"),
        "out": out, "compress": compress, "out_beyond": out - compress,
        "in": inward, "decompress": decompress, "in_beyond": inward - decompress,
        "hits": hits,
    }))
}

fn arguments() -> Option<(u64, usize)> {
    let mut given = std::env::args().skip(1);
    let mib = given.next()?.parse().ok().filter(|mib| *mib > 0)?;
    let mut noise = 2048;
    for argument in given {
        match argument.split_once('=') {
            Some(("--noise", bytes)) => noise = bytes.parse().ok().filter(|bytes| *bytes <= PAGE)?,
            _ => return None,
        }
    }
    Some((mib, noise))
}

fn main() -> ExitCode {
    let Some((mib, noise)) = arguments() else {
        eprintln!("page-cost MIB [--noise=BYTES]; BYTES up to 4096");
        return ExitCode::from(2);
    };
    let outcome = runtime::run(runtime::Config::default(), move || async move {
        let mut rows = Vec::new();
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            rows.push(measure(mib << 8, noise, compression).await?);
        }
        Ok::<_, Error>(rows)
    });
    match outcome.and_then(|outcome| outcome) {
        Ok(rows) => {
            let column = |name: &str, title: &str, unit: &str| serde_json::json!({"name": name, "title": title, "unit": unit});
            let columns = [
                serde_json::json!({"name": "compression", "title": "compression"}),
                column("out", "out, µs", "number"),
                column("compress", "compressor alone, µs", "number"),
                column("out_beyond", "out beyond it, µs", "number"),
                column("in", "in, µs", "number"),
                column("decompress", "decompressor alone, µs", "number"),
                column("in_beyond", "in beyond it, µs", "number"),
                column("hits", "reads without a node, %", "number"),
            ];
            println!("{}", serde_json::json!({ "columns": columns, "rows": rows }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("page-cost: {error}");
            ExitCode::FAILURE
        }
    }
}
