//! A transaction in the making, and what every change is composed of.
//!
//! On PostgreSQL the row of a session is the lock of everything that belongs to it: its state, its runs and its log.
//! Whoever changes any of them locks that row first ([`Tx::lock_session`]), and of several sessions the one that
//! others wait for before those that wait. Events are collected and written at the end, all together.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;

use jiff::Timestamp;
use session_core::budget::Usage;
use session_core::event::NewEvent;
use session_core::ids::SessionId;
use session_core::names::{AgentKey, ExternalKey, Label};
use session_core::session::{Generation, ManagedSession, NewSession, WorkspaceSpec};
use session_core::state::{SessionState, TerminationReason, Trigger};
use session_core::wake::Topic;
use session_core::{Conflict, StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Conn, Record, Sql};
use crate::error::broken;
use crate::families::{self, Owed};
use crate::plan::Recorded;
use crate::rows::{SessionRow, TextRow};
use crate::{allotments, runs};

/// A transaction in the making.
pub(crate) struct Tx<'c> {
    pub(crate) conn: Conn<'c>,
    pub(crate) recorded: Vec<Recorded>,
    pub(crate) wakes: Vec<Topic>,
    pub(crate) owed: Vec<Owed>,
    /// In which sessions somebody ceased to work, and when.
    pub(crate) rested: Vec<(SessionId, Timestamp)>,
    writes: u64,
}

/// Makes a change, with what follows from it.
pub(crate) async fn apply<T>(tx: &mut Tx<'_>, change: &Change<T>) -> StoreResult<T> {
    let answer = change(tx).await?;
    families::settle(tx).await?;
    Ok(answer)
}

/// What a change answers.
pub(crate) type Changed<'t, T> = Pin<Box<dyn Future<Output = StoreResult<T>> + Send + 't>>;

/// A change to be made in some transaction, perhaps more than once until one holds.
pub(crate) type Change<T> = Box<dyn for<'t, 'c> Fn(&'t mut Tx<'c>) -> Changed<'t, T> + Send + Sync>;

/// A place in a transaction to which one may come back, as long as nothing was written since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    recorded: usize,
    wakes: usize,
    writes: u64,
}

const SESSION: Sql = sql!(concat!("SELECT ", session_columns!(""), " FROM sessions WHERE id = $1"));

const LOCK_SESSION: Sql = Sql::Each {
    sqlite: concat!("SELECT ", session_columns!(""), " FROM sessions WHERE id = $1"),
    postgres: concat!("SELECT ", session_columns!(""), " FROM sessions WHERE id = $1 FOR NO KEY UPDATE"),
};

const IS_SESSION: Sql = sql!("SELECT id FROM sessions WHERE id = $1");

/// The columns that a new session has values in.
macro_rules! new_session {
    () => {
        "INSERT INTO sessions (id, principal, state, state_at_ms, label, agent, workspace_kind, project, metadata, \
         tokens_max, tool_calls_max, turns_max, cost_micros_max, parent, identity_key, generation, previous, \
         created_at_ms, active_at_ms, external_key, sandbox, depth, callback) "
    };
}

const INSERT_SESSIONS: Sql = Sql::Each {
    sqlite: concat!(
        new_session!(),
        "SELECT value->>0, value->>1, value->>2, value->>3, value->>4, value->>5, value->>6, value->>7, value->>8, \
         value->>9, value->>10, value->>11, value->>12, value->>13, value->>14, value->>15, value->>16, value->>17, \
         value->>17, value->>18, value->>19, value->>20, value->>21 FROM json_each($1) WHERE true ON CONFLICT DO NOTHING RETURNING id"
    ),
    postgres: concat!(
        new_session!(),
        "SELECT v->>0, v->>1, v->>2, (v->>3)::bigint, v->>4, v->>5, v->>6, v->>7, v->>8, (v->>9)::bigint, \
         (v->>10)::bigint, (v->>11)::bigint, (v->>12)::bigint, v->>13, v->>14, (v->>15)::bigint, v->>16, \
         (v->>17)::bigint, (v->>17)::bigint, v->>18, v->>19, (v->>20)::bigint, (v->>21)::bigint FROM json_array_elements($1::json) AS v \
         ON CONFLICT DO NOTHING RETURNING id"
    ),
};

const SET_STATE: Sql = sql!(
    "UPDATE sessions SET state = $2, state_at_ms = $3, state_until_ms = $4, termination_reason = $5, \
     active_at_ms = $6 WHERE id = $1 AND state = $7"
);

const SET_ACTIVE_AT: Sql = sql!("UPDATE sessions SET active_at_ms = $2 WHERE id = $1");

impl<'c> Tx<'c> {
    pub(crate) fn new(conn: Conn<'c>) -> Self {
        Self {
            conn,
            recorded: Vec::new(),
            wakes: Vec::new(),
            owed: Vec::new(),
            rested: Vec::new(),
            writes: 0,
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { recorded: self.recorded.len(), wakes: self.wakes.len(), writes: self.writes }
    }

    /// Forgets what came after the mark; `false` if the database was written since, so that only a rollback helps.
    pub(crate) fn back_to(&mut self, mark: Mark) -> bool {
        self.recorded.truncate(mark.recorded);
        self.wakes.truncate(mark.wakes);
        // What is owed was written before: of that nothing is left but by a rollback.
        self.owed.clear();
        self.rested.clear();
        self.writes == mark.writes
    }

    /// Whether there is anything to commit.
    pub(crate) fn is_empty(&self) -> bool {
        self.writes == 0 && self.recorded.is_empty()
    }

    /// Runs a statement that writes.
    pub(crate) async fn write(&mut self, sql: &Sql, args: Args) -> StoreResult<u64> {
        self.writes += 1;
        self.conn.execute(sql, args).await
    }

    /// Runs a statement that writes exactly one row. Whoever calls this has looked at the row under its lock.
    pub(crate) async fn write_one(&mut self, sql: &Sql, args: Args) -> StoreResult<()> {
        match self.write(sql, args).await? {
            1 => Ok(()),
            count => Err(broken(format!("a compare-and-set changed {count} rows"))),
        }
    }

    /// Runs a statement that writes and says what.
    pub(crate) async fn write_rows<R: Record>(&mut self, sql: &Sql, args: Args) -> StoreResult<Vec<R>> {
        self.writes += 1;
        self.conn.rows(sql, args).await
    }

    /// An event of the log of a session that this transaction has locked or made.
    pub(crate) fn record(&mut self, session: SessionId, body: NewEvent, at: Timestamp) {
        self.wake(Topic::Session(session));
        self.recorded.push(Recorded { session, body, at });
    }

    pub(crate) fn wake(&mut self, topic: Topic) {
        if self.wakes.last() != Some(&topic) {
            self.wakes.push(topic);
        }
    }

    /// One session, without its lock.
    pub(crate) async fn session(&mut self, id: SessionId) -> StoreResult<Option<ManagedSession>> {
        let row = self.conn.row::<SessionRow>(&SESSION, args![id]).await?;
        row.map(SessionRow::value).transpose()
    }

    /// Locks a session with its runs and its log.
    pub(crate) async fn lock_session(&mut self, id: SessionId) -> StoreResult<ManagedSession> {
        let row = self.conn.row::<SessionRow>(&LOCK_SESSION, args![id]).await?;
        row.ok_or(StoreError::UnknownSession(id))?.value()
    }

    /// Puts new sessions into the registry, without any event. Each parent is there or among the earlier ones.
    pub(crate) async fn insert_sessions(
        &mut self,
        new: &[&NewSession],
        generation: Option<Generation>,
        state: SessionState,
        now: Timestamp,
    ) -> StoreResult<Vec<ManagedSession>> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let (depths, taken) = families::depths(self, new, now).await?;
        let rows = new.iter().zip(&depths).map(|(new, depth)| columns(new, generation, state, *depth, now));
        let table = Arg::table(rows);
        let there = self.write_rows::<TextRow>(&INSERT_SESSIONS, vec![table]).await?;
        let mut there: HashSet<_> = there.into_iter().map(|row| row.text).collect();
        if let Some(refused) = new.iter().find(|new| !there.remove(&new.id.to_string())) {
            return Err(self.refusal(refused).await?.into());
        }
        allotments::take(self, &taken).await?;
        let made = new.iter().zip(depths);
        Ok(made.map(|(new, depth)| inserted(new, generation, state, depth, now)).collect())
    }

    /// Puts one new session into the registry, without any event.
    pub(crate) async fn insert_session(
        &mut self,
        new: &NewSession,
        generation: Option<Generation>,
        state: SessionState,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        let made = self.insert_sessions(&[new], generation, state, now).await?;
        made.into_iter().next().ok_or_else(|| broken("a new session was not made"))
    }

    /// Why a new session could not be put into the registry: its id is taken, or its key.
    async fn refusal(&mut self, new: &NewSession) -> StoreResult<Conflict> {
        let there = self.conn.row::<TextRow>(&IS_SESSION, args![new.id]).await?;
        Ok(match (there, &new.key) {
            (None, Some(key)) => Conflict::key_taken(&new.principal, key),
            (Some(_), _) | (None, None) => Conflict::Exists(new.id.to_string()),
        })
    }

    /// Makes a session, with its first event.
    pub(crate) async fn create(
        &mut self,
        new: &NewSession,
        generation: Option<Generation>,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        let session = self.insert_session(new, generation, SessionState::Active, now).await?;
        self.record(new.id, record::session_created(new, generation.as_ref()), now);
        Ok(session)
    }

    /// Moves a session, which is locked, through its state machine, with all that follows from it.
    pub(crate) async fn transition(
        &mut self,
        session: ManagedSession,
        trigger: Trigger,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        if trigger.wants_rest()
            && let Some(run) = runs::not_over(self, session.id).await?
        {
            return Err(StoreError::Busy { session: session.id, run: run.id, phase: run.state.phase() });
        }
        if trigger.wants_rest_below()
            && let Some(run) = families::at_work_below(self, session.id).await?
        {
            return Err(StoreError::Busy { session: run.session, run: run.id, phase: run.state.phase() });
        }
        let to = session.state.on(trigger, now)?;
        self.move_to(session, to, now).await
    }

    /// Puts a session, which is locked, into another state, with all that follows from it.
    pub(crate) async fn move_to(
        &mut self,
        mut session: ManagedSession,
        to: SessionState,
        now: Timestamp,
    ) -> StoreResult<ManagedSession> {
        let from = std::mem::replace(&mut session.state, to);
        if to == SessionState::Active {
            session.active_at = now;
        }
        let (at, until, reason) = match to {
            SessionState::Active => (None, None, None),
            SessionState::Idle { since } => (Some(since), None, None),
            SessionState::Suspended { since, expires_at } => (Some(since), Some(expires_at), None),
            SessionState::Terminated { at, reason } => (Some(at), None, Some(reason.code())),
        };
        let values = args![session.id, to.name(), at, until, reason, session.active_at, from.name()];
        self.write_one(&SET_STATE, values).await?;
        if to != from {
            self.record(session.id, record::session_state(from, to), now);
        }
        if to.is_terminated() {
            runs::end_those_of(self, session.id, now).await?;
            families::drop_callbacks(self, session.id).await?;
            if session.parent.is_some() {
                self.rested.push((session.id, now));
            }
            self.wake(Topic::Family);
        }
        Ok(session)
    }

    /// Records that a session, which is locked, is in use, and leaves its state as it is.
    pub(crate) async fn touch(&mut self, session: &mut ManagedSession, now: Timestamp) -> StoreResult<()> {
        self.write_one(&SET_ACTIVE_AT, args![session.id, now]).await?;
        session.active_at = now;
        Ok(())
    }

    /// Terminates a session unless that has happened before.
    pub(crate) async fn terminate(
        &mut self,
        id: SessionId,
        reason: TerminationReason,
        now: Timestamp,
    ) -> StoreResult<()> {
        let session = self.lock_session(id).await?;
        if !session.state.is_terminated() {
            self.transition(session, Trigger::Terminate(reason), now).await?;
        }
        Ok(())
    }
}

/// The values of a new session's row.
fn columns(
    new: &NewSession,
    generation: Option<Generation>,
    state: SessionState,
    depth: u32,
    now: Timestamp,
) -> Args {
    let since = match state {
        SessionState::Idle { since } => Some(since),
        SessionState::Active | SessionState::Suspended { .. } | SessionState::Terminated { .. } => None,
    };
    args![
        new.id,
        new.principal.as_str(),
        state.name(),
        since,
        new.label.as_ref().map(Label::as_str),
        new.agent.as_ref().map(AgentKey::as_str),
        new.kind.as_str(),
        new.project.as_ref().map(|project| project.as_str()),
        new.metadata.as_str(),
        new.budget.tokens_max.cast_signed(),
        new.budget.tool_calls_max.cast_signed(),
        new.budget.turns_max.map(u64::cast_signed),
        new.budget.cost_micros_max.map(u64::cast_signed),
        new.parent.map(|parent| parent.session),
        generation.map(|generation| generation.key.to_string()),
        generation.map(|generation| generation.number),
        generation.and_then(|generation| generation.previous),
        now,
        new.key.as_ref().map(ExternalKey::as_str),
        // Text, numbers and paths: there is nothing that JSON could not hold.
        serde_json::to_string(&new.sandbox).unwrap_or_default(),
        depth,
        i64::from(new.parent.is_some_and(|parent| parent.callback)),
    ]
}

/// The session as it is in its row now.
pub(crate) fn inserted(
    new: &NewSession,
    generation: Option<Generation>,
    state: SessionState,
    depth: u32,
    now: Timestamp,
) -> ManagedSession {
    let new = new.clone();
    ManagedSession {
        id: new.id,
        principal: new.principal,
        state,
        key: new.key,
        label: new.label,
        agent: new.agent,
        workspace: WorkspaceSpec { kind: new.kind, project: new.project, runner: None, removed_at: None },
        sandbox: new.sandbox,
        metadata: new.metadata,
        budget: new.budget,
        usage: Usage::NONE,
        reserved: Usage::NONE,
        allotted: Usage::NONE,
        parent: new.parent.map(|parent| parent.session),
        depth,
        callback: new.parent.is_some_and(|parent| parent.callback),
        forked_from: None,
        generation,
        binding: None,
        created_at: now,
        active_at: now,
    }
}
