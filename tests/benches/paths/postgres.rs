//! The same paths on PostgreSQL, where a server is named; floors are one statement each through sqlx.

use std::sync::Arc;

use session_core::Env;
use session_core::affinity::RunnerProfile;
use session_core::ports::{Author, EventStore as _, SessionStore as _};
use session_store::{OpenOptions, SqlStore};
use session_tests::pg::{PgDatabase, fresh_database};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row as _};

use crate::claim::{claim_ours, queue};
use crate::events::{close, made};
use crate::measure::{Bench, Named, Outcome, Shown, Target, ensure, together};
use crate::registry::counted;
use crate::world;

/// The variable that names the server.
const SERVER: &str = "ROOMETTE_TEST_PG";
/// As many connections as the store has, for the floor too.
const CONNECTIONS: u32 = 16;
/// Callers, appends of each in one round, and the target.
const APPENDS: [(usize, usize); 3] = [(1, 500), (16, 150), (64, 150)];
/// Callers, and identities of each in one round.
const OPENS: [(usize, usize); 2] = [(1, 300), (16, 100)];
const QUEUED: usize = 10_000;
const CLAIMERS: usize = 16;
const CLAIMS: usize = 60;

const RAW_APPEND: &str = "INSERT INTO events (session_id, seq, at_ms, kind, payload) VALUES ($1, \
     (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE session_id = $1), $2, 'message', $3)";
const RAW_LOOKUP: &str = "SELECT i.session_id, i.generation, i.expires_at_ms, i.stamped_at_ms, i.created_at_ms, \
     s.previous, s.state FROM identities i JOIN sessions s ON s.id = i.session_id WHERE i.key = $1";
const RAW_CREATE: &str = "WITH made AS (INSERT INTO sessions (id, principal, state, workspace_kind, metadata, \
     tokens_max, tool_calls_max, identity_key, generation, created_at_ms, active_at_ms) \
     VALUES ($2, 'alice', 'active', 'scratch', '{}', 1, 1, $1, 1, $3, $3)), \
     logged AS (INSERT INTO events (session_id, seq, at_ms, kind, payload) \
     VALUES ($2, 1, $3, 'session.created', '{\"generation\":1,\"workspace\":\"scratch\"}')) \
     INSERT INTO identities (key, session_id, generation, machine, repo_root, mode, scope_key, agent, \
     created_at_ms, stamped_at_ms, expires_at_ms) VALUES ($1, $2, 1, 'laptop', '/repo', 'project', 'one', 'a', \
     $3, $3, $3 + 86400000)";
/// Mine, else anybody's, each on its index, past those that others hold.
const RAW_CLAIM: &str = "WITH own AS MATERIALIZED (SELECT id FROM runs WHERE place_key = $1 AND executor = $2 \
     AND phase = 'pending' AND waiting_for = 0 ORDER BY priority DESC, position LIMIT 1 FOR UPDATE SKIP LOCKED), \
     any_place AS MATERIALIZED (SELECT id FROM runs WHERE NOT EXISTS (SELECT 1 FROM own) AND place_key = '' \
     AND executor = $2 AND phase = 'pending' AND waiting_for = 0 ORDER BY priority DESC, position LIMIT 1 \
     FOR UPDATE SKIP LOCKED), \
     claimed AS (UPDATE runs SET phase = 'claimed', epoch = epoch + 1, runner_id = $3, lease_until_ms = $4 \
     WHERE id = (SELECT id FROM own UNION ALL SELECT id FROM any_place LIMIT 1) RETURNING id, session_id) \
     INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload) SELECT session_id, \
     (SELECT max(e.seq) + 1 FROM events e WHERE e.session_id = claimed.session_id), $5, id, 'run.state', \
     '{\"from\":\"pending\",\"to\":\"claimed\"}' FROM claimed";

/// A database for the store and one for the floor.
struct Databases {
    store: Arc<SqlStore>,
    ours: PgPool,
    floor: PgPool,
    kept: [PgDatabase; 2],
}

pub(crate) async fn all(bench: &mut Bench) -> Outcome {
    #[expect(clippy::disallowed_methods, reason = "the server is named in the environment, as for tests")]
    let server = std::env::var(SERVER);
    if server.is_err() {
        bench.note("Left out: PostgreSQL, for no server is named in ROOMETTE_TEST_PG.");
        return Ok(());
    }
    append(bench).await?;
    open(bench).await?;
    claim(bench).await
}

impl Databases {
    async fn new() -> Outcome<Self> {
        let kept = [fresh_database().await, fresh_database().await];
        // The schema comes of the store; the floor has none of its own.
        opened(&kept[1]).await?.close().await;
        Ok(Self {
            store: Arc::new(opened(&kept[0]).await?),
            ours: pool(&kept[0]).await?,
            floor: pool(&kept[1]).await?,
            kept,
        })
    }

    async fn close(self) -> Outcome {
        self.ours.close().await;
        self.floor.close().await;
        close(self.store).await
    }
}

async fn opened(database: &PgDatabase) -> Outcome<SqlStore> {
    Ok(SqlStore::open(&database.url().parse()?, OpenOptions::default()).await?)
}

async fn pool(database: &PgDatabase) -> Outcome<PgPool> {
    let options = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
    Ok(options.connect(database.url()).await?)
}

/// Checks that a query comes to this number.
async fn check(pool: &PgPool, query: &'static str, expected: usize) -> Outcome {
    let found: i64 = sqlx::query(query).fetch_one(pool).await?.try_get(0)?;
    ensure!(usize::try_from(found)? == expected, "{query}: {found}, not {expected}");
    Ok(())
}

async fn check_events(pool: &PgPool, events: usize) -> Outcome {
    check(pool, "SELECT count(*) FROM events", events).await?;
    let torn =
        "SELECT count(*) FROM (SELECT 1 FROM events GROUP BY session_id HAVING max(seq) <> count(*)) t";
    check(pool, torn, 0).await
}

/// The floor's database gets the same sessions.
async fn copy_sessions(databases: &Databases, ids: &[String]) -> Outcome {
    for id in ids {
        let insert = "INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, \
                      tool_calls_max, created_at_ms, active_at_ms) \
                      VALUES ($1, 'alice', 'active', 'scratch', '{}', 1, 1, 1, 1)";
        sqlx::query(insert).bind(id).execute(&databases.floor).await?;
    }
    Ok(())
}

async fn append(bench: &mut Bench) -> Outcome {
    for (callers, appends) in APPENDS {
        let appends = bench.sized(appends);
        let databases = Databases::new().await?;
        let env = Env::system();
        let now = env.now();
        let sessions = made(&databases.store, &env, callers).await?;
        let texts: Vec<_> = sessions.iter().map(ToString::to_string).collect();
        copy_sessions(&databases, &texts).await?;
        let floor = async |_| {
            let items = world::per_caller(callers, appends, |caller, _| {
                Ok((texts[caller].clone(), world::payload(0)))
            })?;
            let pool = databases.floor.clone();
            together(items, move |(session, payload)| {
                let pool = pool.clone();
                async move {
                    let insert = sqlx::query(RAW_APPEND).bind(session).bind(now.as_millisecond());
                    insert.bind(payload).execute(&pool).await?;
                    Ok(())
                }
            })
            .await
        };
        let ours = async |_| {
            let items = world::per_caller(callers, appends, |caller, _| {
                Ok((Author::Session(sessions[caller]), world::event(0)?))
            })?;
            let store = Arc::clone(&databases.store);
            together(items, move |(author, event)| {
                let store = Arc::clone(&store);
                async move {
                    store.append(author, vec![event], now).await?;
                    Ok(())
                }
            })
            .await
        };
        let path = format!("PostgreSQL: append, {}", counted(callers));
        let named = Named { path: &path, floor: "one statement each" };
        bench.compare(named, Shown::Rate, Target::None, floor, ours).await?;
        let events = callers * appends * bench.rounds();
        check_events(&databases.floor, events).await?;
        check_events(&databases.ours, events + callers).await?;
        databases.close().await?;
    }
    Ok(())
}

async fn open(bench: &mut Bench) -> Outcome {
    let databases = Databases::new().await?;
    let env = Env::system();
    let now = env.now();
    let mut identities = 0;
    for hit in [false, true] {
        for (callers, calls) in OPENS {
            let calls = bench.sized(calls);
            // The hits ask for what the misses of the first round made.
            let requests = |round: usize| {
                let round = if hit { 0 } else { round };
                world::per_caller(callers, calls, |caller, index| {
                    world::open_session(&env, &format!("{callers} {round} {caller} {index}"))
                })
            };
            let floor = async |round| {
                let pool = databases.floor.clone();
                together(requests(round)?, move |request| {
                    let pool = pool.clone();
                    async move {
                        let key = request.identity.key().to_string();
                        if hit {
                            let found = sqlx::query(RAW_LOOKUP).bind(key).fetch_all(&pool).await?;
                            ensure!(found.len() == 1, "not found");
                            return Ok(());
                        }
                        let create = sqlx::query(RAW_CREATE).bind(key).bind(request.new.id.to_string());
                        create.bind(now.as_millisecond()).execute(&pool).await?;
                        Ok(())
                    }
                })
                .await
            };
            let ours = async |round| {
                let store = Arc::clone(&databases.store);
                together(requests(round)?, move |request| {
                    let store = Arc::clone(&store);
                    async move {
                        let opened = store.open(request, now).await?;
                        ensure!(opened.created != hit, "{opened:?}");
                        Ok(())
                    }
                })
                .await
            };
            let what = if hit { "hit" } else { "miss" };
            let path = format!("PostgreSQL: get-or-create, {what}, {}", counted(callers));
            let named = Named { path: &path, floor: "one statement each" };
            let target = if hit { Target::AtLeast(0.5) } else { Target::None };
            bench.compare(named, Shown::Rate, target, floor, ours).await?;
            identities += if hit { 0 } else { callers * calls * bench.rounds() };
        }
    }
    for pool in [&databases.floor, &databases.ours] {
        check(pool, "SELECT count(*) FROM identities", identities).await?;
        check_events(pool, identities).await?;
    }
    databases.close().await
}

async fn claim(bench: &mut Bench) -> Outcome {
    let databases = Databases::new().await?;
    let env = Env::system();
    let runner = world::runner(&env, "command")?;
    queue(&databases.store, &env, &runner, QUEUED).await?;
    let floor_store = opened(&databases.kept[1]).await?;
    queue(&floor_store, &env, &runner, QUEUED).await?;
    floor_store.close().await;
    for pool in [&databases.ours, &databases.floor] {
        sqlx::query("ANALYZE").execute(pool).await?;
    }
    let claims = bench.sized(CLAIMS);
    let floor = async |_| claim_floor(&databases.floor, &env, &runner, claims).await;
    let ours = async |_| claim_ours(&databases.store, &env, &runner, CLAIMERS, claims).await;
    let named = Named {
        path: "PostgreSQL: claim of 10 000 queued, 16 callers",
        floor: "two probes in one statement",
    };
    bench.compare(named, Shown::Rate, Target::AtLeast(0.8), floor, ours).await?;
    let taken = CLAIMERS * claims * bench.rounds();
    for pool in [&databases.floor, &databases.ours] {
        check(pool, "SELECT count(*) FROM runs WHERE phase = 'claimed' AND epoch = 1", taken).await?;
        check_events(pool, 2 * QUEUED + taken).await?;
    }
    databases.close().await
}

async fn claim_floor(pool: &PgPool, env: &Env, runner: &RunnerProfile, claims: usize) -> Outcome<f64> {
    let now = env.now().as_millisecond();
    let until = now + i64::try_from(world::LEASE.as_millis())?;
    let id = runner.id.to_string();
    let items = world::per_caller(CLAIMERS, claims, |_, _| Ok((pool.clone(), id.clone())))?;
    together(items, move |(pool, id)| async move {
        let claim = sqlx::query(RAW_CLAIM).bind(format!("r:{id}")).bind("command").bind(id);
        let claimed = claim.bind(until).bind(now).execute(&pool).await?.rows_affected();
        ensure!(claimed == 1, "{claimed} runs were claimed");
        Ok(())
    })
    .await
}
