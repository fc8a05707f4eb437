//! Claims from a queue: with something to take, and with nothing for this runner.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, params};
use session_core::Env;
use session_core::affinity::{Place, RunnerProfile};
use session_core::ids::RunId;
use session_core::ports::RunStore as _;
use session_store::SqlStore;
use tokio::time::Instant;

use crate::events::close;
use crate::files::{self, Files};
use crate::measure::{Bench, Named, Outcome, Shown, Target, each, ensure, timed, together};
use crate::registry::counted;
use crate::world;

/// How many runs wait: half of them for this runner only, half for any.
const QUEUED: usize = 10_000;
const QUEUED_AT_ONCE: usize = 1_000;
/// Claimers, and claims of each in one round.
const CLAIMS: [(usize, usize); 2] = [(1, 300), (16, 60)];
const EMPTY_POLLS: usize = 2_000;
/// An executor that no run asks for.
const NOBODYS: &str = "nobodys";

const RAW_PROBE: &str = "SELECT id, session_id FROM runs WHERE place_key = ?1 AND executor = ?2 \
     AND phase = 'pending' AND waiting_for = 0 ORDER BY priority DESC, position LIMIT 1";
const RAW_CLAIM: &str = "UPDATE runs SET phase = 'claimed', epoch = epoch + 1, runner_id = ?2, \
     lease_until_ms = ?3 WHERE id = ?1 AND phase = 'pending'";
const RAW_EVENT: &str = "INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload) VALUES (?1, \
     (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE session_id = ?1), ?2, ?3, 'run.state', \
     '{\"from\":\"pending\",\"to\":\"claimed\"}')";

pub(crate) async fn claim(bench: &mut Bench) -> Outcome {
    let env = Env::system();
    let runner = world::runner(&env, "command")?;
    let files = Files::filled(async |store| queue(store, &env, &runner, QUEUED).await).await?;
    let store = Arc::new(files::open(&files.ours()).await?);
    let mut raw = files::raw(&files.floor())?;
    let mut taken = 0;
    for (claimers, claims) in CLAIMS {
        let claims = bench.sized(claims);
        let path = format!("claim of 10 000 queued, {}", counted(claimers));
        let name = match claimers {
            1 => "raw two probes, one commit".to_owned(),
            _ => format!("raw two probes, {claimers} claims a commit"),
        };
        let named = Named { path: &path, floor: &name };
        let floor = async |_| {
            let begun = Instant::now();
            for _ in 0..claims {
                claim_raw(&mut raw, &env, &runner, claimers)?;
            }
            each(begun.elapsed(), claims * claimers)
        };
        let ours = async |_| claim_ours(&store, &env, &runner, claimers, claims).await;
        bench.compare(named, Shown::Rate, Target::AtLeast(0.6), floor, ours).await?;
        taken += claimers * claims * bench.rounds();
    }
    for path in [files.ours(), files.floor()] {
        let claimed = files::number(&path, "SELECT count(*) FROM runs WHERE phase = 'claimed'")?;
        ensure!(claimed == taken, "{claimed} are claimed, not {taken}: {}", path.display());
        // Each session has two events from its creation.
        files::check_events(&path, 2 * QUEUED + taken)?;
    }

    let polls = bench.sized(EMPTY_POLLS);
    let stranger = world::runner(&env, NOBODYS)?;
    let named = Named { path: "claim, nothing to take", floor: "raw two probes" };
    let own = format!("r:{}", stranger.id);
    let floor = async |_| {
        timed(polls, |_| {
            let found = probe(&raw, &own, NOBODYS)?;
            ensure!(found.is_none(), "{found:?} was found");
            Ok(())
        })
    };
    let ours = async |_| {
        let begun = Instant::now();
        for _ in 0..polls {
            let found = store.claim(&stranger, world::LEASE, env.now()).await?;
            ensure!(found.is_none(), "{found:?} was found");
        }
        each(begun.elapsed(), polls)
    };
    bench.compare(named, Shown::Time, Target::None, floor, ours).await?;
    close(store).await
}

/// Puts runs of new sessions into the queue, every other one only for this runner.
pub(crate) async fn queue(store: &SqlStore, env: &Env, runner: &RunnerProfile, runs: usize) -> Outcome {
    for first in (0..runs).step_by(QUEUED_AT_ONCE) {
        let new = |index: usize| {
            let place = if index.is_multiple_of(2) { Place::Runner(runner.id) } else { Place::Anywhere };
            world::new_run(env, place)
        };
        let batch = (first..runs.min(first + QUEUED_AT_ONCE)).map(new).collect::<Outcome<Vec<_>>>()?;
        store.enqueue(batch, None, env.now()).await?;
    }
    Ok(())
}

/// Claimers at once; every run must be claimed once.
pub(crate) async fn claim_ours(
    store: &Arc<SqlStore>,
    env: &Env,
    runner: &RunnerProfile,
    claimers: usize,
    claims: usize,
) -> Outcome<f64> {
    let seen: Arc<Mutex<HashSet<RunId>>> = Arc::default();
    let items = world::per_caller(claimers, claims, |_, _| {
        Ok((Arc::clone(store), Arc::clone(&seen), runner.clone(), env.now()))
    })?;
    let seconds = together(items, |(store, seen, runner, now)| async move {
        let claimed = store.claim(&runner, world::LEASE, now).await?.ok_or("nothing to claim")?;
        let new = seen.lock().unwrap_or_else(PoisonError::into_inner).insert(claimed.run.id);
        ensure!(new, "{} was claimed twice", claimed.run.id);
        Ok(())
    })
    .await?;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(seen == claimers * claims, "{seen} runs were claimed");
    Ok(seconds)
}

/// First for this runner, then for any.
fn probe(raw: &Connection, own: &str, executor: &str) -> Outcome<Option<(String, String)>> {
    let mut statement = raw.prepare_cached(RAW_PROBE)?;
    for place in [own, ""] {
        let pair = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        if let Some(found) = statement.query_row([place, executor], pair).optional()? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn claim_raw(raw: &mut Connection, env: &Env, runner: &RunnerProfile, claims: usize) -> Outcome {
    let now = env.now().as_millisecond();
    let own = format!("r:{}", runner.id);
    let id = runner.id.to_string();
    let transaction = raw.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    for _ in 0..claims {
        let (run, session) = probe(&transaction, &own, "command")?.ok_or("nothing to claim")?;
        let until = now + i64::try_from(world::LEASE.as_millis())?;
        let changed = transaction.prepare_cached(RAW_CLAIM)?.execute(params![run, id, until])?;
        ensure!(changed == 1, "{run} was claimed already");
        transaction.prepare_cached(RAW_EVENT)?.execute(params![session, now, run])?;
    }
    Ok(transaction.commit()?)
}
