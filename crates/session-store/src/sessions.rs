//! The registry of sessions.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use jiff::Timestamp;
use session_core::budget::Budget;
use session_core::event::{Event, EventKind, NewEvent, Payload};
use session_core::ids::{Id as _, SessionId, SessionRef};
use session_core::names::Label;
use session_core::ports::{Cursor, Listing, Page, SessionFilter};
use session_core::run::Run;
use session_core::session::{ManagedSession, NewSession, SessionSummary};
use session_core::state::{SessionState, Trigger};
use session_core::{Conflict, StoreError, StoreResult, record};

use crate::conn::{Arg, Args, Conn, Sql};
use crate::error::broken;
use crate::rows::{RunRow, SessionRow, TextRow, id_of};
use crate::tx::Tx;

const SESSION: Sql = sql!(concat!("SELECT ", session_columns!(""), " FROM sessions WHERE id = $1"));

const BY_ID: Sql = sql!("SELECT id FROM sessions WHERE id = $1 LIMIT $2");

/// Every id that begins with certain digits lies between those digits and the same with a `g` behind them.
pub(crate) const BY_PREFIX: Sql =
    sql!("SELECT id FROM sessions WHERE id >= $1 AND id < $2 ORDER BY created_at_ms DESC, id DESC LIMIT $3");

pub(crate) const BY_LABEL: Sql =
    sql!("SELECT id FROM sessions WHERE label = $1 ORDER BY created_at_ms DESC, id DESC LIMIT $2");

pub(crate) const LAST_RUNS: Sql = sql!(
    concat!(
        "SELECT ",
        run_columns!("r."),
        " FROM sessions s JOIN runs r ON r.position = (SELECT max(x.position) FROM runs x WHERE x.session_id = s.id) \
         WHERE s.id"
    ),
    [1],
    ""
);

pub(crate) const FIRST: Sql = sql!("SELECT kind, payload FROM events WHERE session_id = $1 AND seq = 1");

row! {
    /// An event by its kind and content.
    FirstRow { kind: String, payload: String, }
}

const SET_LABEL: Sql = sql!("UPDATE sessions SET label = $2 WHERE id = $1");

const SET_REMOVED: Sql = sql!(
    "UPDATE sessions SET workspace_removed_at_ms = $2 WHERE id = $1 AND workspace_removed_at_ms IS NULL"
);

// Reading.

pub(crate) async fn session(conn: &mut Conn<'_>, id: SessionId) -> StoreResult<Option<ManagedSession>> {
    conn.row::<SessionRow>(&SESSION, args![id]).await?.map(SessionRow::value).transpose()
}

/// The limits with which a session was made, where its log says so.
pub(crate) async fn made_with(tx: &mut Tx<'_>, id: SessionId) -> StoreResult<Option<Budget>> {
    let Some(FirstRow { kind, payload }) = tx.conn.row::<FirstRow>(&FIRST, args![id]).await? else {
        return Ok(None);
    };
    let Ok(kind) = kind.parse() else { return Ok(None) };
    let first = NewEvent { run: None, kind, payload: Payload::from_record(payload), origin: None };
    Ok(record::made_with(&first))
}

pub(crate) async fn find(conn: &mut Conn<'_>, name: &SessionRef, limit: u32) -> StoreResult<Vec<SessionId>> {
    let (found, label) = match name {
        SessionRef::Id(id) => (ids(conn, &BY_ID, args![*id, limit]).await?, None),
        SessionRef::Prefix { digits, label } => {
            let prefix = format!("{}_{digits}", SessionId::PREFIX);
            let behind = format!("{prefix}g");
            (ids(conn, &BY_PREFIX, args![prefix, behind, limit]).await?, label.as_deref())
        }
        SessionRef::Label(label) => (Vec::new(), Some(label.as_str())),
    };
    match label.map(Label::new) {
        Some(Ok(label)) if found.is_empty() => ids(conn, &BY_LABEL, args![label.as_str(), limit]).await,
        Some(Ok(_) | Err(_)) | None => Ok(found),
    }
}

async fn ids(conn: &mut Conn<'_>, sql: &Sql, args: Args) -> StoreResult<Vec<SessionId>> {
    let rows = conn.rows::<TextRow>(sql, args).await?;
    rows.into_iter().map(|row| id_of("sessions", "id", &row.text)).collect()
}

pub(crate) async fn list(conn: &mut Conn<'_>, filter: &SessionFilter, page: &Page) -> StoreResult<Listing> {
    let limit = page.limit.clamp(1, Page::MAX);
    let (sql, args) = list_query(filter, page.after, limit.saturating_add(1));
    let rows = conn.rows::<SessionRow>(&sql, args).await?;
    let mut sessions = rows.into_iter().map(SessionRow::value).collect::<StoreResult<Vec<_>>>()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = sessions.len() > limit;
    sessions.truncate(limit);
    let last = sessions.last().filter(|_| more);
    let next = last.map(|session| Cursor { created_at: session.created_at, id: session.id });
    let mut runs = last_runs(conn, &sessions).await?;
    let summary = |session: ManagedSession| SessionSummary { last_run: runs.remove(&session.id), session };
    Ok(Listing { items: sessions.into_iter().map(summary).collect(), next })
}

/// The page's query, of fixed parts only: what varies is bound.
pub(crate) fn list_query(filter: &SessionFilter, after: Option<Cursor>, limit: u32) -> (Sql, Args) {
    let mut text = String::from(concat!("SELECT ", session_columns!("s."), " FROM "));
    // Few runs are not over, whatever number of sessions there are: begin with them.
    text.push_str(if filter.busy {
        "runs r CROSS JOIN sessions s WHERE r.phase IN ('pending', 'claimed', 'starting', 'running') \
         AND s.id = r.session_id"
    } else {
        "sessions s WHERE true"
    });
    let mut args = Args::new();
    let mut with = |part: &str, arg: Arg| {
        args.push(arg);
        number(&mut text, &format!(" AND {part}"), &args, "");
    };
    if let Some(principal) = &filter.principal {
        with("s.principal = ", principal.as_str().into());
    }
    if let Some(key) = &filter.key {
        with("s.external_key = ", key.as_str().into());
    }
    if let Some(label) = &filter.label {
        with("s.label = ", label.as_str().into());
    }
    if let Some(parent) = filter.parent {
        with("s.parent = ", parent.into());
    }
    if let Some(after) = after {
        with("(s.created_at_ms, s.id) < (", after.created_at.into());
        args.push(after.id.into());
        number(&mut text, ", ", &args, ")");
    }
    if filter.key.is_some() {
        // In the words of the index.
        text.push_str(" AND s.external_key IS NOT NULL");
    }
    if filter.with_workspace {
        text.push_str(" AND s.workspace_removed_at_ms IS NULL");
    }
    if filter.live || filter.key.is_some() {
        text.push_str(" AND s.state <> 'terminated'");
    }
    args.push(limit.into());
    number(&mut text, " ORDER BY s.created_at_ms DESC, s.id DESC LIMIT ", &args, "");
    (Sql::Composed(text), args)
}

/// Appends the number of the last parameter between two parts.
pub(crate) fn number(text: &mut String, before: &str, args: &Args, after: &str) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{before}${}{after}", args.len());
}

async fn last_runs(conn: &mut Conn<'_>, sessions: &[ManagedSession]) -> StoreResult<HashMap<SessionId, Run>> {
    if sessions.is_empty() {
        return Ok(HashMap::new());
    }
    let ids = Arg::list(sessions.iter().map(|session| session.id));
    let rows = conn.rows::<RunRow>(&LAST_RUNS, vec![ids]).await?;
    rows.into_iter().map(|row| row.value().map(|run| (run.session, run))).collect()
}

// Changes.

pub(crate) async fn import(
    tx: &mut Tx<'_>,
    new: &NewSession,
    events: &[Event],
    imported: &Payload,
    now: Timestamp,
) -> StoreResult<ManagedSession> {
    let mut origins = HashSet::new();
    for (event, number) in events.iter().zip(1..) {
        if event.seq.0 != number {
            return Err(broken("the events are not numbered 1, 2, 3 …"));
        }
        if let Some(origin) = &event.body.origin
            && !origins.insert(origin)
        {
            let producer = origin.producer.as_str().into();
            return Err(Conflict::Origin { session: new.id, producer, seq: origin.seq }.into());
        }
    }
    let state = SessionState::Idle { since: now };
    let session = tx.insert_session(new, None, state, now).await?;
    for event in events {
        tx.record(session.id, event.body.clone(), event.at);
    }
    let kind: EventKind = "session.imported".parse().map_err(broken)?;
    tx.record(session.id, NewEvent { run: None, kind, payload: imported.clone(), origin: None }, now);
    Ok(session)
}

pub(crate) async fn transition(
    tx: &mut Tx<'_>,
    id: SessionId,
    trigger: Trigger,
    now: Timestamp,
) -> StoreResult<ManagedSession> {
    let session = tx.lock_session(id).await?;
    tx.transition(session, trigger, now).await
}

pub(crate) async fn relabel(
    tx: &mut Tx<'_>,
    id: SessionId,
    label: Option<&Label>,
    now: Timestamp,
) -> StoreResult<()> {
    if tx.write(&SET_LABEL, args![id, label.map(Label::as_str)]).await? == 0 {
        return Err(StoreError::UnknownSession(id));
    }
    tx.record(id, record::session_label(label), now);
    Ok(())
}

pub(crate) async fn workspace_removed(tx: &mut Tx<'_>, id: SessionId, now: Timestamp) -> StoreResult<()> {
    let session = tx.lock_session(id).await?;
    if session.workspace.removed_at.is_none() {
        tx.write_one(&SET_REMOVED, args![id, now]).await?;
    }
    Ok(())
}
