//! Get-or-create by identity: known ones and new ones, by one caller and by several.

use std::sync::Arc;

use rusqlite::{Connection, params};
use session_core::Env;
use session_core::ports::SessionStore as _;
use session_core::session::OpenSession;

use crate::events::close;
use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, timed, together};
use crate::world;
use tokio::time::Instant;

/// How many identities are known before.
const KNOWN: usize = 1_000;
/// Callers at once, in the second row of each.
const CALLERS: usize = 16;
/// How many are asked for in a round: known ones, and new ones by one caller and by several.
const HITS: usize = 10_000;
const MISSES: usize = 300;
const MISSES_TOGETHER: usize = 100;

const RAW_LOOKUP: &str = "SELECT i.session_id, i.generation, i.expires_at_ms, i.stamped_at_ms, i.created_at_ms, \
     s.previous, s.state FROM identities i JOIN sessions s ON s.id = i.session_id WHERE i.key = ?1";
const RAW_IDENTITY: &str = "INSERT INTO identities (key, session_id, generation, machine, repo_root, mode, \
     scope_key, agent, created_at_ms, stamped_at_ms, expires_at_ms) VALUES (?1, ?2, 1, 'laptop', '/repo', \
     'project', 'one', ?3, ?4, ?4, ?5) ON CONFLICT (key) DO UPDATE SET stamped_at_ms = excluded.stamped_at_ms \
     RETURNING session_id";
const RAW_SESSION: &str = "INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, \
     tool_calls_max, identity_key, generation, created_at_ms, active_at_ms) \
     VALUES (?1, 'alice', 'active', 'scratch', '{}', 1, 1, ?2, 1, ?3, ?3)";
const RAW_EVENT: &str = "INSERT INTO events (session_id, seq, at_ms, kind, payload) \
     VALUES (?1, 1, ?2, 'session.created', '{\"generation\":1,\"workspace\":\"scratch\"}')";

/// As the original scribe did it: three statements for every call, each its own commit.
const THREE_TABLE: &str = "CREATE TABLE agent_sessions (identity_key TEXT NOT NULL PRIMARY KEY, session_id TEXT NOT NULL, \
     last_activity INTEGER NOT NULL, expires_at INTEGER NOT NULL) STRICT";
const THREE_INSERT: &str = "INSERT OR IGNORE INTO agent_sessions VALUES (?1, ?2, ?3, ?3 + 86400000)";
const THREE_UPDATE: &str =
    "UPDATE agent_sessions SET last_activity = ?2, expires_at = ?2 + 86400000 WHERE identity_key = ?1";
const THREE_SELECT: &str = "SELECT session_id FROM agent_sessions WHERE identity_key = ?1";

/// What the raw statements need of a request.
struct RawRequest {
    key: String,
    session: String,
    agent: String,
}

pub(crate) async fn open(bench: &mut Bench) -> Outcome {
    let env = Env::system();
    let now = env.now();
    let files = Files::filled(async |store| {
        for index in 0..KNOWN {
            let opened = store.open(world::open_session(&env, &known(index))?, now).await?;
            ensure!(opened.created, "{} was there already", known(index));
        }
        Ok(())
    })
    .await?;
    hits(bench, &files, &env).await?;
    three(bench, &files, &env).await?;
    misses(bench, &files, &env).await
}

fn known(index: usize) -> String {
    format!("known {index}")
}

async fn hits(bench: &mut Bench, files: &Files, env: &Env) -> Outcome {
    let now = env.now();
    let store = Arc::new(files::open(&files.ours()).await?);
    let raw = files::raw(&files.floor())?;
    let hits = bench.sized(HITS);
    let mut keys = Vec::with_capacity(KNOWN);
    for index in 0..KNOWN {
        keys.push(world::open_session(env, &known(index))?.identity.key().to_string());
    }
    for callers in [1, CALLERS] {
        let path = format!("get-or-create, hit, {}", counted(callers));
        let floor = async |_| {
            timed(hits, |index| {
                let mut statement = raw.prepare_cached(RAW_LOOKUP)?;
                let (session, state): (String, String) =
                    statement.query_row([&keys[index % KNOWN]], |row| Ok((row.get(0)?, row.get(6)?)))?;
                ensure!(session.starts_with("ses_") && state == "active", "{session} is {state}");
                Ok(())
            })
        };
        let ours = async |_| {
            let requests = world::per_caller(callers, hits / callers, |caller, index| {
                world::open_session(env, &known((caller + index) % KNOWN))
            })?;
            let store = Arc::clone(&store);
            together(requests, move |request: OpenSession| {
                let store = Arc::clone(&store);
                async move {
                    let opened = store.open(request, now).await?;
                    ensure!(!opened.created && opened.generation == 1, "not found: {opened:?}");
                    Ok(())
                }
            })
            .await
        };
        let named = Named { path: &path, floor: "raw SELECT" };
        bench.compare(named, Shown::Rate, Target::AtLeast(0.5), floor, ours).await?;
    }
    close(store).await
}

/// A call that finds its session, beside the same by the original's three statements.
async fn three(bench: &mut Bench, files: &Files, env: &Env) -> Outcome {
    let now = env.now();
    let store = Arc::new(files::open(&files.ours()).await?);
    let raw = files::raw(&files.floor())?;
    raw.execute_batch(THREE_TABLE)?;
    let calls = bench.sized(HITS / 5);
    let mut known_by = Vec::with_capacity(KNOWN);
    for index in 0..KNOWN {
        let request = world::open_session(env, &known(index))?;
        known_by.push((request.identity.key().to_string(), request.new.id.to_string()));
        let (key, session) = known_by.last().ok_or("nothing is known")?;
        raw.prepare_cached(THREE_INSERT)?.execute(params![key, session, now.as_millisecond()])?;
    }
    let floor = async |_| {
        timed(calls, |index| {
            let (key, session) = &known_by[index % KNOWN];
            raw.prepare_cached(THREE_INSERT)?.execute(params![key, "another", now.as_millisecond()])?;
            raw.prepare_cached(THREE_UPDATE)?.execute(params![key, now.as_millisecond()])?;
            let found: String = raw.prepare_cached(THREE_SELECT)?.query_row([key], |row| row.get(0))?;
            ensure!(found == *session, "{found} in the place of {session}");
            Ok(())
        })
    };
    let ours = async |_| {
        let requests =
            world::per_caller(1, calls, |_, index| world::open_session(env, &known(index % KNOWN)))?;
        let store = Arc::clone(&store);
        together(requests, move |request: OpenSession| {
            let store = Arc::clone(&store);
            async move {
                let opened = store.open(request, now).await?;
                ensure!(!opened.created && opened.generation == 1, "not found: {opened:?}");
                Ok(())
            }
        })
        .await
    };
    let named = Named { path: "get-or-create, hit, as the original", floor: "raw INSERT, UPDATE, SELECT" };
    bench.compare(named, Shown::Rate, Target::AtLeast(1.0), floor, ours).await?;
    close(store).await
}

async fn misses(bench: &mut Bench, files: &Files, env: &Env) -> Outcome {
    let now = env.now();
    let store = Arc::new(files::open(&files.ours()).await?);
    let mut raw = files::raw(&files.floor())?;
    let mut added = 0;
    for (callers, misses) in [(1, MISSES), (CALLERS, MISSES_TOGETHER)] {
        let misses = bench.sized(misses);
        let requests = |round: usize| {
            world::per_caller(callers, misses, |caller, index| {
                world::open_session(env, &format!("new {callers} {round} {caller} {index}"))
            })
        };
        let path = format!("get-or-create, miss, {}", counted(callers));
        let floor_name = match callers {
            1 => "raw INSERTs, one commit".to_owned(),
            _ => format!("raw INSERTs, {callers} a commit"),
        };
        let floor = async |round| {
            let requests: Vec<_> = requests(round)?.iter().flatten().map(raw_request).collect();
            let begun = Instant::now();
            for group in requests.chunks(callers) {
                create(&mut raw, group, now.as_millisecond())?;
            }
            each(begun.elapsed(), requests.len())
        };
        let ours = async |round| {
            let store = Arc::clone(&store);
            together(requests(round)?, move |request| {
                let store = Arc::clone(&store);
                async move {
                    let opened = store.open(request, now).await?;
                    ensure!(opened.created && opened.generation == 1, "not made: {opened:?}");
                    Ok(())
                }
            })
            .await
        };
        let named = Named { path: &path, floor: &floor_name };
        bench.compare(named, Shown::Rate, Target::None, floor, ours).await?;
        added += callers * misses * bench.rounds();
    }
    for path in [files.ours(), files.floor()] {
        let identities = files::number(&path, "SELECT count(*) FROM identities")?;
        ensure!(identities == KNOWN + added, "{identities} identities: {}", path.display());
        files::check_events(&path, KNOWN + added)?;
    }
    close(store).await
}

fn raw_request(request: &OpenSession) -> RawRequest {
    RawRequest {
        key: request.identity.key().to_string(),
        session: request.new.id.to_string(),
        agent: request.identity.agent.to_string(),
    }
}

/// Everything that a new identity comes to, for a group in one transaction.
fn create(raw: &mut Connection, group: &[RawRequest], now: i64) -> Outcome {
    let transaction = raw.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for RawRequest { key, session, agent } in group {
        let mut insert = transaction.prepare_cached(RAW_IDENTITY)?;
        let of: String =
            insert.query_row(params![key, session, agent, now, now + 86_400_000], |row| row.get(0))?;
        ensure!(of == *session, "{key} was there already");
        transaction.prepare_cached(RAW_SESSION)?.execute(params![session, key, now])?;
        transaction.prepare_cached(RAW_EVENT)?.execute(params![session, now])?;
    }
    Ok(transaction.commit()?)
}

pub(crate) fn counted(callers: usize) -> String {
    if callers == 1 { "1 caller".into() } else { format!("{callers} callers") }
}
