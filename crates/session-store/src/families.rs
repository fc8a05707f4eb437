//! Parents and children: whom a new session may have above it, and what a parent hears of the end of a child's run.
//!
//! On PostgreSQL a transaction that ends runs has their sessions locked. It locks the parents only when all of that is
//! done, the deepest first: a transaction that holds a parent never waits for a child of it, and one that holds a child and
//! waits for its parent gets it. Whoever makes a child locks the parent and waits for nobody below it, since nobody
//! can know a session that is about to be made. What comes in another order all the same, because one batch takes
//! sessions of several generations, is found out by the database and tried again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use session_core::event::{EventKind, NewEvent, Payload};
use session_core::family::{Callback, Parent, admit, allot};
use session_core::ids::{RunId, SessionId};
use session_core::run::Run;
use session_core::session::{ManagedSession, NewSession};
use session_core::wake::Topic;
use session_core::{Conflict, SessionState, StoreError, StoreResult};

use crate::allotments::{self, Taken};
use crate::conn::{Arg, Conn, Sql};
use crate::rows::{CallbackRow, RunRow, TextRow, id_of};
use crate::runs;
use crate::tx::{Tx, inserted};

pub(crate) const LIVE_CHILDREN: Sql = sql!(
    "SELECT id FROM sessions WHERE parent = $1 AND parent IS NOT NULL AND state <> 'terminated' LIMIT $2"
);

pub(crate) const ORPHANED: Sql = sql!(
    "SELECT c.id FROM sessions c JOIN sessions p ON p.id = c.parent \
     WHERE c.parent IS NOT NULL AND c.state <> 'terminated' AND p.state = 'terminated' LIMIT $1"
);

const OWE: Sql = sql!(
    "INSERT INTO callbacks (run_id, child, parent, at_ms, payload, state) VALUES ($1, $2, $3, $4, $5, $6)"
);

pub(crate) const DELIVER: Sql = sql!(
    "UPDATE callbacks SET state = 'delivered', delivered_by = $2 \
     WHERE run_id = $1 AND parent = $3 AND state = 'due'"
);

pub(crate) const DROP: Sql =
    sql!("UPDATE callbacks SET state = 'dropped' WHERE parent = $1 AND state = 'due'");

pub(crate) const CALLBACKS: Sql = sql!(concat!(
    "SELECT ",
    callback_columns!(""),
    " FROM callbacks WHERE parent = $1 AND state = 'due' ORDER BY position LIMIT $2"
));

/// Only what is due is looked at.
pub(crate) const DUE: Sql = sql!(
    "SELECT d.parent FROM (SELECT c.parent, min(c.position) AS first FROM callbacks c WHERE c.state = 'due' \
     GROUP BY c.parent) d JOIN sessions p ON p.id = d.parent WHERE p.callbacks_held = 0 \
     AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = d.parent \
     AND r.phase IN ('pending', 'claimed', 'starting', 'running')) ORDER BY d.first LIMIT $1"
);

/// No run tells it: `delivered_by` stays empty.
pub(crate) const HEARD: Sql =
    sql!("UPDATE callbacks SET state = 'delivered' WHERE run_id = $1 AND parent = $2 AND state = 'due'");

/// The deepest first: in the order in which the parents of what ends are locked.
pub(crate) const TO_HOLD: Sql = Sql::Each {
    sqlite: "SELECT p.id FROM sessions p WHERE p.id IN (SELECT value FROM json_each($1)) AND p.callbacks_held = 0 \
             AND EXISTS (SELECT 1 FROM sessions c WHERE c.parent = p.id AND c.parent IS NOT NULL) \
             ORDER BY p.depth DESC, p.id",
    postgres: "SELECT p.id FROM sessions p WHERE p.id = ANY (ARRAY(SELECT json_array_elements_text($1::json))) \
               AND p.callbacks_held = 0 \
               AND EXISTS (SELECT 1 FROM sessions c WHERE c.parent = p.id AND c.parent IS NOT NULL) \
               ORDER BY p.depth DESC, p.id",
};

pub(crate) const HOLD: Sql = sql!("UPDATE sessions SET callbacks_held = 1 WHERE id = $1");

pub(crate) const RELEASE: Sql =
    sql!("UPDATE sessions SET callbacks_held = 0 WHERE id = $1 AND callbacks_held <> 0");

/// Few are asked about: those that time or a cleanup ends.
const AT_WORK_BELOW: Sql = sql!(concat!(
    "WITH RECURSIVE below (id) AS (\
     SELECT id FROM sessions WHERE parent = $1 AND parent IS NOT NULL AND state <> 'terminated' UNION \
     SELECT c.id FROM below b JOIN sessions c ON c.parent = b.id \
     WHERE c.parent IS NOT NULL AND c.state <> 'terminated') SELECT ",
    run_columns!(""),
    " FROM runs WHERE session_id IN (SELECT id FROM below) \
     AND phase IN ('pending', 'claimed', 'starting', 'running') LIMIT 1"
));

// Reading.

pub(crate) async fn callbacks(
    conn: &mut Conn<'_>,
    parent: SessionId,
    limit: u32,
) -> StoreResult<Vec<Callback>> {
    let rows = conn.rows::<CallbackRow>(&CALLBACKS, args![parent, limit]).await?;
    rows.into_iter().map(CallbackRow::value).collect()
}

pub(crate) async fn due(conn: &mut Conn<'_>, limit: u32) -> StoreResult<Vec<SessionId>> {
    ids(&conn.rows::<TextRow>(&DUE, args![limit]).await?)
}

pub(crate) async fn orphaned(conn: &mut Conn<'_>, limit: u32) -> StoreResult<Vec<SessionId>> {
    ids(&conn.rows::<TextRow>(&ORPHANED, args![limit]).await?)
}

fn ids(rows: &[TextRow]) -> StoreResult<Vec<SessionId>> {
    rows.iter().map(|row| id_of("sessions", "id", &row.text)).collect()
}

// Changes.

/// A session that may get children, and how many live ones it has.
struct Above {
    session: ManagedSession,
    live: u32,
    /// It has set something aside for a child.
    gave: bool,
}

/// The depths of new sessions, in their order, and what they take of their parents' accounts. A parent is there, and locked
/// from now on, or among the earlier ones.
pub(crate) async fn depths(
    tx: &mut Tx<'_>,
    new: &[&NewSession],
    now: Timestamp,
) -> StoreResult<(Vec<u32>, Taken)> {
    let mut above: HashMap<SessionId, Above> = HashMap::new();
    if new.iter().any(|new| new.parent.is_some()) {
        let made: Vec<_> = new.iter().map(|new| new.id).collect();
        // In one order, so that two who make children of the same parents do not wait for each other.
        let mut wishes: Vec<Parent> = new.iter().filter_map(|new| new.parent).collect();
        wishes.sort_by_key(|wish| (wish.session, wish.children_max));
        for wish in wishes.into_iter().filter(|wish| !made.contains(&wish.session)) {
            let session = tx.lock_session(wish.session).await?;
            if let Some(by) = wish.by
                && runs::held(tx, by, "start a child").await?.0.session != session.id
            {
                return Err(StoreError::UnknownRun(by.run));
            }
            let children =
                tx.conn.rows::<TextRow>(&LIVE_CHILDREN, args![session.id, wish.children_max]).await?;
            let live = u32::try_from(children.len()).unwrap_or(u32::MAX);
            above.insert(session.id, Above { session, live, gave: false });
        }
    }
    let (mut depths, mut taken) = (Vec::with_capacity(new.len()), Taken::default());
    for new in new {
        let depth = match new.parent {
            None => 0,
            Some(wish) => {
                let parent = above.get_mut(&wish.session);
                let parent = parent.ok_or(StoreError::UnknownSession(wish.session))?;
                let depth = admit(&parent.session, parent.live, new, &wish)?;
                parent.live = parent.live.saturating_add(1);
                if let Some(allotment) = allot(&mut parent.session, new, &wish)? {
                    parent.gave = true;
                    taken.allotments.push((new.id, wish.session, allotment));
                }
                depth
            }
        };
        let session = inserted(new, None, SessionState::Active, depth, now);
        above.entry(new.id).or_insert(Above { session, live: 0, gave: false });
        depths.push(depth);
    }
    let gave = above.into_values().filter(|above| above.gave);
    taken.accounts = gave.map(|above| (above.session.id, above.session.account())).collect();
    Ok((depths, taken))
}

/// What parents are to hear of what this transaction ended.
#[derive(Debug)]
pub(crate) struct Owed(Callback);

/// Remembers that a parent is to hear of the end of this run.
pub(crate) fn owe(tx: &mut Tx<'_>, run: &Run, parent: SessionId, result: Option<&Payload>) {
    tx.owed.extend(Callback::of(run, parent, result).map(Owed));
}

/// What a parent is to hear of, and which children have ceased to spend from its budget.
#[derive(Debug, Default)]
struct Due {
    ends: Vec<Callback>,
    rested: Vec<(SessionId, Timestamp)>,
}

/// Tells the parents, and settles with them what their children used, when everything else of a change is done.
pub(crate) async fn settle(tx: &mut Tx<'_>) -> StoreResult<()> {
    // The deepest first.
    let mut parents: BTreeMap<(Reverse<u32>, SessionId), Due> = BTreeMap::new();
    for Owed(callback) in std::mem::take(&mut tx.owed) {
        let place = place(tx, callback.parent).await?;
        parents.entry(place).or_default().ends.push(callback);
    }
    for (child, at) in std::mem::take(&mut tx.rested) {
        if let Some(parent) = allotments::payer(tx, child).await? {
            let place = place(tx, parent).await?;
            parents.entry(place).or_default().rested.push((child, at));
        }
    }
    while let Some(((_, id), due)) = parents.pop_first() {
        let parent = tx.lock_session(id).await?;
        for callback in due.ends {
            owe_now(tx, &parent, callback).await?;
        }
        let last = due.rested.last().map(|(_, at)| *at);
        for (child, at) in due.rested {
            allotments::close(tx, child, id, at).await?;
        }
        if let Some(at) = last
            && let Some(above) = allotments::payer(tx, id).await?
        {
            let place = place(tx, above).await?;
            parents.entry(place).or_default().rested.push((id, at));
        }
    }
    Ok(())
}

/// When its turn comes. Its depth never changes: it can be read without the lock.
async fn place(tx: &mut Tx<'_>, parent: SessionId) -> StoreResult<(Reverse<u32>, SessionId)> {
    let depth = tx.session(parent).await?.map_or(0, |parent| parent.depth);
    Ok((Reverse(depth), parent))
}

/// Writes down that a parent, which is locked, is to hear of an end.
async fn owe_now(tx: &mut Tx<'_>, parent: &ManagedSession, callback: Callback) -> StoreResult<()> {
    let state = if parent.state.is_terminated() { "dropped" } else { "due" };
    tx.wake(Topic::Family);
    let Callback { run, child, parent, at, payload } = callback;
    tx.write(&OWE, args![run, child, parent, at, payload.as_str(), state]).await?;
    let event = NewEvent { run: None, kind: EventKind::ChildEnded, payload, origin: None };
    tx.record(parent, event, at);
    Ok(())
}

/// A run of this session, which is locked, tells it of these ends.
pub(crate) async fn deliver(
    tx: &mut Tx<'_>,
    parent: SessionId,
    by: RunId,
    ends: &[RunId],
) -> StoreResult<()> {
    for end in ends {
        if tx.write(&DELIVER, args![*end, by, parent]).await? == 0 {
            return Err(Conflict::NotDue(*end).into());
        }
    }
    Ok(())
}

/// This session, which is locked, is used for something else than to tell it of its children.
pub(crate) async fn release(tx: &mut Tx<'_>, session: SessionId) -> StoreResult<()> {
    tx.write(&RELEASE, args![session]).await?;
    Ok(())
}

pub(crate) async fn heard(tx: &mut Tx<'_>, parent: SessionId, ends: &[RunId]) -> StoreResult<()> {
    for end in ends {
        tx.write(&HEARD, args![*end, parent]).await?;
    }
    Ok(())
}

pub(crate) async fn hold(tx: &mut Tx<'_>, sessions: &[SessionId]) -> StoreResult<()> {
    let parents = tx.conn.rows::<TextRow>(&TO_HOLD, vec![Arg::list(sessions)]).await?;
    for parent in ids(&parents)? {
        tx.write(&HOLD, args![parent]).await?;
    }
    Ok(())
}

/// A run that is not over of a live session below this one.
pub(crate) async fn at_work_below(tx: &mut Tx<'_>, session: SessionId) -> StoreResult<Option<Run>> {
    tx.conn.row::<RunRow>(&AT_WORK_BELOW, args![session]).await?.map(RunRow::value).transpose()
}

/// Nobody is there any more to be told: this session, which is locked, is over.
pub(crate) async fn drop_callbacks(tx: &mut Tx<'_>, parent: SessionId) -> StoreResult<()> {
    tx.write(&DROP, args![parent]).await?;
    Ok(())
}
