//! Store of a stack: through its server if it is served, else opened for the verb and closed afterwards.

use crate::arguments::{KvLogin, KvStore};
use crate::failure::Failure;
use crate::kinds::registry;
use crate::lifted;
use crate::load;
use crate::output::say;
use block::{Error, Result, Status};
use kv::{Batch, Pair, Pairs, Scan, Snapshot, Store, Stored, Update, Write};
use redis_door::client::{Client, Login};
use runtime::Config;
use runtime::net::Address;
use stack::password_file::{password_in, warn_of_access};
use stack::{Part, Plan, Stack, Value};
use std::path::Path;
use std::time::Duration;

/// Bytes per batch of writes.
const BATCH_BYTES: usize = 1 << 20;

/// Store that was opened, or whose server was reached.
pub enum Reached {
    /// Store that this process has opened, with the snapshot for scans.
    Own(Box<Store>, Option<Snapshot>),
    /// Store that another process serves.
    Served(Box<Client>),
}

impl Reached {
    /// Returns the value of a key.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Stored>> {
        match self {
            Reached::Own(store, _) => store.get(key).await,
            Reached::Served(client) => client.get(key).await,
        }
    }

    /// Sets a key; with `expires_in` it expires after this time.
    pub async fn put(&mut self, key: &[u8], value: &[u8], expires_in: Option<Duration>) -> Result<()> {
        match self {
            Reached::Own(store, _) => {
                let Some(time) = expires_in else { return store.put(key, value).await };
                let expires = (runtime::wall_clock() + time).as_millis() as u64;
                store.put_until(key, value, expires).await
            }
            Reached::Served(client) => client.put(key, value, expires_in).await,
        }
    }

    /// Deletes a key; returns whether it existed.
    pub async fn delete(&mut self, key: &[u8]) -> Result<bool> {
        match self {
            Reached::Own(store, _) => {
                let delete =
                    |found: Option<Stored>| (found.is_some().then_some(Update::Delete), found.is_some());
                store.update(key, delete).await
            }
            Reached::Served(client) => client.delete(key).await,
        }
    }

    /// Returns the next pairs of a scan; empty at its end.
    pub async fn scan(&mut self, scan: &Scan, only_keys: bool) -> Result<Pairs> {
        match self {
            Reached::Own(store, snapshot) => Ok(store.scan(snapshot.as_ref(), scan.clone()).await?.0),
            Reached::Served(client) => client.scan(scan, only_keys).await,
        }
    }

    /// Takes a snapshot of the present contents for [`scan`](Self::scan).
    pub async fn take_snapshot(&mut self) -> Result<()> {
        match self {
            Reached::Own(store, snapshot) => {
                *snapshot = Some(store.snapshot().await?);
                Ok(())
            }
            Reached::Served(client) => client.take_snapshot().await,
        }
    }

    /// Merges all tables.
    pub async fn compact(&mut self) -> Result<()> {
        match self {
            Reached::Own(store, _) => store.compact().await,
            Reached::Served(client) => client.compact().await,
        }
    }

    /// Returns the status of the store.
    pub async fn status(&mut self) -> Result<Status> {
        match self {
            Reached::Own(store, _) => store.status().await,
            Reached::Served(client) => client.status().await,
        }
    }
}

/// Iterator over a range of keys.
pub struct Walk {
    scan: Scan,
    only_keys: bool,
}

impl Walk {
    /// Starts a walk through the range of a scan.
    pub fn new(scan: Scan, only_keys: bool) -> Walk {
        Walk { scan, only_keys }
    }

    /// Returns the next pairs; empty at the end.
    pub async fn next(&mut self, store: &mut Reached) -> Result<Pairs> {
        let pairs = store.scan(&self.scan, self.only_keys).await?;
        if let Some(last) = pairs.last() {
            match self.scan.is_backward {
                true => self.scan.to = Some(last.key.to_vec()),
                false => self.scan.from = [last.key, &[0]].concat(),
            }
        }
        Ok(pairs)
    }
}

/// Copies all keys of `from`'s snapshot to a new store; returns the numbers of keys and bytes.
pub async fn copy(from: &mut Reached, to: &Store) -> Result<(u64, u64)> {
    let mut walk = Walk::new(Scan::from(Vec::new(), 1000), false);
    let (mut keys, mut bytes) = (0, 0);
    loop {
        let pairs = walk.next(from).await?;
        if pairs.is_empty() {
            return Ok((keys, bytes));
        }
        let mut batch = Batch::new();
        for Pair { key, value, expires } in pairs.iter() {
            (keys, bytes) = (keys + 1, bytes + (key.len() + value.len()) as u64);
            batch.push(Write::Put { key, value, expires });
            if batch.bytes().len() >= BATCH_BYTES {
                to.write_by_shard(std::mem::take(&mut batch), to.acknowledge()).await?;
            }
        }
        to.write_by_shard(batch, to.acknowledge()).await?;
    }
}

/// Returns the part of kind kv of a stack.
fn part_of<'a>(stack: &'a Stack, argument: &str, wanted: Option<&str>) -> Result<&'a Part, Failure> {
    let parts: Vec<&Part> = stack.parts().filter(|part| part.kind().name == redis_door::KIND.name).collect();
    let (kind, names) =
        (redis_door::KIND.name, || parts.iter().map(|part| part.name()).collect::<Vec<_>>().join(", "));
    let wrong = |what: String| Err(Failure::Usage(format!("{argument}: {what}")));
    match (wanted, parts.as_slice()) {
        (_, []) => wrong(format!("this stack has no part of kind \"{kind}\"; expected one")),
        (None, [one]) => Ok(one),
        (None, several) => wrong(format!(
            "{} parts are of kind \"{kind}\"; expected --part with one of {}",
            several.len(),
            names()
        )),
        (Some(name), parts) => match parts.iter().find(|part| part.name() == name) {
            Some(part) => Ok(part),
            None => wrong(format!("--part {name}: expected a part of kind \"{kind}\": {}", names())),
        },
    }
}

/// Returns the login for the server of a store at `address`: options of the verb, else the keys of the stack,
/// whose folder of certificates and password file the server reads as well.
fn login_of(options: &KvLogin, stack: &Stack, part: &Part, address: &Address) -> Result<Login, Failure> {
    let usage = |error: Error| Failure::Usage(error.detail().to_owned());
    let key = |name: &str| match part.value(name) {
        Some(Value::Path(path)) => stack.absolute(Path::new(path)).map(Some).map_err(usage),
        _ => Ok(None),
    };
    let folder = options.tls.clone().map_or_else(|| key("tls"), |folder| Ok(Some(folder)))?;
    if folder.is_none() && options.tls_hostname.is_some() {
        return Err(Failure::Usage("--tls-hostname without TLS; expected --tls FOLDER".to_owned()));
    }
    let tls = folder.map(|folder| {
        let name = options.tls_hostname.clone().unwrap_or_else(|| tls::keys::usual_hostname(address));
        tls::Folder::new(folder).client(&name).map_err(usage)
    });
    let file = options.password_file.clone().map_or_else(|| key("password_file"), |file| Ok(Some(file)))?;
    options.password_file.as_deref().inspect(|file| warn_of_access(file));
    let password = file.map(|file| password_in(&file).map_err(usage)).transpose()?;
    Ok(Login {
        tls: tls.transpose()?,
        user: options.user.clone(),
        password: password.map(String::into_bytes),
    })
}

/// Describes why the server of a store that is in use can't be asked, and what to do.
fn unreachable(stack: &str, address: &Address, login: &Login, used: &str, error: &Error) -> Failure {
    let detail = error.detail().trim_end_matches('.');
    let is_tls = detail.starts_with("TLS: ");
    // A server that refuses a certificate may have closed the connection before the request is sent.
    let was_cut_off = matches!(error.errno(), libc::EPIPE | libc::ECONNRESET);
    let has_answered = was_cut_off || matches!(error, Error::Protocol(_) | Error::Disconnected(_));
    Failure::World(match error {
        Error::PermissionDenied(_) if !is_tls => format!(
            "{stack}: its server at {address} refuses the login: {detail}; expected a user who may read the store: \
             --password-file FILE, and --user NAME for another one than default"
        ),
        _ if is_tls || has_answered && login.tls.is_some() => format!(
            "{stack}: TLS with its server at {address} fails: {error}; expected certificates that fit the server's: --tls \
             FOLDER, and --tls-hostname NAME for another name than {} in its certificate",
            tls::keys::usual_hostname(address)
        ),
        _ if has_answered => format!(
            "{stack}: the answer of its server at {address} isn't understood: {error}; if it uses TLS, give --tls FOLDER"
        ),
        _ => format!("{stack}: it is in use ({used}), and no server answers at {address}: {error}"),
    })
}

/// Stack with a store, read and checked.
pub struct Planned {
    /// Stack on the command line.
    pub argument: String,
    /// Plan of the stack.
    pub plan: Plan,
    /// Name of the part.
    pub part: String,
    /// Address of the server, and the login there.
    listen: Option<(Address, Login)>,
    /// Whether a server of this stack answers operators.
    is_served: bool,
}

impl Planned {
    /// Reads a stack and plans it, for formatting or not.
    ///
    /// # Errors
    /// A wrong stack, one without a store, an unknown part.
    pub fn new(store: &KvStore, format: bool) -> Result<Planned, Failure> {
        let stack = load::stack(&store.stack, &registry())?;
        Planned::of(&stack, store, format)
    }

    /// Plans this stack.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn of(stack: &Stack, store: &KvStore, format: bool) -> Result<Planned, Failure> {
        let part = part_of(stack, &store.stack, store.part.as_deref())?;
        let listen = match part.value("listen") {
            Some(Value::Text(text)) => {
                Some(redis_door::kind::parse_listen(text, |path: &Path| stack.absolute(path))?)
            }
            _ => None,
        };
        let listen = match listen {
            Some(address) => {
                let login = login_of(&store.login, stack, part, &address)?;
                Some((address, login))
            }
            None => None,
        };
        let part = part.name().to_owned();
        let is_served = lifted::server_of(&store.stack, stack)?.is_some();
        Ok(Planned { argument: store.stack.clone(), plan: stack.check(format)?, part, listen, is_served })
    }

    /// Returns the configuration of a runtime for the stack.
    pub fn config(&self) -> Config {
        Config::default().with_shards(self.plan.stack().shards())
    }

    /// Opens the store, or reaches its server, calls `work`, and closes it.
    ///
    /// # Errors
    /// Errors of opening and closing, of the connection, and of `work`.
    pub async fn with<T>(
        &self,
        work: impl AsyncFnOnce(&mut Reached) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.is_served {
            // The server has locked the files of the stack: opening would retry for a second.
            return work(&mut self.served("its server is running").await?).await;
        }
        let (built, arguments) = match self.plan.build_below_door(&self.part).await {
            Ok(below) => below,
            Err(Error::Busy(detail)) => return work(&mut self.served(&detail).await?).await,
            Err(error) => return Err(error.in_context(&self.argument).into()),
        };
        say("not served: opened for this request, and closed again");
        let worked = match redis_door::storage::open(&arguments).await {
            Ok(store) => {
                let mut reached = Reached::Own(Box::new(store.clone()), None);
                let worked = work(&mut reached).await;
                drop(reached);
                tell_lost(&store).await;
                let closed = store.close().await;
                worked.and_then(|value| closed.map(|()| value).map_err(Failure::from))
            }
            Err(error) => Err(error.in_context(&self.argument).into()),
        };
        drop(arguments);
        let closed = built.close().await;
        worked.and_then(|value| closed.map(|()| value).map_err(Failure::from))
    }

    /// Connects to the server of a store that is in use.
    async fn served(&self, detail: &str) -> Result<Reached, Failure> {
        let stack = &self.argument;
        let Some((address, login)) = &self.listen else {
            return Err(Failure::World(format!(
                "{stack}: it is in use ({detail}), and has no key listen, by which its server could be asked; stop the server first, or give it an address"
            )));
        };
        let client = Client::connect(address, login).await;
        let client = client.map_err(|error| unreachable(stack, address, login, detail, &error))?;
        say(&format!("live: answered by its server, at {address}"));
        Ok(Reached::Served(Box::new(client)))
    }
}

/// Prints the number of losses of a salvaged store; the log has each loss.
async fn tell_lost(store: &Store) {
    let status = store.status().await.unwrap_or_default();
    if let Some(lost) = status.get("lost_count").and_then(serde_json::Value::as_u64) {
        say(&match lost {
            0 => "salvage: nothing that was read is damaged".to_owned(),
            _ => format!("salvage: {lost} damaged parts; keys in them may be missing, or have older values"),
        });
    }
}

/// Runs `work` on a store in its own runtime.
///
/// # Errors
/// Errors of [`Planned::with`].
pub fn with_store<T: Send + 'static>(
    store: &KvStore,
    work: impl AsyncFnOnce(&mut Reached) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let planned = Planned::new(store, false)?;
    runtime::run(planned.config(), move || async move { planned.with(work).await })?
}
