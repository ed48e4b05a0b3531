//! The value of the position header.
//!
//! The value is the event's position in the WAL of one replication slot, with the epoch in the top byte
//! ([`PublishedLsn`](walrelay_sink::PublishedLsn)). Byte by byte, values are
//! ordered as the events were committed. A repeated delivery has the same value as the first.

use crate::value::Event;

/// Length of a value in bytes: 16 hexadecimal digits, a slash, 8 hexadecimal digits.
pub(crate) const LENGTH: usize = 25;

const LSN_DIGITS: usize = 16;

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// Writes the published LSN of the commit record, a slash, and the number of the row in its transaction, from
/// 0.
///
/// All rows of a transaction from number 2³² - 1 on have that number.
pub(crate) fn text(event: &Event) -> [u8; LENGTH] {
    let mut text = [b'/'; LENGTH];
    let (lsn, row) = text.split_at_mut(LSN_DIGITS);
    hexadecimal(lsn, event.position().published_lsn().get());
    if let [_, row @ ..] = row {
        hexadecimal(row, event.row.min(u64::from(u32::MAX)));
    }
    text
}

fn hexadecimal(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use walrelay_lsn::Lsn;
    use walrelay_pgoutput::PgTimestamp;
    use walrelay_sink::MAX_EVENT_LSN;

    use super::*;

    fn text_of(commit_lsn: u64, row: u64) -> [u8; LENGTH] {
        text(&Event {
            epoch: 0,
            commit_lsn: Lsn::new(commit_lsn),
            row,
            commit_time: PgTimestamp::new(0),
        })
    }

    #[test]
    fn values_compare_as_bytes_in_the_order_of_the_log() {
        assert_eq!(&text_of(0x1_016B_3748, 12), b"00000001016B3748/0000000C");
        let highest = MAX_EVENT_LSN.get();
        assert_eq!(&text_of(highest, u64::MAX), b"00FFFFFFFFFFFFFF/FFFFFFFF");
        let numbers = [0, 1, 9, 10, 15, 16, 255, 256, 0xFFFF, 0x1_0000, 0xFFFF_FFFF];
        let lsns = numbers.into_iter().chain([1 << 32, 1 << 55, highest]);
        let events: Vec<(u64, u64)> = lsns.flat_map(|lsn| numbers.map(|row| (lsn, row))).collect();
        assert!(events.is_sorted());
        let values: Vec<_> = events
            .iter()
            .map(|(lsn, row)| text_of(*lsn, *row))
            .collect();
        assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
