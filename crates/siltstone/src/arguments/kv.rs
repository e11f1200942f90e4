//! Arguments of `siltstone kv`.

use super::{MetricsAddress, Warnings, ZnsDrive, duration};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

const STACK_HELP: &str = "Stack with a part of kind kv: a file (kv.toml), or one line such as 'kv(zns-emulator(drive.zns), listen=unix:kv.sock)'";

/// Serve, read, change and check a key-value store
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  siltstone kv serve examples/kv.toml --format       create a store, and serve it to redis clients until Ctrl-C
  siltstone kv put examples/kv.toml name value       set a key
  siltstone kv get examples/kv.toml name             print its value
  siltstone kv scan examples/kv.toml --prefix n      list keys and values in order
  siltstone kv status examples/kv.toml               show sizes, write amplification, and the age of deleted keys
  siltstone kv check examples/kv.toml                check a store that isn't served for damage
  siltstone kv backup examples/kv.toml copy.toml     copy a snapshot to another store

get, put, delete, scan, status, backup and compact ask the server if the store is being served, at the address in the stack's key listen. Otherwise they open the store, and close it again. siltstone stack kinds kv lists the keys of a stack.")]
pub enum KvVerb {
    Serve(KvServe),
    Get(KvGet),
    Put(KvPut),
    Delete(KvDelete),
    Scan(KvScan),
    Status(KvStatus),
    Check(KvCheck),
    Backup(KvBackup),
    Compact(KvCompact),
    Audit(KvAudit),
}

/// Choice of a store.
#[derive(Debug, Clone, Args)]
pub struct KvStore {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Choose the part by its name, if the stack has several of kind kv
    #[arg(long, value_name = "PART")]
    pub part: Option<String>,
    #[command(flatten)]
    pub login: KvLogin,
}

/// Login at the server of a store.
#[derive(Debug, Clone, Default, Args)]
pub struct KvLogin {
    /// Use TLS with the certificates of this folder: ca-cert.pem, and client-cert.pem and client-key.pem if
    /// the server asks for them [default: the key tls of the stack]
    #[arg(long, value_name = "FOLDER")]
    pub tls: Option<PathBuf>,
    /// Expect this DNS name or IP address in the server's certificate [default: the IP address of listen,
    /// localhost for a unix socket]
    #[arg(long, value_name = "NAME")]
    pub tls_hostname: Option<String>,
    /// Log in as this user, with --password-file [default: default]
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub user: Option<String>,
    /// Log in with the password in the first line of this file [default: the key password_file of the stack]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// Serve a store to redis clients, until SIGINT or SIGTERM
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv serve kv.toml --format                create a new store; the contents of its zones are lost
  siltstone kv serve kv.toml                         serve it again
  redis-cli -s kv.sock set name value

The same as siltstone serve. Prints an address per line once clients can connect. A store without the key listen is open, and \
erases deleted keys in time, but no client can connect to it.")]
pub struct KvServe {
    #[arg(help = STACK_HELP)]
    pub stack: String,
    /// Create a new store; the contents of the stack are lost
    #[arg(long)]
    pub format: bool,
    #[command(flatten)]
    pub metrics: MetricsAddress,
    /// Permit an address of --metrics that other machines can reach; for networks of trusted machines only
    #[arg(long, requires = "metrics")]
    pub allow_remote: bool,
    /// Print the addresses as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Return once clients are served, and continue in the background; siltstone stop ends it
    #[arg(long)]
    pub background: bool,
    #[command(flatten)]
    pub warnings: Warnings,
}

/// Print the value of a key
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv get kv.toml name
  siltstone kv get kv.toml picture --raw > picture.png      write the bytes as they are
  siltstone kv get kv.toml 00ff --hex                       name the key, and print the value, in hexadecimal

Bytes that aren't printable are shown as \\xNN. Exits with 1 if there is no such key.")]
pub struct KvGet {
    #[command(flatten)]
    pub store: KvStore,
    /// Key
    pub key: OsString,
    /// Write the bytes of the value unchanged, without a line end
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    pub raw: bool,
    /// Read the key, and print the value, in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Set a key
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv put kv.toml name value
  siltstone kv put kv.toml session 4711 --expires-in 30m
  siltstone kv put kv.toml picture - < picture.png          take the value from standard input
  siltstone kv put kv.toml 00ff cafe --hex                  key and value in hexadecimal")]
pub struct KvPut {
    #[command(flatten)]
    pub store: KvStore,
    /// Key
    pub key: OsString,
    /// Value; - reads it from standard input
    pub value: OsString,
    /// Expire the key after this time, such as 500ms, 10s or 24h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expires_in: Option<Duration>,
    /// Read the key and the value of the command line in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Delete keys
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv delete kv.toml name
  siltstone kv delete kv.toml one two three --json

Prints how many of the keys existed.")]
pub struct KvDelete {
    #[command(flatten)]
    pub store: KvStore,
    /// Keys
    #[arg(required = true)]
    pub keys: Vec<OsString>,
    /// Read the keys in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// List keys and values in order
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv scan kv.toml                                 list all keys with their values
  siltstone kv scan kv.toml --prefix user: --keys           list keys only
  siltstone kv scan kv.toml --from b --to d --limit 10      list at most ten keys, from b to before d
  siltstone kv scan kv.toml --reverse --limit 1             show the last key
  siltstone kv scan kv.toml --json | jq -r .key             print an object per line

A line has the key, a tab, and the value; bytes that aren't printable are shown as \\xNN. Keys are in the order of their bytes. Keys that change during the scan \
may be listed as before or after their change.")]
pub struct KvScan {
    #[command(flatten)]
    pub store: KvStore,
    /// Start at this key
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End before this key
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// List only keys that begin with this
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
    /// Limit the list to N keys
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// List from the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Print keys without values
    #[arg(long)]
    pub keys: bool,
    /// Read the keys of the options, and print keys and values, in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// Print an object of JSON per line
    #[arg(long)]
    pub json: bool,
}

/// Show sizes, write amplification, and the age of deleted keys
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv status kv.toml
  siltstone kv status kv.toml --json | jq .delete_persistence

Counters start at 0 when the store is opened, so they are useful for a served store only.")]
pub struct KvStatus {
    #[command(flatten)]
    pub store: KvStore,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Check a store that isn't served for damage
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv check kv.toml
  siltstone kv check kv.toml --json | jq .problems

Reads every block of every table: checksums, the order of entries, bounds, filters and indexes, and that the manifest agrees. Nothing is repaired, and nothing \
is written to the store. On a write cache that isn't possible, so --writable is needed. Exits with 0 without problems, with 1 otherwise.")]
pub struct KvCheck {
    #[command(flatten)]
    pub store: KvStore,
    /// Open all parts as a server does, write caches included: they continue their logs, and upload
    #[arg(long)]
    pub writable: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Copy a snapshot of a store to another one
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv backup kv.toml copy.toml                     copy to the zones of copy.toml, which must hold no store
  siltstone kv backup kv.toml copy.toml --format            replace the store that they hold

The copy has all keys of one snapshot, with their times of expiry. The store may be in use meanwhile; during the copy the snapshot keeps deleted \
keys from being erased. The destination is created by its own stack.")]
pub struct KvBackup {
    #[command(flatten)]
    pub store: KvStore,
    /// Stack of the copy, with one part of kind kv
    #[arg(value_name = "DESTINATION")]
    pub destination: String,
    /// Replace a store that the destination holds
    #[arg(long)]
    pub format: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Merge all tables down to the last level
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv compact kv.toml

Overwritten, deleted and expired values take no space in tables afterwards, unless a snapshot has them. The store may be in use meanwhile.")]
pub struct KvCompact {
    #[command(flatten)]
    pub store: KvStore,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Search the cells of an emulated drive for deleted keys
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone kv audit kv.toml session:4711                   search for one key
  siltstone kv audit drive.zns --hex 00ff17                 search a drive by its file for a key in hexadecimal

Searches all cells, including those of erased zones: records of the log, blocks of tables, and for keys of at least 8 bytes the bytes themselves. Exits with 0 if no \
key was found, with 1 otherwise. An existing key is always found; a deleted one may be found until the time delete_persistence has passed. On a drive with \
an encryption key per zone, only zones whose encryption key exists are searched: the others are unreadable.")]
pub struct KvAudit {
    #[command(flatten)]
    pub drive: ZnsDrive,
    /// Keys
    #[arg(required = true)]
    pub keys: Vec<OsString>,
    /// Read the keys in hexadecimal
    #[arg(long)]
    pub hex: bool,
}
