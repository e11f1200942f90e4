//! The file system of a job, and the zones below it: a file, memory, or a stack (`--stack`).

use crate::Job;
use block::{Error, Result, ZonesPart};
use fs::sizes::zones_on;
use fs::{CleaningParameters, FileSystem, Properties, Settings};
use stack::{BuiltStack, Registry, Stack};
use std::sync::Arc;

/// Builds the zones of the job. The stack is closed after the file system.
pub async fn build(job: &Job) -> Result<(BuiltStack, Arc<dyn ZonesPart>)> {
    let is_image = !job.ram && job.stack.is_none();
    if let Some(size) = job.format.filter(|_| is_image) {
        // Existing blocks stay allocated.
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(&job.image);
        let file = file.and_then(|file| file.set_len(size));
        file.map_err(|error| Error::from_io(&error, &format!("making {}", job.image)))?;
    }
    let registry = Registry::new(vec![
        &disks::file::KIND,
        &disks::ram::KIND,
        &objects::KIND,
        &zone_writecache::KIND,
        &zones::on_device::KIND,
    ]);
    let line = match (&job.stack, job.ram) {
        (Some(line), _) => line.clone(),
        (None, true) => format!("ram(size={}, block_size=4096)", job.format.unwrap_or(8 << 30)),
        (None, false) => format!("file({}, block_size=4096)", job.image),
    };
    let stack =
        Stack::from_line("fs-load", &line, &registry).map_err(|error| Error::invalid(error.to_string()))?;
    let formats = job.stack.is_some() && job.format.is_some();
    let plan = stack.check(formats).map_err(|error| Error::invalid(error.to_string()))?;
    let built = plan.build().await?;
    let zones = match job.stack {
        Some(_) => built.zones("top")?,
        None => zones_on(built.top()?, job.format.is_some(), job.zone_size).await?,
    };
    Ok((built, zones))
}

/// Opens the file system of the job, or formats it.
pub async fn open(job: &Job, zones: Arc<dyn ZonesPart>) -> Result<FileSystem> {
    let mut settings = Settings {
        appends_in_flight: job.lanes,
        io_depth: job.depth_bytes,
        read_request_bytes: job.read_request_bytes,
        stripe_above: job.stripe_above,
        ..Settings::default()
    };
    if let Some(policy) = &job.cleaning {
        let mut parameters = CleaningParameters::for_zones(zones.geometry().zones);
        parameters.live_share = job.live_share.unwrap_or(parameters.live_share);
        // The parameter is in blocks of the log.
        parameters.read_at_once = job.read_at_once.map_or(parameters.read_at_once, |bytes| bytes / 4096);
        settings.cleaning = (policy.clone(), Some(parameters));
    }
    let files = match job.format {
        Some(_) => {
            let default = Properties::default();
            let block_size = job.block_size.unwrap_or(default.block_size);
            FileSystem::format(zones, Properties { block_size, ..default }, &settings).await?
        }
        None => FileSystem::open(zones, &settings).await?,
    };
    // Zones of a stack are closed with it.
    Ok(if job.stack.is_some() { files.on_lent_zones() } else { files })
}
