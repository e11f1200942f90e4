//! The server's side of the fixed newstyle handshake, as a state machine over bytes: sans-io.
//!
//! Memory and answers are bounded for any input ([`MAX_OPTION`] bytes of an option, [`MAX_OPTIONS`]
//! options). An option that is unknown, malformed or not allowed is answered with the error that the
//! specification demands, and the session continues. The session ends only if no answer is possible (a wrong
//! magic number, flags that were never offered, EXPORT_NAME for an unknown export). Extended headers are not
//! offered. After STARTTLS the caller makes the TLS handshake and calls [`Negotiation::in_tls`]. The
//! connection has the time limits and the socket.

use super::protocol::{
    ALLOCATION_CONTEXT, EXPORT_NAME_PADDING, MAX_STRING, MAXIMUM_PAYLOAD, OPTION_HEADER_BYTES, OPTION_MAGIC,
    Reader, handshake_flag, info, option, option_reply, put_option_reply, string, transmission_flag,
};
use super::server::ExportConfig;
use super::source::ExportSource;
use block::{Error, Result};
use std::borrow::Cow;

/// Longest data of an option that is parsed, in bytes; longer options are skipped and answered with TOO_BIG.
pub const MAX_OPTION: u32 = 32 << 10;
/// Longest data of an option that is skipped, in bytes; longer ones end the session.
pub const MAX_SKIPPED_OPTION: u32 = 1 << 20;
/// Limit of options per session.
pub const MAX_OPTIONS: u32 = 256;
/// Id of the context `base:allocation`, the only one.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// Properties of an export that the handshake announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportDescription {
    /// Name by which clients ask for the export.
    pub name: String,
    /// Text for users; may be empty.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a client may spread its requests over several connections.
    pub several_connections: bool,
    /// Smallest size of efficient requests, in bytes: a power of two, at least 512.
    pub preferred_block: u32,
}

impl ExportDescription {
    fn flags(&self, structured: bool) -> u16 {
        let mut flags =
            transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH | transmission_flag::SEND_FUA;
        if self.several_connections {
            flags |= transmission_flag::CAN_MULTI_CONN;
        }
        flags |= match self.read_only {
            true => transmission_flag::READ_ONLY,
            false => transmission_flag::SEND_TRIM | transmission_flag::SEND_WRITE_ZEROES,
        };
        if structured {
            flags |= transmission_flag::SEND_DF;
        }
        flags
    }
}

/// Result of the negotiation when transmission begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Index of the export, from 0; beyond the known ones for one of the source, see
    /// [`Negotiation::into_opened`].
    pub export: usize,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether BLOCK_STATUS may ask for `base:allocation`.
    pub allocation_context: bool,
}

/// Result of a step of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed.
    Wait,
    /// A message was consumed; parse the rest.
    Continue,
    /// Transmission begins after the consumed bytes.
    Transmission(Agreement),
    /// After the answer, the client's next bytes begin the TLS handshake.
    StartTls,
    /// The client has ended the session.
    Ended,
}

/// State of TLS in a handshake, in the terms of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// NOTLS: STARTTLS is refused.
    Off,
    /// SELECTIVETLS, with all exports available in plain text.
    Allowed,
    /// FORCEDTLS: nothing but STARTTLS and ABORT is answered before TLS.
    Required,
    /// The session is in TLS.
    Active,
}

/// A handshake in progress.
pub struct Negotiation<'a> {
    exports: &'a [ExportDescription],
    source: Option<&'a dyn ExportSource>,
    /// Names of exports of the source that the client has asked for. Their indexes follow those of `exports`.
    asked: Vec<String>,
    /// Export of the source that was opened last.
    opened: Option<ExportConfig>,
    client_flags: Option<u16>,
    /// Number of bytes of an option's data that are still to be skipped.
    skip: usize,
    options: u32,
    tls: Tls,
    structured: bool,
    /// Export for which `base:allocation` was selected last.
    context_for: Option<usize>,
}

/// Refusal of an option: type of the reply and a text for users.
type Refused = (u32, Cow<'static, str>);

/// Refusal with a fixed text.
const fn refusal(reply: u32, words: &'static str) -> Refused {
    (reply, Cow::Borrowed(words))
}

const NO_DATA: Refused = refusal(option_reply::ERR_INVALID, "the option takes no data");
const MALFORMED: Refused = refusal(option_reply::ERR_INVALID, "the option is malformed");
const TLS_REQUIRED: Refused = refusal(option_reply::ERR_TLS_REQD, "this server requires TLS");
const NO_EXPORT: Refused = refusal(option_reply::ERR_UNKNOWN, "there is no such export");

impl<'a> Negotiation<'a> {
    /// Begins a handshake after the greeting was sent; the first export is also the default one.
    pub fn new(exports: &'a [ExportDescription]) -> Self {
        Negotiation {
            exports,
            source: None,
            asked: Vec::new(),
            opened: None,
            client_flags: None,
            skip: 0,
            options: 0,
            tls: Tls::Off,
            structured: false,
            context_for: None,
        }
    }

    /// Asks this source for names that no export has.
    pub fn with_source(self, source: Option<&'a dyn ExportSource>) -> Self {
        Negotiation { source, ..self }
    }

    /// Offers TLS in this mode.
    pub fn with_tls(self, tls: Tls) -> Self {
        Negotiation { tls, ..self }
    }

    /// Continues in TLS. Everything negotiated in plain text is discarded: an attacker on the path may have
    /// injected it.
    pub fn in_tls(&mut self) {
        self.tls = Tls::Active;
        self.structured = false;
        self.context_for = None;
        self.opened = None;
        self.asked.clear();
    }

    /// Export of the source that the client has agreed on; `None` for a known export.
    pub fn into_opened(self) -> Option<ExportConfig> {
        self.opened
    }

    /// Parses the received bytes: consumes at most one message from the front of `bytes`, appends its answer
    /// to `answer`, and returns the number of consumed bytes.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the session has to end without an answer.
    pub fn advance(&mut self, bytes: &[u8], answer: &mut Vec<u8>) -> Result<(usize, Progress)> {
        if self.skip > 0 {
            let taken = self.skip.min(bytes.len());
            self.skip -= taken;
            return Ok((taken, if taken == 0 { Progress::Wait } else { Progress::Continue }));
        }
        if self.client_flags.is_none() {
            return self.take_client_flags(bytes);
        }
        let mut reader = Reader(bytes);
        let (Some(magic), Some(option), Some(length)) = (reader.u64(), reader.u32(), reader.u32()) else {
            return check_magic_so_far(bytes).map(|()| (0, Progress::Wait));
        };
        if magic != OPTION_MAGIC {
            return Err(Error::protocol(format!("an option begins with {magic:#018x}: expected IHAVEOPT")));
        }
        if length > MAX_OPTION {
            return self.skip_option(option, length, answer);
        }
        let Some(data) = reader.take(length as usize) else { return Ok((0, Progress::Wait)) };
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(Error::protocol(format!("more than {MAX_OPTIONS} options")));
        }
        let progress = self.answer_option(option, data, answer)?;
        Ok((OPTION_HEADER_BYTES + data.len(), progress))
    }

    fn take_client_flags(&mut self, bytes: &[u8]) -> Result<(usize, Progress)> {
        let Some(flags) = Reader(bytes).u32() else { return Ok((0, Progress::Wait)) };
        let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags & !u32::from(known) != 0 {
            return Err(Error::protocol(format!(
                "client flags {flags:#010x}: expected only bits of {known:#x}"
            )));
        }
        self.client_flags = Some(flags as u16);
        Ok((4, Progress::Continue))
    }

    fn skip_option(&mut self, option: u32, length: u32, answer: &mut Vec<u8>) -> Result<(usize, Progress)> {
        self.options += 1;
        if length > MAX_SKIPPED_OPTION || option == option::EXPORT_NAME || self.options > MAX_OPTIONS {
            return Err(Error::protocol(format!("option {option} has {length} bytes: at most {MAX_OPTION}")));
        }
        self.skip = length as usize;
        refuse(answer, option, refusal(option_reply::ERR_TOO_BIG, "the option is too large"));
        Ok((OPTION_HEADER_BYTES, Progress::Continue))
    }

    fn answer_option(&mut self, option: u32, data: &[u8], answer: &mut Vec<u8>) -> Result<Progress> {
        let outcome = match option {
            option::EXPORT_NAME if self.tls == Tls::Required => {
                return Err(Error::protocol("EXPORT_NAME in plain text: this server requires TLS"));
            }
            option::ABORT | option::STARTTLS => Ok(()),
            _ if self.tls == Tls::Required => Err(TLS_REQUIRED),
            _ => Ok(()),
        };
        if let Err(refused) = outcome {
            refuse(answer, option, refused);
            return Ok(Progress::Continue);
        }
        let outcome = match option {
            option::EXPORT_NAME => return self.take_export(data, answer),
            option::ABORT => {
                put_option_reply(answer, option, option_reply::ACK, &[]);
                return Ok(Progress::Ended);
            }
            option::LIST => self.list(data, answer),
            option::INFO => self.describe(option, data, answer).map(drop),
            option::GO => match self.describe(option, data, answer) {
                Ok(export) => {
                    put_option_reply(answer, option, option_reply::ACK, &[]);
                    return Ok(Progress::Transmission(self.agreement(export)));
                }
                Err(refused) => Err(refused),
            },
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                Ok(())
            }
            option::STRUCTURED_REPLY => Err(NO_DATA),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, data, answer),
            option::STARTTLS if !data.is_empty() => Err(NO_DATA),
            option::STARTTLS => match self.tls {
                Tls::Off => Err(refusal(option_reply::ERR_POLICY, "TLS is not offered")),
                Tls::Active => Err(refusal(option_reply::ERR_INVALID, "the session is in TLS already")),
                Tls::Allowed | Tls::Required => {
                    put_option_reply(answer, option, option_reply::ACK, &[]);
                    return Ok(Progress::StartTls);
                }
            },
            _ => Err(refusal(option_reply::ERR_UNSUP, "the option is unknown")),
        };
        match outcome {
            Ok(()) => put_option_reply(answer, option, option_reply::ACK, &[]),
            Err(refused) => refuse(answer, option, refused),
        }
        Ok(Progress::Continue)
    }

    /// Returns the index and the description of an export. `opens`: whether the client wants to use it.
    fn find(&mut self, name: &str, opens: bool) -> Result<(usize, Cow<'a, ExportDescription>), Refused> {
        let named = self.exports.iter().position(|export| export.name == name);
        let known = named.or_else(|| (name.is_empty() && !self.exports.is_empty()).then_some(0));
        if let Some(index) = known {
            return Ok((index, Cow::Borrowed(&self.exports[index])));
        }
        let source = self.source.ok_or(NO_EXPORT)?;
        let refused = |error: Error| match error {
            Error::NotFound(text) => (option_reply::ERR_UNKNOWN, text),
            error => (option_reply::ERR_POLICY, Cow::Owned(error.detail().to_owned())),
        };
        let description = match opens {
            true => {
                let export = source.open(name).map_err(refused)?;
                let description = export.describe();
                self.opened = Some(export);
                description
            }
            false => source.describe(name).map_err(refused)?,
        };
        let asked = self.asked.iter().position(|asked| asked == name).unwrap_or_else(|| {
            self.asked.push(name.to_owned());
            self.asked.len() - 1
        });
        Ok((self.exports.len() + asked, Cow::Owned(description)))
    }

    fn agreement(&self, export: usize) -> Agreement {
        let allocation_context = self.context_for == Some(export);
        Agreement { export, structured: self.structured, allocation_context }
    }

    fn take_export(&mut self, data: &[u8], answer: &mut Vec<u8>) -> Result<Progress> {
        let found = string(data).ok_or(NO_EXPORT).and_then(|name| self.find(name, true));
        let (index, export) = found.map_err(|(_, words)| {
            let name = String::from_utf8_lossy(&data[..data.len().min(MAX_STRING)]);
            Error::protocol(format!("EXPORT_NAME asks for {name:?}, which is not exported: {words}"))
        })?;
        answer.extend_from_slice(&export.size.to_be_bytes());
        answer.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if self.client_flags.is_none_or(|flags| flags & handshake_flag::NO_ZEROES == 0) {
            answer.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        Ok(Progress::Transmission(self.agreement(index)))
    }

    fn list(&self, data: &[u8], answer: &mut Vec<u8>) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err(NO_DATA);
        }
        let more = self.source.map(ExportSource::list).unwrap_or_default();
        for export in self.exports.iter().chain(&more) {
            let length = (export.name.len() as u32).to_be_bytes();
            let pieces = [length.as_slice(), export.name.as_bytes(), export.description.as_bytes()];
            put_option_reply(answer, option::LIST, option_reply::SERVER, &pieces);
        }
        Ok(())
    }

    /// Answers INFO and GO, up to the last reply.
    fn describe(&mut self, option: u32, data: &[u8], answer: &mut Vec<u8>) -> Result<usize, Refused> {
        let mut reader = Reader(data);
        let name = reader.string().ok_or(MALFORMED)?;
        let count = reader.u16().ok_or(MALFORMED)?;
        if reader.0.len() != usize::from(count) * 2 {
            return Err(MALFORMED);
        }
        let (index, export) = self.find(name, option == option::GO)?;
        let mut tell = |kind: u16, data: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let pieces: Vec<&[u8]> = [kind.as_slice()].into_iter().chain(data.iter().copied()).collect();
            put_option_reply(answer, option, option_reply::INFO, &pieces);
        };
        let (size, flags) = (export.size.to_be_bytes(), export.flags(self.structured).to_be_bytes());
        tell(info::EXPORT, &[&size, &flags]);
        let mut told = [false; 4];
        while let Some(wanted) = reader.u16() {
            let Some(told) = told.get_mut(usize::from(wanted)) else { continue };
            if std::mem::replace(told, true) {
                continue;
            }
            match wanted {
                info::NAME => tell(info::NAME, &[export.name.as_bytes()]),
                info::DESCRIPTION if !export.description.is_empty() => {
                    tell(info::DESCRIPTION, &[export.description.as_bytes()]);
                }
                info::BLOCK_SIZE => {
                    let sizes = [1, export.preferred_block, MAXIMUM_PAYLOAD].map(u32::to_be_bytes);
                    tell(info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
                }
                _ => {}
            }
        }
        Ok(index)
    }

    /// Answers LIST_META_CONTEXT and SET_META_CONTEXT, up to the last reply.
    fn contexts(&mut self, option: u32, data: &[u8], answer: &mut Vec<u8>) -> Result<(), Refused> {
        let set = option == option::SET_META_CONTEXT;
        if set {
            // The earlier selection ends, even if this fails.
            self.context_for = None;
        }
        if !self.structured {
            return Err(refusal(option_reply::ERR_INVALID, "structured replies have to be negotiated first"));
        }
        let mut reader = Reader(data);
        let name = reader.string().ok_or(MALFORMED)?;
        let count = reader.u32().ok_or(MALFORMED)?;
        let mut found = count == 0 && !set;
        for _ in 0..count {
            let query = reader.string().ok_or(MALFORMED)?;
            if !query.contains(':') {
                return Err(refusal(option_reply::ERR_INVALID, "a query has no colon after its namespace"));
            }
            found |= query == ALLOCATION_CONTEXT || (query == "base:" && !set);
        }
        if !reader.0.is_empty() {
            return Err(MALFORMED);
        }
        let (export, _) = self.find(name, false)?;
        if found {
            let id = if set { ALLOCATION_CONTEXT_ID } else { 0 }.to_be_bytes();
            put_option_reply(
                answer,
                option,
                option_reply::META_CONTEXT,
                &[&id, ALLOCATION_CONTEXT.as_bytes()],
            );
            if set {
                self.context_for = Some(export);
            }
        }
        Ok(())
    }
}

fn refuse(answer: &mut Vec<u8>, option: u32, (reply, words): Refused) {
    put_option_reply(answer, option, reply, &[words.as_bytes()]);
}

/// Refuses a wrong magic number as soon as its first bytes have arrived.
fn check_magic_so_far(bytes: &[u8]) -> Result<()> {
    let expected = OPTION_MAGIC.to_be_bytes();
    let have = bytes.len().min(expected.len());
    match bytes[..have] == expected[..have] {
        true => Ok(()),
        false => {
            Err(Error::protocol(format!("an option begins with {:02x?}: expected IHAVEOPT", &bytes[..have])))
        }
    }
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
mod tests;
