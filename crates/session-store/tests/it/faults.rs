//! Loss of the process, a full disk, and another writer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use session_core::ports::{Author, EventStore as _, SessionFilter, SessionStore as _};
use session_core::{Seq, SessionId, Store, StoreError};
use sqlx::{Connection as _, SqliteConnection};
use tokio::task::JoinSet;

use crate::stores::{SqliteFile, message, new_run, new_session, world};

/// In this variable the child of the test below finds its file.
const CHILD: &str = "ROOMETTE_TEST_CHILD_FILE";

/// Appends for ever and tells each number that was acknowledged.
async fn append_until_killed(path: &str) -> ! {
    let store = crate::stores::open(path).await;
    let env = world();
    let session = store.create(new_session(&env), env.now()).await.unwrap().id;
    loop {
        let appended = store.append(Author::Session(session), vec![message("x")], env.now()).await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nacknowledged {session} {}", appended.seqs[0].0).unwrap();
    }
}

/// Starts itself as the process that is killed.
#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    #[expect(clippy::disallowed_methods, reason = "how a process learns that it is the child")]
    if let Ok(path) = std::env::var(CHILD) {
        append_until_killed(&path).await;
    }
    let file = SqliteFile::new();
    file.open().await.close().await;
    #[expect(clippy::disallowed_methods, reason = "the child is this test's own binary")]
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::what_was_acknowledged_survives_a_kill", "--nocapture", "--test-threads=1"])
        .env(CHILD, file.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let parse = |line: &str| -> Option<(SessionId, u64)> {
        let (session, seq) = line.strip_prefix("acknowledged ")?.split_once(' ')?;
        Some((session.parse().ok()?, seq.parse().ok()?))
    };
    let mut last = None;
    let mut told = 0;
    while told < 200 {
        let line = lines.next().unwrap().unwrap();
        if let Some(next) = parse(&line) {
            last = Some(next);
            told += 1;
        }
    }
    child.kill().unwrap();
    // What it told before it died, too.
    for line in lines.map_while(Result::ok) {
        last = parse(&line).or(last);
    }
    child.wait().unwrap();
    let (session, seq) = last.unwrap();
    let store = file.open().await;
    let log = store.read(session, Seq::START, 1_000_000).await.unwrap();
    assert!(log.len() as u64 >= seq, "{} events are there, {seq} were acknowledged", log.len());
    assert!(log.iter().zip(1..).all(|(event, number)| event.seq.0 == number));
    store.append(Author::Session(session), vec![message("on")], world().now()).await.unwrap();
}

#[tokio::test]
async fn a_full_database_is_told_and_loses_nothing() {
    let file = SqliteFile::new();
    file.open().await.close().await;
    let store = session_store::SqlStore::open(
        &file.url(),
        session_store::OpenOptions::default().size_max_bytes(Some(400 << 10)),
    )
    .await
    .unwrap();
    let env = world();
    let session = store.create(new_session(&env), env.now()).await.unwrap().id;
    let event = message(&"x".repeat(20_000));
    let mut acknowledged = 0;
    let full = loop {
        match store.append(Author::Session(session), vec![event.clone()], env.now()).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1_000, "it was never full");
    };
    let StoreError::Unavailable(source) = &full else { panic!("{full:?}") };
    assert!(source.to_string().contains("full"), "{source}");
    // Reading goes on, and so does writing what still has room.
    let log = store.read(session, Seq::START, 10_000).await.unwrap();
    assert_eq!(log.len(), acknowledged + 1);
    store.close().await;
    let store = file.open().await;
    assert_eq!(store.read(session, Seq::START, 10_000).await.unwrap().len(), acknowledged + 1);
    store.append(Author::Session(session), vec![event], env.now()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_program_is_waited_for() {
    let file = SqliteFile::new();
    let store = file.open().await;
    let env = world();
    let url = format!("sqlite:{}", file.path().display());
    let mut other = SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let waiting = tokio::spawn({
        let (store, new, now) = (store.clone(), new_session(&env), env.now());
        async move { store.create(new, now).await }
    });
    // Reading does not wait for anybody.
    store.session(env.session_id()).await.unwrap();
    assert!(!waiting.is_finished());
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_get_along() {
    const EACH: usize = 50;
    let file = SqliteFile::new();
    let stores = [file.open().await, file.open().await];
    let env = world();
    let session = stores[0].create(new_session(&env), env.now()).await.unwrap().id;
    let mut writers = JoinSet::new();
    for store in stores.clone() {
        let now = env.now();
        writers.spawn(async move {
            for _ in 0..EACH {
                store.append(Author::Session(session), vec![message("x")], now).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    assert_eq!(stores[0].read(session, Seq::START, 1_000).await.unwrap().len(), 2 * EACH + 1);
}

/// A change that fails after it has written takes nothing of its group along.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_a_group_is_its_own() {
    const CALLS: usize = 60;
    let file = SqliteFile::new();
    let store: Arc<dyn Store> = Arc::new(file.open().await);
    let env = world();
    let now = env.now();
    let busy = store.enqueue(vec![new_run(&env)], None, now).await.unwrap()[0].session;
    let mut calls = JoinSet::new();
    for call in 0..CALLS {
        let store = Arc::clone(&store);
        let good = new_run(&env);
        // The first run of the batch is written before the second is refused.
        let bad =
            session_core::ports::NewRun { of: session_core::ports::RunOf::Existing(busy), ..new_run(&env) };
        calls.spawn(async move {
            match call % 3 {
                0 => (store.enqueue(vec![good, bad], None, now).await.is_err(), 0),
                1 => (store.enqueue(vec![good], None, now).await.is_ok(), 1),
                _ => (store.append(Author::Session(busy), vec![message("x")], now).await.is_ok(), 0),
            }
        });
    }
    let outcomes = calls.join_all().await;
    assert!(outcomes.iter().all(|(as_expected, _)| *as_expected), "{outcomes:?}");
    let made: usize = outcomes.iter().map(|(_, made)| made).sum();
    let all = session_core::ports::Page::first(1_000);
    assert_eq!(store.list(&SessionFilter::default(), &all).await.unwrap().items.len(), made + 1);
    assert_eq!(store.read(busy, Seq::START, 1_000).await.unwrap().len(), 2 + CALLS / 3);
    assert!(store.run(env.run_id()).await.unwrap().is_none());
}
