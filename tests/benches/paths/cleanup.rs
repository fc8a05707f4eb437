//! The cleanup of identities that expired, and how long a writer beside it has to wait.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::{Connection, params};
use session_core::ports::{Author, EventStore as _, SessionStore as _};
use tokio::time::Instant;

use crate::events::{RAW_APPEND, close};
use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Pair, Shown, Target, each, ensure, median};
use crate::world;

const EXPIRED: usize = 100_000;
/// How many identities one transaction forgets.
const BATCH: usize = 250;
/// Who writes beside it.
const WRITER: &str = "ses_ffffffffffff4fff8fffffffffffffff";
/// When every identity of the bench has expired.
const EXPIRED_AT_MS: i64 = 1_800_000_000_000;

const FILL: [&str; 3] = [
    "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
     INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, tool_calls_max, \
     identity_key, generation, created_at_ms, active_at_ms) SELECT 'ses_' || lower(hex(randomblob(6))) || '4' \
     || substr(lower(hex(randomblob(2))), 2) || '8' || substr(lower(hex(randomblob(8))), 2), 'alice', 'active', \
     'scratch', '{}', 1, 1, lower(hex(randomblob(32))), 1, 1800000000000 - ?1 + i, 1800000000000 FROM n",
    "INSERT INTO identities (key, session_id, generation, machine, repo_root, mode, scope_key, agent, \
     created_at_ms, stamped_at_ms, expires_at_ms) SELECT identity_key, id, 1, 'laptop', '/repo', 'project', 'one', \
     'agent', created_at_ms, created_at_ms, created_at_ms FROM sessions WHERE ?1 > 0",
    "INSERT INTO events (session_id, seq, at_ms, kind, payload) \
     SELECT id, 1, created_at_ms, 'session.created', '{}' FROM sessions WHERE ?1 > 0",
];
const FILL_WRITER: &str = "INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, \
     tool_calls_max, created_at_ms, active_at_ms) VALUES (?1, 'alice', 'active', 'scratch', '{}', 1, 1, 1, 1)";

const RAW_DUE: &str =
    "CREATE TEMP TABLE IF NOT EXISTS due (key TEXT PRIMARY KEY, session_id TEXT) STRICT, WITHOUT ROWID";
const RAW_STEPS: [&str; 4] = [
    "INSERT INTO due SELECT key, session_id FROM identities WHERE expires_at_ms <= ?1 ORDER BY expires_at_ms \
     LIMIT ?2",
    "UPDATE sessions SET state = 'terminated', state_at_ms = ?1, termination_reason = 'identity_expired' \
     WHERE id IN (SELECT session_id FROM due) AND state <> 'terminated' AND ?2 > 0",
    "INSERT INTO events (session_id, seq, at_ms, kind, payload) SELECT session_id, \
     (SELECT max(e.seq) + 1 FROM events e WHERE e.session_id = due.session_id), ?1, 'session.state', \
     '{\"from\":\"active\",\"reason\":\"identity_expired\",\"to\":\"terminated\"}' FROM due WHERE ?2 > 0",
    "DELETE FROM identities WHERE key IN (SELECT key FROM due) AND ?1 > 0 AND ?2 > 0",
];

/// One cleanup: seconds an identity, and the longest wait of the writer.
struct Cleaned {
    each: f64,
    stall: f64,
}

pub(crate) async fn cleanup(bench: &mut Bench) -> Outcome {
    let expired = bench.sized(EXPIRED);
    let files = Files::filled_raw(|connection| {
        let mut rows = Vec::new();
        for step in FILL {
            rows.push(connection.execute(step, [i64::try_from(expired)?])?);
        }
        ensure!(rows.iter().all(|rows| *rows == expired), "filled {rows:?}");
        connection.execute(FILL_WRITER, [WRITER])?;
        Ok(())
    })
    .await?;
    let (mut rates, mut stalls) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for round in 0..bench.rounds() {
        for side in [round % 2, 1 - round % 2] {
            let path = files.copy("round.db")?;
            let ours = side == 1;
            let cleaned = if ours { clean_ours(&path, expired).await? } else { clean_raw(&path, expired)? };
            check(&path, expired)?;
            let (rates, stalls) =
                if ours { (&mut rates.1, &mut stalls.1) } else { (&mut rates.0, &mut stalls.0) };
            rates.push(cleaned.each);
            stalls.push(cleaned.stall);
        }
    }
    let worst = |stalls: Vec<f64>| stalls.into_iter().fold(0.0, f64::max);
    let named = Named { path: "cleanup of expired identities", floor: "raw, the same in batches of 250" };
    let pair = Pair { floor: median(rates.0), ours: median(rates.1) };
    bench.row(&named, Shown::Rate, Target::PerSecond(50_000.0), pair);
    let named =
        Named { path: "worst stall of a writer beside it", floor: "raw, one writer waits for the lock" };
    let pair = Pair { floor: worst(stalls.0), ours: worst(stalls.1) };
    bench.row(&named, Shown::Time, Target::Milliseconds(25.0), pair);
    Ok(())
}

async fn clean_ours(path: &Path, expired: usize) -> Outcome<Cleaned> {
    let store = Arc::new(files::open(path).await?);
    let now = jiff::Timestamp::from_millisecond(EXPIRED_AT_MS)?;
    let over = Arc::new(AtomicBool::new(false));
    let author = Author::Session(WRITER.parse()?);
    let beside = tokio::spawn({
        let (store, over) = (Arc::clone(&store), Arc::clone(&over));
        async move {
            let mut worst = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let event = world::event(0)?;
                let begun = Instant::now();
                store.append(author, vec![event], now).await?;
                worst = worst.max(begun.elapsed());
            }
            Outcome::Ok(worst.as_secs_f64())
        }
    });
    let begun = Instant::now();
    let mut forgotten = 0;
    loop {
        let sessions = store.expire_identities(now, u32::try_from(BATCH)?).await?.len();
        forgotten += sessions;
        if sessions < BATCH {
            break;
        }
    }
    let elapsed = begun.elapsed();
    over.store(true, Ordering::Relaxed);
    let stall = beside.await??;
    ensure!(forgotten == expired, "{forgotten} were forgotten, not {expired}");
    close(store).await?;
    Ok(Cleaned { each: each(elapsed, expired)?, stall })
}

/// The writer and the cleanup share one thread that commits, as every group commit does; the writer's appends wait
/// in a queue.
fn clean_raw(path: &Path, expired: usize) -> Outcome<Cleaned> {
    let mut raw = files::raw(path)?;
    raw.execute_batch(RAW_DUE)?;
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let beside = std::thread::spawn(move || {
        let mut worst = Duration::ZERO;
        loop {
            let begun = Instant::now();
            if ask.send(()).is_err() || answered.recv().is_err() {
                return worst.as_secs_f64();
            }
            worst = worst.max(begun.elapsed());
        }
    });
    let begun = Instant::now();
    let mut forgotten = 0;
    while forgotten < expired {
        let batch = clean_batch(&mut raw, asked.try_recv().is_ok())?;
        forgotten += batch.0;
        if batch.1 {
            answer.send(())?;
        }
        ensure!(batch.0 > 0, "{forgotten} were forgotten, not {expired}");
    }
    let elapsed = begun.elapsed();
    drop((asked, answer));
    let stall = beside.join().map_err(|_| "the writer panicked")?;
    Ok(Cleaned { each: each(elapsed, expired)?, stall })
}

/// How many were forgotten, and whether the writer's event went along.
fn clean_batch(raw: &mut Connection, with_event: bool) -> Outcome<(usize, bool)> {
    let transaction = raw.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut forgotten = 0;
    for step in RAW_STEPS {
        forgotten =
            transaction.prepare_cached(step)?.execute(params![EXPIRED_AT_MS, i64::try_from(BATCH)?])?;
    }
    transaction.prepare_cached("DELETE FROM due")?.execute(())?;
    if with_event {
        let values = params![WRITER, EXPIRED_AT_MS, world::payload(0)];
        transaction.prepare_cached(RAW_APPEND)?.execute(values)?;
    }
    transaction.commit()?;
    Ok((forgotten, with_event))
}

/// Nothing is left, and every session is terminated and says so.
fn check(path: &Path, expired: usize) -> Outcome {
    let expect = [
        ("SELECT count(*) FROM identities", 0),
        ("SELECT count(*) FROM sessions WHERE state = 'terminated'", expired),
        ("SELECT count(*) FROM events WHERE kind = 'session.state' AND seq = 2", expired),
    ];
    for (query, expected) in expect {
        let found = files::number(path, query)?;
        ensure!(found == expected, "{query}: {found}, not {expected}");
    }
    Ok(())
}
