//! A legacy coordinator's database, taken into stores of both kinds.

use std::path::{Path, PathBuf};
use std::process::Command;

use session_core::affinity::{Affinity, Place, RunnerProfile};
use session_core::history::reconstruct_messages;
use session_core::names::Hostname;
use session_core::ports::{EventStore as _, NewRun, RunOf, RunProgress, RunStore as _, SessionStore as _};
use session_core::run::RunSpec;
use session_core::session::Binding;
use session_core::turn::Turn;
use session_core::{Env, ManagedSession, SandboxSpec, Seq, SessionId};
use session_store::SqlStore;
use session_store::legacy::{
    LegacyDatabase, LegacyError, LegacyImport, LegacyOutcome, LegacyPlace, LegacyResult,
};

use crate::pg;
use crate::stores::{SqliteFile, new_run, open, runner, world};

/// Makes the database of a legacy coordinator.
#[expect(clippy::disallowed_methods, reason = "the fixture is a script")]
fn fixture(directory: &Path) -> PathBuf {
    let file = directory.join("legacy.db");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/legacy/make");
    let made = Command::new(script).arg(&file).status().unwrap();
    assert!(made.success());
    file
}

fn wish(env: &Env) -> LegacyImport {
    LegacyImport {
        principal: "alice".parse().unwrap(),
        source: "legacy".into(),
        hostname: "here".parse().unwrap(),
        executor: "claude-code".parse().unwrap(),
        budget: session_core::budget::Budget::default(),
        dry_run: false,
        secret: env.secret(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as an importer says it")]
fn anywhere(_: &Hostname, project: Option<&str>) -> Result<LegacyPlace, String> {
    Ok(LegacyPlace { project: project.map(Into::into), sandbox: SandboxSpec::default() })
}

async fn import(store: &SqlStore, file: &Path, wish: &LegacyImport, env: &Env) -> Vec<LegacyOutcome> {
    let mut database = LegacyDatabase::open(file).await.unwrap();
    let outcomes = store.import_legacy(&mut database, wish, &anywhere, env.now()).await.unwrap();
    database.close().await;
    outcomes
}

fn imported(outcome: &LegacyOutcome) -> SessionId {
    match outcome.result {
        LegacyResult::Imported(id) => id,
        LegacyResult::Known(_) | LegacyResult::Refused(_) => panic!("{outcome:?}"),
    }
}

async fn session(store: &SqlStore, id: SessionId) -> ManagedSession {
    store.session(id).await.unwrap().unwrap()
}

async fn is_taken_in(store: &SqlStore) {
    let (env, directory) = (world(), tempfile::tempdir().unwrap());
    let file = fixture(directory.path());
    let wish = wish(&env);
    let trial = import(store, &file, &LegacyImport { dry_run: true, ..wish.clone() }, &env).await;
    let outcomes = import(store, &file, &wish, &env).await;
    let refused = |outcome: &LegacyOutcome| matches!(outcome.result, LegacyResult::Refused(_));
    assert_eq!(trial.iter().filter(|outcome| refused(outcome)).count(), 3);
    let reasons: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| match &outcome.result {
            LegacyResult::Refused(reason) => Some(reason.as_str()),
            LegacyResult::Imported(_) | LegacyResult::Known(_) => None,
        })
        .collect();
    assert_eq!(reasons.len(), 3, "{outcomes:#?}");
    for (reason, part) in reasons.iter().zip(["abacus", "last week", "session_name is no text"]) {
        assert!(reason.contains(part), "{reason}");
    }
    let (child, top, old) = (imported(&outcomes[0]), imported(&outcomes[1]), imported(&outcomes[2]));
    let child = session(store, child).await;
    assert_eq!((child.parent, child.depth, child.callback), (Some(top), 1, false));
    assert_eq!(child.agent.unwrap().as_str(), "researcher");
    let top = session(store, top).await;
    let bound = Binding {
        runner: None,
        hostname: "legacy-box".parse().unwrap(),
        executor: "claude-code".parse().unwrap(),
        executor_session_id: "5d0e7a3c-0000-4000-8000-000000000001".parse().unwrap(),
        project_dir: "/srv/project".into(),
        resumable: true,
    };
    assert_eq!((top.label.as_ref().unwrap().as_str(), &top.binding), ("orchestrator", &Some(bound)));
    assert_eq!(session(store, old).await.binding.unwrap().hostname.as_str(), "here");
    let (review, nowhere) = (&outcomes[3], &outcomes[4]);
    assert!(
        review.notes[0].contains("\"gone\"") && nowhere.notes[0].contains("project_dir"),
        "{outcomes:#?}"
    );
    assert_eq!(session(store, imported(nowhere)).await.binding, None);
    let log = store.read(top.id, Seq::START, 100).await.unwrap();
    assert_eq!(log[1].at.to_string(), "2025-11-20T10:00:01Z");
    assert_eq!(log.last().unwrap().body.kind.as_str(), "session.imported");
    assert_eq!(reconstruct_messages(&log).messages.len(), 4);
    again(store, &file, &wish, &outcomes).await;
    is_carried_on_where_it_was(store, top.id).await;
}

/// Run twice it changes nothing, also where it was ended meanwhile; another source is another one.
async fn again(store: &SqlStore, file: &Path, wish: &LegacyImport, before: &[LegacyOutcome]) {
    let env = world();
    let other_secret = LegacyImport { secret: env.secret(), ..wish.clone() };
    let outcomes = import(store, file, &other_secret, &env).await;
    for (now, before) in outcomes.iter().zip(before) {
        match (&now.result, &before.result) {
            (LegacyResult::Known(now), LegacyResult::Imported(before)) => assert_eq!(now, before),
            (now, before) => assert_eq!(now, before),
        }
    }
    let elsewhere = LegacyImport { source: "another".into(), dry_run: true, ..wish.clone() };
    let outcomes = import(store, file, &elsewhere, &env).await;
    assert_ne!(imported(&outcomes[1]), imported(&before[1]));
}

/// Only by a runner on that machine, which then is the one that has it; and it stays resumable all the while.
async fn is_carried_on_where_it_was(store: &SqlStore, id: SessionId) {
    let env = world();
    let claude = "claude-code".parse().unwrap();
    let on = |hostname: &str| RunnerProfile {
        hostname: hostname.parse().unwrap(),
        executors: vec!["claude-code".parse().unwrap()],
        ..runner(&env)
    };
    let (there, elsewhere) = (on("legacy-box"), on("another-box"));
    let spec = RunSpec { turn: Some(Turn::new("go on")), ..RunSpec::default() };
    let record = session(store, id).await;
    let wanted = Affinity { place: Place::Runner(elsewhere.id), executor: claude, project_dir: None };
    let affinity = Affinity::of(&record, None, &wanted, &spec).unwrap();
    assert_eq!(affinity.place, Place::Hostname(there.hostname.clone()));
    let run = NewRun { of: RunOf::Existing(id), spec, affinity, ..new_run(&env) };
    store.enqueue(vec![run], None, env.now()).await.unwrap();
    let lease = jiff::SignedDuration::from_mins(1);
    assert!(store.claim(&elsewhere, lease, env.now()).await.unwrap().is_none());
    let claimed = store.claim(&there, lease, env.now()).await.unwrap().unwrap();
    let fence = claimed.run.fence();
    for step in [RunProgress::Starting, RunProgress::Running { sandbox: None }] {
        store.advance(fence, step, env.now()).await.unwrap();
    }
    let held = record.binding.unwrap();
    let ours = Binding { runner: Some(there.id), resumable: false, ..held.clone() };
    store.bind(fence, ours.clone(), env.now()).await.unwrap();
    assert_eq!(session(store, id).await.binding, Some(Binding { resumable: true, ..ours.clone() }));
    let other = Binding { executor_session_id: "another".parse().unwrap(), ..ours };
    assert!(store.bind(fence, other, env.now()).await.is_err());
}

#[tokio::test]
async fn sqlite_takes_a_legacy_database_in() {
    let file = SqliteFile::new();
    let store = file.open().await;
    is_taken_in(&store).await;
    store.close().await;
}

#[tokio::test]
async fn postgres_takes_a_legacy_database_in() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let store = open(database.url()).await;
    is_taken_in(&store).await;
    store.close().await;
}

#[tokio::test]
async fn what_is_something_else_is_refused_and_says_what() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let refused = async |file: PathBuf| LegacyDatabase::open(&file).await.unwrap_err();
    assert!(matches!(refused(path("missing.db")).await, LegacyError::Missing(_)));
    std::fs::write(path("text.db"), "no database at all, but long enough to be one".repeat(100)).unwrap();
    assert!(matches!(refused(path("text.db")).await, LegacyError::Damaged { .. }));
    std::fs::write(path("empty.db"), "").unwrap();
    assert!(refused(path("empty.db")).await.to_string().contains("no table \"sessions\""));
    let whole = std::fs::read(fixture(directory.path())).unwrap();
    std::fs::write(path("torn.db"), &whole[..whole.len() / 2]).unwrap();
    let torn = refused(path("torn.db")).await;
    assert!(matches!(torn, LegacyError::Damaged { .. }), "{torn:?}");
    let ours = SqliteFile::new();
    ours.open().await.close().await;
    let foreign = refused(ours.path()).await.to_string();
    assert!(foreign.contains("no column \"session_id\""), "{foreign}");
}
