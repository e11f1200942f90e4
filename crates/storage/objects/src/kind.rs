//! Declaration of zones in an object store for stacks: keys, metrics, plan.
//!
//! # Promises
//! - Values that can't be are refused before anything is opened, at their key. Only the files of the keys
//!   `tls` and, for the verb `objects`, `key_file` are read.
//!
//! Left to others: what the settings mean (`core::settings`), the part (`part`, `reader`).

use crate::compression::{self, Compression};
use crate::core::Settings;
use crate::encryption::{self, Encryption};
use crate::key_store;
use crate::names::Names;
use crate::part::{NewVolume, ObjectsPart, Options};
use crate::reader::ReaderPart;
use crate::state;
use crate::table::Table;
use block::{Call, Result, ZoneGeometry};
use crypt::secret::{self, Secret};
use object_store::{Addressing, Config, CredentialSource, INSTANCE_METADATA, Limits};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind};
use std::sync::Arc;
use std::time::Duration;

/// Size of a zone of a new volume: 16 pieces, so a zone's end costs little beside them.
const DEFAULT_ZONE_SIZE: u64 = 128 << 20;
/// Time between two looks of a reader at the bucket, and the shortest one.
const DEFAULT_FOLLOW: Duration = Duration::from_secs(10);
const MIN_FOLLOW: Duration = Duration::from_millis(100);
/// Key that names the key store.
pub const KEY_STORE: &str = "key_store";
const COUNT: ValueKind = ValueKind::Integer { min: 0, max: u32::MAX as u64 };

/// `objects("http://127.0.0.1:7070", bucket=vol, size=1TiB)`.
pub const KIND: Kind = Kind {
    name: "objects",
    contract: Contract::Zones,
    summary: "zones as objects in a bucket of an S3 object store",
    keys: &[
        Key::required(
            "endpoint",
            ValueKind::Text,
            "URL of the object store: http://HOST:PORT or https://HOST",
        )
        .positional(),
        Key::required("bucket", ValueKind::Text, "name of the bucket, which must exist"),
        Key::optional("prefix", ValueKind::Text, "start of the keys of all objects, such as db1/").or(""),
        Key::optional("region", ValueKind::Text, "region of the bucket").or("us-east-1"),
        Key::optional(
            "addressing",
            ValueKind::Choice(&["path", "virtual-host"]),
            "place of the bucket's name: in the path of URLs, or before the host's name",
        )
        .or("path"),
        Key::optional(
            "credentials_file",
            ValueKind::Path,
            "file in the form of ~/.aws/credentials; default: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        ),
        Key::optional("profile", ValueKind::Text, "with credentials_file: section of the file").or("default"),
        Key::optional("instance_role", ValueKind::Bool, "take the credentials of an EC2 instance's role")
            .or("false"),
        Key::optional(
            "key_file",
            ValueKind::Path,
            "file with a key of 32 bytes, for its owner only, that encrypts all contents of a new volume; needed at each opening",
        ),
        Key::optional(
            KEY_STORE,
            ValueKind::Device,
            "device, 64 bytes for each zone and 4 KiB, whose secrets resets destroy: the erase guarantee \"key\"; needed at each opening, and \
             only read with open=reader",
        )
        .holds_contents(),
        tls::keys::CLIENT_FOLDER,
        tls::keys::HOSTNAME,
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "capacity of a zone; default: that of the volume, 128MiB for a new one",
        ),
        Key::optional(
            "zones",
            ValueKind::Integer { min: 4, max: 1 << 20 },
            "number of zones of a new volume",
        ),
        Key::optional("size", ValueKind::Size, "capacity of a new volume, in place of zones"),
        Key::optional("piece_size", ValueKind::Size, "bytes that are uploaded as one object without a flush")
            .or("8MiB"),
        Key::optional("memory", ValueKind::Size, "limit of bytes that aren't uploaded; then appends wait")
            .or("32MiB"),
        Key::optional("max_append", ValueKind::Size, "largest append").or("1MiB"),
        Key::optional("max_open", COUNT, "limit of open zones; 0 is no limit").or("0"),
        Key::optional("max_active", COUNT, "limit of active zones (begun and not finished); 0 is no limit")
            .or("0"),
        Key::optional("grace", ValueKind::Duration, "time until objects that aren't needed are deleted")
            .or("60s"),
        Key::optional(
            "open",
            ValueKind::Choice(&["writer", "reader"]),
            "writer fences the writer before; reader reads only, while another machine writes",
        )
        .or("writer"),
        Key::optional(
            "follow",
            ValueKind::Duration,
            "with open=reader: time between two looks at the bucket; default: 10s",
        ),
        Key::optional("close_limit", ValueKind::Duration, "time limit of a close whose store doesn't answer")
            .or("60s"),
        Key::optional("merge", ValueKind::Bool, "merge small pieces in the background").or("true"),
        Key::optional(
            "compression",
            ValueKind::Choice(&compression::NAMES),
            "compression of new objects; each says how it is stored",
        )
        .or("none"),
    ],
    messages: crate::message::Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "objects(\"http://127.0.0.1:7070\", bucket=vol, prefix=\"db1/\", size=1TiB)",
    plan,
    build: |arguments| {
        Call::new(async move { build(&arguments).await })
    },
};

/// A counter of requests.
const fn requests(path: &'static str, request: &'static str) -> Metric {
    Metric::counter(path, "object_requests", "Requests to the object store, retries included")
        .with_label("request", request)
}

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("zone_size", "zone_bytes", "Size of a zone"),
    Metric::gauge("zones", "zones", "Zones of the part"),
    Metric::gauge("epoch", "object_epoch", "Number of openings of the volume"),
    Metric::gauge("state", "object_is_fenced", "Whether the writer was replaced, or has ended")
        .if_word(state::ENDED),
    Metric::gauge("state", "object_store_is_awaited", "Whether the object store doesn't take writes")
        .if_word(state::AWAITED),
    Metric::gauge("pieces", "object_pieces", "Objects with data that zones have"),
    Metric::gauge("stored_bytes", "object_stored_bytes", "Bytes of zones in the object store"),
    Metric::gauge(
        "object_bytes",
        "object_compressed_bytes",
        "Bytes of the objects with data of zones, after compression",
    ),
    Metric::gauge("unsaved_bytes", "object_unsaved_bytes", "Appended bytes that aren't uploaded"),
    Metric::gauge(
        "zones_without_key",
        "object_zones_without_key",
        "Zones whose data can't be read, since the key store lacks their secret",
    ),
    Metric::gauge("garbage_objects", "object_garbage", "Objects that wait for their deletion"),
    Metric::counter("deleted_objects", "object_deletions", "Objects that were deleted"),
    Metric::counter("dropped_objects", "object_drops", "Objects that only the message gc deletes"),
    Metric::counter("merged_objects", "object_merges", "Objects that were replaced by larger ones"),
    Metric::counter(
        "merged_bytes",
        "object_merged_bytes",
        "Bytes of zones that were written again as larger objects",
    ),
    requests("requests.put", "put"),
    requests("requests.get", "get"),
    requests("requests.head", "head"),
    requests("requests.list", "list"),
    requests("requests.delete_batch", "delete_batch"),
    Metric::counter("retries", "object_retries", "Requests that were sent again"),
    Metric::counter("timeouts", "object_timeouts", "Requests that exceeded a time limit"),
    Metric::counter("slow_downs", "object_slow_downs", "Responses that asked for fewer requests"),
    Metric::counter(
        "hedged_reads",
        "object_hedged_reads",
        "Second requests of reads that were slow to answer",
    ),
    Metric::counter("connections", "object_connections", "Connections to the object store that were opened"),
    Metric::counter("sent_bytes", "object_sent_bytes", "Bytes sent to the object store"),
    Metric::counter("received_bytes", "object_received_bytes", "Bytes received from the object store"),
];

fn settings(arguments: &Arguments) -> Result<Settings> {
    let count = |key| arguments.integer(key).map(|value| u32::try_from(value).unwrap_or(u32::MAX));
    Ok(Settings {
        piece_size: arguments.size("piece_size")?,
        memory: arguments.size("memory")?,
        max_append: arguments.size("max_append")?,
        max_open: count("max_open")?,
        max_active: count("max_active")?,
        grace: arguments.duration("grace")?,
        close_limit: arguments.duration("close_limit")?,
        merge: arguments.boolean("merge")?,
        compression: Compression::from_name(arguments.choice("compression")?),
    })
}

/// Number of zones by the keys `zones` and `size`; `None` without both.
fn zones(arguments: &Arguments, zone_size: u64) -> Result<Option<u32>> {
    let zones = arguments.optional_integer("zones")?;
    match (zones, arguments.optional_size("size")?) {
        (Some(_), Some(_)) => Err(arguments.refuse("size", "expected size or zones, not both")),
        (zones, None) => Ok(zones.and_then(|zones| u32::try_from(zones).ok())),
        (None, Some(size)) => {
            let zones = u32::try_from(size / zone_size.max(1)).unwrap_or(u32::MAX);
            match (4..=1 << 20).contains(&zones) {
                true => Ok(Some(zones)),
                false => Err(arguments.refuse(
                    "size",
                    format!("size {size}: {zones} zones of {zone_size} bytes; expected 4 to 1048576"),
                )),
            }
        }
    }
}

/// Zones to create, by the keys.
fn new_volume(arguments: &Arguments) -> Result<Option<NewVolume>> {
    if !arguments.format() {
        return Ok(None);
    }
    let zone_size = arguments.optional_size("zone_size")?.unwrap_or(DEFAULT_ZONE_SIZE);
    let Some(zones) = zones(arguments, zone_size)? else {
        return Err(arguments.refuse("size", "a new volume needs size or zones"));
    };
    Table::new(zones, zone_size).map_err(|error| arguments.refuse("zone_size", error.detail().to_owned()))?;
    Ok(Some(NewVolume { zones, zone_size, probe: true }))
}

/// The client's configuration. Reads the folder of certificates.
fn store(arguments: &Arguments) -> Result<Config> {
    let endpoint = arguments.text("endpoint")?;
    let checked = object_store::host_of(&endpoint);
    let (host, is_secure) =
        checked.map_err(|error| arguments.refuse("endpoint", error.detail().to_owned()))?;
    let tls = match arguments.optional_path("tls")? {
        Some(_) if !is_secure => {
            return Err(arguments.refuse("tls", "tls with an endpoint in http; expected https"));
        }
        Some(folder) => {
            let name = arguments.optional_text("tls_hostname")?.unwrap_or(host);
            let config = tls::Folder::new(folder).client(&name);
            Some(config.map_err(|error| arguments.refuse("tls", error.detail().to_owned()))?)
        }
        None if is_secure => {
            return Err(arguments.refuse("endpoint", "https without tls; expected tls = \"FOLDER\""));
        }
        None => tls::keys::without(arguments, "tls_hostname").map(|()| None)?,
    };
    let credentials =
        match (arguments.optional_path("credentials_file")?, arguments.boolean("instance_role")?) {
            (Some(_), true) => {
                return Err(
                    arguments.refuse("instance_role", "expected credentials_file or instance_role, not both")
                );
            }
            (Some(path), false) => CredentialSource::File { path, profile: arguments.text("profile")? },
            (None, _) if arguments.given("profile") => {
                return Err(arguments.refuse("profile", "profile without credentials_file"));
            }
            (None, true) => CredentialSource::Instance { endpoint: INSTANCE_METADATA.to_owned() },
            (None, false) => CredentialSource::Environment,
        };
    Ok(Config {
        endpoint,
        bucket: arguments.text("bucket")?,
        region: arguments.text("region")?,
        addressing: match arguments.choice("addressing")? {
            "path" => Addressing::Path,
            _ => Addressing::VirtualHost,
        },
        credentials,
        tls,
        limits: Limits::default(),
    })
}

/// Interval at which a reader follows the writer; `None` for a writer.
fn follow(arguments: &Arguments) -> Result<Option<Duration>> {
    let interval = arguments.optional_duration("follow")?;
    match arguments.choice("open")? {
        "reader" => {
            match interval.unwrap_or(DEFAULT_FOLLOW) {
                interval if interval < MIN_FOLLOW => Err(arguments
                    .refuse("follow", format!("follow {interval:?}; expected at least {MIN_FOLLOW:?}"))),
                interval => Ok(Some(interval)),
            }
        }
        _ if interval.is_some() => Err(arguments.refuse("follow", "follow without open=reader")),
        _ => Ok(None),
    }
}

/// Name of this writer for operators.
fn writer() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}, process {}", host.trim(), std::process::id())
}

/// Returns the volume that the keys of a part name.
///
/// # Errors
/// [`Error::Invalid`](block::Error::Invalid) for values that can't be.
pub fn options(arguments: &Arguments) -> Result<Options> {
    let (follow, format) = (follow(arguments)?, new_volume(arguments)?);
    if follow.is_some() && format.is_some() {
        return Err(arguments
            .refuse("open", "open=reader while formatting; expected a writer, which creates the volume"));
    }
    let zone_size = arguments.optional_size("zone_size")?;
    // Without the key the number of zones by `size` isn't known before the volume is.
    let zones = match zone_size {
        Some(zone_size) => zones(arguments, zone_size)?,
        None => arguments.optional_integer("zones")?.and_then(|zones| u32::try_from(zones).ok()),
    };
    Ok(Options {
        store: store(arguments)?,
        prefix: arguments.text("prefix")?,
        writer: writer(),
        format,
        expected: if format.is_some() { (None, None) } else { (zones, zone_size) },
        settings: settings(arguments)?,
        encryption: None,
        follow,
    })
}

async fn build(arguments: &Arguments) -> Result<Built> {
    let mut options = options(arguments)?;
    if arguments.given("key_file") {
        // The file was read before the first part was built, which fails without it.
        let key: Option<Secret> = arguments.locked("key_file");
        let key = key.ok_or_else(|| {
            let path = arguments.optional_path("key_file").ok().flatten().unwrap_or_default();
            let text = format!(
                "key_file {}: it wasn't read before the parts were built; expected a file with a key of 32 bytes: start again",
                path.display()
            );
            arguments.refuse("key_file", text)
        })?;
        let key_store = arguments.optional_device(KEY_STORE)?;
        options.encryption = Some(Encryption { key: Arc::new(key), key_store });
    }
    Ok(Built::Zones(match options.follow {
        None => Arc::new(ObjectsPart::find(options).await?),
        Some(interval) => Arc::new(ReaderPart::open(options, interval).await?),
    }))
}

/// Options of work on a volume that isn't opened, with its key. A key store, which only reads of zones need,
/// is left out.
///
/// # Errors
/// Errors of the keys and of the file with the key.
pub fn options_of_look(arguments: &Arguments) -> Result<Options> {
    let mut options = options(arguments)?;
    if let Some(path) = arguments.optional_path("key_file")? {
        let key = Arc::new(secret::read_key_of_256_bits(&path)?);
        options.encryption = Some(Encryption { key, key_store: None });
    }
    Ok(options)
}

/// Checks the keys of encryption.
fn check_encryption(arguments: &Arguments, zones: Option<u32>) -> Result<()> {
    let path = arguments.optional_path("key_file")?;
    if let Some(path) = &path {
        arguments.claim("key_file", path, false, secret::lock_key_of_256_bits);
    }
    if !arguments.given(KEY_STORE) {
        return Ok(());
    }
    if path.is_none() {
        return Err(arguments.refuse(KEY_STORE, "key_store without key_file; expected both, or neither"));
    }
    if let (Some(zones), Some(device)) = (zones, arguments.shape(KEY_STORE)?.device()?) {
        key_store::check_device(&device, zones)
            .map_err(|error| arguments.refuse(KEY_STORE, error.detail().to_owned()))?;
    }
    Ok(())
}

/// Plans a shape. Only the bucket knows the size of existing zones, unless the keys have it.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let options = options(arguments)?;
    Names::new(&options.prefix).map_err(|error| arguments.refuse("prefix", error.detail().to_owned()))?;
    let (zones, zone_size) = match options.format {
        Some(new) => (Some(new.zones), Some(new.zone_size)),
        None => options.expected,
    };
    options.settings.check().map_err(|(key, text)| arguments.refuse(key, text))?;
    let geometry = options.settings.geometry(zones.unwrap_or(4), zone_size.unwrap_or(DEFAULT_ZONE_SIZE))?;
    check_encryption(arguments, zones)?;
    let erase = encryption::guarantee(arguments.given(KEY_STORE));
    let geometry = ZoneGeometry { erase, ..geometry };
    match (zones, zone_size) {
        (Some(_), Some(_)) => Ok(Shape::of_zones(geometry)),
        _ => Ok(Shape::default()),
    }
}
