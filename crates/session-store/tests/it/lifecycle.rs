//! Accounts, keys, forks and sweeps under load: two stores over one database, and large ones.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::SignedDuration;
use session_core::budget::{Budget, Usage};
use session_core::ports::{Author, SessionFilter, Sweep};
use session_core::session::NewSession;
use session_core::{Event, Seq, Store, StoreError};
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};
use tokio::task::JoinSet;

use crate::pg;
use crate::stores::{Pair, SqliteFile, message, new_session, world};

/// Callers in two processes reserve from one budget, and settle: at no moment is more promised than there is.
async fn reservations_never_overshoot(url: &str) {
    const CALLERS: usize = 16;
    const ROUNDS: u64 = 10;
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let budget = Budget { tokens_max: 100, ..Budget::default() };
    let new = NewSession { budget, ..new_session(&env) };
    let id = pair.stores[0].create(new, now).await.unwrap().id;
    let worst = Usage { tokens: 10, ..Usage::default() };
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let store = Arc::clone(&pair.stores[caller % 2]);
        callers.spawn(async move {
            let mut used = 0;
            for round in 0..ROUNDS {
                match store.reserve(id, worst, now).await {
                    Ok(account) => {
                        assert!(account.used.tokens + account.reserved.tokens <= 100, "{account:?}");
                        let actual = Usage { tokens: round % 4, ..worst };
                        used += actual.tokens;
                        store.settle(id, worst, actual, None, now).await.unwrap();
                    }
                    Err(StoreError::Exhausted(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            used
        });
    }
    let used: u64 = callers.join_all().await.iter().sum();
    let account = pair.stores[1].session(id).await.unwrap().unwrap().account();
    assert_eq!((account.used.tokens, account.reserved), (used, Usage::default()));
    assert!(used <= 100);
    let minutes = pair.stores[0].tokens_by_minute(jiff::Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(minutes.iter().map(|(_, tokens)| tokens).sum::<u64>(), used);
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_never_overshoot_on_sqlite() {
    let file = SqliteFile::new();
    reservations_never_overshoot(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_never_overshoot_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    reservations_never_overshoot(database.url()).await;
}

async fn a_hundred_calls_by_key_make_one_session(url: &str) {
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let mut calls = JoinSet::new();
    for call in 0..100 {
        let store = Arc::clone(&pair.stores[call % 2]);
        let new = NewSession { key: Some("telegram:dm:42".parse().unwrap()), ..new_session(&env) };
        calls.spawn(async move { store.open_key(new, now).await.unwrap() });
    }
    let opened = calls.join_all().await;
    let sessions: HashSet<_> = opened.iter().map(|opened| opened.session.id).collect();
    let created = opened.iter().filter(|opened| opened.created).count();
    assert_eq!((opened.len(), sessions.len(), created), (100, 1, 1));
    let all = session_core::ports::Page::first(10);
    assert_eq!(pair.stores[0].list(&SessionFilter::default(), &all).await.unwrap().items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_by_key_make_one_session_on_sqlite() {
    let file = SqliteFile::new();
    a_hundred_calls_by_key_make_one_session(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_by_key_make_one_session_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    a_hundred_calls_by_key_make_one_session(database.url()).await;
}

/// A log of many blocks is copied whole, by the database itself.
async fn a_long_log_is_forked_whole(store: Arc<dyn Store>) {
    const BATCHES: u64 = 100;
    const EACH: u64 = 100;
    let env = world();
    let now = env.now();
    let source = store.create(new_session(&env), now).await.unwrap().id;
    for _ in 0..BATCHES {
        let batch = vec![message(&"x".repeat(300)); usize::try_from(EACH).unwrap()];
        store.append(Author::Session(source), batch, now).await.unwrap();
    }
    let fork = store.fork(source, None, new_session(&env), now).await.unwrap();
    assert_eq!(fork.forked_from.unwrap().upto.0, BATCHES * EACH + 1);
    assert_eq!(store.tail(fork.id, 1).await.unwrap()[0].seq.0, BATCHES * EACH + 2);
    let bodies = |events: Vec<Event>| events.into_iter().map(|event| event.body).collect::<Vec<_>>();
    let (theirs, ours) = (store.read(source, Seq(9_000), 1_000), store.read(fork.id, Seq(9_000), 1_000));
    assert_eq!(bodies(theirs.await.unwrap()), bodies(ours.await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_forked_whole_on_sqlite() {
    let file = SqliteFile::new();
    a_long_log_is_forked_whole(Arc::new(file.open().await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_forked_whole_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    a_long_log_is_forked_whole(Arc::new(crate::stores::open(database.url()).await)).await;
}

/// Of a hundred thousand sessions that are not due, or not this runner's, a sweep takes none. That it walks over none of them
/// is told by its plan.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_costs_what_is_due() {
    const SESSIONS: usize = 100_000;
    let file = SqliteFile::new();
    let store: Arc<dyn Store> = Arc::new(file.open().await);
    let env = world();
    let now = env.now();
    let due = store.create(new_session(&env), now).await.unwrap().id;
    let mut connection = SqliteConnection::connect(&file.url().to_string()).await.unwrap();
    let others = format!(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {SESSIONS}) \
         INSERT INTO sessions (id, principal, state, state_at_ms, state_until_ms, workspace_kind, workspace_runner, \
         metadata, tokens_max, tool_calls_max, created_at_ms, active_at_ms) \
         SELECT printf('ses_%012x40008%015x', n, n), 'alice', \
         CASE n % 3 WHEN 0 THEN 'active' WHEN 1 THEN 'idle' ELSE 'suspended' END, {at}, {at}, 'scratch', \
         CASE WHEN n % 2 = 0 THEN '{other}' END, '{{}}', 1, 1, 0, \
         CASE WHEN n % 2 = 0 THEN 0 ELSE {at} END FROM n",
        at = (now + SignedDuration::from_hours(24)).as_millisecond(),
        other = env.runner_id(),
    );
    sqlx::raw_sql(AssertSqlSafe(others)).execute(&mut connection).await.unwrap();
    let sweep = Sweep {
        runner: env.runner_id(),
        idle_timeout: Some(SignedDuration::from_mins(15)),
        suspended_ttl: None,
        except: Vec::new(),
        limit: 100,
    };
    let later = now + SignedDuration::from_mins(15);
    let swept = store.sweep(&sweep, later).await.unwrap();
    assert_eq!(swept.iter().map(|swept| swept.session).collect::<Vec<_>>(), [due]);
    assert!(store.sweep(&sweep, later).await.unwrap().is_empty());
}
