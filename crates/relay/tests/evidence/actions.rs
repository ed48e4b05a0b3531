//! What can happen next.

use crate::mistake::Mistake;
use crate::scenario::Change;
use crate::step::may_confirm;
use crate::system::{Action, Attempt, Marking, Model, Op, Process, System};

impl System {
    /// Adds the actions that are possible next: those of progress first.
    pub(crate) fn actions(&self, model: &Model, actions: &mut Vec<Action>) {
        let scenario = &model.scenario;
        let next = scenario.work.get(usize::from(self.committed));
        if next.is_some_and(|rows| rows.iter().all(|row| !self.has_key(row.event.key))) {
            actions.push(Action::Commit);
        }
        for process in 0..2 {
            if self.prunes[usize::from(process)].is_some() {
                actions.push(Action::Prune(process));
            }
        }
        let mut ops = Vec::new();
        for number in 0..self.relays.len() as u8 {
            ops.clear();
            self.ops(usize::from(number), model, &mut ops);
            actions.extend(ops.iter().map(|op| Action::Relay(number, *op)));
        }
        if self.snapshots > 0 && scenario.marks {
            actions.push(Action::PruneMarked);
        }
        if self.snapshots > 0 && !scenario.marks {
            // The processes are alike.
            if let Some(process) = self.prunes.iter().position(Option::is_none) {
                let own = 0..self.relays.len() as u8;
                actions.extend(own.map(|own| Action::TakeSnapshot(process as u8, own)));
            }
        }
        if self.changes > 0 {
            for change in scenario.changes.0 {
                let indexes = match change {
                    Change::Insert | Change::InsertSame | Change::Attach => 0..1,
                    _ => 0..self.rows.len() as u8,
                };
                actions.extend(indexes.map(|row| Action::Change(*change, row)));
            }
        }
    }

    /// Adds what can happen to a relay next.
    fn ops(&self, number: usize, model: &Model, ops: &mut Vec<Op>) {
        let relay = &self.relays[number];
        let stream = relay.process.as_ref().and_then(|process| process.reads);
        if stream.is_none() {
            if relay.note >= relay.slot || model.has(Mistake::IgnoreNote) {
                ops.push(Op::Connect);
            } else {
                ops.push(Op::AcceptGap);
            }
            if self.lost > 0 {
                ops.push(Op::SetBack);
            }
        }
        match &relay.process {
            Some(process) => self.process_ops(number, process, model, ops),
            None if self.moves > 0 => ops.push(Op::Move),
            None => {}
        }
        if relay.letters.open != 0 {
            ops.push(Op::Resolve);
        }
        if relay.late.is_some() {
            ops.push(Op::AddLate);
        }
        if self.ddl > 0 {
            ops.extend([Op::Filter, Op::Publish]);
        }
    }

    fn process_ops(&self, number: usize, process: &Process, model: &Model, ops: &mut Vec<Op>) {
        let view = model.processes.view(process.state);
        ops.extend((0..view.in_flight.len() as u8).map(Op::Ack));
        if let Some(reads) = process.reads {
            if usize::from(reads) < self.log.len() {
                ops.push(Op::Read);
                let rows = self.carried(number, reads).rows.into_iter().flatten();
                if self.crashes > 0 {
                    ops.extend((1..=rows.count() as u8).map(Op::Cut));
                }
            }
            match process.attempt {
                None if may_confirm(process, view, model) > process.noted || process.fails => {
                    ops.push(Op::Note);
                }
                None => {}
                Some(Attempt { adds, .. }) => {
                    ops.push(if adds { Op::Add } else { Op::Raise });
                    if self.lost > 0 {
                        ops.extend([true, false].map(|executed| Op::LoseAnswer { executed }));
                    }
                }
            }
            let early = process.attempt.map_or(0, |attempt| attempt.position);
            let is_early =
                model.has(Mistake::ConfirmBeforeAccount) && early > self.relays[number].slot;
            if process.noted > self.relays[number].slot || is_early {
                ops.push(Op::Confirm);
            }
            if self.crashes > 0 {
                ops.extend([Op::Disconnect, Op::FailSink]);
            }
        }
        match process.marking {
            Marking::Idle if view.settled.is_some() => ops.push(Op::TakeKeys),
            Marking::Idle => {}
            Marking::Taken => {
                ops.push(Op::Mark);
                if self.lost > 0 {
                    ops.push(Op::Store);
                }
            }
            Marking::Done => {
                ops.push(Op::Settle);
                if self.lost > 0 {
                    ops.push(Op::LoseMarks);
                }
            }
        }
        if !self.stored.is_empty() {
            ops.push(Op::WorkOff);
        }
        if !self.dead.is_empty() {
            ops.push(Op::WorkDead);
        }
        if self.crashes > 0 {
            ops.push(Op::Kill);
        }
    }
}
