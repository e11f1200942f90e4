//! Features and configuration space of the disk (VIRTIO 1.2, sections 5.2.3 to 5.2.5 and 6).

use block::DeviceGeometry;

/// Features of device and transport.
#[allow(missing_docs)]
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Unit of addresses and lengths in requests, in bytes.
pub const SECTOR: u64 = 512;
/// Largest buffer of a request, in bytes.
pub const MAX_SEGMENT_BYTES: u32 = 256 << 10;
/// Largest number of data buffers of a request: a chain of 128 with header and status.
pub const MAX_SEGMENTS: u32 = 126;
/// Largest number of bytes that a request reads or writes.
pub const MAX_REQUEST_BYTES: u64 = MAX_SEGMENT_BYTES as u64 * MAX_SEGMENTS as u64;
/// Largest discard or write of zeroes, in sectors.
pub const MAX_RANGE_SECTORS: u32 = 1 << 22;
/// Largest logical block that every Linux guest accepts, in bytes.
const MAX_LOGICAL_BLOCK: u64 = 4096;
/// Length of the configuration space, in bytes.
const CONFIG_BYTES: usize = 60;

/// Returns the features that a disk offers.
pub fn features(read_only: bool) -> u64 {
    use feature::*;
    let changes = if read_only { RO } else { DISCARD | WRITE_ZEROES };
    let disk = SIZE_MAX | SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | MQ;
    disk | changes | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1
}

/// Returns the configuration space of a disk with this many queues.
pub fn space(geometry: &DeviceGeometry, queues: usize) -> [u8; CONFIG_BYTES] {
    let block = geometry.block_size.bytes();
    let logical = block.min(MAX_LOGICAL_BLOCK);
    let in_logical = block / logical;
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(geometry.bytes() / SECTOR).to_le_bytes());
    put(8, &MAX_SEGMENT_BYTES.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &(logical as u32).to_le_bytes());
    // Topology: physical blocks as a power of two of logical ones, no offset, smallest and best size in
    // logical blocks.
    put(24, &[in_logical.trailing_zeros() as u8, 0]);
    put(26, &(in_logical as u16).to_le_bytes());
    put(28, &(in_logical as u32).to_le_bytes());
    // Write-back; read only with CONFIG_WCE.
    put(32, &[1]);
    put(34, &(queues as u16).to_le_bytes());
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &1_u32.to_le_bytes());
    put(44, &((block / SECTOR) as u32).to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &1_u32.to_le_bytes());
    put(56, &[1]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BlockCount, BlockSize};

    #[test]
    fn fields_are_where_the_specification_has_them() {
        for (block, logical, exponent) in [(512, 512, 0), (4096, 4096, 0), (65536, 4096, 4)] {
            let geometry = DeviceGeometry {
                block_size: BlockSize::new(block).expect("a block size"),
                blocks: BlockCount((8 << 20) / block),
                atomic_write: 512,
                volatile_cache: true,
                read_only: false,
            };
            let space = space(&geometry, 3);
            let u32_at =
                |at: usize| u32::from_le_bytes([space[at], space[at + 1], space[at + 2], space[at + 3]]);
            assert_eq!((u32_at(0), u32_at(4)), (16384, 0), "sectors");
            assert_eq!((u32_at(8), u32_at(12), u32_at(20)), (256 << 10, 126, logical));
            assert_eq!((space[24], space[34], u32_at(44)), (exponent, 3, (block / 512) as u32));
            assert_eq!((u32_at(40), u32_at(52), space[56]), (1, 1, 1));
        }
        assert_eq!(features(true) & feature::DISCARD, 0);
        assert_eq!(features(false) & (feature::RO | 1 << 11), 0, "no CONFIG_WCE");
    }
}
