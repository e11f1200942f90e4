//! Messages of a control socket: bytes to lines, lines to requests, answers to lines. Nothing here waits.
//!
//! One JSON object per line, in both directions; an answer for each request, in order.
//!
//! ```text
//! > {"verb":"hello"}
//! < {"answer":{"protocol":1,"process":4711}}
//! > {"verb":"status"}
//! < {"answer":{"devices":{…},"zones":{…},"doors":{…},"server":{…}}}
//! > {"verb":"message","part":"vol","text":"snapshot list"}
//! < {"answer":"{\"snapshots\":[]}"}
//! > {"verb":"observe"}
//! < {"answer":{"nanoseconds":1,"parts":[…],"status":{…}}}
//! > {"verb":"trace","slow_ns":1000000}
//! < {"answer":null}
//! > {"verb":"trace_next"}
//! < {"answer":{"events":[…],"lost":0}}
//! > {"verb":"metrics","format":"openmetrics"}
//! < {"answer":"# HELP siltstone_build Version of the program\n…"}
//! > {"verb":"massage"}
//! < {"error":{"errno":22,"text":"verb \"massage\": did you mean …","wrongly_asked":true}}
//! ```
//!
//! For any bytes the parser never panics, keeps at most [`MAX_REQUEST`] bytes of a line, and returns an
//! error for an invalid request. Other modules own the sockets and execute requests.

use crate::metrics::Format;
use block::Error;
use serde_json::{Map, Value, json};
use std::fmt;
use std::time::Duration;

/// Longest request, in bytes, without the end of its line.
pub const MAX_REQUEST: usize = 64 << 10;
/// Longest answer, in bytes, without the end of its line.
pub const MAX_ANSWER: usize = 16 << 20;

/// Version of the protocol, in the answer to [`Request::Hello`]. It is incremented when old clients would
/// misinterpret answers.
pub const VERSION: u32 = 1;

/// Verbs of requests.
const VERBS: [&str; 7] = ["hello", "status", "observe", "metrics", "trace", "trace_next", "message"];

/// Request to a stack or a flash chip, or to its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Check that a server is running: the socket of a killed one accepts connections for some time.
    Hello,
    /// Status of every part.
    Status,
    /// Counts and latencies of the calls to every part, and the status. Calls are counted from the first such
    /// request on, and for some time after each: [`observed`](super::observed).
    Observe,
    /// Begin of a trace of single calls, which ends with the connection: [`traced`](super::traced).
    Trace(TraceRequest),
    /// Next calls of the trace.
    TraceNext,
    /// Metrics as text in this format. Calls are counted as after [`Observe`](Self::Observe), for longer.
    Metrics(Format),
    /// Message to one part.
    Message {
        /// Recipient.
        to: Recipient,
        /// Text.
        text: String,
    },
}

/// Calls that a trace has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceRequest {
    /// Calls that took at least this time.
    pub slow: Duration,
    /// Only calls to this part, of all its users or of `door`.
    pub part: Option<String>,
    /// Only calls of this door.
    pub door: Option<String>,
    /// Only calls of these kinds; none for all kinds.
    pub calls: Vec<String>,
    /// Only calls that failed.
    pub errors: bool,
    /// Calls to all parts besides those of the doors.
    pub parts: bool,
}

/// Most kinds of calls of a trace.
const MAX_CALLS: usize = 32;

impl TraceRequest {
    fn to_json(&self) -> Value {
        let TraceRequest { slow, part, door, calls, errors, parts } = self;
        let slow = u64::try_from(slow.as_nanos()).unwrap_or(u64::MAX);
        let mut object =
            json!({ "verb": "trace", "slow_ns": slow, "calls": calls, "errors": errors, "parts": parts });
        for (key, name) in [("part", part), ("door", door)] {
            if let Some(name) = name {
                object[key] = name.as_str().into();
            }
        }
        object
    }

    fn take_from(object: &mut Map<String, Value>) -> Result<TraceRequest, String> {
        let slow = match object.remove("slow_ns") {
            None => 0,
            Some(value) => value.as_u64().ok_or("\"slow_ns\": expected a number of nanoseconds")?,
        };
        let mut flag = |key: &str| match object.remove(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| format!("\"{key}\": expected true or false")),
        };
        let (errors, parts) = (flag("errors")?, flag("parts")?);
        let calls = match object.remove("calls") {
            None => Some(Vec::new()),
            Some(Value::Array(calls)) if calls.len() <= MAX_CALLS => {
                calls.iter().map(|call| call.as_str().map(str::to_owned)).collect()
            }
            Some(_) => None,
        };
        Ok(TraceRequest {
            slow: Duration::from_nanos(slow),
            part: take_text(object, "part")?,
            door: take_text(object, "door")?,
            calls: calls.ok_or_else(|| format!("\"calls\": expected a list of at most {MAX_CALLS} texts"))?,
            errors,
            parts,
        })
    }
}

/// Recipient of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recipient {
    /// Part with this name, else the only part of this kind.
    Part(String),
    /// Only part of this kind, whatever its name.
    Kind(String),
}

/// Refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Error.
    pub error: Error,
    /// Whether the request is wrong, rather than its recipient.
    pub wrongly_asked: bool,
}

impl Refusal {
    /// Creates the refusal of a wrong request.
    pub fn wrongly_asked(error: Error) -> Self {
        Refusal { error, wrongly_asked: true }
    }
}

/// Refusal because of the stack or the chip.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { error, wrongly_asked: false }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(formatter)
    }
}

/// Result of a request.
pub type Answer = Result<Value, Refusal>;

impl Request {
    /// Parses one line, without its newline.
    ///
    /// # Errors
    /// The problem, and what was expected.
    pub fn parse(line: &[u8]) -> Result<Request, Refusal> {
        parse(line).map_err(|text| Refusal::wrongly_asked(Error::invalid(text)))
    }

    /// Encodes the request as a line, with its newline.
    pub fn to_line(&self) -> String {
        let object = match self {
            Request::Hello => json!({ "verb": "hello" }),
            Request::Status => json!({ "verb": "status" }),
            Request::Observe => json!({ "verb": "observe" }),
            Request::Trace(asked) => asked.to_json(),
            Request::TraceNext => json!({ "verb": "trace_next" }),
            Request::Metrics(Format::Prometheus) => json!({ "verb": "metrics" }),
            Request::Metrics(Format::OpenMetrics) => json!({ "verb": "metrics", "format": "openmetrics" }),
            Request::Message { to: Recipient::Part(part), text } => {
                json!({ "verb": "message", "part": part, "text": text })
            }
            Request::Message { to: Recipient::Kind(kind), text } => {
                json!({ "verb": "message", "kind": kind, "text": text })
            }
        };
        format!("{object}\n")
    }
}

fn parse(line: &[u8]) -> Result<Request, String> {
    const EXPECTED: &str = "expected a JSON object such as {\"verb\":\"status\"}";
    let value: Value =
        serde_json::from_slice(line).map_err(|error| format!("request: {error}; {EXPECTED}"))?;
    let Value::Object(mut object) = value else { return Err(format!("request: {EXPECTED}")) };
    let Some(verb) = take_text(&mut object, "verb")? else {
        return Err(format!("request without a \"verb\": {EXPECTED}"));
    };
    let request = match verb.as_str() {
        "hello" => Request::Hello,
        "status" => Request::Status,
        "observe" => Request::Observe,
        "trace" => Request::Trace(TraceRequest::take_from(&mut object)?),
        "trace_next" => Request::TraceNext,
        "metrics" => match take_text(&mut object, "format")?.as_deref() {
            None | Some("prometheus") => Request::Metrics(Format::Prometheus),
            Some("openmetrics") => Request::Metrics(Format::OpenMetrics),
            Some(_) => return Err("metrics: expected \"format\" to be prometheus or openmetrics".into()),
        },
        "message" => {
            let to = match (take_text(&mut object, "part")?, take_text(&mut object, "kind")?) {
                (Some(part), None) => Recipient::Part(part),
                (None, Some(kind)) => Recipient::Kind(kind),
                _ => return Err("message: expected \"part\", a name, or \"kind\"".into()),
            };
            let text = take_text(&mut object, "text")?.ok_or("message: expected \"text\"")?;
            Request::Message { to, text }
        }
        unknown => {
            let (near, unknown) = (stack::did_you_mean(unknown, VERBS), excerpt(unknown));
            return Err(format!("verb \"{unknown}\"{near} (known: {})", VERBS.join(", ")));
        }
    };
    match object.keys().next() {
        None => Ok(request),
        Some(key) => Err(format!("{verb}: it has no key \"{}\"", excerpt(key))),
    }
}

fn take_text(object: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.remove(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("\"{key}\": expected a text")),
    }
}

/// Returns an excerpt of a received word, for an error.
pub(super) fn excerpt(word: &str) -> String {
    let start: String = word.chars().take(60).collect();
    let more = if start.len() < word.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}

/// Encodes an answer as a line, with its newline. An answer over [`MAX_ANSWER`] becomes an error.
pub fn encode(answer: &Answer) -> Vec<u8> {
    let mut line = match answer {
        Ok(value) => json!({ "answer": value }).to_string().into_bytes(),
        Err(refusal) => encode_refusal(refusal),
    };
    if line.len() > MAX_ANSWER {
        let error = Error::overflow(format!(
            "the answer has {} bytes, and a control socket passes at most {MAX_ANSWER}: ask for less, or, of a \
             stack, while it is not served",
            line.len()
        ));
        line = encode_refusal(&error.into());
    }
    line.push(b'\n');
    line
}

fn encode_refusal(refusal: &Refusal) -> Vec<u8> {
    let Refusal { error, wrongly_asked } = refusal;
    let error = json!({ "errno": error.errno(), "text": error.detail(), "wrongly_asked": wrongly_asked });
    json!({ "error": error }).to_string().into_bytes()
}

/// Decodes a line of an answer.
///
/// # Errors
/// [`Error::Protocol`] for a line that isn't an answer.
pub fn decode(line: &[u8]) -> Result<Answer, Error> {
    let wrong =
        |what: &str| Error::protocol(format!("the answer {what}: is this a control socket of siltstone?"));
    let value: Value =
        serde_json::from_slice(line).map_err(|error| wrong(&format!("isn't JSON ({error})")))?;
    let Value::Object(mut object) = value else { return Err(wrong("isn't a JSON object")) };
    if let Some(answer) = object.remove("answer") {
        return Ok(Ok(answer));
    }
    let error = object.remove("error").ok_or_else(|| wrong("has neither \"answer\" nor \"error\""))?;
    let errno = error["errno"].as_i64().and_then(|errno| i32::try_from(errno).ok());
    let (Some(errno), Some(text)) = (errno, error["text"].as_str()) else {
        return Err(wrong("has an error without \"errno\" and \"text\""));
    };
    let wrongly_asked = error["wrongly_asked"].as_bool().unwrap_or(false);
    Ok(Err(Refusal { error: Error::from_errno(errno, text.to_owned()), wrongly_asked }))
}

/// Divides received bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    bytes: Vec<u8>,
    /// Start of the next line.
    start: usize,
    /// End of the bytes that were searched for the end of the line at `start`.
    searched: usize,
}

impl Lines {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its newline; `None` until more bytes are received.
    ///
    /// # Errors
    /// A line longer than [`MAX_REQUEST`]: the start of the next one is unknown.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, Refusal> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        self.searched = end.map_or(self.bytes.len(), |end| self.searched + end);
        let (start, length) = (self.start, self.searched - self.start);
        if length > MAX_REQUEST {
            return Err(Refusal::wrongly_asked(Error::invalid(format!(
                "a request of {length} bytes or more: expected at most {MAX_REQUEST} in a line"
            ))));
        }
        if end.is_none() {
            return Ok(None);
        }
        self.searched += 1;
        self.start = self.searched;
        Ok(Some(&self.bytes[start..start + length]))
    }

    /// Returns the bytes after the last complete line.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    #[test]
    fn requests_survive_the_trip() {
        let text = "snapshot create \"ä\"\n\u{1b}[2J\0".to_owned();
        for request in [
            Request::Hello,
            Request::Status,
            Request::Observe,
            Request::Trace(TraceRequest::default()),
            Request::Trace(TraceRequest {
                slow: Duration::from_millis(10),
                part: Some("disk".into()),
                door: Some("vol\u{7}".into()),
                calls: vec!["read".into(), "flush".into()],
                errors: true,
                parts: true,
            }),
            Request::TraceNext,
            Request::Metrics(Format::Prometheus),
            Request::Metrics(Format::OpenMetrics),
            Request::Message { to: Recipient::Part("vol".into()), text: text.clone() },
            Request::Message { to: Recipient::Kind("log".into()), text },
        ] {
            let line = request.to_line();
            assert_eq!(line.matches('\n').count(), 1, "one line: {line}");
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
    }

    #[test]
    fn answers_survive_the_trip() {
        let refusal = Refusal::wrongly_asked(Error::not_found("there is no part \"x\""));
        for answer in [
            Ok(json!("line\nline")),
            Ok(json!({ "a": [1, null] })),
            Err(refusal),
            Err(Error::Os(4, "x".into()).into()),
        ] {
            let line = encode(&answer);
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(decode(&line), Ok(answer));
        }
    }

    #[test]
    fn an_answer_too_long_is_an_error() {
        let fits = MAX_ANSWER - r#"{"answer":""}"#.len();
        assert_eq!(encode(&Ok("x".repeat(fits).into())).len(), MAX_ANSWER + 1);
        let answer = decode(&encode(&Ok("x".repeat(fits + 1).into()))).unwrap();
        assert!(matches!(&answer, Err(refusal) if matches!(refusal.error, Error::Overflow(_))), "{answer:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let deep = "[".repeat(10_000);
        for (line, expected) in [
            ("", "EOF while parsing a value at line 1 column 0; expected a JSON object"),
            ("[1]", "expected a JSON object such as {\"verb\":\"status\"}"),
            ("{}", "without a \"verb\""),
            (r#"{"verb":1}"#, "\"verb\": expected a text"),
            (r#"{"verb":"stauts"}"#, "did you mean \"status\"?"),
            (r#"{"verb":"status","part":"x"}"#, "it has no key \"part\""),
            (r#"{"verb":"metrics","format":"x"}"#, "expected \"format\" to be prometheus or openmetrics"),
            (r#"{"verb":"message","text":"x"}"#, "expected \"part\", a name, or \"kind\""),
            (r#"{"verb":"message","part":"x","kind":"y","text":"x"}"#, "expected \"part\", a name, or"),
            (r#"{"verb":"message","part":"x"}"#, "expected \"text\""),
            (r#"{"verb":"trace","slow_ns":-1}"#, "\"slow_ns\": expected a number of nanoseconds"),
            (r#"{"verb":"trace","errors":1}"#, "\"errors\": expected true or false"),
            (r#"{"verb":"trace","calls":["read",7]}"#, "\"calls\": expected a list of at most 32 texts"),
            (r#"{"verb":"trace","limit":7}"#, "trace: it has no key \"limit\""),
            (r#"{"verb":"\u001b[2J"}"#, r"\u{1b}[2J"),
            (deep.as_str(), "recursion limit"),
        ] {
            let refusal = Request::parse(line.as_bytes()).unwrap_err();
            assert!(
                refusal.wrongly_asked && refusal.error.detail().contains(expected),
                "{line:.40}: {refusal}"
            );
            assert!(refusal.error.detail().len() < 300);
        }
        assert!(Request::parse(b"\xff\xfe{\"verb\":\"status\"}").is_err());
    }

    #[test]
    fn answers_of_others_are_no_answers() {
        for line in ["NBDMAGIC", "7", "{}", r#"{"error":{}}"#, r#"{"error":{"errno":1e99,"text":""}}"#] {
            assert!(matches!(decode(line.as_bytes()), Err(Error::Protocol(_))), "{line}");
        }
    }

    /// The lines don't depend on the boundaries of received pieces.
    #[test]
    fn lines_are_cut_at_their_ends() {
        let seed = 7;
        let mut random = Random::new(seed);
        for round in 0..200 {
            let count = random.below(2000) as usize;
            let text: Vec<u8> = (0..count).map(|_| b"ab\n\xff"[random.below(4) as usize]).collect();
            let (mut lines, mut cut, mut at) = (Lines::default(), Vec::new(), 0);
            while at < text.len() {
                let length = (1 + random.below(50) as usize).min(text.len() - at);
                lines.push(&text[at..at + length]);
                at += length;
                while let Some(line) = lines.next_line().unwrap() {
                    cut.push(line.to_vec());
                }
            }
            cut.push(lines.rest().to_vec());
            let expected: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            assert_eq!(cut, expected, "seed {seed}, round {round}");
        }
    }

    #[test]
    fn a_line_too_long_is_refused() {
        let mut lines = Lines::default();
        lines.push(&vec![b' '; MAX_REQUEST]);
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(b"\n");
        assert_eq!(lines.next_line().unwrap().map(<[u8]>::len), Some(MAX_REQUEST));
        lines.push(&vec![b'x'; MAX_REQUEST + 1]);
        assert!(lines.next_line().is_err(), "before its end has come");
        let mut lines = Lines::default();
        lines.push(&vec![b'\n'; 3 * MAX_REQUEST]);
        let mut count = 0;
        while lines.next_line().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3 * MAX_REQUEST, "many short ones are fine");
    }
}
