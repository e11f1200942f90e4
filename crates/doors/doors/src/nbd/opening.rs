//! Handshake of a connection: the bytes between the socket and [`Negotiation`], and the change to TLS.

use super::connection::{End, HANDSHAKE_LIMIT, Offered, RECEIVE_BYTES, Received, Watch};
use super::negotiation::{Agreement, ExportDescription, Negotiation, Progress, Tls};
use super::protocol::greeting;
use super::server::{ExportConfig, ServerTls};
use block::{Buffer, Data, Error, Result};
use std::rc::Rc;
use tls::{Session, Stream};

/// Result of a handshake: the agreement, the export if it is one of the source, and the bytes after the
/// handshake.
pub(super) type Negotiated = (Agreement, Option<ExportConfig>, Received);

/// Makes the handshake, after which `stream` is in TLS if the client has asked for it.
pub(super) async fn negotiate(
    watch: &Watch,
    offered: &Offered<'_>,
    stream: &mut Stream,
) -> Result<Negotiated, End> {
    let descriptions = describe(offered);
    let mode = match offered.tls {
        None => Tls::Off,
        Some(ServerTls { required: false, .. }) => Tls::Allowed,
        Some(ServerTls { required: true, .. }) => Tls::Required,
    };
    let mut negotiation = Negotiation::new(&descriptions).with_source(offered.source).with_tls(mode);
    let mut received = Received { buffer: Buffer::new(RECEIVE_BYTES), used: 0 };
    let mut answer = Vec::new();
    send(stream, &greeting()).await?;
    loop {
        let (used, progress) = negotiation.advance(received.rest(), &mut answer).map_err(End::Violation)?;
        received.used += used;
        if !answer.is_empty() {
            send(stream, &answer).await?;
            answer.clear();
        }
        match progress {
            Progress::Continue => {}
            Progress::Transmission(agreement) => {
                let is_known = agreement.export < descriptions.len();
                let opened = negotiation.into_opened().filter(|_| !is_known);
                return Ok((agreement, opened, received));
            }
            Progress::StartTls => {
                *stream = start_tls(watch, offered, &received).await?;
                negotiation.in_tls();
            }
            Progress::Ended => return Err(End::Goodbye),
            Progress::Wait => {
                received.make_room();
                let (result, buffer) = stream.receive(received.buffer).await;
                received.buffer = buffer;
                match result {
                    Ok(0) => return Err(end_of_input(watch)),
                    Ok(_) if watch.stopping.get() => return Err(End::Stopped),
                    Ok(_) => {}
                    Err(error) => return Err(End::of_receive(error)),
                }
            }
        }
    }
}

/// Descriptions of the exports with their present sizes: a device may have grown since the start of the
/// server.
fn describe(offered: &Offered<'_>) -> Vec<ExportDescription> {
    let exports = offered.descriptions.iter().zip(offered.exports);
    let present = exports.map(|(description, (export, _))| ExportDescription {
        size: export.geometry().bytes(),
        ..description.clone()
    });
    present.collect()
}

async fn send(stream: &Stream, bytes: &[u8]) -> Result<(), End> {
    stream.send(Data::copy_of(bytes).into()).await.0.map_err(End::Lost)
}

/// Cause of the end of the client's bytes.
fn end_of_input(watch: &Watch) -> End {
    match (watch.expired.get(), watch.stopping.get()) {
        (true, _) => End::Silent,
        (_, true) => End::Stopped,
        _ => End::HungUp,
    }
}

/// Changes to TLS after the reply to STARTTLS. Bytes that were `received` after the option may come from an
/// attacker on the path: they are refused, not parsed.
async fn start_tls(watch: &Watch, offered: &Offered<'_>, received: &Received) -> Result<Stream, End> {
    if !received.rest().is_empty() {
        let text = "bytes in plain text after STARTTLS: expected none before the reply";
        return Err(End::Violation(Error::protocol(text)));
    }
    accept(watch, offered).await.map_err(|error| match (error, end_of_input(watch)) {
        (Error::Disconnected(_), end @ (End::Silent | End::Stopped)) => end,
        (error @ (Error::Protocol(_) | Error::PermissionDenied(_)), _) => End::Violation(error),
        (Error::TimedOut(_), _) => End::Silent,
        (error, _) => End::Lost(error),
    })
}

async fn accept(watch: &Watch, offered: &Offered<'_>) -> Result<Stream> {
    let config = offered.tls.map(|tls| &tls.config);
    let config = config.ok_or_else(|| Error::unsupported("STARTTLS without certificates"))?;
    let session = Session::accept(watch.stream.clone(), config, HANDSHAKE_LIMIT).await?;
    Ok(Stream::Tls(Rc::new(session)))
}
