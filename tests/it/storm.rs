//! Two coordinators, one of which executes runs itself, and three runners on one PostgreSQL, all of them killed at random
//! for a minute, while clients enqueue five hundred runs: none is lost, doubled or stuck, and no event that was acknowledged
//! is missing.
//!
//! `ROOMETTE_STORM_SECONDS` and `ROOMETTE_SEED` make it longer, or repeat its kills.

mod fleet;
mod work;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use session_core::budget::Usage;
use session_core::event::EventKind;
use session_core::ports::{EventStore as _, RunStore as _, SessionStore as _};
use session_core::run::{EndKind, ReasonCode, RunPhase};
use session_core::{Event, RunId, Seq, SessionId};
use session_store::testing::pg;
use session_store::{OpenOptions, SqlStore};
use session_tests::home::processes_with;
use tokio::time::Instant;

use fleet::Fleet;
use work::{Enqueued, Kind, Work};

/// How long processes are killed.
const SECONDS: u64 = 60;
/// How long everything may take to come to its end afterwards.
const PATIENCE: Duration = Duration::from_secs(100);

#[test]
fn on_postgres_nothing_is_lost_doubled_or_stuck_whoever_is_killed() {
    if pg::skipped("postgres") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(pg::fresh_database());
    let seed = number("ROOMETTE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let length = Duration::from_secs(number("ROOMETTE_STORM_SECONDS").unwrap_or(SECONDS));
    eprintln!("ROOMETTE_SEED={seed}");
    let mut fleet = Fleet::new(database.url());
    let work = Work::new(fleet.addresses(), fleet.token(), &fleet.programs());
    let over = AtomicBool::new(false);
    let (kills, enqueued) = thread::scope(|scope| {
        let clients: Vec<_> = (0..work::CLIENTS)
            .map(|client| {
                scope.spawn({
                    let (work, over) = (&work, &over);
                    move || work.enqueue(client, seed, length, over)
                })
            })
            .collect();
        let kills = fleet.storm(seed, length);
        over.store(true, Ordering::SeqCst);
        let enqueued: Vec<Enqueued> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        (kills, enqueued)
    });
    eprintln!("{kills} processes were killed, {} runs enqueued", enqueued.len());
    assert!(enqueued.len() >= work::RUNS && kills as u64 >= length.as_secs() / 2, "no storm");
    let found = runtime.block_on(async {
        let options = OpenOptions::default();
        let store = SqlStore::open(&database.url().parse().unwrap(), options).await.unwrap();
        let mut found = settled(&store, &enqueued).await;
        every_purse_is_settled(&store, &fs_lines(&work, "children")).await;
        // Those that runs started too, also where nobody heard that they did.
        for line in fs_lines(&work, "acknowledged") {
            let session = line.split(' ').next().unwrap().parse().unwrap();
            if let Entry::Vacant(unread) = found.logs.entry(session) {
                unread.insert(log_of(&store, session).await);
            }
        }
        store.close().await;
        found
    });
    let witness = fs_lines(&work, "twice");
    assert!(witness.is_empty(), "ran twice at once: {witness:#?}");
    every_run_came_to_an_end(&enqueued, &found);
    every_acknowledged_event_is_there_once(&work, &found);
    every_parent_heard_of_every_child_once(&enqueued, &found);
    drop(fleet);
    assert_eq!(processes_with(work.directory().as_str()), Vec::<i32>::new(), "processes are left");
}

/// What the store has in the end.
struct Found {
    runs: HashMap<RunId, session_core::run::Run>,
    logs: BTreeMap<SessionId, Vec<Event>>,
}

/// Waits until every run is over, and every parent was told.
async fn settled(store: &SqlStore, enqueued: &[Enqueued]) -> Found {
    let until = Instant::now() + PATIENCE;
    let mut runs = HashMap::new();
    for one in enqueued {
        loop {
            let run = store.run(one.run).await.unwrap().unwrap_or_else(|| panic!("{} is lost", one.run));
            if run.state.phase().is_ended() {
                runs.insert(run.id, run);
                break;
            }
            assert!(Instant::now() < until, "it is stuck: {run:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let sessions: HashSet<_> = enqueued.iter().map(|one| one.session).collect();
    let mut logs = BTreeMap::new();
    for session in sessions {
        logs.insert(session, log_of(store, session).await);
    }
    Found { runs, logs }
}

async fn log_of(store: &SqlStore, session: SessionId) -> Vec<Event> {
    let (mut log, mut after): (Vec<Event>, Seq) = (Vec::new(), Seq::START);
    loop {
        let page = store.read(session, after, 1_000).await.unwrap();
        let Some(last) = page.last() else { return log };
        after = last.seq;
        log.extend(page);
    }
}

/// What runs started with their own tokens came to its end; nothing is set aside for it any more, and what each used is booked
/// with its parent, once.
async fn every_purse_is_settled(store: &SqlStore, children: &[String]) {
    assert!(!children.is_empty(), "no run started a child");
    let until = Instant::now() + PATIENCE;
    let pause = || async {
        assert!(Instant::now() < until, "a purse is not settled");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for line in children {
        let words: Vec<&str> = line.split(' ').collect();
        let [parent, child, run] = words.as_slice() else { panic!("half a line: {line}") };
        let (parent, child, run) = (parent.parse().unwrap(), child.parse().unwrap(), run.parse().unwrap());
        while !store.run(run).await.unwrap().unwrap().state.phase().is_ended() {
            pause().await;
        }
        while store.session(parent).await.unwrap().unwrap().allotted != Usage::NONE {
            pause().await;
        }
        let booked = booked(store, parent, child).await;
        let account = store.session(child).await.unwrap().unwrap().account();
        assert_eq!(booked, account.used.plus(account.reserved).turns, "{line}: {account:#?}");
    }
    eprintln!("{} children of runs", children.len());
}

/// The turns of this child that its parent paid for, by its log.
async fn booked(store: &SqlStore, parent: SessionId, child: SessionId) -> u64 {
    let log = log_of(store, parent).await;
    let usages = log.iter().filter(|event| event.body.kind == EventKind::Usage);
    let of_child = usages.map(|event| event.body.payload.value().unwrap());
    let of_child = of_child.filter(|usage| usage["child"] == serde_json::json!(child));
    of_child.filter_map(|usage| usage["turns"].as_u64()).sum()
}

/// Every run ended, those that nobody could take with the reason, and most of the others as they were meant to.
fn every_run_came_to_an_end(enqueued: &[Enqueued], found: &Found) {
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    for one in enqueued {
        let (_, ending) = found.runs[&one.run].ended().unwrap();
        // A session that was not opened whole is opened by its next run, and what it got then can be read for ever.
        assert!(!ending.message.contains("is given once"), "{:#?}", found.runs[&one.run]);
        if one.kind == Kind::ForNobody {
            assert_eq!(ending.reason, Some(ReasonCode::NoMatchingRunner), "{:#?}", found.runs[&one.run]);
        }
        *endings.entry(format!("{:?} {:?} {:?}", one.kind, ending.kind, ending.reason)).or_default() += 1;
    }
    eprintln!("{endings:#?}");
    let completed =
        found.runs.values().filter(|run| run.ended().unwrap().1.kind == EndKind::Completed).count();
    assert!(completed * 3 > enqueued.len(), "next to nothing was done: {endings:#?}");
    assert!(found.runs.values().all(|run| run.state.phase() != RunPhase::Pending));
}

/// Logs have no gaps; what a run was told is there is there, under that number, once.
fn every_acknowledged_event_is_there_once(work: &Work, found: &Found) {
    for (session, log) in &found.logs {
        for (place, event) in log.iter().enumerate() {
            assert_eq!(event.seq.0, place as u64 + 1, "{session}");
        }
    }
    let acknowledged = fs_lines(work, "acknowledged");
    assert!(acknowledged.len() >= work::RUNS, "next to nothing was acknowledged: {}", acknowledged.len());
    for line in acknowledged {
        let words: Vec<&str> = line.split(' ').collect();
        let [session, run, number, seq] = words.as_slice() else { panic!("half a line: {line}") };
        let (number, seq): (u64, u64) = (number.parse().unwrap(), seq.parse().unwrap());
        let log = &found.logs[&session.parse().unwrap()];
        let wanted = serde_json::json!({"run": run, "number": number});
        let places: Vec<u64> = log
            .iter()
            .filter(|event| {
                event.body.kind.as_str() == "witness" && event.body.payload.value().unwrap() == wanted
            })
            .map(|event| event.seq.0)
            .collect();
        assert_eq!(places, [seq], "{line}");
    }
}

/// One `child.ended` in the parent's log for each run of a child.
fn every_parent_heard_of_every_child_once(enqueued: &[Enqueued], found: &Found) {
    let mut children = 0;
    for (one, parent) in enqueued.iter().filter_map(|one| one.parent.map(|parent| (one, parent))) {
        let run = serde_json::json!(one.run);
        let told = found.logs[&parent]
            .iter()
            .filter(|event| {
                event.body.kind == EventKind::ChildEnded && event.body.payload.value().unwrap()["run"] == run
            })
            .count();
        assert_eq!(told, 1, "{parent} was told {told} times of the end of {}", one.run);
        children += 1;
    }
    assert!(children > 0, "no child was started");
}

fn fs_lines(work: &Work, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(work.directory().join(file)).unwrap_or_default();
    text.lines().map(Into::into).collect()
}

#[expect(clippy::disallowed_methods, reason = "a person says so, to repeat a storm")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
