//! Rows as the databases hold them, and the values that they stand for.

use std::error::Error as StdError;
use std::ops::RangeFrom;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use session_core::affinity::{Affinity, Place};
use session_core::budget::{Budget, Usage};
use session_core::event::{Payload, Seq};
use session_core::run::{EndKind, Ending, Epoch, Exit, Lease, Run, RunPhase, RunSpec, RunState, StopOrder};
use session_core::session::{Binding, ForkPoint, Generation, ManagedSession, WorkspaceSpec};
use session_core::{SessionState, StoreError, StoreResult};

/// A value that stands in the next columns of a database's row.
pub(crate) trait Read<R>: Sized {
    fn read(row: &R, columns: &mut RangeFrom<usize>) -> Result<Self, sqlx::Error>;
}

/// One value behind the other.
impl<R, A: Read<R>, B: Read<R>> Read<R> for (A, B) {
    fn read(row: &R, columns: &mut RangeFrom<usize>) -> Result<Self, sqlx::Error> {
        Ok((A::read(row, columns)?, B::read(row, columns)?))
    }
}

/// Declares a row: a struct, how it is read from either database, and, where a name is given for it, a macro with
/// its columns, each behind a prefix, for the statements that read it. One list, so that the orders cannot differ.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident, $columns:ident { $first:ident: $first_type:ty, $($field:ident: $type:ty,)* }) => {
        row! { $(#[$doc])* $name { $first: $first_type, $($field: $type,)* } }

        macro_rules! $columns {
            ($prefix:literal) => {
                concat!($prefix, stringify!($first) $(, ", ", $prefix, stringify!($field))*)
            };
        }
    };
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        row! { @read sqlx::sqlite::SqliteRow, $name { $($field,)* } }
        row! { @read sqlx::postgres::PgRow, $name { $($field,)* } }
    };
    (@read $row:ty, $name:ident { $($field:ident,)* }) => {
        impl $crate::rows::Read<$row> for $name {
            fn read(row: &$row, columns: &mut std::ops::RangeFrom<usize>) -> Result<Self, sqlx::Error> {
                let mut next = || columns.next().unwrap_or_default();
                Ok(Self { $($field: sqlx::Row::try_get(row, next())?,)* })
            }
        }
    };
}

row! {
    /// A session.
    SessionRow, session_columns {
        id: String,
        principal: String,
        state: String,
        state_at_ms: Option<i64>,
        state_until_ms: Option<i64>,
        termination_reason: Option<String>,
        label: Option<String>,
        agent: Option<String>,
        workspace_kind: String,
        project: Option<String>,
        workspace_runner: Option<String>,
        workspace_removed_at_ms: Option<i64>,
        metadata: String,
        tokens_max: i64,
        tool_calls_max: i64,
        turns_max: Option<i64>,
        cost_micros_max: Option<i64>,
        tokens_used: i64,
        tool_calls_used: i64,
        turns_used: i64,
        cost_micros_used: i64,
        parent: Option<String>,
        identity_key: Option<String>,
        generation: Option<i64>,
        previous: Option<String>,
        binding_runner: Option<String>,
        binding_hostname: Option<String>,
        binding_executor: Option<String>,
        binding_executor_session_id: Option<String>,
        binding_project_dir: Option<String>,
        created_at_ms: i64,
        active_at_ms: i64,
        external_key: Option<String>,
        forked_from: Option<String>,
        forked_upto: Option<i64>,
        tokens_reserved: i64,
        tool_calls_reserved: i64,
        turns_reserved: i64,
        cost_micros_reserved: i64,
        sandbox: String,
        binding_resumable_at_ms: Option<i64>,
        depth: i64,
        callback: i64,
        tokens_allotted: i64,
        tool_calls_allotted: i64,
        turns_allotted: i64,
        cost_micros_allotted: i64,
    }
}

row! {
    /// A run.
    RunRow, run_columns {
        id: String,
        session_id: String,
        kind: String,
        argv: String,
        env: String,
        timeout_ms: Option<i64>,
        priority: i64,
        place_key: String,
        executor: String,
        project_dir: Option<String>,
        crew_id: Option<String>,
        waiting_for: i64,
        epoch: i64,
        phase: String,
        runner_id: Option<String>,
        lease_until_ms: Option<i64>,
        stop_mode: Option<String>,
        stop_at_ms: Option<i64>,
        created_at_ms: i64,
        started_at_ms: Option<i64>,
        ended_at_ms: Option<i64>,
        reason: Option<String>,
        exit_code: Option<i64>,
        exit_signal: Option<i64>,
        message: Option<String>,
        sandbox: Option<String>,
        turn: Option<String>,
        claim_by_ms: Option<i64>,
    }
}

row! {
    /// One text.
    TextRow { text: String, }
}

#[macro_use]
mod allotment;
#[macro_use]
mod approval;
#[macro_use]
mod callback;
#[macro_use]
mod event;
#[macro_use]
mod runner;
#[macro_use]
mod token;

pub(crate) use self::allotment::AllotmentRow;
pub(crate) use self::approval::ApprovalRow;
pub(crate) use self::callback::CallbackRow;
pub(crate) use self::event::{EventRow, EventText, LastNames};
pub(crate) use self::runner::RunnerRow;
pub(crate) use self::token::TokenRow;

/// Reads the columns of one row; its errors name table, column and row.
pub(crate) struct RowReader<'a> {
    pub(crate) table: &'static str,
    pub(crate) row: &'a str,
    /// The second half of an event's name.
    pub(crate) seq: Option<i64>,
}

type Cause = Box<dyn StdError + Send + Sync>;

impl RowReader<'_> {
    fn wrong(&self, column: &'static str, source: impl Into<Cause>) -> StoreError {
        let row = self.seq.map_or_else(|| self.row.into(), |seq| format!("{} {seq}", self.row));
        StoreError::Corrupt { table: self.table, column, row, source: source.into() }
    }

    pub(crate) fn text<'t>(&self, column: &'static str, bytes: &'t [u8]) -> StoreResult<&'t str> {
        str::from_utf8(bytes).map_err(|error| self.wrong(column, error))
    }

    fn parse<T>(&self, column: &'static str, text: &str) -> StoreResult<T>
    where
        T: FromStr<Err: Into<Cause>>,
    {
        text.parse().map_err(|error: T::Err| self.wrong(column, error))
    }

    fn maybe<T>(&self, column: &'static str, text: Option<&str>) -> StoreResult<Option<T>>
    where
        T: FromStr<Err: Into<Cause>>,
    {
        text.map(|text| self.parse(column, text)).transpose()
    }

    /// A value that must be there because another column says so.
    fn needed<T>(&self, column: &'static str, value: Option<T>) -> StoreResult<T> {
        value.ok_or_else(|| self.wrong(column, "it is missing"))
    }

    fn time(&self, column: &'static str, milliseconds: i64) -> StoreResult<Timestamp> {
        timestamp(milliseconds).map_err(|error| self.wrong(column, error))
    }

    fn needed_time(&self, column: &'static str, milliseconds: Option<i64>) -> StoreResult<Timestamp> {
        self.time(column, self.needed(column, milliseconds)?)
    }

    fn maybe_time(&self, column: &'static str, milliseconds: Option<i64>) -> StoreResult<Option<Timestamp>> {
        milliseconds.map(|milliseconds| self.time(column, milliseconds)).transpose()
    }

    fn number<T>(&self, column: &'static str, number: i64) -> StoreResult<T>
    where
        T: TryFrom<i64, Error: Into<Cause>>,
    {
        T::try_from(number).map_err(|error| self.wrong(column, error))
    }

    fn json<T>(&self, column: &'static str, read: Result<T, serde_json::Error>) -> StoreResult<T> {
        read.map_err(|error| self.wrong(column, error))
    }
}

impl SessionRow {
    pub(crate) fn value(self) -> StoreResult<ManagedSession> {
        let row = RowReader { table: "sessions", row: &self.id, seq: None };
        let budget = Budget {
            tokens_max: self.tokens_max.cast_unsigned(),
            tool_calls_max: self.tool_calls_max.cast_unsigned(),
            turns_max: self.turns_max.map(i64::cast_unsigned),
            cost_micros_max: self.cost_micros_max.map(i64::cast_unsigned),
        };
        let used = [self.tokens_used, self.tool_calls_used, self.turns_used, self.cost_micros_used];
        let reserved =
            [self.tokens_reserved, self.tool_calls_reserved, self.turns_reserved, self.cost_micros_reserved];
        let allotted =
            [self.tokens_allotted, self.tool_calls_allotted, self.turns_allotted, self.cost_micros_allotted];
        let workspace = WorkspaceSpec {
            kind: row.parse("workspace_kind", &self.workspace_kind)?,
            project: self.project.as_deref().map(Into::into),
            runner: row.maybe("workspace_runner", self.workspace_runner.as_deref())?,
            removed_at: row.maybe_time("workspace_removed_at_ms", self.workspace_removed_at_ms)?,
        };
        Ok(ManagedSession {
            id: row.parse("id", &self.id)?,
            principal: row.parse("principal", &self.principal)?,
            state: self.state(&row)?,
            key: row.maybe("external_key", self.external_key.as_deref())?,
            label: row.maybe("label", self.label.as_deref())?,
            agent: row.maybe("agent", self.agent.as_deref())?,
            workspace,
            sandbox: row.json("sandbox", serde_json::from_str(&self.sandbox))?,
            budget,
            usage: usage(used),
            reserved: usage(reserved),
            allotted: usage(allotted),
            parent: row.maybe("parent", self.parent.as_deref())?,
            depth: row.number("depth", self.depth)?,
            callback: self.callback != 0,
            forked_from: self.forked_from(&row)?,
            generation: self.generation(&row)?,
            binding: self.binding(&row)?,
            created_at: row.time("created_at_ms", self.created_at_ms)?,
            active_at: row.time("active_at_ms", self.active_at_ms)?,
            metadata: Payload::from_record(self.metadata),
        })
    }

    fn state(&self, row: &RowReader<'_>) -> StoreResult<SessionState> {
        let at = || row.needed_time("state_at_ms", self.state_at_ms);
        match self.state.as_str() {
            "active" => Ok(SessionState::Active),
            "idle" => Ok(SessionState::Idle { since: at()? }),
            "suspended" => {
                let expires_at = row.needed_time("state_until_ms", self.state_until_ms)?;
                Ok(SessionState::Suspended { since: at()?, expires_at })
            }
            "terminated" => {
                let reason = row.needed("termination_reason", self.termination_reason.as_deref())?;
                let reason = row.parse("termination_reason", reason)?;
                Ok(SessionState::Terminated { at: at()?, reason })
            }
            _ => Err(row.wrong("state", "it is no state of a session")),
        }
    }

    fn forked_from(&self, row: &RowReader<'_>) -> StoreResult<Option<ForkPoint>> {
        let Some(source) = &self.forked_from else { return Ok(None) };
        let upto = row.number("forked_upto", row.needed("forked_upto", self.forked_upto)?)?;
        Ok(Some(ForkPoint { source: row.parse("forked_from", source)?, upto: Seq(upto) }))
    }

    fn generation(&self, row: &RowReader<'_>) -> StoreResult<Option<Generation>> {
        let Some(key) = &self.identity_key else { return Ok(None) };
        Ok(Some(Generation {
            key: row.parse("identity_key", key)?,
            number: row.number("generation", row.needed("generation", self.generation)?)?,
            previous: row.maybe("previous", self.previous.as_deref())?,
        }))
    }

    fn binding(&self, row: &RowReader<'_>) -> StoreResult<Option<Binding>> {
        let Some(executor) = &self.binding_executor else { return Ok(None) };
        let text = |column, value: &Option<String>| row.needed(column, value.clone());
        let hostname = text("binding_hostname", &self.binding_hostname)?;
        let id = text("binding_executor_session_id", &self.binding_executor_session_id)?;
        Ok(Some(Binding {
            runner: row.maybe("binding_runner", self.binding_runner.as_deref())?,
            hostname: row.parse("binding_hostname", &hostname)?,
            executor: row.parse("binding_executor", executor)?,
            executor_session_id: row.parse("binding_executor_session_id", &id)?,
            project_dir: text("binding_project_dir", &self.binding_project_dir)?.into(),
            resumable: self.binding_resumable_at_ms.is_some(),
        }))
    }
}

/// Columns that hold all 64 bits, in the order of a usage's parts.
fn usage([tokens, tool_calls, turns, cost_micros]: [i64; 4]) -> Usage {
    Usage {
        tokens: tokens.cast_unsigned(),
        tool_calls: tool_calls.cast_unsigned(),
        turns: turns.cast_unsigned(),
        cost_micros: cost_micros.cast_unsigned(),
    }
}

impl RunRow {
    pub(crate) fn value(self) -> StoreResult<Run> {
        let row = RowReader { table: "runs", row: &self.id, seq: None };
        let spec = RunSpec {
            argv: row.json("argv", serde_json::from_str(&self.argv))?,
            env: row.json("env", serde_json::from_str(&self.env))?,
            timeout: self.timeout_ms.map(SignedDuration::from_millis),
            turn: self
                .turn
                .as_deref()
                .map(|turn| row.json("turn", serde_json::from_str(turn)))
                .transpose()?,
        };
        let affinity = Affinity {
            place: place(&row, &self.place_key)?,
            executor: row.parse("executor", &self.executor)?,
            project_dir: self.project_dir.as_deref().map(Into::into),
        };
        let stop = match &self.stop_mode {
            None => None,
            Some(mode) => Some(StopOrder {
                mode: row.parse("stop_mode", mode)?,
                at: row.needed_time("stop_at_ms", self.stop_at_ms)?,
            }),
        };
        Ok(Run {
            id: row.parse("id", &self.id)?,
            session: row.parse("session_id", &self.session_id)?,
            kind: row.parse("kind", &self.kind)?,
            spec,
            priority: row.number("priority", self.priority)?,
            affinity,
            crew: row.maybe("crew_id", self.crew_id.as_deref())?,
            waiting_for: row.number("waiting_for", self.waiting_for)?,
            epoch: Epoch(row.number("epoch", self.epoch)?),
            state: self.state(&row)?,
            stop,
            created_at: row.time("created_at_ms", self.created_at_ms)?,
            claim_by: row.maybe_time("claim_by_ms", self.claim_by_ms)?,
            started_at: row.maybe_time("started_at_ms", self.started_at_ms)?,
            sandbox: self.sandbox.map(Payload::from_record),
        })
    }

    fn state(&self, row: &RowReader<'_>) -> StoreResult<RunState> {
        let lease = || {
            let runner = row.needed("runner_id", self.runner_id.as_deref())?;
            let until = row.needed_time("lease_until_ms", self.lease_until_ms)?;
            Ok::<_, StoreError>(Lease { runner: row.parse("runner_id", runner)?, until })
        };
        let kind = match row.parse("phase", &self.phase)? {
            RunPhase::Pending => return Ok(RunState::Pending),
            RunPhase::Claimed => return Ok(RunState::Claimed(lease()?)),
            RunPhase::Starting => return Ok(RunState::Starting(lease()?)),
            RunPhase::Running => return Ok(RunState::Running(lease()?)),
            RunPhase::Completed => EndKind::Completed,
            RunPhase::Failed => EndKind::Failed,
            RunPhase::Stopped => EndKind::Stopped,
            RunPhase::Lost => EndKind::Lost,
        };
        let exit = match (self.exit_code, self.exit_signal) {
            (Some(code), _) => Some(Exit::Code(row.number("exit_code", code)?)),
            (None, Some(signal)) => Some(Exit::Signal(row.number("exit_signal", signal)?)),
            (None, None) => None,
        };
        let ending = Ending {
            kind,
            reason: row.maybe("reason", self.reason.as_deref())?,
            exit,
            message: self.message.clone().unwrap_or_default(),
        };
        Ok(RunState::Ended { at: row.needed_time("ended_at_ms", self.ended_at_ms)?, ending })
    }
}

fn place(row: &RowReader<'_>, key: &str) -> StoreResult<Place> {
    match key.split_once(':') {
        None if key.is_empty() => Ok(Place::Anywhere),
        Some(("r", runner)) => Ok(Place::Runner(row.parse("place_key", runner)?)),
        Some(("h", hostname)) => Ok(Place::Hostname(row.parse("place_key", hostname)?)),
        Some(_) | None => Err(row.wrong("place_key", "it is no place")),
    }
}

/// The text that stands for a place in rows, and by which runs are found.
pub(crate) fn place_key(place: &Place) -> String {
    match place {
        Place::Anywhere => String::new(),
        Place::Runner(id) => format!("r:{id}"),
        Place::Hostname(name) => format!("h:{name}"),
    }
}

/// The time that stands for these milliseconds. The last one of the calendar is no whole number of them.
pub(crate) fn timestamp(milliseconds: i64) -> Result<Timestamp, jiff::Error> {
    if milliseconds == Timestamp::MAX.as_millisecond() {
        return Ok(Timestamp::MAX);
    }
    Timestamp::from_millisecond(milliseconds)
}

/// Reads a column that holds an id, outside a whole row.
pub(crate) fn id_of<T>(table: &'static str, column: &'static str, text: &str) -> StoreResult<T>
where
    T: FromStr<Err: Into<Cause>>,
{
    RowReader { table, row: text, seq: None }.parse(column, text)
}
