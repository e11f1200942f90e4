//! The program as a service of systemd (sd_notify(3)): readiness, the end, and the watchdog. Does nothing if
//! systemd didn't start it.

use crate::log_target;
use block::{Error, Result};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends a state to systemd, if it started the program (`NOTIFY_SOCKET`).
fn notify(state: &str) -> Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let bytes = name.as_encoded_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    sent.map(|_| ()).map_err(|error| Error::from_io(&error, "notifying systemd (NOTIFY_SOCKET)"))
}

/// As [`notify`]; a failure is logged, as the service runs nevertheless.
fn notify_or_log(state: &str) {
    notify(state).unwrap_or_else(|error| tracing::warn!("{error}"));
}

/// Time without `WATCHDOG=1` after which systemd ends this process (`WATCHDOG_USEC`); `None` if it doesn't
/// watch this process.
fn watchdog(time: Option<&str>, process: Option<&str>) -> Option<Duration> {
    if process.is_some_and(|process| process.parse() != Ok(std::process::id())) {
        return None;
    }
    let time = Duration::from_micros(time?.parse().ok()?);
    (time > Duration::ZERO).then_some(time)
}

/// Announces that clients are served. Call this on the shard that the watchdog watches: from now on a task of
/// that shard sends `WATCHDOG=1` twice in each `WATCHDOG_USEC` (microseconds).
pub fn ready() {
    log_target::serving();
    notify_or_log("READY=1");
    let variable = |name| std::env::var(name).ok();
    let (time, process) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    if let Some(time) = watchdog(time.as_deref(), process.as_deref()) {
        let signs = async move {
            loop {
                runtime::sleep(time / 2).await;
                notify_or_log("WATCHDOG=1");
            }
        };
        runtime::spawn(signs).detach();
    }
}

/// Announces the end.
pub fn stopping() {
    notify_or_log("STOPPING=1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_watched_process_gives_signs_of_life() {
        let own = std::process::id().to_string();
        assert_eq!(watchdog(Some("2000000"), Some(&own)), Some(Duration::from_secs(2)));
        assert_eq!(watchdog(Some("2000000"), None), Some(Duration::from_secs(2)));
        assert_eq!(watchdog(Some("2000000"), Some("1")), None);
        assert_eq!(watchdog(None, Some(&own)), None);
        assert_eq!(watchdog(Some("0"), None), None);
        assert_eq!(watchdog(Some("soon"), None), None);
    }
}
