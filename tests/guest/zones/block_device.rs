//! A zoned block device of the kernel: zones by ioctl, data by direct reads and writes.

use crate::ioctl::{self, Manage};
use block::{Buffer, Error, Result};
use rustix::fs::OFlags;
use siltstone_tests::zoned::model::Shape;
use siltstone_tests::zoned::{Answer, BLOCK, Report, Reported, Subject, found_all, stamp_all};
use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, Result as IoResult};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use zns::machine::{Command, State, Zone};

/// Sectors of a block.
const SECTORS: u64 = BLOCK as u64 / 512;

/// Zoned block device.
pub struct ZonedDevice {
    device: File,
    path: String,
    shape: Shape,
    /// Folder of a null_blk device in configfs, which makes zones fail; `None` if no zone is made to fail.
    failures: Option<PathBuf>,
    data: Buffer,
}

impl ZonedDevice {
    pub fn open(path: &str, shape: Shape, failures: Option<&str>) -> Result<ZonedDevice> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let failed = |error: IoError| Error::from_io(&error, &format!("opening the block device {path}"));
        Ok(ZonedDevice {
            device: options.open(path).map_err(failed)?,
            path: path.to_owned(),
            shape,
            failures: failures.map(PathBuf::from),
            data: Buffer::zeroed(crate::LONGEST as usize * BLOCK),
        })
    }

    fn sector(&self, zone: u32) -> u64 {
        u64::from(zone) * self.shape.size * SECTORS
    }

    fn manage(&self, zone: u32, manage: Manage) -> IoResult<Answer> {
        let sectors = self.shape.size * SECTORS;
        ioctl::manage_zone(&self.device, manage, self.sector(zone), sectors).map(|()| Answer::done())
    }

    fn read(&mut self, zone: u32, at: u64, length: u64) -> IoResult<Answer> {
        let offset = self.sector(zone) * 512 + at * BLOCK as u64;
        let data = &mut self.data.filled_mut()[..length as usize * BLOCK];
        data.fill(0xA5);
        self.device.read_exact_at(data, offset)?;
        Ok(Answer::Done { at: None, blocks: found_all(zone, data) })
    }

    fn write(&mut self, zone: u32, at: u64, length: u64, number: u64) -> IoResult<Answer> {
        let offset = self.sector(zone) * 512 + at * BLOCK as u64;
        let data = &mut self.data.filled_mut()[..length as usize * BLOCK];
        stamp_all(zone, number, data);
        // A partial write shows in the write pointer.
        match self.device.write_at(data, offset)? {
            written if written == data.len() => Ok(Answer::done()),
            written => Err(IoError::other(format!("{written} of {} bytes were written", data.len()))),
        }
    }
}

impl Subject for ZonedDevice {
    async fn command(&mut self, zone: u32, command: Command, number: u64) -> Result<Answer, String> {
        let answer = match command {
            Command::Write { at, length } => self.write(zone, at, length, number),
            Command::Read { at, length } => self.read(zone, at, length),
            Command::Open => self.manage(zone, Manage::Open),
            Command::Close => self.manage(zone, Manage::Close),
            Command::Finish => self.manage(zone, Manage::Finish),
            Command::Reset => self.manage(zone, Manage::Reset),
            Command::Append { .. } | Command::Offline => {
                return Err(format!(
                    "{}: {command:?}: the block layer has no such request for programs",
                    self.path
                ));
            }
        };
        match answer {
            Ok(answer) => Ok(answer),
            // The driver chooses the error for a status. An error that means that the kernel doesn't know the
            // request isn't a refusal.
            Err(error) if error.raw_os_error().is_some_and(|number| NOT_REFUSALS.contains(&number)) => {
                Err(format!("{}: {command:?}: {error}", self.path))
            }
            Err(_) => Ok(Answer::Refused(None)),
        }
    }

    async fn fail(&mut self, zone: u32, to: State) -> Result<(), String> {
        let name = if to == State::Offline { "zone_offline" } else { "zone_readonly" };
        let folder = self.failures.as_ref().ok_or("zones of this device can't be made to fail")?;
        let file = folder.join(name);
        let written = std::fs::write(&file, self.sector(zone).to_string());
        written.map_err(|error| format!("{}: {error}", file.display()))
    }

    async fn report(
        &mut self,
        first: u32,
        state: Option<State>,
        _: bool,
        most: u32,
    ) -> Result<Report, String> {
        if state.is_some() {
            return Err(format!("{}: the block layer reports zones in all states", self.path));
        }
        let zones = ioctl::report_zones(&self.device, self.sector(first), most);
        let zones = zones.map_err(|error| format!("{}: a report of zones: {error}", self.path))?;
        let zones = zones.iter().map(|words| self.described(words)).collect::<Result<Vec<_>, String>>()?;
        Ok(Report { count: zones.len() as u64, zones })
    }
}

/// Errors that are no refusals: ENOTTY, EOPNOTSUPP, EBADF, EFAULT, ENODEV.
const NOT_REFUSALS: [i32; 5] = [25, 95, 9, 14, 19];

impl ZonedDevice {
    /// Reads a `struct blk_zone`.
    fn described(&self, words: &[u64; ioctl::ZONE / 8]) -> Result<Reported, String> {
        let [start, length, pointer, kind, capacity, ..] = *words;
        let [type_number, condition, ..] = kind.to_le_bytes();
        let state = State::ALL.into_iter().find(|state| state.number() == condition);
        let (size, is_whole) = (self.shape.size * SECTORS, start.is_multiple_of(self.shape.size * SECTORS));
        match state {
            Some(state)
                if type_number == 2
                    && length == size
                    && capacity == self.shape.capacity * SECTORS
                    && is_whole =>
            {
                Ok(Reported {
                    zone: (start / size) as u32,
                    machine: Zone { state, write_pointer: pointer.wrapping_sub(start) / SECTORS },
                })
            }
            _ => Err(format!("{}: zone {words:X?}, expected {:?}", self.path, self.shape)),
        }
    }
}
