//! The event log: appends of one and of many callers, and the way from rows to a conversation.

use std::sync::Arc;

use rusqlite::{Connection, params};
use session_core::Env;
use session_core::event::Seq;
use session_core::history::reconstruct_messages;
use session_core::ids::SessionId;
use session_core::ports::{Author, EventStore as _, SessionStore as _};
use session_store::SqlStore;
use tokio::time::Instant;

use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, timed, together};
use crate::world;

/// Callers, appends of each in one round, and the target.
const APPENDS: [(usize, usize, Target); 3] =
    [(1, 500, Target::AtLeast(0.8)), (16, 150, Target::AtLeast(0.7)), (64, 150, Target::AtLeast(0.7))];
/// How many events the history has.
const HISTORY: usize = 10_000;
/// How many of the last ones are read for a glance.
const LAST: u32 = 50;
const HISTORY_READS: usize = 5;
const LAST_READS: usize = 500;

pub(crate) const RAW_APPEND: &str = "INSERT INTO events (session_id, seq, at_ms, kind, payload) VALUES (?1, \
     (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE session_id = ?1), ?2, 'message', ?3)";

const RAW_READ: &str = "SELECT seq, at_ms, run_id, kind, payload, producer, producer_seq FROM events \
                        WHERE session_id = ?1 AND seq > 0 ORDER BY seq LIMIT ?2";
const RAW_TAIL: &str = "SELECT seq, at_ms, run_id, kind, payload, producer, producer_seq FROM events \
                        WHERE session_id = ?1 ORDER BY seq DESC LIMIT ?2";

pub(crate) async fn append(bench: &mut Bench) -> Outcome {
    for (callers, appends, target) in APPENDS {
        append_by(bench, callers, bench.sized(appends), target).await?;
    }
    Ok(())
}

async fn append_by(bench: &mut Bench, callers: usize, appends: usize, target: Target) -> Outcome {
    let env = Env::system();
    let now = env.now();
    let mut sessions = Vec::new();
    let files = Files::filled(async |store| {
        sessions = made(store, &env, callers).await?;
        Ok(())
    })
    .await?;
    let store = Arc::new(files::open(&files.ours()).await?);
    let mut raw = files::raw(&files.floor())?;
    let texts: Vec<_> = sessions.iter().map(ToString::to_string).collect();
    let payload = world::payload(0);
    let path = match callers {
        1 => "append, 1 session".to_owned(),
        _ => format!("append, {callers} sessions"),
    };
    let floor = match callers {
        1 => "one raw commit".to_owned(),
        _ => format!("raw driver, {callers} rows a commit"),
    };
    let floor_round = async |_| {
        let begun = Instant::now();
        for _ in 0..appends {
            let transaction = raw.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            for session in &texts {
                transaction.prepare_cached(RAW_APPEND)?.execute(params![
                    session,
                    now.as_millisecond(),
                    payload
                ])?;
            }
            transaction.commit()?;
        }
        each(begun.elapsed(), appends * callers)
    };
    let our_round = async |_| {
        let items = world::per_caller(callers, appends, |caller, index| {
            Ok((Author::Session(sessions[caller]), world::event(index * 2)?))
        })?;
        let store = Arc::clone(&store);
        together(items, move |(author, event)| {
            let store = Arc::clone(&store);
            async move {
                let appended = store.append(author, vec![event], now).await?;
                ensure!(appended.seqs.len() == 1, "one event, {} numbers", appended.seqs.len());
                Ok(())
            }
        })
        .await
    };
    bench.compare(Named { path: &path, floor: &floor }, Shown::Rate, target, floor_round, our_round).await?;
    drop(raw);
    // Every session began with an event of its own.
    let events = callers * (1 + appends * bench.rounds());
    files::check_events(&files.ours(), events)?;
    files::check_events(&files.floor(), events)?;
    close(store).await
}

pub(crate) async fn history(bench: &mut Bench) -> Outcome {
    let env = Env::system();
    let now = env.now();
    let mut session = None;
    let files = Files::filled(async |store| {
        let id = made(store, &env, 1).await?.remove(0);
        let events = (0..HISTORY).map(world::event).collect::<Outcome<Vec<_>>>()?;
        store.append(Author::Session(id), events, now).await?;
        session = Some(id);
        Ok(())
    })
    .await?;
    let session = session.ok_or("no session")?;
    let store = files::open(&files.ours()).await?;
    let raw = files::raw(&files.floor())?;
    let all = u32::try_from(HISTORY)? + 1;
    let reads = bench.sized(HISTORY_READS);
    let named = Named { path: "history, 10 000 events to messages", floor: "reading the rows raw" };
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..reads {
            let events = store.read(session, Seq::START, all).await?;
            let history = reconstruct_messages(&events);
            ensure!(history.messages.len() == HISTORY, "{} messages", history.messages.len());
            ensure!(history.repairs.is_empty(), "{} repairs", history.repairs.len());
        }
        each(begun.elapsed(), reads)
    };
    let floor = async |_| timed(reads, |_| check_rows(&raw, RAW_READ, session, all));
    bench.compare(named, Shown::Time, Target::AtMost(2.0), floor, ours).await?;

    let named = Named { path: "history, 10 000 events, reading alone", floor: "reading the rows raw" };
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..reads {
            let events = store.read(session, Seq::START, all).await?;
            ensure!(events.len() == HISTORY + 1, "{} events", events.len());
        }
        each(begun.elapsed(), reads)
    };
    bench.compare(named, Shown::Time, Target::None, floor, ours).await?;

    let reads = bench.sized(LAST_READS);
    let named = Named { path: "history, last 50 to messages", floor: "reading the rows raw" };
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..reads {
            let events = store.tail(session, LAST).await?;
            let history = reconstruct_messages(&events);
            ensure!(history.messages.len() == LAST as usize, "{} messages", history.messages.len());
        }
        each(begun.elapsed(), reads)
    };
    let floor = async |_| timed(reads, |_| check_rows(&raw, RAW_TAIL, session, LAST));
    bench.compare(named, Shown::Time, Target::Milliseconds(0.3), floor, ours).await?;
    store.close().await;
    Ok(())
}

/// One row of a log, as the driver gives it.
type RawEvent = (i64, i64, Option<String>, String, String, Option<String>, Option<i64>);

fn check_rows(raw: &Connection, query: &str, session: SessionId, limit: u32) -> Outcome {
    let mut statement = raw.prepare_cached(query)?;
    let rows = statement.query_map(params![session.to_string(), limit], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
    })?;
    let rows = rows.collect::<Result<Vec<RawEvent>, _>>()?;
    ensure!(rows.len() == limit as usize, "{} rows instead of {limit}", rows.len());
    Ok(())
}

/// So many new sessions.
pub(crate) async fn made(store: &SqlStore, env: &Env, sessions: usize) -> Outcome<Vec<SessionId>> {
    let mut ids = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        ids.push(store.create(world::new_session(env)?, env.now()).await?.id);
    }
    Ok(ids)
}

/// Closes a store that was shared.
pub(crate) async fn close(store: Arc<SqlStore>) -> Outcome {
    let store = Arc::into_inner(store).ok_or("somebody still holds the store")?;
    store.close().await;
    Ok(())
}
