//! The least that PostgreSQL has to do for what the store does, one statement each: what benches measure the store beside.
//! It checks nothing, wakes nobody and tries nothing again.

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Error, Row as _};

const SESSION: &str = "INSERT INTO sessions (id, principal, state, workspace_kind, metadata, tokens_max, tool_calls_max, \
     created_at_ms, active_at_ms) VALUES ($1, 'alice', 'active', 'scratch', '{}', 1, 1, 1, 1)";
const APPEND: &str = "INSERT INTO events (session_id, seq, at_ms, kind, payload) VALUES ($1, \
     (SELECT coalesce(max(seq), 0) + 1 FROM events WHERE session_id = $1), $2, 'message', $3)";
const LOOKUP: &str = "SELECT i.session_id, i.generation, i.expires_at_ms, i.stamped_at_ms, i.created_at_ms, \
     s.previous, s.state FROM identities i JOIN sessions s ON s.id = i.session_id WHERE i.key = $1";
const CREATE: &str = "WITH made AS (INSERT INTO sessions (id, principal, state, workspace_kind, metadata, \
     tokens_max, tool_calls_max, identity_key, generation, created_at_ms, active_at_ms) \
     VALUES ($2, 'alice', 'active', 'scratch', '{}', 1, 1, $1, 1, $3, $3)), \
     logged AS (INSERT INTO events (session_id, seq, at_ms, kind, payload) \
     VALUES ($2, 1, $3, 'session.created', '{\"generation\":1,\"workspace\":\"scratch\"}')) \
     INSERT INTO identities (key, session_id, generation, machine, repo_root, mode, scope_key, agent, \
     created_at_ms, stamped_at_ms, expires_at_ms) VALUES ($1, $2, 1, 'laptop', '/repo', 'project', 'one', 'a', \
     $3, $3, $3 + 86400000)";
/// Mine, else anybody's, each on its index, past those that others hold.
const CLAIM: &str = "WITH own AS MATERIALIZED (SELECT id FROM runs WHERE place_key = $1 AND executor = $2 \
     AND phase = 'pending' AND waiting_for = 0 ORDER BY priority DESC, position LIMIT 1 FOR UPDATE SKIP LOCKED), \
     any_place AS MATERIALIZED (SELECT id FROM runs WHERE NOT EXISTS (SELECT 1 FROM own) AND place_key = '' \
     AND executor = $2 AND phase = 'pending' AND waiting_for = 0 ORDER BY priority DESC, position LIMIT 1 \
     FOR UPDATE SKIP LOCKED), \
     claimed AS (UPDATE runs SET phase = 'claimed', epoch = epoch + 1, runner_id = $3, lease_until_ms = $4 \
     WHERE id = (SELECT id FROM own UNION ALL SELECT id FROM any_place LIMIT 1) RETURNING id, session_id) \
     INSERT INTO events (session_id, seq, at_ms, run_id, kind, payload) SELECT session_id, \
     (SELECT max(e.seq) + 1 FROM events e WHERE e.session_id = claimed.session_id), $5, id, 'run.state', \
     '{\"from\":\"pending\",\"to\":\"claimed\"}' FROM claimed";

/// Connections to one database with the store's schema.
#[derive(Debug, Clone)]
pub struct Floor {
    pool: PgPool,
}

impl Floor {
    /// Connects to the database of this URL, where the store has made its tables. The first connection is made at once.
    pub async fn connect(url: &str, connections: u32) -> Result<Self, Error> {
        let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
        Ok(Self { pool: options.connect(url).await? })
    }

    /// A session that is there, and nothing else.
    pub async fn create_session(&self, id: &str) -> Result<(), Error> {
        sqlx::query(SESSION).bind(id).execute(&self.pool).await.map(drop)
    }

    /// Appends a message to a session's log.
    pub async fn append(&self, session: &str, at_ms: i64, payload: &str) -> Result<(), Error> {
        sqlx::query(APPEND).bind(session).bind(at_ms).bind(payload).execute(&self.pool).await.map(drop)
    }

    /// How many sessions have the identity of this key.
    pub async fn look_up(&self, key: &str) -> Result<usize, Error> {
        Ok(sqlx::query(LOOKUP).bind(key).fetch_all(&self.pool).await?.len())
    }

    /// A session, its first event, and the identity that leads to it.
    pub async fn create(&self, key: &str, session: &str, at_ms: i64) -> Result<(), Error> {
        sqlx::query(CREATE).bind(key).bind(session).bind(at_ms).execute(&self.pool).await.map(drop)
    }

    /// Claims a run of commands for a runner. How many were claimed: none or one.
    pub async fn claim(&self, runner: &str, at_ms: i64, until_ms: i64) -> Result<u64, Error> {
        let claim = sqlx::query(CLAIM).bind(format!("r:{runner}")).bind("command").bind(runner);
        Ok(claim.bind(until_ms).bind(at_ms).execute(&self.pool).await?.rows_affected())
    }

    /// The one number that a query comes to.
    pub async fn number(&self, query: &'static str) -> Result<i64, Error> {
        sqlx::query(query).fetch_one(&self.pool).await?.try_get(0)
    }

    /// Lets PostgreSQL count its rows now, so that it plans with what is there.
    pub async fn analyze(&self) -> Result<(), Error> {
        sqlx::query("ANALYZE").execute(&self.pool).await.map(drop)
    }

    /// Closes all connections.
    pub async fn close(self) {
        self.pool.close().await;
    }
}
