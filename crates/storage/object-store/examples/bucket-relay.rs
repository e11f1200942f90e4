//! A relay between clients and a store on loopback that delays each request, for performance plans: bytes of a
//! client leave a fixed time after they arrived, and answers at once.
//!
//! ```text
//! bucket-relay LISTEN STORE MILLISECONDS        bucket-relay 127.0.0.1:7171 127.0.0.1:7170 20
//! ```
//!
//! The order of bytes is kept and bandwidth isn't limited: a request takes the delay once, whatever its
//! length. At most [`MAX_HELD`] bytes of a connection are held; then the client isn't received from. It
//! listens on loopback addresses only, and ends with SIGTERM.

use block::{Buffer, Error, Payload, Result};
use runtime::net::{Address, Listener, Shutdown, Stream};
use runtime::sync::{Permit, Semaphore, channel};
use runtime::{Instant, now, sleep_until, spawn};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Most bytes of a connection that wait: a second's worth of 32 MB/s, for each of the client's connections.
const MAX_HELD: usize = 32 << 20;
/// Bytes of one receive.
const CHUNK: usize = 256 << 10;
/// Chunks that wait for a connection, at most.
const CHUNKS: usize = 4096;

/// Passes bytes on after a delay, until their end.
async fn pass(from: Rc<Stream>, to: Rc<Stream>, delay: Duration) {
    let (sender, mut receiver) = channel::<(Instant, Payload, Permit)>(CHUNKS);
    let sending = to.clone();
    let sent = spawn(async move {
        while let Some((due, payload, permit)) = receiver.receive().await {
            sleep_until(due).await;
            if sending.send(payload).await.0.is_err() {
                break;
            }
            drop(permit);
        }
    });
    let held = Semaphore::new(MAX_HELD);
    loop {
        let permit = held.acquire(CHUNK).await;
        let (received, buffer) = from.receive(Buffer::new(CHUNK)).await;
        if !matches!(received, Ok(count) if count > 0) {
            break;
        }
        if sender.send((now() + delay, buffer.freeze().into(), permit)).await.is_err() {
            break;
        }
    }
    drop(sender);
    sent.await;
    // Either side's end is the other one's: HTTP clients don't use half of a connection.
    let _ = to.shutdown(Shutdown::Both).await;
    let _ = from.shutdown(Shutdown::Both).await;
}

async fn relay(listen: Address, store: Address, delay: Duration) -> Result<()> {
    let listener = Listener::bind(&listen)?;
    loop {
        let client = Rc::new(listener.accept_retrying().await);
        let store = store.clone();
        spawn(async move {
            if let Ok(server) = Stream::connect(&store).await {
                let server = Rc::new(server);
                let requests = spawn(pass(client.clone(), server.clone(), delay));
                pass(server, client, Duration::ZERO).await;
                requests.await;
            }
        })
        .detach();
    }
}

fn loopback(text: &str) -> Result<Address> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Address::Tcp(address)),
        _ => {
            Err(Error::invalid(format!("{text}: expected an address of this machine, as in 127.0.0.1:7171")))
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, store, delay] = &arguments[..] else {
        return Err(Error::invalid("expected LISTEN STORE MILLISECONDS"));
    };
    let (listen, store) = (loopback(listen)?, loopback(store)?);
    let delay: u64 = delay.parse().map_err(|_| Error::invalid(format!("{delay}: expected milliseconds")))?;
    runtime::run(runtime::Config::default(), move || relay(listen, store, Duration::from_millis(delay)))?
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bucket-relay: {error}");
            ExitCode::FAILURE
        }
    }
}
