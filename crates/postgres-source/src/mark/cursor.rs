//! [`KeyCursor`]: the place of a scan of the stored keys, from which some tables are left out for a while.

use std::collections::BTreeMap;

use walrelay_relay::TableName;

use crate::unmarked::After;

/// The place of a scan of the stored keys. A scan takes several passes if there are many keys, or rows fail.
///
/// A table that is left out of a pass gets its own place, and goes on from there: its first keys may be those of rows
/// that fail each time, and would hide all others.
#[derive(Debug, Default)]
pub(super) struct KeyCursor {
    /// The id of the last key that was attempted in this scan; 0 before the first.
    attempted_to: u64,
    /// The last attempted key of each table that was left out of a pass of this scan.
    own: BTreeMap<TableName, u64>,
    /// The tables that are left out of this pass.
    left_out: Vec<TableName>,
}

impl KeyCursor {
    /// Begins a pass without these tables. Returns true if one takes part again that was left out of the last pass.
    pub(super) fn begin_pass(&mut self, left_out: Vec<TableName>) -> bool {
        let former = std::mem::take(&mut self.left_out);
        for table in left_out {
            self.leave_out(table);
        }
        former.iter().any(|table| !self.left_out.contains(table))
    }

    /// Leaves a table out of the rest of this pass.
    pub(super) fn leave_out(&mut self, table: TableName) {
        let own = self.own.entry(table.clone());
        own.or_insert(self.attempted_to);
        self.left_out.push(table);
    }

    /// Returns true if there may be keys that the rest of this pass does not find.
    pub(super) fn may_pass_over(&self) -> bool {
        self.attempted_to > 0 || !self.own.is_empty()
    }

    /// Returns true if a table was left out of a pass of this scan.
    pub(super) fn has_left_out(&self, table: &TableName) -> bool {
        self.own.contains_key(table)
    }

    /// Returns the place of the next page.
    pub(super) fn after(&self) -> After<'_> {
        let (left_out, others): (Vec<_>, Vec<_>) = self
            .own
            .iter()
            .partition(|(table, _)| self.left_out.contains(table));
        After {
            id: self.attempted_to,
            tables: others.into_iter().map(|(table, id)| (table, *id)).collect(),
            left_out: left_out.into_iter().map(|(table, _)| table).collect(),
        }
    }

    /// Notes that the keys of the next page were attempted, up to this id.
    pub(super) fn advance(&mut self, last: u64) {
        self.attempted_to = self.attempted_to.max(last);
        for (table, attempted_to) in &mut self.own {
            if !self.left_out.contains(table) {
                *attempted_to = last.max(*attempted_to);
            }
        }
    }

    /// Begins a new scan, because there is no further page. Tables that are left out keep their places.
    pub(super) fn end_scan(&mut self) {
        self.attempted_to = 0;
        self.own.retain(|table, _| self.left_out.contains(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first keys of one table fail in each pass that it takes part in. Another table has keys at any time.
    #[test]
    fn a_table_that_was_left_out_goes_on_from_its_own_place() {
        let one = TableName::new("s", "one");
        let mut cursor = KeyCursor::default();
        assert!(!cursor.may_pass_over());
        cursor.advance(40);
        assert!(!cursor.begin_pass(vec![one.clone()]));
        cursor.advance(90);
        cursor.end_scan();
        assert!(cursor.has_left_out(&one) && cursor.may_pass_over());
        cursor.begin_pass(vec![one.clone()]);
        cursor.advance(95);
        let after = cursor.after();
        assert_eq!((after.id, &*after.left_out), (95, &[&one][..]));
        // The other keys of the table are attempted in the middle of a scan, and at its end.
        assert!(cursor.begin_pass(Vec::new()));
        let after = cursor.after();
        assert_eq!((after.id, &*after.tables), (95, &[(&one, 40)][..]));
        cursor.advance(60);
        let after = cursor.after();
        assert_eq!((after.id, &*after.tables), (95, &[(&one, 60)][..]));
        cursor.end_scan();
        assert!(!cursor.may_pass_over() && !cursor.has_left_out(&one));
    }
}
