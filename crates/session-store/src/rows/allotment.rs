//! The rows of allotments.

use session_core::StoreResult;
use session_core::budget::Allotment;
use session_core::ids::SessionId;

use super::{RowReader, usage};

row! {
    /// What a session has for a child.
    AllotmentRow, allotment_columns {
        child: String,
        parent: String,
        tokens_given: i64,
        tool_calls_given: i64,
        turns_given: i64,
        cost_micros_given: i64,
        tokens_booked: i64,
        tool_calls_booked: i64,
        turns_booked: i64,
        cost_micros_booked: i64,
        open: i64,
    }
}

impl AllotmentRow {
    /// The parent, and what it has for the child.
    pub(crate) fn value(self) -> StoreResult<(SessionId, Allotment)> {
        let row = RowReader { table: "allotments", row: &self.child, seq: None };
        let given = [self.tokens_given, self.tool_calls_given, self.turns_given, self.cost_micros_given];
        let booked = [self.tokens_booked, self.tool_calls_booked, self.turns_booked, self.cost_micros_booked];
        let parent = row.parse("parent", &self.parent)?;
        Ok((parent, Allotment { given: usage(given), booked: usage(booked), open: self.open != 0 }))
    }
}
