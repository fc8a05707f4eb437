//! A store that an earlier program made is brought up to date, with everything that is in it.

use jiff::Timestamp;
use session_core::affinity::{Place, RunnerProfile};
use session_core::approval::{NewApproval, Question};
use session_core::budget::{BudgetChange, Usage};
use session_core::event::Payload;
use session_core::ports::{
    ApprovalStore as _, EventStore as _, Ledger as _, NewRun, RunOf, RunStore as _, SessionStore as _, Sweep,
    TokenStore as _,
};
use session_core::run::{Fence, RunPhase};
use session_core::session::NewSession;
use session_core::token::SigningKey;
use session_core::{Env, RunnerId, Seq, SessionId, SessionState};
use session_store::SqlStore;
use sqlx::{AssertSqlSafe, Connection as _, SqliteConnection};

use crate::pg;
use crate::stores::{SqliteFile, new_run, new_session, open, runner, world};

const SQLITE: &str = include_str!("../../migrations/sqlite/0001_init.sql");
const POSTGRES: &str = include_str!("../../migrations/postgres/0001_init.sql");

const ACTIVE: &str = "ses_00000000000040008000000000000001";
const IDLE: &str = "ses_00000000000040008000000000000002";
const SUSPENDED: &str = "ses_00000000000040008000000000000003";
const BOUND: &str = "ses_00000000000040008000000000000005";
const RUNNER: &str = "rnr_00000000000070008000000000000006";
const RUN: &str = "run_00000000000070008000000000000004";

/// The schema as it was, with how that program remembered it, and rows in it.
fn first_version(schema: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let checksum = schema.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    let session = |id: &str, state: &str, at: &str, until: &str| {
        format!(
            "INSERT INTO sessions (id, principal, state, state_at_ms, state_until_ms, workspace_kind, metadata, \
             tokens_max, tool_calls_max, tokens_used, created_at_ms, active_at_ms) \
             VALUES ('{id}', 'alice', '{state}', {at}, {until}, 'scratch', '{{}}', 1000, 10, 700, 1000, 2000);"
        )
    };
    let event = |session: &str, seq: u64| {
        format!(
            "INSERT INTO events (session_id, seq, at_ms, kind, payload) \
             VALUES ('{session}', {seq}, 1000, 'message', '{{\"text\":\"{seq}\"}}');"
        )
    };
    [
        "CREATE TABLE roomette_migrations (version BIGINT PRIMARY KEY, name TEXT NOT NULL, \
         checksum TEXT NOT NULL);"
            .into(),
        schema.into(),
        format!("INSERT INTO roomette_migrations VALUES (1, 'init', '{checksum:016x}');"),
        session(ACTIVE, "active", "NULL", "NULL"),
        session(IDLE, "idle", "3000", "NULL"),
        session(SUSPENDED, "suspended", "3000", "4000"),
        session(BOUND, "active", "NULL", "NULL"),
        format!(
            "UPDATE sessions SET binding_runner = '{RUNNER}', binding_hostname = 'box', binding_executor = 'command', \
             binding_executor_session_id = 'one', binding_project_dir = '/repo', active_at_ms = 9000000000000, \
             parent = '{ACTIVE}' WHERE id = '{BOUND}';"
        ),
        event(ACTIVE, 1),
        event(ACTIVE, 2),
        format!(
            "INSERT INTO runs (id, session_id, kind, argv, env, priority, place_key, executor, waiting_for, phase, \
             created_at_ms) VALUES ('{RUN}', '{ACTIVE}', 'start', '[\"true\"]', '[]', 0, '', 'command', 0, \
             'pending', 1000);"
        ),
    ]
    .concat()
}

/// Everything that was there is there, and all that is new works on it.
async fn is_whole_and_works(store: &SqlStore) {
    let env = world();
    let id = |id: &str| -> SessionId { id.parse().unwrap() };
    let active = store.session(id(ACTIVE)).await.unwrap().unwrap();
    assert_eq!((active.usage.tokens, active.reserved, &active.key), (700, Usage::default(), &None));
    assert_eq!((active.state, active.forked_from), (SessionState::Active, None));
    assert_eq!(store.read(active.id, Seq::START, 10).await.unwrap().len(), 2);
    assert_eq!(store.run(RUN.parse().unwrap()).await.unwrap().unwrap().state.phase(), RunPhase::Pending);

    let now = env.now();
    let sweep = Sweep {
        runner: env.runner_id(),
        idle_timeout: Some(jiff::SignedDuration::from_mins(15)),
        suspended_ttl: None,
        except: Vec::new(),
        limit: 10,
    };
    let swept = store.sweep(&sweep, now).await.unwrap();
    let swept: Vec<_> = swept.iter().map(|swept| (swept.session, swept.state.name())).collect();
    assert_eq!(
        swept,
        [(id(SUSPENDED), "terminated"), (id(IDLE), "suspended")],
        "a run is in the way of the third"
    );

    let worst = Usage { tokens: 300, ..Usage::default() };
    assert_eq!(store.reserve(active.id, worst, now).await.unwrap().reserved, worst);
    assert_eq!(store.settle(active.id, worst, worst, None, now).await.unwrap().used.tokens, 1_000);
    let more = BudgetChange::Add(worst);
    let by = "alice".parse().unwrap();
    assert_eq!(store.set_budget(active.id, more, &by, now).await.unwrap().budget.tokens_max, 1_300);
    assert_eq!(store.tokens_by_minute(Timestamp::UNIX_EPOCH).await.unwrap().len(), 1);
    let key = Some("one".parse().unwrap());
    let new = NewSession { key, ..new_session(&env) };
    let fork = store.fork(active.id, Some(Seq(2)), new.clone(), now).await.unwrap();
    assert_eq!(store.open_key(new, now).await.unwrap().session, fork);
    let claimant: RunnerProfile = runner(&env);
    let claimed = store.claim(&claimant, jiff::SignedDuration::from_mins(1), now).await.unwrap().unwrap();
    assert_eq!((claimed.session.id, &claimed.run.spec.turn), (active.id, &None));
    agents_work(store, &env, claimed.run.fence(), id(BOUND)).await;
}

/// A session that was bound before is bound still and not known to be resumable; questions can be asked.
async fn agents_work(store: &SqlStore, env: &Env, fence: Fence, bound: SessionId) {
    let now = env.now();
    let session = store.session(bound).await.unwrap().unwrap();
    assert_eq!((session.depth, session.callback), (1, false));
    let binding = session.binding.unwrap();
    let runner: RunnerId = RUNNER.parse().unwrap();
    assert_eq!((binding.runner, binding.resumable), (Some(runner), false));
    let further = NewRun { of: RunOf::Existing(bound), ..new_run(env) };
    let [run] = store.enqueue(vec![further], None, now).await.unwrap().try_into().unwrap();
    assert_eq!(run.affinity.place, Place::Runner(runner));
    let question = Question {
        tool: "shell".parse().unwrap(),
        title: "ls".into(),
        command: None,
        input: Payload::parse("{}").unwrap(),
        deadline: None,
    };
    let asked = store.ask(fence, NewApproval { id: env.approval_id(), question }, now).await.unwrap();
    assert_eq!(store.approval(asked.id).await.unwrap(), Some(asked));
    let key = SigningKey::new(env.secret());
    assert_eq!(store.signing_key(key.clone()).await.unwrap(), key);
}

#[tokio::test]
async fn an_sqlite_file_of_the_first_version() {
    let file = SqliteFile::new();
    let url = format!("sqlite:{}?mode=rwc", file.path().display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(first_version(SQLITE))).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let store = file.open().await;
    is_whole_and_works(&store).await;
    store.close().await;
    let copy = file.path().with_extension("db.v1.backup");
    assert!(copy.exists(), "{} is missing: what was there is copied first", copy.display());
    file.open().await.close().await;
}

#[tokio::test]
async fn a_postgres_database_of_the_first_version() {
    if pg::skipped("postgres") {
        return;
    }
    let database = pg::fresh_database().await;
    let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(first_version(POSTGRES))).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let store = open(database.url()).await;
    is_whole_and_works(&store).await;
    store.close().await;
}
