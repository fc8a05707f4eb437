//! The rows of runners.

use session_core::StoreResult;
use session_core::affinity::RunnerProfile;
use session_core::run::Epoch;
use session_core::runner::RunnerRecord;

use super::RowReader;

row! {
    /// A runner.
    RunnerRow, runner_columns {
        id: String,
        hostname: String,
        executors: String,
        project_dirs: Option<String>,
        version: String,
        instance: i64,
        draining: i64,
        registered_at_ms: i64,
        seen_at_ms: i64,
    }
}

impl RunnerRow {
    pub(crate) fn value(self) -> StoreResult<RunnerRecord> {
        let row = RowReader { table: "runners", row: &self.id, seq: None };
        let profile = RunnerProfile {
            id: row.parse("id", &self.id)?,
            hostname: row.parse("hostname", &self.hostname)?,
            executors: row.json("executors", serde_json::from_str(&self.executors))?,
            project_dirs: self
                .project_dirs
                .as_deref()
                .map(|text| row.json("project_dirs", serde_json::from_str(text)))
                .transpose()?,
        };
        Ok(RunnerRecord {
            profile,
            version: row.parse("version", &self.version)?,
            instance: Epoch(row.number("instance", self.instance)?),
            draining: self.draining != 0,
            registered_at: row.time("registered_at_ms", self.registered_at_ms)?,
            seen_at: row.time("seen_at_ms", self.seen_at_ms)?,
        })
    }
}
