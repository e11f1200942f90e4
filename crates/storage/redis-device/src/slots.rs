//! Hash slots (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>) and the table of
//! a cluster, which maps slots to servers.

use crate::failure::unexpected;
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use resp::Reply;
use runtime::net::Address;
use std::net::{IpAddr, SocketAddr};

/// Number of hash slots.
const SLOTS: usize = 16384;
/// Most servers of a cluster: the specification's recommended maximum.
pub(crate) const MAX_SERVERS: usize = 1000;

/// Hash slot of a key without braces.
pub(crate) fn hash_slot(key: &[u8]) -> u16 {
    checksum(CrcAlgorithm::Crc16Xmodem, key) as u16 % SLOTS as u16
}

/// Maps each slot to a server.
pub(crate) struct SlotTable {
    masters: Vec<Address>,
    /// Addresses of replicas, which can also serve the table.
    pub replicas: Vec<Address>,
    /// Index of the master by slot. Empty for a single server without slots, which has all keys.
    slots: Vec<u16>,
}

impl SlotTable {
    /// Table of a single server that isn't part of a cluster.
    pub fn of_one(server: Address) -> Self {
        SlotTable { masters: vec![server], replicas: Vec::new(), slots: Vec::new() }
    }

    pub fn masters(&self) -> &[Address] {
        &self.masters
    }

    /// The master that has a slot.
    pub fn master(&self, slot: u16) -> &Address {
        &self.masters[self.slots.get(usize::from(slot)).map_or(0, |master| usize::from(*master))]
    }

    /// Parses the reply to CLUSTER SLOTS. `responder` is the server that sent it.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a malformed reply, [`Error::Disconnected`] if a slot has no server.
    pub fn parse(reply: &Reply, responder: &Address) -> Result<Self> {
        const NONE: u16 = u16::MAX;
        let malformed = || {
            unexpected_from(
                responder,
                "a malformed reply to CLUSTER SLOTS",
                "ranges of slots, each with its servers",
            )
        };
        let too_many =
            || unexpected_from(responder, "a table with more servers", &format!("{MAX_SERVERS} at most"));
        let Reply::Array(ranges) = reply else { return Err(malformed()) };
        let (mut masters, mut replicas, mut slots) = (Vec::new(), Vec::new(), vec![NONE; SLOTS]);
        for range in ranges {
            let Reply::Array(fields) = range else { return Err(malformed()) };
            let [Reply::Integer(first), Reply::Integer(last), master, others @ ..] = &fields[..] else {
                return Err(malformed());
            };
            let (first, last) = (usize::try_from(*first), usize::try_from(*last));
            let (Ok(first), Ok(last)) = (first, last) else { return Err(malformed()) };
            let range = slots.get_mut(first..=last.min(SLOTS)).ok_or_else(malformed)?;
            range.fill(number_of(endpoint_of(master, responder)?, &mut masters).ok_or_else(too_many)?);
            for other in others {
                number_of(endpoint_of(other, responder)?, &mut replicas).ok_or_else(too_many)?;
            }
        }
        match slots.iter().position(|master| *master == NONE) {
            Some(slot) => {
                Err(Error::disconnected(format!("cluster of {responder}: slot {slot} has no server")))
            }
            None => Ok(SlotTable { masters, replicas, slots }),
        }
    }
}

fn unexpected_from(responder: &Address, found: &str, expected: &str) -> Error {
    unexpected(found, expected).in_context(format!("redis server {responder}"))
}

/// Index of a server in a list, to which it is added if it is missing; `None` if the list is full.
fn number_of(server: Address, servers: &mut Vec<Address>) -> Option<u16> {
    let known = servers.iter().position(|known| *known == server).unwrap_or_else(|| {
        servers.push(server);
        servers.len() - 1
    });
    (servers.len() <= MAX_SERVERS).then_some(known as u16)
}

/// Parses the address of a server from an entry of CLUSTER SLOTS.
fn endpoint_of(entry: &Reply, responder: &Address) -> Result<Address> {
    let malformed = || unexpected_from(responder, "a malformed server in CLUSTER SLOTS", "a host and a port");
    let Reply::Array(fields) = entry else { return Err(malformed()) };
    let (host, port) = match &fields[..] {
        [Reply::Bulk(Some(host)), Reply::Integer(port), ..] => (String::from_utf8_lossy(host), port),
        [Reply::Bulk(None), Reply::Integer(port), ..] => ("".into(), port),
        _ => return Err(malformed()),
    };
    endpoint(&host, &port.to_string(), responder)
}

/// Address of a server that `responder` named. Without a host it is on the machine of `responder`.
pub(crate) fn endpoint(host: &str, port: &str, responder: &Address) -> Result<Address> {
    let ip = match (host, responder) {
        ("" | "?", Address::Tcp(responder)) => Some(responder.ip()),
        _ => host.parse::<IpAddr>().ok(),
    };
    match (ip, port.parse::<u16>()) {
        (Some(ip), Ok(port)) => Ok(Address::Tcp(SocketAddr::new(ip, port))),
        _ => Err(Error::protocol(format!(
            "redis server {responder}: it names a server \"{}\", port \"{}\": expected a numeric address and a port; set \
             cluster-preferred-endpoint-type ip there",
            crate::failure::shown(host),
            crate::failure::shown(port)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The check value of the specification, appendix A.
        assert_eq!(checksum(CrcAlgorithm::Crc16Xmodem, b"123456789") as u16, 0x31C3);
        // Results of CLUSTER KEYSLOT.
        assert_eq!([hash_slot(b"foo"), hash_slot(b"hello"), hash_slot(b"")], [12182, 866, 0]);
    }

    fn responder() -> Address {
        "10.0.0.1:7000".parse().unwrap()
    }

    fn parse(text: &str) -> Result<SlotTable> {
        let (reply, _) = resp::parse(text.as_bytes(), 1 << 20).unwrap().unwrap();
        SlotTable::parse(&reply, &responder())
    }

    #[test]
    fn a_table_has_a_server_for_every_slot() {
        let table = parse(
            "*2\r\n*4\r\n:0\r\n:100\r\n*3\r\n$0\r\n\r\n:1\r\n$1\r\na\r\n*2\r\n$8\r\n10.0.0.9\r\n:9\r\n\
             *3\r\n:101\r\n:16383\r\n*2\r\n$3\r\n::1\r\n:2\r\n",
        );
        let table = table.unwrap();
        assert_eq!(table.master(100).to_string(), "10.0.0.1:1", "without a host, the responder's");
        assert_eq!(table.master(101).to_string(), "[::1]:2");
        assert_eq!(table.master(16383).to_string(), "[::1]:2");
        assert_eq!(table.replicas[0].to_string(), "10.0.0.9:9");
    }

    #[test]
    fn hostile_tables_are_errors() {
        let server = "*2\r\n$8\r\n10.0.0.9\r\n:9\r\n";
        for text in [
            "*0\r\n".to_owned(),
            ":1\r\n".to_owned(),
            "*1\r\n*0\r\n".to_owned(),
            format!("*1\r\n*3\r\n:0\r\n:16384\r\n{server}"),
            format!("*1\r\n*3\r\n:-1\r\n:16383\r\n{server}"),
            format!("*1\r\n*3\r\n:9223372036854775807\r\n:9223372036854775807\r\n{server}"),
            format!("*1\r\n*3\r\n:5\r\n:0\r\n{server}"),
            format!("*1\r\n*3\r\n:0\r\n:16382\r\n{server}"),
            "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$4\r\nhost\r\n:9\r\n".to_owned(),
            "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:65536\r\n".to_owned(),
        ] {
            assert!(parse(&text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_numbers_are_a_table_or_an_error(ranges in prop::collection::vec((any::<i16>(), any::<i16>(), any::<i32>()), 0..9)) {
            let mut text = format!("*{}\r\n", ranges.len());
            for (first, last, port) in ranges {
                text += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$-1\r\n:{port}\r\n");
            }
            let _ = parse(&text);
        }
    }
}
