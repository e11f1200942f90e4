//! Requests for metrics in HTTP/1.1 (RFC 9112), and the heads of their responses. Nothing here waits.
//!
//! # Promises
//! - For any bytes the parser never panics, and looks at no more than [`MAX_HEAD`] of them.
//! - What is refused has a status that names the reason. After it the connection ends, since the end of the
//!   request isn't known.
//! - Requests with a body are refused: none of those served here has one.

use super::Format;

/// Longest head of a request in bytes.
pub const MAX_HEAD: usize = 8 << 10;
/// Limit of the headers of a request.
const MAX_HEADERS: usize = 64;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes of the request.
    pub length: usize,
    /// Whether the response has a body: false for `HEAD`.
    pub wants_body: bool,
    /// Whether the connection continues after the response.
    pub continues: bool,
    /// Format of the metrics; `None` for another path than `/metrics`.
    pub format: Option<Format>,
}

/// Status of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// 200.
    Ok,
    /// 400: not HTTP/1, or a request with a body.
    BadRequest,
    /// 404: another path.
    NotFound,
    /// 405: another method than GET and HEAD.
    MethodNotAllowed,
    /// 408: the head is incomplete for too long.
    TimedOut,
    /// 431: the head is too long.
    HeadTooLong,
    /// 500: the metrics can't be read.
    Failed,
    /// 503: the stack is being opened, or there are too many clients.
    Unavailable,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::TimedOut => "408 Request Timeout",
            Status::HeadTooLong => "431 Request Header Fields Too Large",
            Status::Failed => "500 Internal Server Error",
            Status::Unavailable => "503 Service Unavailable",
        }
    }
}

/// Parses the request at the start of received bytes; `None` if its head isn't complete.
///
/// # Errors
/// The status of the refusal.
pub fn parse(bytes: &[u8]) -> Result<Option<Request>, Status> {
    let looked_at = &bytes[..bytes.len().min(MAX_HEAD)];
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(looked_at) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Status::HeadTooLong);
        }
        Err(_) => return Err(Status::BadRequest),
    };
    let values = |name: &'static str| {
        let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| std::str::from_utf8(header.value).unwrap_or_default())
    };
    if values("transfer-encoding").next().is_some() || values("content-length").any(|length| length != "0") {
        return Err(Status::BadRequest);
    }
    let wants_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Err(Status::MethodNotAllowed),
    };
    let has_option = |option: &str| {
        values("connection")
            .flat_map(|value| value.split(','))
            .any(|it| it.trim().eq_ignore_ascii_case(option))
    };
    let continues = match request.version {
        Some(1) => !has_option("close"),
        _ => has_option("keep-alive"),
    };
    let is_metrics = path(request.path.unwrap_or_default()) == "/metrics";
    let format = is_metrics.then(|| format(values("accept")));
    Ok(Some(Request { length, wants_body, continues, format }))
}

/// Path of a request's target, which may be a whole URL, without its query.
fn path(target: &str) -> &str {
    let path = match target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")) {
        Some(rest) => rest.find('/').map_or("/", |start| &rest[start..]),
        None => target,
    };
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Chooses the format by `Accept` (RFC 9110, section 12.5.1): OpenMetrics if the client asks for it by name
/// and prefers nothing else.
fn format<'a>(accept: impl Iterator<Item = &'a str>) -> Format {
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    for range in accept.flat_map(|value| value.split(',')) {
        let mut words = range.split(';').map(str::trim);
        let name = words.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut fits) = (1.0, true);
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.trim().parse::<f32>().ok().filter(|it| it.is_finite()).unwrap_or(0.0),
                "version" => fits = value.trim().trim_matches('"') == "1.0.0",
                _ => {}
            }
        }
        match name.as_str() {
            "application/openmetrics-text" if fits => open = open.max(quality),
            "text/plain" => plain = plain.max(quality),
            _ => {}
        }
    }
    if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Prometheus }
}

/// Returns the head of a response with a body of this length and type.
pub fn head(status: Status, content_type: &str, length: usize, continues: bool) -> String {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    let connection = if continues { "keep-alive" } else { "close" };
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}Connection: {connection}\r\n\r\n",
        status.line()
    )
}

/// Returns the body of a refusal.
pub fn explanation(status: Status) -> String {
    let remedy = match status {
        Status::NotFound => "; the metrics are at /metrics",
        Status::BadRequest => "; expected GET /metrics in HTTP/1.1, without a body",
        Status::MethodNotAllowed => "; expected GET",
        Status::Unavailable => "; try again later",
        _ => "",
    };
    format!("{}{remedy}\n", status.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    fn parsed(text: &str) -> Result<Option<Request>, Status> {
        parse(text.as_bytes())
    }

    /// A request of Prometheus 2.42.
    const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9870\r\nUser-Agent: Prometheus/2.42.0\r\n\
        Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
        text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\nAccept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n";

    #[test]
    fn scrapes_are_understood() {
        let whole = Request {
            length: SCRAPE.len(),
            wants_body: true,
            continues: true,
            format: Some(Format::OpenMetrics),
        };
        assert_eq!(parsed(SCRAPE), Ok(Some(whole)));
        assert_eq!(parsed(&format!("{SCRAPE}{SCRAPE}")), Ok(Some(whole)), "the next one follows");
        for end in 0..SCRAPE.len() {
            assert_eq!(parsed(&SCRAPE[..end]), Ok(None));
        }
        let of = |text: &str| parsed(text).unwrap().unwrap();
        let plain = of("GET /metrics?name[]=x HTTP/1.1\r\nAccept: */*\r\n\r\n");
        assert_eq!((plain.format, plain.continues), (Some(Format::Prometheus), true));
        assert!(!of("HEAD /metrics HTTP/1.1\r\nconnection: Foo, CLOSE\r\n\r\n").continues);
        assert!(!of("HEAD /metrics HTTP/1.0\r\n\r\n").continues);
        assert!(!of("HEAD /metrics HTTP/1.1\r\n\r\n").wants_body);
        assert_eq!(of("GET http://host:1/metrics HTTP/1.1\r\n\r\n").format, Some(Format::Prometheus));
        assert_eq!(of("GET /metricsx HTTP/1.1\r\n\r\n").format, None);
    }

    #[test]
    fn the_format_is_that_which_the_client_prefers() {
        for (accept, expected) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Prometheus),
            ("text/plain;q=0.9, application/openmetrics-text;q=0.5", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text;q=NaN", Format::Prometheus),
        ] {
            assert_eq!(format([accept].into_iter()), expected, "{accept}");
        }
    }

    #[test]
    fn what_is_refused_has_a_reason() {
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(MAX_HEADERS + 1));
        for (text, status) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET /metrics HTTP/1.1\r\ncontent-length: 5\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/2.0\r\n\r\n", Status::BadRequest),
            ("NBDMAGIC\0\0\0", Status::BadRequest),
            (long.as_str(), Status::HeadTooLong),
            (many.as_str(), Status::HeadTooLong),
        ] {
            assert_eq!(parsed(text), Err(status), "{text:.40}");
            assert!(explanation(status).len() < 100);
        }
        assert!(head(Status::MethodNotAllowed, "text/plain", 7, false).contains("\r\nAllow: GET, HEAD\r\n"));
    }

    /// Requests of hostile clients: smuggled and folded headers, encodings, other protocols.
    const HOSTILE: [&[u8]; 16] = [
        b"GET /metrics HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: +0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nContent-Length: \xff\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nAccept: a\r\n b: c\r\n\r\n",
        b"GET /metrics HTTP/1.1\nAccept: */*\n\n",
        b"GET /metrics HTTP/1.1\r\nAccept : x\r\n\r\n",
        b"GET /metrics\0 HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"GET https://\xc3\xa4/metrics HTTP/1.1\r\n\r\n",
        b"GET ?#? HTTP/1.1\r\nConnection: ,,;\r\nAccept: ;;q=,=;version,text/plain;q=1e999\r\n\r\n",
        b"\r\n\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"*1\r\n$4\r\nPING\r\n",
    ];

    /// Checks what is promised for any bytes.
    fn check(bytes: &[u8]) {
        let whole = parse(bytes);
        // Another receive can't change what is complete or refused.
        for end in [0, 1, bytes.len() / 2, bytes.len().saturating_sub(1)] {
            match parse(&bytes[..end.min(bytes.len())]) {
                Ok(None) => {}
                earlier => assert_eq!(earlier, whole, "{end} of {}", bytes.escape_ascii()),
            }
        }
        if let Ok(Some(request)) = whole {
            assert!((1..=bytes.len()).contains(&request.length), "{}", bytes.escape_ascii());
        }
    }

    /// Bytes of strangers, and requests with a few bytes changed, removed, repeated, or from another one.
    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let seed = 11;
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let refused = |bytes: &&&[u8]| matches!(parse(bytes), Err(_) | Ok(None));
        assert_eq!(HOSTILE.iter().filter(refused).count(), 11, "the others have another path or odd headers");
        for _ in 0..20_000 {
            let seed = |random: &mut Random| match random.below(3) {
                0 => (0..random.below(200)).map(|_| random.below(256) as u8).collect(),
                1 => SCRAPE.as_bytes().to_vec(),
                _ => HOSTILE[random.below(HOSTILE.len() as u64) as usize].to_vec(),
            };
            let mut bytes = seed(&mut random);
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64 + 1) as usize;
                let end = (at + random.below(9) as usize).min(bytes.len());
                match random.below(4) {
                    0 => bytes[at..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8),
                    1 => drop(bytes.drain(at..end)),
                    2 => bytes.extend_from_within(at..end),
                    _ => drop(bytes.splice(at..end, seed(&mut random))),
                }
            }
            check(&bytes);
        }
    }
}
