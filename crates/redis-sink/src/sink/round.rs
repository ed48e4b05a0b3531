//! A round: records that are written together, and what the servers answer to them.

use super::entry::NewId;
use super::plan::Head;
use crate::client::error::ProtocolError;
use crate::client::link::ServerSlot;
use crate::client::resp::Reply;

pub(super) const WRONG: ProtocolError =
    ProtocolError("something else than the answer to its commands");

/// The first records of the queue, and what becomes of them.
pub(super) struct Round {
    pub(super) heads: Vec<Head>,
    /// The ids that are sent; `None`: the entry exists, or is sent before.
    pub(super) ids: Vec<Option<NewId>>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) parts: Vec<Part>,
}

/// The end of a record in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Its entry exists.
    Stored,
    /// Its stream does not exist any more. Nothing was appended.
    Gone,
    /// The command was refused with this text.
    Refused(Vec<u8>),
    /// It is to be found out: there was no reply, or another record was refused.
    Unknown,
}

/// The records of one server, at least one.
pub(super) struct Part {
    pub(super) server: usize,
    /// The indexes of all records.
    records: Vec<usize>,
    /// No entry was there before.
    pub(super) all_have_ids: bool,
    /// The records of each transaction: those of one place that have an id.
    pub(super) transactions: Vec<Vec<usize>>,
    pub(super) beside: Beside,
}

/// The write that goes to the replicas alongside the transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// The newest id of a stream, before them: if they are refused, it is still the newest.
    NewestId,
    /// A message without a receiver, after them.
    Message,
}

impl Part {
    /// Returns the index of the first record.
    pub(super) fn first(&self) -> Option<usize> {
        self.records.iter().copied().min()
    }
}

impl Round {
    /// Divides records by their places.
    pub(super) fn new(heads: Vec<Head>, ids: Vec<Option<NewId>>, places: &[ServerSlot]) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        // Those of one place stay in the order of the queue.
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|at| places[*at]);
        for records in order.chunk_by(|one, other| places[*one] == places[*other]) {
            let Some(ServerSlot { server, .. }) = records.first().map(|at| places[*at]) else {
                continue;
            };
            if parts.last().is_none_or(|part| part.server != server) {
                parts.push(Part {
                    server,
                    records: Vec::new(),
                    all_have_ids: true,
                    transactions: Vec::new(),
                    beside: Beside::Nothing,
                });
            }
            let Some(part) = parts.last_mut() else {
                continue;
            };
            let written = records.iter().copied().filter(|at| ids[*at].is_some());
            let written: Vec<usize> = written.collect();
            part.all_have_ids &= written.len() == records.len();
            if !written.is_empty() {
                part.transactions.push(written);
            }
            part.records.extend(records);
        }
        Self {
            outcomes: vec![Outcome::Stored; heads.len()],
            heads,
            ids,
            parts,
        }
    }

    /// Reads the replies of a server. Returns that to `WAIT`, if there is one.
    pub(super) fn read(
        &mut self,
        server: usize,
        replies: Vec<Reply>,
    ) -> Result<Option<Reply>, ProtocolError> {
        let part = self.parts.iter().find(|part| part.server == server);
        let Some(part) = part else {
            return Err(WRONG);
        };
        let mut replies = replies.into_iter();
        let mut beside = None;
        if part.beside == Beside::NewestId {
            beside = replies.next();
        }
        for records in &part.transactions {
            let count = match records.len() {
                1 => 1,
                count => count + 2,
            };
            let replies = replies.by_ref().take(count).collect();
            executed(records, replies, &mut self.outcomes)?;
        }
        if part.beside == Beside::Message {
            beside = replies.next();
        }
        if let Some(Reply::Error(text)) = beside {
            self.refuse(server, text);
        }
        Ok(replies.next())
    }

    /// Notes that a server has refused a command that was for all its records: the first stands for
    /// them.
    pub(super) fn refuse(&mut self, server: usize, text: Vec<u8>) {
        let first = self.forget(server);
        let first = first.and_then(|at| self.outcomes.get_mut(at));
        if let Some(outcome @ Outcome::Unknown) = first {
            *outcome = Outcome::Refused(text);
        }
    }

    /// Notes that nothing is known of the records of a server, but of those that were refused. Returns
    /// the first of all.
    pub(super) fn forget(&mut self, server: usize) -> Option<usize> {
        let part = self.parts.iter().find(|part| part.server == server)?;
        for at in &part.records {
            if self.outcomes[*at] == Outcome::Stored {
                self.outcomes[*at] = Outcome::Unknown;
            }
        }
        part.first()
    }

    /// Returns true if a record was refused.
    pub(super) fn has_refusal(&self) -> bool {
        let mut outcomes = self.outcomes.iter();
        outcomes.any(|outcome| matches!(outcome, Outcome::Refused(_)))
    }
}

/// Reads the replies to a transaction.
fn executed(
    records: &[usize],
    mut replies: Vec<Reply>,
    outcomes: &mut [Outcome],
) -> Result<(), ProtocolError> {
    let results = if records.len() == 1 {
        replies
    } else {
        let executed = replies.pop();
        let mut refused = Vec::new();
        // Before the replies to the commands there is that to MULTI.
        for (reply, number) in replies.into_iter().zip(0_usize..) {
            match reply {
                Reply::Status(_) => {}
                Reply::Error(text) => refused.push((number.saturating_sub(1), text)),
                // Without MULTI nothing is a transaction.
                _ if !refused.is_empty() => break,
                _ => return Err(WRONG),
            }
        }
        match executed {
            Some(Reply::Array(Some(results)))
                if refused.is_empty() && results.len() == records.len() =>
            {
                results
            }
            Some(Reply::Error(text)) => {
                if refused.is_empty() {
                    refused.push((0, text));
                }
                for at in records {
                    outcomes[*at] = Outcome::Unknown;
                }
                for (number, text) in refused {
                    outcomes[records[number]] = Outcome::Refused(text);
                }
                return Ok(());
            }
            _ => return Err(WRONG),
        }
    };
    if results.len() != records.len() {
        return Err(WRONG);
    }
    for (at, result) in records.iter().zip(results) {
        match result {
            Reply::String(Some(_)) => {}
            // NOMKSTREAM.
            Reply::String(None) => outcomes[*at] = Outcome::Gone,
            Reply::Error(text) => outcomes[*at] = Outcome::Refused(text),
            _ => return Err(WRONG),
        }
    }
    Ok(())
}
