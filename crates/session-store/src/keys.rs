//! Sessions by their owners' names for them, and sessions that begin as copies of another one's log.

use jiff::Timestamp;
use session_core::ids::SessionId;
use session_core::names::ExternalKey;
use session_core::ports::STAMP_EVERY;
use session_core::session::{ForkPoint, Keyed, ManagedSession, NewSession};
use session_core::state::Trigger;
use session_core::{Conflict, Seq, SessionState, StoreError, StoreResult, record};

use crate::conn::{Conn, Sql};
use crate::error::{DatabaseError, Failure, broken, failed};
use crate::rows::SessionRow;
use crate::tx::Tx;

macro_rules! by_key {
    () => {
        concat!(
            "SELECT ",
            session_columns!(""),
            " FROM sessions WHERE principal = $1 AND external_key = $2 AND external_key IS NOT NULL \
             AND state <> 'terminated'"
        )
    };
}

pub(crate) const BY_KEY: Sql = sql!(by_key!());

const LOCK_BY_KEY: Sql = Sql::Each { sqlite: by_key!(), postgres: concat!(by_key!(), " FOR NO KEY UPDATE") };

pub(crate) const LAST_SEQ: Sql = sql!(
    "SELECT (SELECT max(e.seq) FROM events e WHERE e.session_id = s.id) FROM sessions s WHERE s.id = $1"
);

const SET_FORK: Sql = sql!("UPDATE sessions SET forked_from = $2, forked_upto = $3 WHERE id = $1");

/// The log never passes through the program.
pub(crate) const COPY: Sql = sql!(
    "INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload, producer, producer_seq) \
     SELECT $1, seq, at_ms, run_id, kind, payload, producer, producer_seq FROM events \
     WHERE session_id = $2 AND seq <= $3 ORDER BY seq"
);

row! {
    /// The last number of a log.
    LastRow { seq: Option<i64>, }
}

/// The live session with the key of this one, where being found is nothing that has to be written.
pub(crate) async fn look(
    conn: &mut Conn<'_>,
    new: &NewSession,
    now: Timestamp,
) -> StoreResult<Option<ManagedSession>> {
    let row = conn.row::<SessionRow>(&BY_KEY, args![new.principal.as_str(), key(new)?.as_str()]).await?;
    let session = row.map(SessionRow::value).transpose()?;
    Ok(session.filter(|session| !is_idle(session) && is_fresh(session, now)))
}

/// Gets or creates. Two that create at once meet at the index of keys.
pub(crate) async fn open(tx: &mut Tx<'_>, new: &NewSession, now: Timestamp) -> StoreResult<Keyed> {
    let (mut session, created) = get_or_create(tx, new, now).await?;
    if is_idle(&session) {
        session = tx.transition(session, Trigger::Activity, now).await?;
    } else if !is_fresh(&session, now) {
        tx.touch(&mut session, now).await?;
    }
    Ok(Keyed { session, created })
}

/// The live session with the key of this one, locked and otherwise as it was, or this one, made now.
pub(crate) async fn get_or_create(
    tx: &mut Tx<'_>,
    new: &NewSession,
    now: Timestamp,
) -> StoreResult<(ManagedSession, bool)> {
    if let Some(session) = find(tx, new).await? {
        return Ok((session, false));
    }
    match tx.create(new, None, now).await {
        Err(StoreError::Conflict(conflict)) if conflict == Conflict::key_taken(&new.principal, key(new)?) => {
            match find(tx, new).await? {
                Some(session) => Ok((session, false)),
                // It was made and terminated meanwhile.
                None => {
                    Err(failed(DatabaseError::plain(Failure::Serialization, "another caller was faster")))
                }
            }
        }
        created => Ok((created?, true)),
    }
}

async fn find(tx: &mut Tx<'_>, new: &NewSession) -> StoreResult<Option<ManagedSession>> {
    let values = args![new.principal.as_str(), key(new)?.as_str()];
    tx.conn.row::<SessionRow>(&LOCK_BY_KEY, values).await?.map(SessionRow::value).transpose()
}

fn key(new: &NewSession) -> StoreResult<&ExternalKey> {
    new.key.as_ref().ok_or_else(|| broken("there is no key to open"))
}

fn is_idle(session: &ManagedSession) -> bool {
    matches!(session.state, SessionState::Idle { .. })
}

fn is_fresh(session: &ManagedSession, now: Timestamp) -> bool {
    now.duration_since(session.active_at) <= STAMP_EVERY
}

/// A session that begins as a copy. The source is only read: what is in its log stays there.
pub(crate) async fn fork(
    tx: &mut Tx<'_>,
    source: SessionId,
    upto: Option<Seq>,
    new: &NewSession,
    now: Timestamp,
) -> StoreResult<ManagedSession> {
    let row = tx.conn.row::<LastRow>(&LAST_SEQ, args![source]).await?;
    let last = Seq(row.ok_or(StoreError::UnknownSession(source))?.seq.unwrap_or_default().cast_unsigned());
    let upto = upto.unwrap_or(last);
    if upto == Seq::START || upto > last {
        return Err(Conflict::NoEvent { session: source, seq: upto, last }.into());
    }
    let session = tx.insert_session(new, None, SessionState::Active, now).await?;
    tx.write_one(&SET_FORK, args![new.id, source, upto]).await?;
    tx.write(&COPY, args![new.id, source, upto]).await?;
    let point = ForkPoint { source, upto };
    tx.record(new.id, record::session_forked(point), now);
    Ok(ManagedSession { forked_from: Some(point), ..session })
}
