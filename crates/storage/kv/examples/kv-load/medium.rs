//! Zones that hold the store, and the number of bytes written to them.

use crate::arguments::Job;
use block::{Error, Result, ZonesPart};
use stack::{Built, Registry, Stack};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Open zones.
pub struct Medium {
    pub zones: Arc<dyn ZonesPart>,
}

impl Medium {
    /// Opens the medium, and formats it unless the store exists.
    pub async fn open(job: &Job) -> Result<Medium> {
        let format = !job.use_existing_db;
        let path = job.file.clone().or_else(|| job.zns.clone().filter(|path| path != "memory"));
        if let Some(path) = path.filter(|_| format) {
            prepare(&path, job.size).map_err(|error| Error::from_io(&error, &format!("writing {path}")))?;
        }
        let (zone_size, zones) = (job.zone_size, job.size / job.zone_size);
        let line = match (&job.file, job.zns.as_deref()) {
            (Some(path), _) => {
                let direct = if job.direct { "on" } else { "off" };
                format!("zones(file({path}, block_size=4096, direct={direct}), zone_size={zone_size})")
            }
            (None, zns) => {
                let path =
                    zns.filter(|path| *path != "memory").map_or_else(String::new, |path| format!("{path}, "));
                let time = if job.timed { "real" } else { "none" };
                format!(
                    "zns-emulator({path}zones={zones}, zone_size={zone_size}, time={time}, max_append=1MiB)"
                )
            }
        };
        let registry = Registry::new(vec![&disks::file::KIND, &zones::on_device::KIND, &zns::KIND]);
        let invalid = |error: String| Error::invalid(error);
        let stack =
            Stack::from_line("kv-load", &line, &registry).map_err(|error| invalid(error.to_string()))?;
        let plan = stack.check(format).map_err(|error| invalid(error.to_string()))?;
        let built = plan.build().await?;
        let zones = built.parts().find_map(|part| match &part.built {
            Built::Zones(zones) => Some(zones.clone()),
            _ => None,
        });
        Ok(Medium { zones: zones.ok_or_else(|| invalid(format!("{line}: expected zones")))? })
    }

    /// Bytes that were written to the medium since the program began: by the emulated drive, or else by the
    /// process (`write_bytes` in `/proc/self/io`).
    pub async fn written(&self) -> Result<u64> {
        if let Some(bytes) =
            self.zones.status().await.get("appended_bytes").and_then(serde_json::Value::as_u64)
        {
            return Ok(bytes);
        }
        let text = std::fs::read_to_string("/proc/self/io");
        let text = text.map_err(|error| Error::from_io(&error, "reading /proc/self/io"))?;
        let found = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.trim().parse().ok());
        found.ok_or_else(|| Error::invalid("/proc/self/io: expected a line write_bytes"))
    }
}

/// Creates a file of this size and writes every block of it.
fn prepare(path: &str, size: u64) -> std::io::Result<()> {
    let mut file = std::fs::File::options().create(true).truncate(false).write(true).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && (metadata.len() != size || metadata.blocks() * 512 < size) {
        file.set_len(size)?;
        let zeros = vec![0; 1 << 20];
        let mut missing = size;
        while missing > 0 {
            let length = missing.min(zeros.len() as u64);
            file.write_all(&zeros[..length as usize])?;
            missing -= length;
        }
        file.sync_all()?;
    }
    Ok(())
}
