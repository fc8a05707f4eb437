//! Get-or-create by identity, and the cleanup of identities that expired.

use jiff::Timestamp;
use session_core::StoreError;
use session_core::StoreResult;
use session_core::identity::IdentityKey;
use session_core::ids::SessionId;
use session_core::ports::STAMP_EVERY;
use session_core::session::{Generation, OpenSession, Opened, Validity};
use session_core::state::TerminationReason;

use crate::conn::{Conn, Sql};
use crate::error::broken;
use crate::rows::{TextRow, id_of, timestamp};
use crate::runs;
use crate::tx::Tx;

row! {
    /// What an identity leads to.
    RegistrationRow {
        session_id: String,
        generation: i64,
        expires_at_ms: i64,
        stamped_at_ms: i64,
        created_at_ms: i64,
        previous: Option<String>,
        state: String,
    }
}

row! {
    /// What the statement that decides has decided.
    DecisionRow { session_id: String, generation: i64, expires_at_ms: i64, stamped_at_ms: i64, }
}

pub(crate) const LOOKUP: Sql = sql!(
    "SELECT i.session_id, i.generation, i.expires_at_ms, i.stamped_at_ms, i.created_at_ms, s.previous, s.state \
     FROM identities i JOIN sessions s ON s.id = i.session_id WHERE i.key = $1"
);

/// A live identity that is in need of a stamp gets one.
const STAMP: Sql = sql!(
    "UPDATE identities SET stamped_at_ms = $3, expires_at_ms = $4 \
     WHERE key = $1 AND session_id = $2 AND expires_at_ms > $3 AND stamped_at_ms < $3"
);

/// Whether the registration in the way is over: its time is, or its session is terminated.
macro_rules! over {
    () => {
        "(identities.expires_at_ms <= $3 OR EXISTS (SELECT 1 FROM sessions s \
         WHERE s.id = identities.session_id AND s.state = 'terminated'))"
    };
}

/// Whether the stamp of a registration that is not over has to be written.
macro_rules! stale {
    () => {
        "identities.stamped_at_ms < $6"
    };
}

/// Decides in one statement which session the identity leads to. `$4` is when it expires after this use, `$5` the
/// longest lifetime, `$6` the moment before which a stamp is stale.
const DECIDE: Sql = sql!(concat!(
    "INSERT INTO identities (key, session_id, generation, machine, repo_root, mode, scope_key, agent, \
     created_at_ms, stamped_at_ms, expires_at_ms) VALUES ($1, $2, \
     (SELECT coalesce(max(generation), 0) + 1 FROM sessions WHERE identity_key = $1), \
     $7, $8, $9, $10, $11, $3, $3, CASE WHEN $5 < $4 - $3 THEN $3 + $5 ELSE $4 END) \
     ON CONFLICT (key) DO UPDATE SET \
     session_id = CASE WHEN ",
    over!(),
    " THEN excluded.session_id ELSE identities.session_id END, \
     generation = CASE WHEN ",
    over!(),
    " THEN identities.generation + 1 ELSE identities.generation END, \
     created_at_ms = CASE WHEN ",
    over!(),
    " THEN $3 ELSE identities.created_at_ms END, \
     stamped_at_ms = CASE WHEN ",
    over!(),
    " OR ",
    stale!(),
    " THEN $3 ELSE identities.stamped_at_ms END, \
     expires_at_ms = CASE WHEN ",
    over!(),
    " THEN excluded.expires_at_ms \
     WHEN ",
    stale!(),
    " THEN CASE WHEN $5 < $4 - identities.created_at_ms \
     THEN identities.created_at_ms + $5 ELSE $4 END ELSE identities.expires_at_ms END \
     RETURNING session_id, generation, expires_at_ms, stamped_at_ms"
));

const OF_GENERATION: Sql = sql!("SELECT id FROM sessions WHERE identity_key = $1 AND generation = $2");

pub(crate) const EXPIRED: Sql = Sql::Each {
    sqlite: "SELECT key, session_id FROM identities WHERE expires_at_ms <= $1 ORDER BY expires_at_ms LIMIT $2",
    postgres: "SELECT key, session_id FROM identities WHERE expires_at_ms <= $1 ORDER BY expires_at_ms LIMIT $2 \
               FOR UPDATE SKIP LOCKED",
};

row! {
    /// An identity that is to be forgotten.
    ExpiredRow { key: String, session_id: String, }
}

const FORGET: Sql = sql!("DELETE FROM identities WHERE key", [1], "");

/// What a read is enough for.
pub(crate) enum Looked {
    /// The identity is live and its stamp fresh.
    Found(Opened),
    /// It is live, and its stamp is to be written.
    Stale { found: Opened, expires_at: Timestamp },
    /// The statement that decides has to.
    Undecided,
}

/// Looks whether the identity is known, without writing.
pub(crate) async fn look(
    conn: &mut Conn<'_>,
    validity: Validity,
    key: IdentityKey,
    now: Timestamp,
) -> StoreResult<Looked> {
    let Some((row, found)) = found(conn, key, now).await? else {
        return Ok(Looked::Undecided);
    };
    let time = |milliseconds| timestamp(milliseconds).map_err(broken);
    let stamped_at = time(row.stamped_at_ms)?;
    if now.duration_since(stamped_at) <= STAMP_EVERY {
        return Ok(Looked::Found(found));
    }
    Ok(Looked::Stale { found, expires_at: validity.until(time(row.created_at_ms)?, now) })
}

/// Where an identity leads, if it is valid and its session lives. That is no use of it.
pub(crate) async fn opened(
    conn: &mut Conn<'_>,
    key: IdentityKey,
    now: Timestamp,
) -> StoreResult<Option<Opened>> {
    Ok(found(conn, key, now).await?.map(|(_, opened)| opened))
}

async fn found(
    conn: &mut Conn<'_>,
    key: IdentityKey,
    now: Timestamp,
) -> StoreResult<Option<(RegistrationRow, Opened)>> {
    let Some(row) = conn.row::<RegistrationRow>(&LOOKUP, args![key.to_string()]).await? else {
        return Ok(None);
    };
    let expires_at = timestamp(row.expires_at_ms).map_err(broken)?;
    if expires_at <= now || row.state == "terminated" {
        return Ok(None);
    }
    let previous = row.previous.as_deref().map(|id| id_of("sessions", "previous", id)).transpose()?;
    let opened = Opened {
        session: id_of("identities", "session_id", &row.session_id)?,
        generation: u32::try_from(row.generation).map_err(broken)?,
        previous,
        created: false,
        stamped: false,
        expires_at,
    };
    Ok(Some((row, opened)))
}

/// Writes the stamp of an identity that was found live; `false` if it is so no longer.
pub(crate) async fn stamp(
    tx: &mut Tx<'_>,
    key: IdentityKey,
    session: SessionId,
    now: Timestamp,
    expires_at: Timestamp,
) -> StoreResult<bool> {
    Ok(tx.write(&STAMP, args![key.to_string(), session, now, expires_at]).await? == 1)
}

/// Until when this session's identity is valid without further use; `None` where it is so no longer.
pub(crate) async fn valid_until(
    tx: &mut Tx<'_>,
    key: IdentityKey,
    session: SessionId,
    now: Timestamp,
) -> StoreResult<Option<Timestamp>> {
    let Some(row) = tx.conn.row::<RegistrationRow>(&LOOKUP, args![key.to_string()]).await? else {
        return Ok(None);
    };
    let of_session = row.session_id == session.to_string();
    let until = timestamp(row.expires_at_ms).map_err(broken)?;
    Ok(Some(until).filter(|until| of_session && *until > now))
}

/// Gets or creates, decided by one statement.
pub(crate) async fn open(tx: &mut Tx<'_>, request: &OpenSession, now: Timestamp) -> StoreResult<Opened> {
    let key = request.identity.key();
    let decided = decide(tx, request, key, now).await?;
    let session: SessionId = id_of("identities", "session_id", &decided.session_id)?;
    let number = u32::try_from(decided.generation).map_err(broken)?;
    let expires_at = timestamp(decided.expires_at_ms).map_err(broken)?;
    let previous = match number {
        0 | 1 => None,
        _ => tx.conn.row::<TextRow>(&OF_GENERATION, args![key.to_string(), number - 1]).await?,
    };
    let previous = previous.map(|row| id_of("sessions", "id", &row.text)).transpose()?;
    let stamped = decided.stamped_at_ms == now.as_millisecond();
    let mut opened = Opened { session, generation: number, previous, created: false, stamped, expires_at };
    let generation = Generation { key, number, previous };
    if session == request.new.id {
        // The caller may ask again with the id that it was given then.
        let there = tx.session(session).await?;
        if there.is_none_or(|there| there.generation != Some(generation)) {
            if let Some(previous) = previous {
                tx.terminate(previous, TerminationReason::IdentityExpired, now).await?;
            }
            tx.create(&request.new, Some(generation), now).await?;
            opened.created = true;
        }
    }
    Ok(opened)
}

async fn decide(
    tx: &mut Tx<'_>,
    request: &OpenSession,
    key: IdentityKey,
    now: Timestamp,
) -> StoreResult<DecisionRow> {
    let used = now.saturating_add(request.ttl).unwrap_or(Timestamp::MAX);
    let span = Timestamp::MAX.as_millisecond().saturating_sub(now.as_millisecond());
    let milliseconds =
        |lifetime: jiff::SignedDuration| i64::try_from(lifetime.as_millis()).unwrap_or(span).min(span);
    let stale = now.saturating_sub(STAMP_EVERY).unwrap_or(Timestamp::MIN);
    let identity = &request.identity;
    let values = args![
        key.to_string(),
        request.new.id,
        now,
        used,
        request.lifetime.map(milliseconds),
        stale,
        identity.machine.as_str(),
        identity.repo_root.as_str(),
        identity.scope.mode(),
        identity.scope.key(),
        identity.agent.as_str(),
    ];
    let decided = tx.write_rows::<DecisionRow>(&DECIDE, values).await?;
    decided.into_iter().next().ok_or_else(|| broken("the upsert of an identity returned nothing"))
}

pub(crate) async fn expire(tx: &mut Tx<'_>, now: Timestamp, limit: u32) -> StoreResult<Vec<SessionId>> {
    let rows = tx.conn.rows::<ExpiredRow>(&EXPIRED, args![now, limit]).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let keys = crate::conn::Arg::list(rows.iter().map(|row| &row.key));
    tx.write(&FORGET, vec![keys]).await?;
    let mut sessions = Vec::with_capacity(rows.len());
    for row in rows {
        let id: SessionId = id_of("identities", "session_id", &row.session_id)?;
        let session = match tx.lock_session(id).await {
            Err(StoreError::UnknownSession(_)) => continue,
            other => other?,
        };
        sessions.push(id);
        if !session.state.is_terminated() && !runs::is_busy(tx, id).await? {
            let trigger = session_core::state::Trigger::Terminate(TerminationReason::IdentityExpired);
            tx.transition(session, trigger, now).await?;
        }
    }
    Ok(sessions)
}
