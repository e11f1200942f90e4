//! The keys `size` and `block_size` of all leaves.

use block::{BlockCount, BlockSize, Result};
use stack::{Arguments, Key, ValueKind, format_size};

pub(crate) const BLOCK_SIZE: Key =
    Key::optional("block_size", ValueKind::Size, "unit of addressing, 512 to 1MiB").or("4KiB");

/// Largest capacity in bytes: offsets of the kernel, of clients and of protocols are signed numbers of 64
/// bits.
const LARGEST: u64 = i64::MAX as u64;

/// Block size in the stack.
pub(crate) fn block_size(arguments: &Arguments) -> Result<BlockSize> {
    let bytes = arguments.size("block_size")?;
    BlockSize::new(bytes).map_err(|error| arguments.refuse("block_size", error.detail().to_string()))
}

/// Capacity and block size in the stack.
pub(crate) fn capacity(arguments: &Arguments) -> Result<(u64, BlockSize)> {
    let block_size = block_size(arguments)?;
    let bytes = arguments.size("size")?;
    blocks(arguments, "size", "size", bytes, block_size)?;
    Ok((bytes, block_size))
}

/// Number of blocks of `bytes` bytes. Refuses the value of `key` unless it is a whole number of at least 1.
pub(crate) fn blocks(
    arguments: &Arguments,
    key: &'static str,
    what: &str,
    bytes: u64,
    block_size: BlockSize,
) -> Result<BlockCount> {
    if bytes > LARGEST {
        let text = format!(
            "{what} is {}: expected at most 8EiB less one block, the largest offset of a file",
            format_size(bytes)
        );
        return Err(arguments.refuse(key, text));
    }
    if bytes > 0 && bytes.is_multiple_of(block_size.bytes()) {
        return Ok(BlockCount(bytes >> block_size.shift()));
    }
    let below = bytes - bytes % block_size.bytes();
    let advice = match below {
        0 => format!("at least {block_size} is needed"),
        _ => format!("{} would fit, or a smaller block_size", format_size(below)),
    };
    let text =
        format!("{what} is {bytes} bytes: expected a multiple of the block size, {block_size}; {advice}");
    Err(arguments.refuse(key, text))
}
