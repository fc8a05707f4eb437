//! The same paths on PostgreSQL, where a server is named; floors are one statement each.

use std::sync::Arc;

use session_core::Env;
use session_core::affinity::RunnerProfile;
use session_core::ports::{Author, EventStore as _, SessionStore as _};
use session_store::testing::floor::Floor;
use session_store::testing::pg::{PgDatabase, fresh_database};
use session_store::{OpenOptions, SqlStore};

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

/// A database for the store and one for the floor.
struct Databases {
    store: Arc<SqlStore>,
    ours: Floor,
    floor: Floor,
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
            ours: connected(&kept[0]).await?,
            floor: connected(&kept[1]).await?,
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

async fn connected(database: &PgDatabase) -> Outcome<Floor> {
    Ok(Floor::connect(database.url(), CONNECTIONS).await?)
}

/// Checks that a query comes to this number.
async fn check(database: &Floor, query: &'static str, expected: usize) -> Outcome {
    let found = database.number(query).await?;
    ensure!(usize::try_from(found)? == expected, "{query}: {found}, not {expected}");
    Ok(())
}

async fn check_events(database: &Floor, events: usize) -> Outcome {
    check(database, "SELECT count(*) FROM events", events).await?;
    let torn =
        "SELECT count(*) FROM (SELECT 1 FROM events GROUP BY session_id HAVING max(seq) <> count(*)) t";
    check(database, torn, 0).await
}

/// The floor's database gets the same sessions.
async fn copy_sessions(databases: &Databases, ids: &[String]) -> Outcome {
    for id in ids {
        databases.floor.create_session(id).await?;
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
            let floor = databases.floor.clone();
            together(items, move |(session, payload)| {
                let floor = floor.clone();
                async move { Ok(floor.append(&session, now.as_millisecond(), &payload).await?) }
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
                let floor = databases.floor.clone();
                together(requests(round)?, move |request| {
                    let floor = floor.clone();
                    async move {
                        let key = request.identity.key().to_string();
                        if hit {
                            ensure!(floor.look_up(&key).await? == 1, "not found");
                            return Ok(());
                        }
                        let session = request.new.id.to_string();
                        Ok(floor.create(&key, &session, now.as_millisecond()).await?)
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
    for database in [&databases.floor, &databases.ours] {
        check(database, "SELECT count(*) FROM identities", identities).await?;
        check_events(database, identities).await?;
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
    for database in [&databases.ours, &databases.floor] {
        database.analyze().await?;
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
    for database in [&databases.floor, &databases.ours] {
        check(database, "SELECT count(*) FROM runs WHERE phase = 'claimed' AND epoch = 1", taken).await?;
        check_events(database, 2 * QUEUED + taken).await?;
    }
    databases.close().await
}

async fn claim_floor(floor: &Floor, env: &Env, runner: &RunnerProfile, claims: usize) -> Outcome<f64> {
    let now = env.now().as_millisecond();
    let until = now + i64::try_from(world::LEASE.as_millis())?;
    let id = runner.id.to_string();
    let items = world::per_caller(CLAIMERS, claims, |_, _| Ok((floor.clone(), id.clone())))?;
    together(items, move |(floor, id)| async move {
        let claimed = floor.claim(&id, now, until).await?;
        ensure!(claimed == 1, "{claimed} runs were claimed");
        Ok(())
    })
    .await
}
