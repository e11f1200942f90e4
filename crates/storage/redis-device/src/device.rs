//! The calls of a device as commands. A call is split at the borders of strings.

use crate::client::Client;
use crate::connection::Command;
use crate::failure::{shown, unexpected};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, Durability, Payload, ReadOutcome, Result,
    ZeroMode,
};
use resp::Reply;
use std::rc::Rc;

/// Bytes of a string: 1 MiB.
pub(crate) const STRING: u64 = 1 << 20;
/// Strings that one call changes concurrently.
const WIDTH: usize = 16;

/// A handle of one shard.
pub(crate) struct Handle {
    pub geometry: DeviceGeometry,
    pub strings: Rc<Strings>,
}

/// The strings of a device and the client for their servers.
pub(crate) struct Strings {
    pub client: Rc<Client>,
    /// Name of the device: the key of a string is the name, a colon and the number of the string.
    pub name: String,
    /// Bytes of the device. The last string may be shorter.
    pub bytes: u64,
}

/// Part of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    string: u64,
    offset: u64,
    bytes: u64,
}

/// Splits bytes of the device at the borders of strings.
fn parts(offset: u64, bytes: u64) -> impl Iterator<Item = Part> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let bytes = (offset + bytes - at).min(STRING - at % STRING);
        let part = Part { string: at / STRING, offset: at % STRING, bytes };
        at += bytes;
        (bytes > 0).then_some(part)
    })
}

impl Strings {
    fn key(&self, string: u64) -> Vec<u8> {
        format!("{}:{string}", self.name).into_bytes()
    }

    /// Checks that a reply is a number of at least `least`.
    fn number(&self, reply: Reply, least: u64) -> Result<u64> {
        match reply {
            Reply::Integer(number) if number >= 0 && number as u64 >= least => Ok(number as u64),
            other => {
                let found = shown(&format!("{other:?}"));
                Err(unexpected(&found, &format!("a number of {least} or more"))
                    .in_context(format!("redis device \"{}\"", self.name)))
            }
        }
    }

    async fn change(&self, key: &[u8], command: Command) -> Result<Reply> {
        self.client.call(key, &command, None).await.0
    }

    async fn read_part(&self, part: Part, buffer: Buffer) -> ReadOutcome {
        let (key, length) = (self.key(part.string), buffer.len());
        let (first, last) = (part.offset.to_string(), (part.offset + part.bytes - 1).to_string());
        let command = Command::reading(&[b"GETRANGE", &key, first.as_bytes(), last.as_bytes()]);
        let (outcome, buffer) = self.client.call(&key, &command, Some(buffer)).await;
        let mut buffer = buffer.unwrap_or_else(|| Buffer::new(length));
        if outcome.is_ok() {
            // A string ends with its last written byte.
            buffer.append_zeroes(buffer.missing());
        }
        (outcome.map(drop), buffer)
    }

    async fn read(self: Rc<Self>, offset: u64, buffer: Buffer) -> ReadOutcome {
        let pieces = parts(offset, buffer.len() as u64).map(|part| (part.bytes as usize, part));
        runtime::read_pieces(buffer, pieces, |part, piece| self.read_part(part, piece)).await
    }

    async fn write_part(&self, part: Part, data: Payload) -> Result<()> {
        let (key, offset) = (self.key(part.string), part.offset.to_string());
        let command = Command::with_data(&[b"SETRANGE", &key, offset.as_bytes()], &data);
        self.number(self.change(&key, command).await?, part.offset + part.bytes).map(drop)
    }

    async fn write(self: Rc<Self>, offset: u64, payload: Payload) -> Result<()> {
        let all = parts(offset, payload.len() as u64).map(|part| {
            let begin = (part.string * STRING + part.offset - offset) as usize;
            self.write_part(part, payload.slice(begin..begin + part.bytes as usize))
        });
        runtime::join_limited(WIDTH, all).await.into_iter().collect()
    }

    async fn zero_part(&self, part: Part, mode: ZeroMode) -> Result<()> {
        let (key, mut bytes) = (self.key(part.string), part.bytes);
        if mode == ZeroMode::MayDeallocate {
            if part.offset == 0 && part.string * STRING + bytes == self.bytes.min((part.string + 1) * STRING)
            {
                return self
                    .number(self.change(&key, Command::changing(&[b"UNLINK", &key])).await?, 0)
                    .map(drop);
            }
            // Bytes after the string's end are zeros already, also after later writes to the string.
            let length = self.change(&key, Command::reading(&[b"STRLEN", &key])).await?;
            bytes = bytes.min(self.number(length, 0)?.saturating_sub(part.offset));
        }
        match bytes {
            0 => Ok(()),
            bytes => {
                let zeros = Buffer::zeroed(bytes as usize).freeze();
                self.write_part(Part { bytes, ..part }, zeros.into()).await
            }
        }
    }

    async fn zero(self: Rc<Self>, offset: u64, bytes: u64, mode: ZeroMode) -> Result<()> {
        let all = parts(offset, bytes).map(|part| self.zero_part(part, mode));
        runtime::join_limited(WIDTH, all).await.into_iter().collect()
    }
}

impl Handle {
    fn offset(&self, block: BlockIndex) -> u64 {
        self.geometry.block_size.offset_of(block).0
    }
}

// A dropped call continues: a redirected command must take effect, and one without a reply must end its
// connection.
impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        match self.geometry.range(at, buffer.len()) {
            Ok(_) => runtime::carry(self.strings.clone().read(self.offset(at), buffer)),
            Err(error) => Call::ready((Err(error), buffer)),
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        match self.geometry.writable_range(at, payload.len()) {
            Ok(_) => runtime::carry(self.strings.clone().write(self.offset(at), payload)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    /// Does nothing: durability is up to the servers.
    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.geometry.check(range) {
            Ok(()) => {
                let bytes = self.geometry.block_size.bytes_of(range.count);
                runtime::carry(self.strings.clone().zero(self.offset(range.start), bytes, mode))
            }
            Err(error) => Call::ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_borders_of_strings() {
        let cut = |offset, bytes| {
            parts(offset, bytes).map(|part| (part.string, part.offset, part.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(cut(4096, 8192), [(0, 4096, 8192)]);
        assert_eq!(cut(STRING - 4096, 8192), [(0, STRING - 4096, 4096), (1, 0, 4096)]);
        assert_eq!(cut(STRING, 2 * STRING), [(1, 0, STRING), (2, 0, STRING)]);
        assert_eq!(cut(STRING, 0), []);
    }
}
