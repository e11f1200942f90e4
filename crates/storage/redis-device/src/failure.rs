//! Classification of failed commands: error replies, and connections that end.

use crate::slots::endpoint;
use block::Error;
use resp::Reply;
use runtime::net::Address;

/// Action after a failure. A server that sent an error reply didn't carry out the command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another server has the slot.
    Moved(Address),
    /// Another server has this key while its slot is being moved there.
    Ask(Address),
    /// Retry after a pause; the error is returned when the time limit ends.
    Later(Error),
    /// The command fails.
    Final(Error),
}

impl Failure {
    /// Classifies the answer to a command, which may be sent again later if it `is_repeatable`.
    pub fn of(answer: block::Result<Reply>, is_repeatable: bool, server: &Address) -> Result<Reply, Self> {
        Err(match answer {
            Ok(Reply::Error(text)) => Failure::parse(&text, server),
            Err(error @ (Error::Protocol(_) | Error::PermissionDenied(_) | Error::Invalid(_))) => {
                Failure::Final(error)
            }
            Err(error) if is_repeatable => Failure::Later(error),
            Err(error) => Failure::Final(error),
            Ok(reply) => return Ok(reply),
        })
    }

    /// Parses an error reply. `responder` is the server that sent it.
    pub fn parse(text: &str, responder: &Address) -> Self {
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        let said = format!("redis server {responder}: {}", shown(text));
        match code {
            "MOVED" | "ASK" => {
                let target = rest.split(' ').nth(1).and_then(|target| target.rsplit_once(':'));
                match target.map(|(host, port)| endpoint(host, port, responder)) {
                    Some(Ok(address)) if code == "ASK" => Failure::Ask(address),
                    Some(Ok(address)) => Failure::Moved(address),
                    Some(Err(error)) => Failure::Final(error),
                    None => Failure::Final(Error::protocol(said)),
                }
            }
            "TRYAGAIN" | "LOADING" | "BUSY" => Failure::Later(Error::busy(said)),
            "CLUSTERDOWN" | "MASTERDOWN" | "NOREPLICAS" => Failure::Later(Error::disconnected(said)),
            "READONLY" => Failure::Later(Error::read_only(said)),
            "OOM" => Failure::Final(Error::no_space(said)),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Failure::Final(Error::permission_denied(format!(
                "{said}; expected username and password_file of a user who may use the commands getrange, setrange, strlen, unlink, info, cluster \
                 slots and asking, and the keys of the device"
            ))),
            "WRONGTYPE" => Failure::Final(Error::invalid(format!("{said}; give the device another name"))),
            _ => Failure::Final(Error::io(said)),
        }
    }
}

/// Error for a valid reply that doesn't match its command.
pub(crate) fn unexpected(found: &str, expected: &str) -> Error {
    Error::protocol(format!(
        "unexpected reply: {found}; expected {expected}; check that it is a Redis or Valkey server"
    ))
}

/// Returns the first 200 characters of a received text, with control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_say_what_to_do() {
        let responder: Address = "10.0.0.1:7000".parse().unwrap();
        let parse = |text| Failure::parse(text, &responder);
        assert_eq!(parse("MOVED 866 10.0.0.2:7001"), Failure::Moved("10.0.0.2:7001".parse().unwrap()));
        assert_eq!(parse("MOVED 866 :7001"), Failure::Moved("10.0.0.1:7001".parse().unwrap()));
        assert_eq!(parse("ASK 866 ::1:7001"), Failure::Ask("[::1]:7001".parse().unwrap()));
        for text in ["MOVED", "MOVED 866", "ASK 1 x", "MOVED 866 a-host:7001", "ASK 866 10.0.0.1:99999"] {
            assert!(matches!(parse(text), Failure::Final(Error::Protocol(_))), "{text}");
        }
        assert!(matches!(parse("OOM command not allowed"), Failure::Final(Error::NoSpace(_))));
        assert!(matches!(parse("CLUSTERDOWN Hash slot not served"), Failure::Later(_)));
        let Failure::Final(Error::Io(detail)) = parse(&format!("ERR \x1b[31m{}", "x".repeat(5000))) else {
            panic!("an error that isn't known")
        };
        assert!(detail.len() < 300 && !detail.contains('\x1b'), "{detail}");
    }
}
