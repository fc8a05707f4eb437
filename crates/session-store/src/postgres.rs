//! What only PostgreSQL needs: transactions that are tried again, lanes in which appends are grouped, and the task
//! that listens for what other processes did.

use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use session_core::affinity::RunnerProfile;
use session_core::ids::ClaimId;
use session_core::ports::{Appended, Author};
use session_core::wake::{Topic, WakeHub};
use session_core::{StoreError, StoreResult};
use sqlx::postgres::PgListener;
use sqlx::{PgConnection, PgPool};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::claim::{self, AtOnce};
use crate::conn::{Arg, Conn, Sql};
use crate::error::{DatabaseError, database_error, failed};
use crate::events;
use crate::plan::Batch;
use crate::tx::{Change, Tx, apply};
use crate::writer::{GROUP_MAX, QUEUE_MAX, ended, same};

/// How many connections a store holds at the most, listener and lanes included.
pub(crate) const POOL_MAX: u32 = 16;

/// How often a transaction is tried again that another one got in the way of.
const RETRIES_MAX: u32 = 64;

/// How many groups of appends are under way at once.
const LANES: usize = 2;

/// How many changes are under way at once, their callers there or not: more than find a connection, so that none is idle, and few
/// enough that those whose callers went away do not pile up. Further ones wait with their callers.
const CHANGES_MAX: usize = 64;

/// How long changes that are under way are waited for when the store is closed. One that waits for a lock gives up before; one that
/// has to wait for several is left to itself.
pub(crate) const ENDED_BOUND: Duration = Duration::from_secs(30);

/// How long the listener waits before it connects again: at first, and at the most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

const CHANNEL: &str = "roomette";

/// For what was waited for already, in a group with others.
const WAITED: Sql = sql!("SET LOCAL lock_timeout = '1s'");

const NOTIFY: Sql =
    sql!("SELECT count(pg_notify('roomette', t)) FROM json_array_elements_text($1::json) AS t");

/// An append and who waits for it.
pub(crate) type Append = (Batch, oneshot::Sender<StoreResult<Appended>>);

/// The lanes in which appends are grouped.
#[derive(Debug, Clone)]
pub(crate) struct Lanes(Vec<mpsc::Sender<Append>>);

impl Lanes {
    /// Starts the lanes' tasks.
    pub(crate) fn start(
        pool: &PgPool,
        hub: &WakeHub,
        stop: &CancellationToken,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let start = |_| {
            let (sender, appends) = mpsc::channel(QUEUE_MAX);
            let lane = Lane { pool: pool.clone(), hub: hub.clone(), stop: stop.clone(), appends };
            (sender, tokio::spawn(lane.run()))
        };
        let (senders, tasks) = (0..LANES).map(start).unzip();
        (Self(senders), tasks)
    }

    /// Appends of one author go through one lane, so that two lanes seldom want the same session.
    pub(crate) async fn append(&self, batch: Batch) -> StoreResult<Appended> {
        let mut hash = DefaultHasher::new();
        match batch.author {
            Author::Session(id) | Author::Live(id) => id.hash(&mut hash),
            Author::Run(fence) => fence.run.hash(&mut hash),
        }
        let lane = usize::try_from(hash.finish() % self.0.len() as u64).unwrap_or_default();
        let (reply, answer) = oneshot::channel();
        let lane = self.0.get(lane).ok_or_else(ended)?;
        lane.send((batch, reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

struct Lane {
    pool: PgPool,
    hub: WakeHub,
    stop: CancellationToken,
    appends: mpsc::Receiver<Append>,
}

impl Lane {
    async fn run(mut self) {
        loop {
            let first = tokio::select! {
                biased;
                append = self.appends.recv() => append,
                () = self.stop.cancelled(), if !self.appends.is_closed() => {
                    self.appends.close();
                    continue;
                }
            };
            let Some((batch, reply)) = first else { break };
            tokio::task::yield_now().await;
            let (mut batches, mut replies) = (vec![batch], vec![reply]);
            while batches.len() < GROUP_MAX
                && let Ok((batch, reply)) = self.appends.try_recv()
            {
                batches.push(batch);
                replies.push(reply);
            }
            match appended(&self.pool, &self.hub, &batches, Waited::No).await {
                Err(error) if batches.len() > 1 && is_locked_out(&error) => {
                    self.one_by_one(batches, replies).await;
                }
                Ok(answers) => {
                    for (reply, answer) in replies.into_iter().zip(answers) {
                        drop(reply.send(answer));
                    }
                }
                Err(error) => {
                    for reply in replies {
                        drop(reply.send(Err(same(&error))));
                    }
                }
            }
        }
    }
}

impl Lane {
    /// Somebody holds one of their sessions for too long: those of the others do not wait for that.
    async fn one_by_one(&self, batches: Vec<Batch>, replies: Vec<oneshot::Sender<StoreResult<Appended>>>) {
        let mut locked_out: Vec<(Author, StoreError)> = Vec::new();
        for (batch, reply) in batches.into_iter().zip(replies) {
            if let Some((_, error)) = locked_out.iter().find(|(author, _)| *author == batch.author) {
                drop(reply.send(Err(same(error))));
                continue;
            }
            let author = batch.author;
            let answer = match appended(&self.pool, &self.hub, &[batch], Waited::Already).await {
                Ok(answers) => answers.into_iter().next().unwrap_or_else(|| Err(ended())),
                Err(error) => {
                    if is_locked_out(&error) {
                        locked_out.push((author, same(&error)));
                    }
                    Err(error)
                }
            };
            drop(reply.send(answer));
        }
    }
}

/// Whether a group's locks were waited for before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    No,
    Already,
}

async fn appended(
    pool: &PgPool,
    hub: &WakeHub,
    batches: &[Batch],
    waited: Waited,
) -> StoreResult<Vec<StoreResult<Appended>>> {
    let mut tries = 0;
    loop {
        match append_once(pool, hub, batches, waited).await {
            Err(error) if is_worth_another(&error, &mut tries) => {}
            outcome => return outcome,
        }
    }
}

async fn append_once(
    pool: &PgPool,
    hub: &WakeHub,
    batches: &[Batch],
    waited: Waited,
) -> StoreResult<Vec<StoreResult<Appended>>> {
    let mut transaction = pool.begin().await.map_err(failed)?;
    let mut tx = Tx::new(Conn::Postgres(&mut transaction));
    if waited == Waited::Already {
        tx.conn.execute(&WAITED, Vec::new()).await?;
    }
    events::lock(&mut tx, batches).await?;
    let answers = events::flush(&mut tx, batches).await?;
    let wakes = notified(tx).await?;
    transaction.commit().await.map_err(failed)?;
    wake(hub, wakes);
    Ok(answers)
}

/// Changes, each in a task of its own: it goes on when its caller goes away. A transaction that is given up while it
/// begins would stay open on its connection (sqlx counts it only from the server's answer on), and what the next one
/// writes there in a single statement would be answered for and lost.
#[derive(Debug, Clone)]
pub(crate) struct Changes {
    pool: PgPool,
    hub: WakeHub,
    tasks: TaskTracker,
    permits: Arc<Semaphore>,
}

impl Changes {
    pub(crate) fn new(pool: &PgPool, hub: &WakeHub) -> Self {
        let permits = Arc::new(Semaphore::new(CHANGES_MAX));
        Self { pool: pool.clone(), hub: hub.clone(), tasks: TaskTracker::new(), permits }
    }

    /// Waits for those that are under way, and no longer than they may take.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        if tokio::time::timeout(ENDED_BOUND, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                left = self.tasks.len(),
                "changes are still under way, and are left to themselves"
            );
        }
    }

    /// Claims a run in one statement, where that decides it.
    pub(crate) async fn claim(
        &self,
        runner: RunnerProfile,
        claim: Option<ClaimId>,
        lease: SignedDuration,
        now: Timestamp,
    ) -> StoreResult<AtOnce> {
        let Self { pool, hub, .. } = self.clone();
        self.whole(async move {
            let mut connection = pool.acquire().await.map_err(failed)?;
            let mut connection = Conn::Postgres(&mut connection);
            let outcome = claim::at_once(&mut connection, &runner, claim, lease, now).await?;
            if let AtOnce::Claimed(claimed) = &outcome {
                hub.wake(Topic::Session(claimed.session.id));
            }
            Ok(outcome)
        })
        .await
    }

    /// Makes a change in a transaction of its own.
    pub(crate) async fn change<T: Send + 'static>(&self, change: Change<T>) -> StoreResult<T> {
        let Self { pool, hub, .. } = self.clone();
        self.whole(async move {
            let mut tries = 0;
            loop {
                match change_once(&pool, &hub, &change).await {
                    Err(error) if is_worth_another(&error, &mut tries) => {}
                    outcome => return outcome,
                }
            }
        })
        .await
    }

    async fn whole<T: Send + 'static>(
        &self,
        work: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) -> StoreResult<T> {
        // Waited for by the caller, and given back by the task.
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| ended())?;
        if self.tasks.is_closed() {
            return Err(ended());
        }
        let work = async move {
            let outcome = work.await;
            drop(permit);
            outcome
        };
        match self.tasks.spawn(work).await {
            Ok(outcome) => outcome,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ended()),
            },
        }
    }
}

async fn change_once<T>(pool: &PgPool, hub: &WakeHub, change: &Change<T>) -> StoreResult<T> {
    let mut transaction = pool.begin().await.map_err(failed)?;
    match changed(&mut transaction, change).await {
        Ok((value, wakes)) => {
            transaction.commit().await.map_err(failed)?;
            wake(hub, wakes);
            Ok(value)
        }
        Err(error) => {
            // Before the answer: what it locked must not be in the way of what its caller does next.
            if let Err(error) = transaction.rollback().await.map_err(DatabaseError::from) {
                tracing::debug!(%error, "a refused change could not be rolled back; its connection is given up");
            }
            Err(error)
        }
    }
}

async fn changed<T>(connection: &mut PgConnection, change: &Change<T>) -> StoreResult<(T, Vec<Topic>)> {
    let mut tx = Tx::new(Conn::Postgres(connection));
    let value = apply(&mut tx, change).await?;
    events::flush(&mut tx, &[]).await?;
    Ok((value, notified(tx).await?))
}

/// Whether somebody else held what was needed for too long.
fn is_locked_out(error: &StoreError) -> bool {
    database_error(error).is_some_and(DatabaseError::is_lock_timeout)
}

/// Whether it failed only because another transaction came in between, and not too often yet.
fn is_worth_another(error: &StoreError, tries: &mut u32) -> bool {
    *tries += 1;
    *tries <= RETRIES_MAX && database_error(error).is_some_and(DatabaseError::is_retriable)
}

/// Tells other processes in the same transaction, so that they hear of nothing that did not happen.
async fn notified(mut tx: Tx<'_>) -> StoreResult<Vec<Topic>> {
    if !tx.wakes.is_empty() {
        let topics = Arg::list(tx.wakes.iter().map(name));
        tx.conn.execute(&NOTIFY, vec![topics]).await?;
    }
    Ok(tx.wakes)
}

fn wake(hub: &WakeHub, topics: Vec<Topic>) {
    for topic in topics {
        hub.wake(topic);
    }
}

fn name(topic: &Topic) -> String {
    match topic {
        Topic::Queue => "queue".into(),
        Topic::Runner(id) => id.to_string(),
        Topic::Session(id) => id.to_string(),
        Topic::Family => "family".into(),
        Topic::Tokens => "tokens".into(),
    }
}

fn topic(name: &str) -> Option<Topic> {
    match name.split_once('_') {
        None if name == "queue" => Some(Topic::Queue),
        None if name == "family" => Some(Topic::Family),
        None if name == "tokens" => Some(Topic::Tokens),
        Some(("rnr", _)) => name.parse().ok().map(Topic::Runner),
        Some(("ses", _)) => name.parse().ok().map(Topic::Session),
        Some(_) | None => None,
    }
}

/// Passes on what other processes did, until the store is closed. After every gap it wakes everybody.
pub(crate) async fn listen(pool: PgPool, hub: WakeHub, stop: CancellationToken) {
    let mut wait = RECONNECT.0;
    loop {
        let lost = tokio::select! {
            () = stop.cancelled() => return,
            lost = connected(&pool, &hub, &mut wait) => lost,
        };
        tracing::warn!(
            error = &lost as &dyn std::error::Error,
            "lost the connection that listens for wake-ups"
        );
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(RECONNECT.1);
    }
}

/// Listens for as long as the connection holds; returns why it does not.
async fn connected(pool: &PgPool, hub: &WakeHub, wait: &mut Duration) -> StoreError {
    let mut listener = match PgListener::connect_with(pool).await {
        Ok(listener) => listener,
        Err(error) => return failed(error),
    };
    listener.eager_reconnect(false);
    if let Err(error) = listener.listen(CHANNEL).await {
        return failed(error);
    }
    *wait = RECONNECT.0;
    // What happened before we listened was not heard.
    hub.wake_all();
    loop {
        match listener.try_recv().await {
            Ok(Some(notification)) => {
                if let Some(topic) = topic(notification.payload()) {
                    hub.wake(topic);
                }
            }
            Ok(None) => return failed(DatabaseError::plain(crate::error::Failure::Io, "connection lost")),
            Err(error) => return failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sqlx::postgres::PgConnectOptions;

    use super::*;
    use crate::connect::postgres_pool;

    #[tokio::test]
    async fn changes_whose_callers_went_away_do_not_pile_up() {
        // A server that never answers.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let pool = postgres_pool(PgConnectOptions::new().host("127.0.0.1").port(port));
        let changes = Changes::new(&pool, &WakeHub::default());
        for _ in 0..10 * CHANGES_MAX {
            let change = changes.change::<()>(Box::new(|_| Box::pin(async { Ok(()) })));
            assert!(tokio::time::timeout(Duration::ZERO, change).await.is_err(), "nobody answered");
        }
        assert_eq!(changes.tasks.len(), CHANGES_MAX);
    }

    #[test]
    fn no_lock_is_waited_for_without_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _within = runtime.enter();
        let pool = postgres_pool(PgConnectOptions::new());
        assert!(pool.connect_options().get_options().unwrap().contains("lock_timeout=10s"));
    }
}
