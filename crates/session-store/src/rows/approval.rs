//! The rows of approvals.

use session_core::StoreResult;
use session_core::approval::{Approval, ApprovalPhase, ApprovalState, Question, Reply, Withdrawal};
use session_core::approvals::{CommandSignature, Verdict};
use session_core::event::Payload;

use super::RowReader;

row! {
    /// An approval.
    ApprovalRow, approval_columns {
        id: String,
        session_id: String,
        principal: String,
        run_id: String,
        tool: String,
        title: String,
        command: Option<String>,
        cwd: Option<String>,
        input: String,
        deadline_at_ms: Option<i64>,
        asked_at_ms: i64,
        state: String,
        closed_at_ms: Option<i64>,
        lasting: Option<i64>,
        answered_by: Option<String>,
        message: Option<String>,
    }
}

impl ApprovalRow {
    pub(crate) fn value(self) -> StoreResult<Approval> {
        let row = RowReader { table: "approvals", row: &self.id, seq: None };
        let question = Question {
            tool: row.parse("tool", &self.tool)?,
            command: self.command(&row)?,
            deadline: row.maybe_time("deadline_at_ms", self.deadline_at_ms)?,
            title: self.title.clone(),
            input: Payload::from_record(self.input.clone()),
        };
        Ok(Approval {
            id: row.parse("id", &self.id)?,
            session: row.parse("session_id", &self.session_id)?,
            principal: row.parse("principal", &self.principal)?,
            run: row.parse("run_id", &self.run_id)?,
            question,
            asked_at: row.time("asked_at_ms", self.asked_at_ms)?,
            state: self.state(&row)?,
        })
    }

    fn command(&self, row: &RowReader<'_>) -> StoreResult<Option<CommandSignature>> {
        let Some(argv) = &self.command else { return Ok(None) };
        let argv = row.json("command", serde_json::from_str(argv))?;
        let cwd = row.needed("cwd", self.cwd.as_deref())?;
        Ok(Some(CommandSignature::new(argv, cwd.into())))
    }

    fn state(&self, row: &RowReader<'_>) -> StoreResult<ApprovalState> {
        let at = || row.needed_time("closed_at_ms", self.closed_at_ms);
        let answered = |verdict| {
            let reply = Reply {
                verdict,
                lasting: row.needed("lasting", self.lasting)? != 0,
                by: row.parse("answered_by", row.needed("answered_by", self.answered_by.as_deref())?)?,
                message: self.message.clone(),
            };
            Ok(ApprovalState::Answered { at: at()?, reply })
        };
        match row.parse("state", &self.state)? {
            ApprovalPhase::Open => Ok(ApprovalState::Open),
            ApprovalPhase::Allowed => answered(Verdict::Allow),
            ApprovalPhase::Denied => answered(Verdict::Deny),
            ApprovalPhase::Expired => Ok(ApprovalState::Withdrawn { at: at()?, why: Withdrawal::Expired }),
            ApprovalPhase::Withdrawn => {
                Ok(ApprovalState::Withdrawn { at: at()?, why: Withdrawal::Withdrawn })
            }
        }
    }
}
