//! `crypt`: encrypts a device with AES-XTS; dm-crypt's role.
//!
//! Promises: those of the Device contract. The device below gets only ciphertext, byte for byte that of
//! dm-crypt with `aes-xts-plain64`: `cryptsetup open` opens it, and the other way round. Two modes:
//! - *plain*: the key is in a file, and the device has no header (`cryptsetup open --type plain`);
//! - *LUKS2*: a passphrase opens a header at the start of the device (`cryptsetup open`).
//!
//! Keys come from files, are on locked pages, and are wiped when the part is dropped. They are in no error,
//! no status and no log.
//!
//! No promises: the blocks have no checksums, so a change of the ciphertext isn't noticed (`zones` and the
//! log have checksums). Equal contents of one block at two times have the same ciphertext.
//!
//! **Structure.** [`xts`] is the cipher, [`device`] the part and its handles, `overlaps` the order of
//! overlapping requests, [`luks`] the header, [`secret`] the memory of keys and the files that they come
//! from.
#![doc = include_str!("../DESIGN.md")]

pub mod device;
pub mod luks;
mod overlaps;
pub mod secret;
pub mod xts;

use block::{BlockIndex, BlockSize, Buffer, Call, DevicePart, Durability, Error, Result};
use device::{CryptPart, Segment};
use secret::Secret;
use stack::{Arguments, Built, Contract, Key, Kind, Shape, ValueKind, format_size};
use std::sync::Arc;

/// `crypt(file(disk.img), passphrase_file=disk.passphrase)`.
pub const KIND: Kind = Kind {
    name: "crypt",
    contract: Contract::Device,
    summary: "encryption with AES-XTS: plain with a key, or LUKS2 with a passphrase",
    keys: &[
        Key::required("on", ValueKind::Device, "the device that gets the ciphertext").positional().holds_contents(),
        Key::optional(
            "passphrase_file",
            ValueKind::Path,
            "file whose first line is the passphrase of a LUKS2 header, for its owner only",
        ),
        Key::optional(
            "key_file",
            ValueKind::Path,
            "file with a key of 32 bytes (AES-128-XTS) or 64 (AES-256-XTS), for its owner only: no header",
        ),
        Key::optional(
            "sector_size",
            ValueKind::Size,
            "bytes that are encrypted as one sector: 512 to 4096; an existing LUKS2 header has its own",
        )
        .or("4096"),
        Key::optional(
            "discard",
            ValueKind::Bool,
            "pass discards on, which shows unused blocks; default: overwrite with zeros; an existing LUKS2 header has its own",
        )
        .known_as(&["allow_discards"]),
        Key::optional(
            "pbkdf_memory",
            ValueKind::Size,
            "memory of Argon2id in a new LUKS2 header, 32KiB to 4GiB; default: 256MiB; an existing one may need this much, or 1GiB",
        ),
        Key::optional(
            "pbkdf_iterations",
            ValueKind::Integer { min: 1, max: 1 << 16 },
            "passes of Argon2id over its memory in a new LUKS2 header",
        )
        .or("4"),
    ],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "crypt(ram(64MiB), key_file=disk.key)",
    plan,
    build: |arguments| Call::new(async move { build(&arguments).await }),
};

/// Values of the keys.
struct Settings {
    /// Whether a passphrase opens a LUKS2 header.
    is_luks: bool,
    sector_size: usize,
    discard: Option<bool>,
    memory: Option<u64>,
    iterations: u32,
}

impl Settings {
    fn of(arguments: &Arguments) -> Result<Settings> {
        let is_luks = arguments.given("passphrase_file");
        if is_luks == arguments.given("key_file") {
            let text = match is_luks {
                true => "key_file: passphrase_file is given as well; expected one of them",
                false => "neither key_file nor passphrase_file; expected one of them",
            };
            return Err(arguments.refuse(if is_luks { "key_file" } else { "on" }, text));
        }
        let sector_size = arguments.size("sector_size")?;
        if !sector_size.is_power_of_two() || !(512..=4096).contains(&sector_size) {
            let text = format!("sector_size {}: expected 512, 1024, 2048 or 4096", format_size(sector_size));
            return Err(arguments.refuse("sector_size", text));
        }
        if let Some(key) =
            ["pbkdf_memory", "pbkdf_iterations"].into_iter().find(|key| !is_luks && arguments.given(key))
        {
            return Err(
                arguments.refuse(key, format!("{key} without passphrase_file; expected both, or neither"))
            );
        }
        let memory = arguments.optional_size("pbkdf_memory")?;
        if let Some(memory) = memory.filter(|memory| !(32 << 10..=4 << 30).contains(memory)) {
            let text = format!("pbkdf_memory {}: expected 32KiB to 4GiB", format_size(memory));
            return Err(arguments.refuse("pbkdf_memory", text));
        }
        let iterations = arguments.integer("pbkdf_iterations")? as u32;
        let discard = arguments.optional_boolean("discard")?;
        Ok(Settings { is_luks, sector_size: sector_size as usize, discard, memory, iterations })
    }
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let settings = Settings::of(arguments)?;
    if let Some(path) = arguments.optional_path("passphrase_file")? {
        arguments.claim("passphrase_file", &path, false, secret::lock_passphrase);
    }
    if let Some(path) = arguments.optional_path("key_file")? {
        arguments.claim("key_file", &path, false, secret::lock_key);
    }
    if settings.is_luks && !arguments.format() {
        // The header has the sector size and the start of the data.
        return Ok(Shape::default());
    }
    let below = arguments.shape("on")?;
    let block_size = below.block_size.map(|size| size.max(settings.sector_size as u32));
    let (Some(bytes), Some(block_size)) = (below.bytes, block_size) else {
        return Ok(Shape { block_size, ..Shape::default() });
    };
    if settings.is_luks {
        luks::check_size(bytes).map_err(|error| arguments.refuse("on", error.detail().to_owned()))?;
    }
    let blocks =
        (bytes - if settings.is_luks { luks::DATA } else { 0 }) >> BlockSize::new(block_size.into())?.shift();
    Ok(Shape::new(blocks * u64::from(block_size), block_size))
}

async fn build(arguments: &Arguments) -> Result<Built> {
    let settings = Settings::of(arguments)?;
    let on = arguments.device("on")?;
    let key = if settings.is_luks { "passphrase_file" } else { "key_file" };
    // The file was read before the first part was built, which fails without it.
    let secret: Secret =
        arguments.locked(key).ok_or_else(|| arguments.refuse(key, format!("{key}: it wasn't read")))?;
    let part = match settings.is_luks {
        true => open_luks(arguments, &settings, on, secret).await?,
        false => {
            refuse_header(arguments, &on).await?;
            plain(&settings, on, &secret)?
        }
    };
    Ok(Built::Device(Arc::new(part)))
}

/// Refuses a device with a LUKS header, which writes would destroy: ciphertext starts like one by chance once
/// in 2^48. Formatting overwrites its start.
async fn refuse_header(arguments: &Arguments, on: &Arc<dyn DevicePart>) -> Result<()> {
    let device = on.open().await?;
    let block = device.geometry().block_size.bytes() as usize;
    let (read, start) = device.read(BlockIndex(0), Buffer::new(block)).await;
    read?;
    if !luks::is_luks(start.filled()) {
        return Ok(());
    }
    if !arguments.format() {
        return Err(arguments.refuse(
            "key_file",
            "key_file: the device has a LUKS header; expected one without a header; open it with passphrase_file, or \
             remove the header with siltstone format --force",
        ));
    }
    device.write(BlockIndex(0), Buffer::zeroed(block).into(), Durability::Durable).await
}

fn plain(settings: &Settings, on: Arc<dyn DevicePart>, key: &Secret) -> Result<CryptPart> {
    let segment = Segment { offset: 0, bytes: None, tweak: 0, sector_size: settings.sector_size };
    let part = CryptPart::new(on, secret::expand(key.get())?, segment, settings.discard.unwrap_or(false))?;
    Ok(part.with_status("header", "none"))
}

async fn open_luks(
    arguments: &Arguments,
    settings: &Settings,
    on: Arc<dyn DevicePart>,
    passphrase: Secret,
) -> Result<CryptPart> {
    if arguments.format() {
        let new = luks::NewVolume {
            sector_size: settings.sector_size,
            discards: settings.discard.unwrap_or(false),
            memory: settings.memory.unwrap_or(256 << 20),
            iterations: settings.iterations,
        };
        luks::format(&on, secret::copy_of(passphrase.get())?, new).await?;
    }
    let memory = settings.memory.unwrap_or(0).max(luks::MAX_MEMORY);
    let (length, is_crlf) = (passphrase.get().len() as u64, passphrase.get().ends_with(b"\r"));
    let path = arguments.path("passphrase_file")?;
    let part = luks::open(on, passphrase, memory).await.map_err(|error| match error {
        Error::PermissionDenied(detail) => {
            let (path, hint) = (path.display(), secret::hint(&path, length, is_crlf));
            Error::permission_denied(format!(
                "passphrase_file \"{path}\": {detail}; expected another one{hint}"
            ))
        }
        other => other,
    })?;
    let differs = |key: &'static str, given: String, has: String| match given == has {
        true => Ok(()),
        false => Err(arguments.refuse(
            key,
            format!("{key} {given}: the LUKS2 header has {has}; expected the same; leave the key out"),
        )),
    };
    if arguments.given("sector_size") {
        differs("sector_size", settings.sector_size.to_string(), part.sector_size().to_string())?;
    }
    if let Some(discard) = settings.discard {
        differs("discard", discard.to_string(), part.discards().to_string())?;
    }
    Ok(part)
}
