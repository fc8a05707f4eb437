//! Two stores over one database, as two processes have them, at work on the same things.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use session_core::family::Parent;
use session_core::ports::{Author, Idempotency, NewRun, RunOf, SessionFilter, Wakes as _};
use session_core::run::StopMode;
use session_core::session::NewSession;
use session_core::wake::{Listener, Topic};
use session_core::{Digest, StoreError};
use sqlx::Connection as _;
use tokio::task::JoinSet;

use crate::pg;
use crate::stores::{Pair, SqliteFile, message, new_run, new_session, open_request, runner, world};

async fn a_hundred_opens_make_one_session(url: &str) {
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let mut calls = JoinSet::new();
    for call in 0..100 {
        let (store, request) = (Arc::clone(&pair.stores[call % 2]), open_request(&env, "agent"));
        calls.spawn(async move { store.open(request, now).await.unwrap() });
    }
    let opened = calls.join_all().await;
    let sessions: HashSet<_> = opened.iter().map(|opened| opened.session).collect();
    let created = opened.iter().filter(|opened| opened.created).count();
    assert_eq!((opened.len(), sessions.len(), created), (100, 1, 1));
    let all = session_core::ports::Page::first(10);
    let listing = pair.stores[0].list(&SessionFilter::default(), &all).await.unwrap();
    assert_eq!(listing.items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_opens_make_one_session_on_sqlite() {
    let file = SqliteFile::new();
    a_hundred_opens_make_one_session(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_opens_make_one_session_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    a_hundred_opens_make_one_session(database.url()).await;
}

/// Children of one parent end in two processes, some by themselves and some with the one they wait for, while the parent is
/// given more: it hears of each once, and nobody waits for anybody for ever.
async fn a_parent_hears_of_each_child_once(url: &str) {
    const CREWS: usize = 16;
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let root = pair.stores[0].create(new_session(&env), now).await.unwrap().id;
    let wish = Parent { callback: true, ..Parent::new(root) };
    let child = || {
        let session = NewSession { parent: Some(wish), ..new_session(&env) };
        NewRun { of: RunOf::New(Box::new(session)), ..new_run(&env) }
    };
    let mut firsts = Vec::new();
    for crew in 0..CREWS {
        let batch = vec![child(), NewRun { after: vec![0], ..child() }, NewRun { after: vec![1], ..child() }];
        firsts.push(pair.stores[crew % 2].enqueue(batch, None, now).await.unwrap()[0].id);
    }
    let mut calls = JoinSet::new();
    for (place, first) in firsts.into_iter().enumerate() {
        let (store, more) = (Arc::clone(&pair.stores[place % 2]), child());
        calls.spawn(async move {
            store.request_stop(first, StopMode::Kill, now).await.unwrap();
            let run = store.enqueue(vec![more], None, now).await.unwrap()[0].id;
            store.request_stop(run, StopMode::Kill, now).await.unwrap();
        });
    }
    calls.join_all().await;
    let told = pair.stores[1].callbacks(root, 1_000).await.unwrap();
    let runs: HashSet<_> = told.iter().map(|callback| callback.run).collect();
    assert_eq!((told.len(), runs.len()), (4 * CREWS, 4 * CREWS));
    let log = pair.stores[0].read(root, session_core::Seq::START, 1_000).await.unwrap();
    assert_eq!(log.iter().filter(|event| event.body.kind.as_str() == "child.ended").count(), 4 * CREWS);
    assert_eq!(pair.stores[0].callbacks_due(10).await.unwrap(), [root]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_hears_of_each_child_once_on_sqlite() {
    let file = SqliteFile::new();
    a_parent_hears_of_each_child_once(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_hears_of_each_child_once_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    a_parent_hears_of_each_child_once(database.url()).await;
}

async fn a_hundred_calls_under_a_key_make_one_run(url: &str) {
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let once = Idempotency {
        principal: "alice".parse().unwrap(),
        key: "one".parse().unwrap(),
        digest: Digest::of("request"),
    };
    let mut calls = JoinSet::new();
    for call in 0..100 {
        let (store, batch) = (Arc::clone(&pair.stores[call % 2]), vec![new_run(&env)]);
        let once = once.clone();
        calls.spawn(async move { store.enqueue_once(batch, None, Some(once), now).await.unwrap() });
    }
    let runs: HashSet<_> = calls.join_all().await.into_iter().flatten().map(|run| run.id).collect();
    assert_eq!(runs.len(), 1);
    let all = session_core::ports::Page::first(10);
    let listing = pair.stores[0].list(&SessionFilter::default(), &all).await.unwrap();
    assert_eq!(listing.items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_under_a_key_make_one_run_on_sqlite() {
    let file = SqliteFile::new();
    a_hundred_calls_under_a_key_make_one_run(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_calls_under_a_key_make_one_run_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    a_hundred_calls_under_a_key_make_one_run(database.url()).await;
}

async fn sixteen_claimers_take_each_run_once(url: &str) {
    const RUNS: usize = 400;
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let batch: Vec<_> = (0..RUNS).map(|_| new_run(&env)).collect();
    let ids: HashSet<_> = batch.iter().map(|run| run.id).collect();
    pair.stores[0].enqueue(batch, None, now).await.unwrap();
    let mut claimers = JoinSet::new();
    for claimer in 0..16 {
        let (store, runner) = (Arc::clone(&pair.stores[claimer % 2]), runner(&env));
        claimers.spawn(async move {
            let mut claimed = Vec::new();
            while let Some(next) = store.claim(&runner, SignedDuration::from_mins(1), now).await.unwrap() {
                claimed.push(next.run.id);
            }
            claimed
        });
    }
    let claimed = claimers.join_all().await.concat();
    assert_eq!(claimed.len(), RUNS);
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>(), ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_claimers_take_each_run_once_on_sqlite() {
    let file = SqliteFile::new();
    sixteen_claimers_take_each_run_once(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_claimers_take_each_run_once_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    sixteen_claimers_take_each_run_once(database.url()).await;
}

/// Appends to the same few logs, by sessions and by runs, with everything else that takes their locks.
async fn logs_stay_dense(url: &str) {
    const ROUNDS: usize = 40;
    let pair = Pair::of(url).await;
    let env = world();
    let now = env.now();
    let runner = runner(&env);
    let batch: Vec<_> = (0..4).map(|_| new_run(&env)).collect();
    let runs = pair.stores[0].enqueue(batch, None, now).await.unwrap();
    let mut fences = Vec::new();
    while let Some(claimed) = pair.stores[1].claim(&runner, SignedDuration::from_mins(1), now).await.unwrap()
    {
        fences.push(claimed.run.fence());
    }
    assert_eq!(fences.len(), runs.len());
    let mut writers = JoinSet::new();
    for writer in 0..12 {
        let (store, session) = (Arc::clone(&pair.stores[writer % 2]), runs[writer % runs.len()].session);
        let fence = fences[(writer / 3) % fences.len()];
        writers.spawn(async move {
            for round in 0..ROUNDS {
                match writer % 3 {
                    0 => drop(store.append(Author::Session(session), vec![message("a")], now).await.unwrap()),
                    1 => drop(
                        store
                            .append(Author::Run(fence), vec![message("b"), message("c")], now)
                            .await
                            .unwrap(),
                    ),
                    _ => {
                        store.relabel(session, Some(format!("{round}").parse().unwrap()), now).await.unwrap();
                    }
                }
            }
        });
    }
    writers.join_all().await;
    let mut appended = 0;
    for run in &runs {
        let log = pair.stores[0].read(run.session, session_core::Seq::START, 10_000).await.unwrap();
        let seqs: Vec<_> = log.iter().map(|event| event.seq.0).collect();
        assert_eq!(seqs, (1..=log.len() as u64).collect::<Vec<_>>());
        // Created, enqueued, claimed.
        appended += log.len() - 3;
    }
    assert_eq!(appended, 4 * ROUNDS + 4 * 2 * ROUNDS + 4 * ROUNDS);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_stay_dense_on_sqlite() {
    let file = SqliteFile::new();
    logs_stay_dense(&file.url().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_stay_dense_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    logs_stay_dense(database.url()).await;
}

/// Enqueues through one store until somebody who listens to the other is woken: its connection may not be up yet.
async fn wakes(pair: &Pair, queue: &mut Listener) -> bool {
    const TRIES: usize = 100;
    let env = world();
    for _ in 0..TRIES {
        match pair.stores[0].enqueue(vec![new_run(&env)], None, env.now()).await {
            Ok(_) | Err(StoreError::Unavailable(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        if tokio::time::timeout(Duration::from_millis(100), queue.woken()).await.is_ok() {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_in_one_process_wakes_the_other_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let pair = Pair::of(database.url()).await;
    let mut queue = pair.handles[1].listen(Topic::Queue);
    assert!(wakes(&pair, &mut queue).await);
    // From now on its connection is up, and nothing is missed.
    let env = world();
    let new = new_session(&env);
    let mut log = pair.handles[1].listen(Topic::Session(new.id));
    pair.stores[0].create(new.clone(), env.now()).await.unwrap();
    log.woken().await;
    pair.stores[0].append(Author::Session(new.id), vec![message("hello")], env.now()).await.unwrap();
    log.woken().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_comes_back_after_its_connection_was_cut() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let pair = Pair::of(database.url()).await;
    let mut queue = pair.handles[1].listen(Topic::Queue);
    assert!(wakes(&pair, &mut queue).await);
    let mut other = sqlx::PgConnection::connect(database.url()).await.unwrap();
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    .execute(&mut other)
    .await
    .unwrap();
    // It wakes everybody when it is back, because it may have missed something …
    queue.woken().await;
    // … and hears of what comes after.
    assert!(wakes(&pair, &mut queue).await);
}

/// Somebody holds the row of one session: what is appended to it is refused after a while, and what was grouped with that is
/// not.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_held_up_holds_up_no_other_on_postgres() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let pair = Pair::of(database.url()).await;
    let env = world();
    let now = env.now();
    let mut sessions = Vec::new();
    for _ in 0..24 {
        sessions.push(pair.stores[0].create(new_session(&env), now).await.unwrap().id);
    }
    let held = sessions[0];
    let mut holder = sqlx::PgConnection::connect(database.url()).await.unwrap();
    sqlx::query("BEGIN").execute(&mut holder).await.unwrap();
    let lock = sqlx::query("SELECT id FROM sessions WHERE id = $1 FOR UPDATE").bind(held.to_string());
    lock.execute(&mut holder).await.unwrap();
    let mut calls = JoinSet::new();
    for id in sessions {
        let store = Arc::clone(&pair.stores[0]);
        calls.spawn(async move { (id, store.append(Author::Session(id), vec![message("hi")], now).await) });
    }
    for (id, appended) in calls.join_all().await {
        match appended {
            Ok(_) => assert_ne!(id, held),
            Err(error) => assert!(id == held && error.may_pass(), "{id}: {error}"),
        }
    }
    sqlx::query("ROLLBACK").execute(&mut holder).await.unwrap();
    pair.stores[0].append(Author::Session(held), vec![message("hi")], now).await.unwrap();
}
