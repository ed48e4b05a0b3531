//! The effect of each action: the relay's part as in `walrelay-postgres-source` (`source/notes`,
//! `source/mod.rs`, `mark`), the rest as by Postgres.

use std::collections::BTreeSet;

use crate::database::{BucketNumbers, Event, IN_PLACE, Mark, Row, Snapshot, Version};
use crate::machine::{Batch, Carried, Input, START, View};
use crate::mistake::Mistake;
use crate::relay::Processes;
use crate::scenario::Change;
use crate::system::{Action, Attempt, Marking, Model, Op, Process, Relay, System, Transaction};

impl System {
    pub(crate) fn carried(&self, relay: usize, number: u8) -> Carried {
        let Transaction { mut rows, carried } = self.log[usize::from(number)];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = row.filter(|_| carried[relay] & 1 << at != 0);
            if let Some(row) = row {
                let in_place = row.refused_by & IN_PLACE;
                row.refused_by = (row.refused_by >> relay & 1) * (1 | in_place);
            }
        }
        Carried { number, rows }
    }

    /// Returns the system after `action`, or the broken promise.
    pub(crate) fn step(&self, action: Action, model: &mut Model) -> Result<System, String> {
        let mut next = self.clone();
        match action {
            Action::Commit => {
                let mut rows = [None; 2];
                let work = model.scenario.work[usize::from(self.committed)];
                rows.iter_mut()
                    .zip(work)
                    .for_each(|(to, row)| *to = Some(*row));
                next.committed += 1;
                next.insert(rows, true);
            }
            Action::Relay(number, op) => next.relay_step(usize::from(number), op, model)?,
            Action::Change(change, row) => next.change(change, row.into()),
            Action::TakeSnapshot(process, own) => {
                next.snapshots -= 1;
                next.prunes[usize::from(process)] = Some(Snapshot::take(self, own));
            }
            Action::Prune(process) => {
                let seen = next.prunes[usize::from(process)].take();
                next.prune(seen.expect("its snapshot was taken"), model)?;
            }
            Action::PruneMarked => {
                next.snapshots -= 1;
                next.prune_marked()?;
            }
        }
        next.renumber_places();
        Ok(next)
    }

    /// Commits a transaction. `logged`: it is written into the published table.
    fn insert(&mut self, rows: [Option<Row>; 2], logged: bool) {
        for row in rows.into_iter().flatten() {
            self.add_version(row.event, Mark::None);
        }
        if !logged {
            return;
        }
        let mut carried = [0; 2];
        for (bits, relay) in carried.iter_mut().zip(&self.relays) {
            for (at, row) in rows.iter().enumerate() {
                let passes = |row: &Row| !relay.is_filtered || row.event.payload == 0;
                if relay.is_published && row.as_ref().is_some_and(passes) {
                    *bits |= 1 << at;
                }
            }
        }
        self.log.push(Transaction { rows, carried });
    }

    fn add_version(&mut self, event: Event, mark: Mark) {
        let place = self.next_place;
        self.next_place += 1;
        self.rows.push(Version { place, event, mark });
        self.rows.sort_unstable_by_key(|row| row.event.key);
    }

    /// Numbers the places anew, so that states do not differ by them alone.
    fn renumber_places(&mut self) {
        let seen = self.prunes.iter().flatten().flat_map(Snapshot::rows);
        let places: BTreeSet<u8> = self.rows.iter().chain(seen).map(|row| row.place).collect();
        let number = |place: u8| places.range(..place).count() as u8;
        let seen = self.prunes.iter_mut().flatten();
        for row in self
            .rows
            .iter_mut()
            .chain(seen.flat_map(Snapshot::rows_mut))
        {
            row.place = number(row.place);
        }
        self.next_place = places.len() as u8;
    }

    fn change(&mut self, change: Change, row: usize) {
        let inserted = |key, payload, age| Event { key, payload, age };
        match change {
            Change::Insert | Change::InsertSame => {
                if self.has_key(0) || self.committed == 0 {
                    return;
                }
                let event = inserted(0, 1, u8::from(change == Change::Insert));
                self.insert([Some(Row::from(event)), None], true);
            }
            Change::Attach => {
                if self.has_key(1) {
                    return;
                }
                let event = inserted(1, 0, 1);
                self.insert([Some(Row::from(event)), None], false);
            }
            Change::Delete => drop(self.rows.remove(row)),
            Change::Age | Change::Key | Change::Payload => {
                let mut event = self.rows[row].event;
                match change {
                    Change::Age => event.age ^= 1,
                    Change::Key => event.key ^= 1,
                    _ => event.payload ^= 1,
                }
                if change == Change::Key && self.has_key(event.key) {
                    return;
                }
                self.rows.remove(row);
                self.add_version(event, Mark::None);
            }
        }
        self.changes -= 1;
    }

    fn relay_step(&mut self, number: usize, op: Op, model: &mut Model) -> Result<(), String> {
        let first = self.first_from(self.relays[number].slot);
        let end = self.end();
        let relay = &mut self.relays[number];
        match op {
            Op::AddLate => {
                let batch = relay.late.take().expect("a statement is under way");
                if relay.through == batch.from {
                    relay.add(&batch, model);
                    return self.check_counted(number, model);
                }
            }
            Op::SetBack => {
                self.lost -= 1;
                relay.slot = START;
            }
            Op::Move => {
                self.moves -= 1;
                relay.slot = end;
            }
            Op::Filter => {
                self.ddl -= 1;
                relay.is_filtered = !relay.is_filtered;
            }
            Op::Publish => {
                self.ddl -= 1;
                relay.is_published = !relay.is_published;
            }
            Op::Resolve => {
                relay.letters.resolved |= relay.letters.open;
                relay.letters.open = 0;
            }
            Op::Connect | Op::AcceptGap => {
                if op == Op::AcceptGap {
                    relay.accepted = relay.slot;
                }
                relay.connect(first, model);
                return self.check_start(number);
            }
            Op::WorkOff => {
                let events = std::mem::take(&mut self.stored);
                return self.mark(&events, model);
            }
            Op::WorkDead => return self.mark_dead(model),
            _ => return self.process_step(number, op, model),
        }
        Ok(())
    }

    #[expect(
        clippy::too_many_lines,
        reason = "each arm of the match is one step of the model"
    )]
    fn process_step(&mut self, number: usize, op: Op, model: &mut Model) -> Result<(), String> {
        let mut process = self.relays[number].process.take().expect("a process runs");
        let view = model.processes.view(process.state).clone();
        let mut input = None;
        match op {
            Op::Read | Op::Cut(_) => {
                let reads = process.reads.expect("there is a stream");
                let carried = self.carried(number, reads);
                if let Op::Cut(rows) = op {
                    self.crashes -= 1;
                    process.reads = None;
                    process.attempt = None;
                    input = Some(Input::Cut(carried, rows));
                } else {
                    process.reads = Some(reads + 1);
                    input = Some(Input::Read(carried));
                }
            }
            Op::Ack(nth) => {
                let record = view.in_flight[usize::from(nth)];
                let relay = &mut self.relays[number];
                let bit = 1 << record.insert;
                if record.is_refused {
                    // Its dead letter is in flight from now on.
                } else if record.is_dead_letter {
                    let transaction = &self.log[usize::from(record.insert / 2)];
                    let row = transaction.rows[usize::from(record.insert % 2)];
                    let event = row.expect("the insert has a row").event;
                    relay.diverted |= bit;
                    relay.letters.open |= 1 << event.index();
                } else {
                    relay.acked |= bit;
                }
                input = Some(Input::Ack(nth));
            }
            Op::Note => {
                let position = may_confirm(&process, &view, model);
                process.marked = process.marked.max(position);
                let mut batch = None;
                if !model.scenario.marks {
                    process.state = model.processes.step(process.state, Input::Take);
                    batch = model.processes.view(process.state).batch;
                }
                let limit = batch.filter(|_| !model.has(Mistake::NoteBeyondSums));
                let position = limit.map_or(position, |batch| position.min(batch.to));
                process.attempt = Some(Attempt {
                    position: position.max(process.noted),
                    adds: batch.is_some(),
                });
            }
            Op::Add | Op::Raise | Op::LoseAnswer { .. } => {
                let attempt = process.attempt.expect("an attempt runs");
                let is_lost = op != Op::Add && op != Op::Raise;
                if op != (Op::LoseAnswer { executed: false }) {
                    let relay = &mut self.relays[number];
                    if attempt.adds {
                        relay.add_taken(&view, model);
                    } else {
                        relay.note = relay.note.max(attempt.position);
                    }
                }
                process.attempt = (!is_lost && attempt.adds).then_some(Attempt {
                    adds: false,
                    ..attempt
                });
                if is_lost {
                    self.lost -= 1;
                    process.fails = true;
                } else if !attempt.adds {
                    process.fails = false;
                    process.noted = attempt.position;
                    input = view.batch.map(|_| Input::Written);
                }
                self.check_counted(number, model)?;
            }
            Op::Confirm => {
                let early = process.attempt.map_or(0, |attempt| attempt.position);
                let is_early = model.has(Mistake::ConfirmBeforeAccount);
                let relay = &mut self.relays[number];
                relay.slot = process.noted.max(if is_early { early } else { 0 });
                relay.note = relay.note.max(relay.slot);
            }
            Op::TakeKeys => {
                process.marking = Marking::Taken;
                input = Some(Input::TakeKeys);
            }
            Op::Mark | Op::Store => {
                process.marking = Marking::Done;
                let (mut events, mut dead) = (Vec::new(), Vec::new());
                for key in view.keys.iter().flatten() {
                    let of_kind = if key.is_dead { &mut dead } else { &mut events };
                    of_kind.push(model.event_of(&key.hash));
                }
                self.dead.extend(dead);
                self.dead.sort_unstable_by_key(|event| event.index());
                self.dead.dedup();
                if op == Op::Mark {
                    self.mark(&events, model)?;
                } else {
                    self.lost -= 1;
                    self.stored.extend(events);
                    self.stored.sort_unstable_by_key(|event| event.index());
                    self.stored.dedup();
                }
            }
            Op::Settle => {
                process.marking = Marking::Idle;
                input = Some(Input::Settle);
            }
            Op::LoseMarks => {
                self.lost -= 1;
                process.marking = Marking::Idle;
            }
            Op::Disconnect | Op::FailSink => {
                self.crashes -= 1;
                process.reads = None;
                process.attempt = None;
                input = Some(if op == Op::FailSink {
                    Input::Fail
                } else {
                    Input::Disconnect
                });
            }
            Op::Kill => {
                self.crashes -= 1;
                if model.scenario.late && process.attempt.is_some_and(|attempt| attempt.adds) {
                    self.relays[number].late = view.batch;
                }
                return Ok(());
            }
            _ => unreachable!("it needs no process"),
        }
        if let Some(input) = input {
            process.state = model.processes.step(process.state, input);
        }
        self.relays[number].process = Some(process);
        Ok(())
    }

    /// Marks the rows of these events, and no other rows of their keys.
    fn mark(&mut self, events: &[Event], model: &Model) -> Result<(), String> {
        for event in events {
            let is_row = |row: &Version| {
                let is_same = row.event == *event
                    || model.has(Mistake::MarkByKey) && row.event.key == event.key;
                is_same && row.mark != Mark::Sent
            };
            let Some(found) = self.rows.iter().position(is_row) else {
                continue;
            };
            let row = self.rows.remove(found).event;
            if !self.is_evident(0, row) {
                return Err(format!("E1: {row:?} is marked, and was never sent"));
            }
            self.add_version(row, Mark::Sent);
        }
        Ok(())
    }

    /// Works off the keys of dead letters: marks their rows, and as sent those of resolved ones. The key of a row that
    /// is gone or has another content is deleted.
    fn mark_dead(&mut self, model: &Model) -> Result<(), String> {
        let letters = self.relays[0].letters;
        for event in std::mem::take(&mut self.dead) {
            if !letters.is_open(event) {
                self.mark(&[event], model)?;
                continue;
            }
            let is_row = |row: &Version| {
                let is_of_key = row.event.key == event.key;
                row.event == event || model.has(Mistake::MarkDeadByKey) && is_of_key
            };
            let Some(found) = self.rows.iter().position(is_row) else {
                continue;
            };
            if self.rows[found].mark == Mark::None {
                let row = self.rows.remove(found).event;
                if !letters.is_known(row) {
                    return Err(format!("E5: {row:?} is marked, and has no dead letter"));
                }
                self.add_version(row, Mark::Dead);
            }
            if !model.has(Mistake::ForgetDead) {
                self.dead.push(event);
            }
        }
        Ok(())
    }
}

/// Returns the position that may be confirmed once it is noted: as `PostgresSource::persist_position`.
pub(crate) fn may_confirm(process: &Process, view: &View, model: &Model) -> u16 {
    match view.settled {
        Some(settled) if !model.has(Mistake::MarkAfterConfirm) => {
            view.acknowledged.min(settled.max(process.marked))
        }
        _ => view.acknowledged,
    }
}

impl Relay {
    fn connect(&mut self, first: u8, model: &mut Model) {
        let mut process = self.process.take().unwrap_or(Process {
            state: Processes::start(),
            reads: None,
            noted: 0,
            marked: 0,
            attempt: None,
            fails: false,
            marking: Marking::Idle,
        });
        // Each opening of the account has another token, and the statement names a former one.
        if !model.has(Mistake::LateStatement) {
            self.late = None;
        }
        let (slot, through) = (self.slot, self.through);
        let begin = Input::Begin { slot, through };
        process.state = model.processes.step(process.state, begin);
        process.reads = Some(first);
        process.noted = slot;
        process.fails = false;
        self.note = slot;
        self.process = Some(process);
    }

    /// Adds the taken sums, if they continue the account.
    fn add_taken(&mut self, view: &View, model: &Model) {
        let batch = view.batch.expect("sums were taken");
        if self.through == batch.from || model.has(Mistake::CountTwice) {
            self.add(&batch, model);
        }
    }

    fn add(&mut self, batch: &Batch, model: &Model) {
        let mut sums = batch.sums;
        let [first, second] = &mut sums.0;
        if model.has(Mistake::ForgetBucket) && *first != BucketNumbers::default() {
            *second = BucketNumbers::default();
        }
        let settled = self.sums.0.map(|bucket| bucket.is_settled);
        self.through = batch.to;
        self.sums += sums;
        if model.has(Mistake::StaySettled) {
            for (bucket, is_settled) in self.sums.0.iter_mut().zip(settled) {
                bucket.is_settled = is_settled;
            }
        }
        self.added += sums.total();
    }
}
