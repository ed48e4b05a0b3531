//! The effect of each action: the pipeline's part as in `crates/relay/src/pipeline`, the rest as by
//! servers and brokers.

use crate::core::{Input, Output, Start, StateId};
use crate::log::Piece;
use crate::mistake::Mistake;
use crate::system::{Action, Connection, Model, Phase, Process, Queue, SinkSession, System};

impl System {
    /// Returns the system after `action`, or the broken promise.
    pub(crate) fn step(&self, action: Action, model: &mut Model) -> Result<System, String> {
        let mut next = self.clone();
        match action {
            Action::Connect => next.connect(model)?,
            Action::Frame => next.frame(model)?,
            Action::Full => {
                let connection = next.connected();
                connection.swapped = Some(connection.at);
            }
            Action::Report => next.report(model)?,
            Action::Receive => {
                let connection = next.connected();
                connection.under_way = false;
                let reported = connection.reported;
                next.slot = next.slot.max(reported);
            }
            Action::Keepalive => next.keepalive(model)?,
            Action::Ack { partition, nth } => {
                let (seq, row) = next.deliver(partition, nth, model)?;
                next.acked |= 1 << row;
                next.input(Input::Ack(seq), model)?;
                let lsn = model.log.rows[usize::from(row)].lsn;
                if model.has(Mistake::ConfirmRow) {
                    next.sink().row = lsn;
                }
            }
            Action::Nack {
                partition,
                nth,
                appended,
            } => next.fail(partition, nth, appended, model)?,
            Action::SeeFailure => next.settle(),
            Action::DropSink { received, reach } => next.drop_sink(received, reach, model)?,
            Action::Disconnect { received } => {
                next.faults -= 1;
                next.lose_connection(received, model)?;
            }
            Action::Restart { to } => {
                next.faults -= 1;
                if matches!(next.process.phase, Phase::Settling { .. }) {
                    next.process.connection = None;
                } else if next.process.connection.is_some() {
                    next.lose_connection(false, model)?;
                }
                next.slot = to;
                next.durable = to;
            }
            Action::Crash { received, reach } => {
                next.faults -= 1;
                next.status_arrives(received);
                next.leave_behind(reach);
                next.process = Process::default();
            }
            Action::Late { request } => {
                let (partition, rows) = next.late.remove(usize::from(request));
                for row in rows {
                    next.append(partition, row, true, model)?;
                }
            }
            Action::Drain => {
                next.drains -= 1;
                next.process.phase = Phase::Draining;
            }
            Action::Stop => next.stop(model)?,
        }
        next.forget(model);
        Ok(next)
    }

    /// Resets data that makes no difference any more, so that fewer states differ.
    fn forget(&mut self, model: &Model) {
        if self.faults < model.faults {
            // "No duplicates" is promised only while no fault happened.
            self.enqueued = 0;
        }
        if self.faults == 0 {
            // No restart can set the slot back any more.
            self.durable = 0;
        }
        // Of late requests only those with a row that was not delivered yet make a difference.
        let partitions = &self.partitions;
        self.late.retain(|(partition, rows)| {
            let reached = partitions[*partition].reached;
            rows.iter()
                .any(|row| model.log.rows[usize::from(*row)].place >= reached)
        });
        if let Some(session) = &mut self.process.session {
            for queue in &mut session.queues {
                // A sink with a failed record takes no more records, so a limit at the end of the
                // queue has no effect.
                queue.limit = queue
                    .limit
                    .filter(|limit| usize::from(*limit) < queue.records.len());
            }
        }
    }

    fn connected(&mut self) -> &mut Connection {
        let connection = self.process.connection.as_mut();
        connection.expect("this happens on a connection")
    }

    fn sink(&mut self) -> &mut SinkSession {
        let session = self.process.session.as_mut();
        session.expect("this happens to a sink")
    }

    fn input(&mut self, input: Input, model: &mut Model) -> Result<Output, String> {
        let session = self.sink();
        let (state, output) = model.step(session.core, input)?;
        session.core = state;
        Ok(output)
    }

    fn connect(&mut self, model: &mut Model) -> Result<(), String> {
        // As `Pipeline::check_continuity` with the same WAL.
        let resume = self.process.resume.take();
        if resume.is_some_and(|left| self.slot > left) {
            return Err("the relay stops: somebody moved the slot, it says".to_owned());
        }
        let slot = self.slot;
        let first = self.process.first;
        let acknowledged = self.process.acknowledged;
        let start = Start {
            slot,
            first,
            acknowledged,
        };
        let fresh = |model: &mut Model| model.core.start(start, &model.log);
        match &mut self.process.session {
            None => {
                self.process.session = Some(SinkSession {
                    core: fresh(model),
                    queues: Default::default(),
                    taken: 0,
                    row: 0,
                });
            }
            Some(session) => {
                let idle = session.queues.iter().all(|q| q.records.is_empty());
                if model.has(Mistake::ForgetEnqueued) && idle {
                    session.core = fresh(model);
                }
            }
        }
        self.input(Input::Connected(slot), model)?;
        let first = model.log.from(slot.max(self.process.ahead));
        self.process.connection = Some(Connection {
            at: first,
            announced: false,
            reported: slot,
            under_way: false,
            swapped: None,
            trusted: 0,
        });
        Ok(())
    }

    /// Sends one frame as `SinkSession::send_batch` does.
    fn frame(&mut self, model: &mut Model) -> Result<(), String> {
        let lost_sink_seen = self.process.lost_sink_seen;
        let connection = self.connected();
        let Some(piece) = connection.piece(&model.log) else {
            return Ok(());
        };
        let announced = connection.announced;
        let number = model.log.transaction_of(piece);
        let transaction = &model.log.transactions[number];
        if model.has(Mistake::SkipAfterLostSink) && transaction.commit < lost_sink_seen {
            self.connected().at += 1;
            return Ok(());
        }
        // The table is announced before its first row on a connection.
        let announces = !transaction.rows.is_empty() && !announced;
        let output = self.input(Input::Frame(piece), model)?;
        match (piece, output) {
            (Piece::Begin(_), Output::Done) if announces => {
                self.input(Input::Frame(Piece::Relation), model)?;
                self.connected().announced = true;
            }
            (Piece::Row(row), Output::Offered(seq)) => {
                if model.core.view(self.sink().core).has_failed {
                    // A sink that has reported a failure takes no more records.
                    self.settle();
                    return Ok(());
                }
                self.take(row, seq, model)?;
            }
            (_, Output::Done) => {}
            (_, output) => return Err(format!("the core answers {output:?} to {piece:?}")),
        }
        self.connected().at += 1;
        Ok(())
    }

    /// Makes the sink take a record.
    fn take(&mut self, row: u8, seq: u8, model: &mut Model) -> Result<(), String> {
        // The row was offered once already, as to a full sink.
        let offered = self.input(Input::Taken(row), model)?;
        if offered != Output::Offered(seq) {
            return Err(format!(
                "a row refused as {seq} is offered again as {offered:?}"
            ));
        }
        let bit = 1 << row;
        let known = &model.log.rows[usize::from(row)];
        let id = &known.id;
        if model.log.transactions[known.transaction].commit < self.slot {
            return Err(format!(
                "G3: row {id} is sent again, and the slot is past it"
            ));
        }
        if self.sink().taken & bit != 0 {
            return Err(format!(
                "G3: row {id} is sent again to the sink that took it"
            ));
        }
        // An earlier one of its key that is sent again must not be the last one.
        let rows = &model.log.rows;
        let follows = (0..row).any(|earlier| {
            self.sink().taken & (1 << earlier) != 0 && rows[usize::from(earlier)].key == known.key
        });
        if self.process.acknowledged & bit != 0 && !follows {
            return Err(format!(
                "G3: row {id} is sent again, and it was acknowledged"
            ));
        }
        self.sink().taken |= bit;
        if Some(model.log.position(row)) < self.process.first {
            return Err(format!(
                "G3: row {id} is sent again, and it was acknowledged with all rows before it"
            ));
        }
        if self.enqueued & bit != 0 {
            return Err(format!("G3: row {id} is sent again, and nothing failed"));
        }
        self.enqueued |= bit;
        let key = known.key;
        self.sink().queues[key].records.push((seq, row));
        if let Some(stale) = self.process.stale.iter().position(|known| *known == seq) {
            self.process.stale.remove(stale);
            self.input(Input::Ack(seq), model)?;
        }
        Ok(())
    }

    fn keepalive(&mut self, model: &mut Model) -> Result<(), String> {
        let at = self.connected().at;
        let wal_end = model.log.keepalive(at);
        self.input(Input::Keepalive(wal_end), model)?;
        if model.has(Mistake::TrustKeepalive)
            && model.log.is_inside(at)
            && model.core.view(self.sink().core).in_flight == 0
        {
            self.connected().trusted = wal_end;
        }
        Ok(())
    }

    /// Returns the position that a status update would confirm now.
    fn confirmed(&mut self, model: &mut Model) -> Result<u16, String> {
        self.input(Input::Advance, model)?;
        let session = self.sink();
        let view = *model.core.view(session.core);
        let row = session.row;
        let confirmed = match model.mistake {
            Some(Mistake::ConfirmAtReceipt) => view.seen,
            Some(Mistake::ConfirmRow) if view.in_flight == 0 => view.confirmed.max(row),
            Some(Mistake::TrustKeepalive) => view.confirmed.max(self.connected().trusted),
            _ => view.confirmed,
        };
        self.check_confirmed(confirmed, model)?;
        Ok(confirmed)
    }

    fn report(&mut self, model: &mut Model) -> Result<(), String> {
        let confirmed = self.confirmed(model)?;
        let connection = self.connected();
        if confirmed > connection.reported {
            connection.reported = confirmed;
            connection.under_way = true;
        }
        Ok(())
    }

    fn append(
        &mut self,
        partition: usize,
        row: u8,
        late: bool,
        model: &Model,
    ) -> Result<(), String> {
        let row = &model.log.rows[usize::from(row)];
        let log = &mut self.partitions[partition];
        if row.place > log.reached {
            return Err(format!(
                "G2: row {} is delivered before one of its key that was committed before it",
                row.id
            ));
        }
        // A late request may arrive between other records; it is in order only in itself.
        if !late {
            if row.place > log.next {
                return Err(format!(
                    "G2: a repetition leaves out what comes before row {}",
                    row.id
                ));
            }
            log.next = row.place + 1;
        }
        log.reached = log.reached.max(row.place + 1);
        Ok(())
    }

    /// Makes the broker append the records of a partition up to the `nth`, which is then reported
    /// and removed from the queue.
    fn deliver(&mut self, partition: usize, nth: u8, model: &Model) -> Result<(u8, u8), String> {
        let queue = &self.sink().queues[partition];
        let (from, to) = (usize::from(queue.appended), usize::from(nth) + 1);
        let rows = queue.records[from.min(to)..to].to_vec();
        for (_, row) in rows {
            self.append(partition, row, false, model)?;
        }
        let queue = &mut self.sink().queues[partition];
        queue.appended = queue.appended.max(nth + 1) - 1;
        if let Some(limit) = &mut queue.limit {
            *limit -= 1;
        }
        Ok(queue.records.remove(usize::from(nth)))
    }

    fn fail(
        &mut self,
        partition: usize,
        nth: u8,
        appended: bool,
        model: &mut Model,
    ) -> Result<(), String> {
        if !model.core.view(self.sink().core).has_failed {
            // With `SkipNack` planted the core knows of no failure, so each failure counts as a
            // fault.
            self.faults = self.faults.saturating_sub(1);
        }
        let seq = if appended {
            let (seq, _) = self.deliver(partition, nth, model)?;
            seq
        } else {
            let queue = &mut self.sink().queues[partition];
            queue.records.remove(usize::from(nth)).0
        };
        let queue: &mut Queue = &mut self.sink().queues[partition];
        let now = nth.max(queue.appended);
        queue.limit = Some(queue.limit.map_or(now, |limit| limit.min(now)));
        let report = if model.has(Mistake::SkipNack) {
            Input::Ack(seq)
        } else {
            Input::Nack(seq)
        };
        self.input(report, model)?;
        Ok(())
    }

    fn settle(&mut self) {
        let draining = self.process.phase == Phase::Draining;
        self.process.phase = Phase::Settling { draining };
    }

    fn status_arrives(&mut self, received: bool) {
        if let Some(connection) = &self.process.connection
            && connection.under_way
            && received
        {
            self.slot = self.slot.max(connection.reported);
        }
    }

    fn lose_connection(&mut self, received: bool, model: &mut Model) -> Result<(), String> {
        self.status_arrives(received);
        if model.has(Mistake::StartAhead)
            && let Some(connection) = &self.process.connection
        {
            self.process.ahead = model.log.keepalive(connection.at);
        }
        self.process.connection = None;
        self.input(Input::Disconnected, model)?;
        let view = *model.core.view(self.sink().core);
        self.process.resume = Some(view.confirmed);
        Ok(())
    }

    /// Drops the sink as `Streaming::end_stream` and `Sessions::discard` do.
    fn drop_sink(
        &mut self,
        received: bool,
        reach: [u8; 2],
        model: &mut Model,
    ) -> Result<(), String> {
        if self.process.connection.is_some() {
            let confirmed = self.confirmed(model)?;
            let connection = self.connected();
            connection.reported = confirmed.max(connection.reported);
            connection.under_way = true;
        } else {
            self.input(Input::Advance, model)?;
        }
        self.lose_connection(received, model)?;
        self.check_router_is_clean(model)?;
        if model.has(Mistake::SkipAfterLostSink) {
            self.process.lost_sink_seen = model.core.view(self.sink().core).seen;
        }
        if model.has(Mistake::StaleReport) {
            let queues = self.sink().queues.clone();
            let stale = queues
                .iter()
                .zip(reach)
                .flat_map(|(queue, reach)| &queue.records[..usize::from(reach)])
                .map(|(seq, _)| *seq);
            self.process.stale = stale.collect();
        }
        let view = *model.core.view(self.sink().core);
        self.process.first = view.first_unacknowledged;
        self.process.acknowledged = view.acknowledged;
        if model.has(Mistake::SkipEnqueued) {
            let sent = self.sink().queues.iter().flat_map(|queue| &queue.records);
            let last = sent.map(|(_, row)| model.log.position(*row)).max();
            self.process.first = last.max(self.process.first);
        }
        self.leave_behind(reach);
        self.process.session = None;
        if self.process.phase == (Phase::Settling { draining: true }) {
            self.process = Process::default();
        }
        self.process.phase = Phase::Streaming;
        Ok(())
    }

    /// Checks that the router, which is moved from one core to the next, is as a new one.
    fn check_router_is_clean(&mut self, model: &mut Model) -> Result<(), String> {
        let start = Start {
            slot: self.slot,
            first: None,
            acknowledged: 0,
        };
        let core = self.sink().core;
        let (renewed, _): (StateId, _) = model.step(core, Input::NewSink(start))?;
        if renewed == model.core.start(start, &model.log) {
            Ok(())
        } else {
            Err("the router of a core that is no more differs from a new one".to_owned())
        }
    }

    /// Moves the records in flight of a dropped sink to `late`.
    fn leave_behind(&mut self, reach: [u8; 2]) {
        let Some(session) = &self.process.session else {
            return;
        };
        for (partition, (queue, reach)) in session.queues.iter().zip(reach).enumerate() {
            let rows = &queue.records[usize::from(queue.appended)..usize::from(reach)];
            if !rows.is_empty() {
                let rows = rows.iter().map(|(_, row)| *row).collect();
                self.late.push((partition, rows));
            }
        }
        // Sorted, because late requests may arrive in any order.
        self.late.sort();
    }

    fn stop(&mut self, model: &mut Model) -> Result<(), String> {
        let confirmed = self.confirmed(model)?;
        let view = model.core.view(self.sink().core);
        if view.is_inside || view.in_flight > 0 {
            return Ok(());
        }
        if !model.has(Mistake::StopUnreported) {
            self.slot = self.slot.max(confirmed);
        }
        self.process = Process::default();
        Ok(())
    }

    /// Describes `action` in words.
    pub(crate) fn describe(&self, action: Action, model: &Model) -> String {
        let record = |partition: usize, nth: u8| {
            let session = self.process.session.as_ref();
            let record = session.and_then(|session| {
                let (seq, row) = session.queues[partition].records.get(usize::from(nth))?;
                Some((seq, &model.log.rows[usize::from(*row)].id))
            });
            record.map_or_else(String::new, |(seq, id)| {
                format!("record {seq} (row {id}, key {partition})")
            })
        };
        let status = |received: bool| match (&self.process.connection, received) {
            (Some(connection), true) => format!("; the status {} arrives", connection.reported),
            (Some(connection), false) if connection.under_way => "; the status is lost".to_owned(),
            _ => String::new(),
        };
        match action {
            Action::Connect => format!("the relay connects, the slot stands at {}", self.slot),
            Action::Frame => {
                let connection = self.process.connection.as_ref();
                let piece = connection.and_then(|connection| connection.piece(&model.log));
                match piece {
                    Some(Piece::Begin(number)) => format!("it receives the begin of {number}"),
                    Some(Piece::Row(row)) => {
                        let row = &model.log.rows[usize::from(row)];
                        format!(
                            "it receives row {} of key {} at {}",
                            row.id, row.key, row.lsn
                        )
                    }
                    Some(Piece::Commit(number)) => format!(
                        "it receives the commit of {number}, which ends at {}",
                        model.log.transactions[usize::from(number)].end
                    ),
                    Some(Piece::Relation) | None => String::new(),
                }
            }
            Action::Full => "the sink is full".to_owned(),
            Action::Report => "the relay sends a status".to_owned(),
            Action::Receive => "the server takes the status".to_owned(),
            Action::Keepalive => {
                let at = self.process.connection.as_ref().map_or(0, |c| c.at);
                format!("a keepalive says {}", model.log.keepalive(at))
            }
            Action::Ack { partition, nth } => {
                format!("the broker acknowledges {}", record(partition, nth))
            }
            Action::Nack {
                partition,
                nth,
                appended,
            } => format!(
                "{} is reported as failed, {}",
                record(partition, nth),
                if appended {
                    "though appended"
                } else {
                    "and was not appended"
                }
            ),
            Action::SeeFailure => "the relay sees the failure".to_owned(),
            Action::DropSink { received, .. } => format!(
                "the sink is thrown away{}",
                if received {
                    "; a last status arrives"
                } else {
                    "; a last status is lost"
                }
            ),
            Action::Disconnect { received } => {
                format!("the connection breaks{}", status(received))
            }
            Action::Restart { to } => format!("the server restarts, its slot stands at {to}"),
            Action::Crash { received, .. } => format!("the relay is killed{}", status(received)),
            Action::Late { .. } => "a request of a dead sink is appended".to_owned(),
            Action::Drain => "the relay is asked to stop".to_owned(),
            Action::Stop => "everything is acknowledged, the relay ends".to_owned(),
        }
    }
}
