//! Hash slots, and the map that says which node serves which.

use crate::client::error::ProtocolError;
use crate::client::resp::Reply;

/// The number of slots of every cluster.
const SLOTS: usize = 16_384;
/// The polynomial of CRC16-XMODEM, by which the Redis Cluster specification hashes keys.
const POLYNOMIAL: u16 = 0x1021;

/// Host and port.
pub(crate) type Address = (String, u16);

/// Returns the slot of a key. Of a key with `{tag}` only the tag counts, if it is not empty.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS as u16
}

fn tag(key: &[u8]) -> &[u8] {
    let position = |key: &[u8], wanted| key.iter().position(|byte| *byte == wanted);
    let tag = position(key, b'{').and_then(|open| {
        let rest = key.get(open + 1..)?;
        rest.get(..position(rest, b'}')?)
    });
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = table();
    let step = |crc: u16, byte: &u8| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)];
    bytes.iter().fold(0, step)
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc & 0x8000 != 0;
            crc <<= 1;
            if carry {
                crc ^= POLYNOMIAL;
            }
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// A node that serves slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Master {
    pub(crate) address: Address,
    pub(crate) replicas: Vec<Address>,
}

/// The slots that one node serves without a gap.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u16,
    last: u16,
    master: usize,
}

/// The nodes of a cluster, and which of them serves which slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotMap {
    /// In the order of their slots.
    ranges: Vec<Range>,
    masters: Vec<Master>,
}

impl SlotMap {
    /// Reads the reply to `CLUSTER SLOTS`. `asked`: the host of the node, which may not know its own.
    pub(crate) fn parse(reply: &Reply, asked: &str) -> Result<Self, ProtocolError> {
        let mut map = Self {
            ranges: Vec::new(),
            masters: Vec::new(),
        };
        for range in members(reply)? {
            let [first, last, master, replicas @ ..] = members(range)? else {
                return Err(WRONG);
            };
            let (first, last) = (slot_number(first)?, slot_number(last)?);
            if last < first {
                return Err(WRONG);
            }
            let master = Master {
                address: address(master, asked)?,
                replicas: replicas
                    .iter()
                    .map(|replica| address(replica, asked))
                    .collect::<Result<_, _>>()?,
            };
            let known = map.masters.iter();
            let known = known
                .zip(0..)
                .find(|(known, _)| known.address == master.address);
            let number = if let Some((_, number)) = known {
                number
            } else {
                map.masters.push(master);
                map.masters.len() - 1
            };
            map.ranges.push(Range {
                first,
                last,
                master: number,
            });
        }
        map.ranges.sort_unstable_by_key(|range| range.first);
        Ok(map)
    }

    /// Returns the number of the master that serves a slot; `None`: no master does.
    pub(crate) fn master_of(&self, slot: u16) -> Option<usize> {
        let behind = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(behind.checked_sub(1)?)?;
        (slot <= range.last).then_some(range.master)
    }

    /// Returns the nodes that serve slots, by number.
    pub(crate) fn masters(&self) -> &[Master] {
        &self.masters
    }

    /// Returns the addresses of all nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Address> {
        let masters = self.masters.iter();
        masters.flat_map(|master| std::iter::once(&master.address).chain(&master.replicas))
    }

    /// Returns the number of slots that no node serves.
    pub(crate) fn unserved(&self) -> usize {
        let served = |range: &Range| usize::from(range.last - range.first) + 1;
        SLOTS.saturating_sub(self.ranges.iter().map(served).sum())
    }
}

const WRONG: ProtocolError = ProtocolError("no map of slots");

fn members(reply: &Reply) -> Result<&[Reply], ProtocolError> {
    match reply {
        Reply::Array(Some(members)) => Ok(members),
        _ => Err(WRONG),
    }
}

fn slot_number(reply: &Reply) -> Result<u16, ProtocolError> {
    let Reply::Integer(slot) = reply else {
        return Err(WRONG);
    };
    let slot = u16::try_from(*slot).map_err(|_| WRONG)?;
    (usize::from(slot) < SLOTS).then_some(slot).ok_or(WRONG)
}

/// Reads host and port of a node. Null or an empty host is that of the node that was asked.
fn address(reply: &Reply, asked: &str) -> Result<Address, ProtocolError> {
    let [host, Reply::Integer(port), ..] = members(reply)? else {
        return Err(WRONG);
    };
    let host = match host {
        Reply::String(None) => asked,
        Reply::String(Some(host)) if host.is_empty() => asked,
        Reply::String(Some(host)) => str::from_utf8(host).map_err(|_| WRONG)?,
        _ => return Err(WRONG),
    };
    // Of `cluster-preferred-endpoint-type hostname` without a name.
    if host == "?" {
        return Err(ProtocolError("a node of the cluster without its host name"));
    }
    let port = u16::try_from(*port).ok().filter(|port| *port > 0);
    Ok((host.to_owned(), port.ok_or(WRONG)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(crc16(b""), 0);
        for (key, expected) in [("foo", 12_182), ("bar", 5_061), ("hello", 866)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn the_tag_of_a_key_counts() {
        for (key, expected) in [
            ("{user1000}.following", "user1000"),
            ("foo{}{bar}", "foo{}{bar}"),
            ("foo{{bar}}zap", "{bar"),
            ("foo{bar}{zap}", "bar"),
            ("foo{bar", "foo{bar"),
            ("foo}bar{", "foo}bar{"),
            ("{}", "{}"),
        ] {
            assert_eq!(tag(key.as_bytes()), expected.as_bytes(), "{key}");
        }
    }

    fn text(text: &str) -> Reply {
        Reply::String(Some(text.into()))
    }

    fn node(host: Reply, port: i64) -> Reply {
        Reply::Array(Some(vec![host, Reply::Integer(port), text("id")]))
    }

    fn range(first: i64, last: i64, nodes: Vec<Reply>) -> Reply {
        let slots = [Reply::Integer(first), Reply::Integer(last)];
        Reply::Array(Some(slots.into_iter().chain(nodes).collect()))
    }

    #[test]
    fn slots_have_their_masters() {
        let (a, b) = (|| node(text("a"), 1), || node(Reply::String(None), 2));
        let reply = Reply::Array(Some(vec![
            range(9_000, 16_383, vec![a(), node(text("c"), 3)]),
            range(5, 5, vec![b()]),
            range(0, 4, vec![a(), node(text("c"), 3)]),
        ]));
        let map = SlotMap::parse(&reply, "asked").unwrap();
        let master = |slot| {
            let number = map.master_of(slot)?;
            Some(&*map.masters()[number].address.0)
        };
        for (slot, expected) in [
            (0, Some("a")),
            (4, Some("a")),
            (5, Some("asked")),
            (6, None),
            (8_999, None),
            (16_383, Some("a")),
        ] {
            assert_eq!(master(slot), expected, "{slot}");
        }
        assert_eq!(map.masters().len(), 2);
        assert_eq!(map.unserved(), 16_384 - 5 - 1 - 7_384);
        let nodes: Vec<&str> = map.nodes().map(|(host, _)| &**host).collect();
        assert_eq!(nodes, ["a", "c", "asked"]);
    }

    #[test]
    fn a_reply_that_is_no_map_is_refused() {
        let of = |ranges| SlotMap::parse(&Reply::Array(Some(ranges)), "asked");
        assert_eq!(of(Vec::new()).unwrap().unserved(), 16_384);
        for wrong in [
            Reply::Integer(1),
            range(0, 1, Vec::new()),
            range(1, 0, vec![node(text("a"), 1)]),
            range(-1, 1, vec![node(text("a"), 1)]),
            range(0, 16_384, vec![node(text("a"), 1)]),
            range(0, 1, vec![node(text("a"), 0)]),
            range(0, 1, vec![node(text("a"), 65_536)]),
            range(0, 1, vec![node(text("?"), 1)]),
            range(0, 1, vec![node(Reply::Integer(1), 1)]),
            range(0, 1, vec![text("a")]),
        ] {
            assert!(of(vec![wrong.clone()]).is_err(), "{wrong:?}");
        }
    }
}
