//! The rows of callbacks.

use session_core::StoreResult;
use session_core::event::Payload;
use session_core::family::Callback;

use super::RowReader;

row! {
    /// A callback.
    CallbackRow, callback_columns {
        run_id: String,
        child: String,
        parent: String,
        at_ms: i64,
        payload: String,
    }
}

impl CallbackRow {
    pub(crate) fn value(self) -> StoreResult<Callback> {
        let row = RowReader { table: "callbacks", row: &self.run_id, seq: None };
        Ok(Callback {
            run: row.parse("run_id", &self.run_id)?,
            child: row.parse("child", &self.child)?,
            parent: row.parse("parent", &self.parent)?,
            at: row.time("at_ms", self.at_ms)?,
            payload: Payload::from_record(self.payload),
        })
    }
}
