//! The rows of tokens.

use session_core::StoreResult;
use session_core::token::{Subject, TokenRecord};

use super::RowReader;

row! {
    /// A token.
    TokenRow, token_columns {
        id: String,
        digest: String,
        name: String,
        runner: Option<String>,
        principal: String,
        verbs: String,
        created_at_ms: i64,
        expires_at_ms: Option<i64>,
        revoked_at_ms: Option<i64>,
        parent: Option<String>,
    }
}

impl TokenRow {
    pub(crate) fn value(self) -> StoreResult<TokenRecord> {
        let row = RowReader { table: "tokens", row: &self.id, seq: None };
        let runner = row.maybe("runner", self.runner.as_deref())?;
        Ok(TokenRecord {
            id: row.parse("id", &self.id)?,
            digest: row.parse("digest", &self.digest)?,
            name: row.parse("name", &self.name)?,
            subject: runner.map_or(Subject::Principal, Subject::Runner),
            principal: row.parse("principal", &self.principal)?,
            verbs: row.parse("verbs", &self.verbs)?,
            created_at: row.time("created_at_ms", self.created_at_ms)?,
            expires_at: row.maybe_time("expires_at_ms", self.expires_at_ms)?,
            revoked_at: row.maybe_time("revoked_at_ms", self.revoked_at_ms)?,
            parent: row.maybe("parent", self.parent.as_deref())?,
        })
    }
}
